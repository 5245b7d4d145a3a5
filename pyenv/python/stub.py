"""Stands in the place of pip: packages are not installed here, they are asked for."""

import json
import os
import re
import sys

__version__ = "0"

# Options whose value is an argument of its own.
WITH_VALUE = frozenset("""
-b -c -C -d -e -f -i -p -r -t -w --abi --build --build-constraint --cache-dir --cert --client-cert --config-settings
--constraint --default-index --editable --exclude-newer --extra-index-url --find-links --from --global-option --implementation
--index --index-strategy --index-url --keyring-provider --log --no-binary --only-binary --platform --prefix --progress-bar
--proxy --python --python-version --report --requirement --resolution --retries --root --src --target --timeout
--trusted-host --upgrade-strategy --use-deprecated --use-feature --with-requirements
""".split())
GROUPS = ("pip", "tool")
# Commands that ask for no package.
OTHER = frozenset("""
cache check completion config debug freeze hash help index init inspect list python remove search self show tree uninstall venv
""".split())
REQUIREMENT = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\s*(?:\[[A-Za-z0-9._,\s-]*\])?"
    r"\s*(?:(?:===|==|~=|!=|<=|>=|<|>)\s*[A-Za-z0-9._*+!-]+\s*(?:,\s*|$))*")
FILES = (".cfg", ".gz", ".py", ".toml", ".txt", ".whl", ".zip")
MOST = 20  # packages in one request


def is_requirement(text):
    return len(text) <= 200 and not text.lower().endswith(FILES) and REQUIREMENT.fullmatch(text) is not None


def read(file):
    """The requirements in a file, as far as they are plain ones."""
    try:
        with open(file, encoding="utf-8", errors="replace") as f:
            lines = f.read(1 << 16).splitlines()
    except (OSError, ValueError):
        return []
    return [line for line in (re.split(r"(?:^|\s)#|;", l)[0].strip() for l in lines) if line]


def words_of(args):
    """The arguments without options, and what files of requirements name."""
    words, named, args = [], [], iter(args)
    for arg in args:
        option, _, value = arg.partition("=")
        if not arg.startswith("-"):
            words.append(arg)
        elif option in WITH_VALUE:
            value = value or next(args, "")
            if option in ("-r", "--requirement"):
                named += read(value)
        elif arg.startswith("-r"):
            named += read(arg[2:])
    return words, named


def call(program, args):
    """The call of python_env that does what a command line asks for."""
    words, named = words_of(args)
    while words and words[0] in GROUPS:
        words.pop(0)
    if program == "uvx":
        words[1:] = []
    elif program != "ensurepip":
        if not words or words.pop(0) in OTHER:
            return {"action": "status"}
    packages = list(dict.fromkeys(p for p in words + named if is_requirement(p)))
    return {"action": "request", "packages": packages[:MOST] or ["NAME"]}


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def there(packages):
    """A line for each of the packages that is installed, whatever version is asked for."""
    try:
        from importlib import metadata
        modules = {}
        for module, names in metadata.packages_distributions().items():
            for name in names:
                modules.setdefault(normal(name), set()).add(module)
        wanted = {normal(re.match(r"[A-Za-z0-9._-]*", p).group()) for p in packages}
        for name in sorted(wanted & modules.keys()):
            yield f"{name} {metadata.version(name)} is installed already: import {', '.join(sorted(modules[name]))}\n"
    except Exception:  # of metadata that is damaged; it is only an addition
        return


def main(args=None):
    args = sys.argv[1:] if args is None else list(args)
    program = __name__ if __name__ != "__main__" else os.path.basename(sys.argv[0])
    what = call(program, args)
    text = json.dumps(what, separators=(",", ":"), ensure_ascii=False)
    sys.stderr.write("pip is disabled here: no network, read-only layers. Call the python_env tool: " + text + "\n")
    sys.stderr.writelines(there(what.get("packages", ())))
    return 1


bootstrap = main

if __name__ == "__main__":
    sys.exit(main())
