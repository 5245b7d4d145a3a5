"""Asks Python's `packaging` what the tests of this package expect.

    python3 oracle.py > oracle.json

Written with packaging 26.4. Inputs are listed or made here by a fixed seed.
"""
import json
import random

from packaging.markers import Marker, UndefinedComparison
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

rnd = random.Random(440)

VERSIONS = """1.0.dev456 1.0a1 1.0a2.dev456 1.0a12.dev456 1.0a12 1.0b1.dev456 1.0b2 1.0b2.post345.dev456 1.0b2.post345
1.0b2-346 1.0c1.dev456 1.0c1 1.0rc2 1.0c3 1.0 1.0.post456.dev34 1.0.post456 1.1.dev1 1.2+123abc 1.2+123abc456 1.2+abc
1.2+abc123 1.2+abc123def 1.2+1234.abc 1.2+123456 1.2.r32+123456 1.2.rev33+123456 1!1.0.dev456 1!1.0a1 1!1.0 1!1.2.post1
v1.0 V1.0 1.0-alpha 1.0.ALPHA1 1.0_b.2 1.0preview3 1.0-post 1.0.r4 1.0-r4 1.0-4 1.0.DEV 1.0dev-3 1.0+ubuntu-1 1.0+UBUNTU_01
2012.4 2012.10 2012.01.02 0.0.0 0 00001.2 1.0.0.0 1.0.0.0.1 3.10.0rc1 3.0.0.dev0 1.0+a.1 1.0+1.a 1.0+a 1.0+1 1.0+01
1 1.1 2 2.0.1 2.0a1 2.0.dev1 2.0.post1 2.0+local 1.0+local 1.0.post1+x""".split()
BAD_VERSIONS = ["", "french toast", "1.0+a+", "1.0++", "1.0+_foobar", "1.0+foo&asd", "1.0+1+1", "1..0", ".1", "1.", "1.0.x",
    "1!", "!1", "1.0-", "1.0a1b1", "1.0.dev1.post1", "=1.0", "1.0 beta x", "٣.1", "1.0+é", "1,0", "1.0.*", "v", "1.0rc1.2"]
OPS = ["==", "!=", "<=", ">=", "<", ">", "~=", "==="]

def version(v):
    try:
        return str(Version(v))
    except InvalidVersion:
        return None

def specifier_cases():
    out, seen = [], set()
    def add(spec, v):
        if (spec, v) in seen:
            return
        seen.add((spec, v))
        try:
            s = SpecifierSet(spec)
            out.append([spec, v, s.contains(Version(v), prereleases=True), bool(s.prereleases)])
        except InvalidSpecifier:
            out.append([spec, v, None, False])
    for op in OPS:
        for spec in VERSIONS:
            for v in rnd.sample(VERSIONS, 4) + [spec]:
                add(op + spec, v)
    for op in ["==", "!=", "~=", ">="]:
        for prefix in ["1", "1.0", "1.0.0", "1.0.0.0.0", "2", "2.0", "1!1", "1!1.0", "0", "1.2", "1.0a1", "1.0.dev1", "1.0+x", "1.0.post1"]:
            for v in rnd.sample(VERSIONS, 6) + ["1!1.0", "1", "1.0rc2", "2"]:
                add(op + prefix + ".*", v)
    for _ in range(400):
        n = rnd.choice([2, 2, 3])
        add(",".join(rnd.choice(["", " "]) + rnd.choice(OPS[:7]) + rnd.choice(VERSIONS) for _ in range(n)), rnd.choice(VERSIONS))
    for bad in ["1.0", "=1.0", ">= ", "=>1", "<>1", ">=1.0 <2", "~=1", ">=1||<2", "*", "==*", ">=1.0,", "== 1.0", ">=1.0+x", "===1.0+x"]:
        add(bad, "1.0")
    return out

