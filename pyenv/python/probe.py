import importlib, json, os, platform, re, site, subprocess, sys


def libc():
    try:
        name, _, version = os.confstr("CS_GNU_LIBC_VERSION").partition(" ")
        return name, version
    except (AttributeError, OSError, ValueError):
        pass
    for loader in sorted(os.listdir("/lib")):
        if loader.startswith("ld-musl-"):
            told = subprocess.run(["/lib/" + loader], stderr=subprocess.PIPE, text=True).stderr
            return "musl", re.search(r"Version (\d+\.\d+)", told).group(1)
    return "", ""


def lacks(name):
    try:
        importlib.import_module(name)
    except ImportError:
        return True


with open("/proc/self/maps") as f:
    mapped = sorted({line.split(None, 5)[5].rstrip("\n") for line in f if line.count("/")})
version = "%d.%d.%d" % sys.version_info[:3]
if sys.version_info.releaselevel != "final":
    version += {"alpha": "a", "beta": "b", "candidate": "rc"}[sys.version_info.releaselevel] + str(sys.version_info.serial)
print(json.dumps({
    "nonce": sys.argv[1],
    "implementation": sys.implementation.name,
    "version": version,
    "flags": getattr(sys, "abiflags", ""),
    "bits": 64 if sys.maxsize > 2**32 else 32,
    "machine": platform.machine(),
    "libc": libc(),
    "executable": sys.executable,
    "prefix": sys.prefix,
    "path": sys.path,
    "site": site.getsitepackages(),
    "stdlib": sorted(sys.stdlib_module_names),
    "mapped": mapped,
    "missing": [name for name in sys.argv[2].split(",") if lacks(name)],
}))