REQUIREMENTS = ["requests", "Requests[security,Tests] >= 2.8.1, == 2.8.* ; python_version < \"2.7\"", "pip @ https://example.org/pip.zip",
    "name@http://foo.example", "name [fred,bar] @ http://foo.example ; python_version=='2.7'", "name[quux, strange];python_version<'2.7' and platform_version=='2'",
    "name; os_name=='a' or os_name=='b'", "name; os_name=='a' and os_name=='b' or os_name=='c'", "name; os_name=='a' and (os_name=='b' or os_name=='c')",
    "A", "A.B-C_D", "aa", "name>=3", "name>=3,<2", "name (>=3)", "name(>=3,<4)", "name (==1.0) ; extra == 'x'", "name []", "name[]", "name[a]>1",
    "", " ", "-name", "name-", ".name", "name[", "name[a", "name[a,]", "name[,a]", "name[a b]", "name ==", "name = 1", "name 1.0", "name >1 <2", "name (>1",
    "name >1)", "name @", "name @ url extra", "name ; ", "name ; bogus == 'x'", "name ; python_version", "name ; python_version ~ '1'", "name ; python_version == 3",
    "name; 'x' == 'y' and", "name; (os_name == 'a'", "name; os_name == 'a')", "naïve", "name>=1.0.*", "name==1.0.*", "name !=1", "name===weird!x", "name;extra=='A_B'",
    "a/b", "./x.whl", "git+https://example.org/x", "https://example.org/x.whl", "x==1 --hash=sha256:00", "x\n", "x\ny", "x\x00", "x==1\u2028", "x,y", "x >=1,"]

def requirement(text):
    try:
        r = Requirement(text)
    except InvalidRequirement:
        return None
    return {"name": canonicalize_name(r.name), "extras": sorted(canonicalize_name(e) for e in r.extras), "spec": ",".join(sorted(str(s) for s in r.specifier)),
            "url": r.url or "", "marker": r.marker is not None}

ENV = {"implementation_name": "cpython", "implementation_version": "3.12.14", "os_name": "posix", "platform_machine": "x86_64",
    "platform_python_implementation": "CPython", "platform_release": "", "platform_system": "Linux", "platform_version": "",
    "python_full_version": "3.12.14", "python_version": "3.12", "sys_platform": "linux"}
ATOMS = ["python_version < '3.9'", "python_version >= '3.9'", "python_version == '3.12'", "python_version == '3.12.*'", "python_version ~= '3.10'",
    "python_version in '3.11 3.12'", "python_version not in '3.11 3.12'", "'3.10' <= python_version", "'3.13' < python_version", "python_full_version >= '3.12.0rc1'",
    "python_full_version < '3.12.14'", "implementation_version > '3.12'", "sys_platform == 'win32'", "sys_platform != 'win32'", "'linux' in sys_platform",
    "sys_platform >= 'linux'", "sys_platform > 'a'", "platform_system == 'Linux'", "platform_machine == 'aarch64'", "platform_machine == \"x86_64\"", "os_name == 'posix'",
    "os.name == 'nt'", "platform_python_implementation == 'CPython'", "python_implementation != 'PyPy'", "implementation_name == 'cpython'", "extra == 'test'",
    "extra == 'My_Extra'", "extra != 'test'", "platform_release >= '5'", "platform_version == ''", "python_version >= 'x'", "python_version === '3.12'"]

def random_marker(depth):
    if depth == 0 or rnd.random() < 0.3:
        return rnd.choice(ATOMS)
    parts = [random_marker(depth - 1) for _ in range(rnd.choice([2, 2, 3]))]
    text = parts[0]
    for p in parts[1:]:
        text += rnd.choice([" and ", " or "]) + p
    return "(" + text + ")" if rnd.random() < 0.5 else text

def marker(text, extras):
    try:
        return any(Marker(text).evaluate({**ENV, "extra": e}) for e in ["", *extras])
    except UndefinedComparison:
        return None

markers = []
for text in ATOMS + ["sys_platform ~= 'x'"] + [random_marker(3) for _ in range(200)]:
    for extras in [[], ["test"], ["my.extra", "other"]]:
        markers.append([text, extras, marker(text, extras)])

print("{")
print(' "versions":', json.dumps({v: version(v) for v in VERSIONS + BAD_VERSIONS}), ",")
print(' "order":', json.dumps([sorted({str(Version(v)) for v in VERSIONS}, key=Version)][0]), ",")
print(' "specifiers":', "[\n  " + ",\n  ".join(json.dumps(c) for c in specifier_cases()) + "\n ],")
print(' "requirements":', "[\n  " + ",\n  ".join(json.dumps([r, requirement(r)]) for r in REQUIREMENTS) + "\n ],")
print(' "markers":', "[\n  " + ",\n  ".join(json.dumps(m) for m in markers) + "\n ]")
print("}")
