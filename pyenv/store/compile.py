"""Compiles every source below a directory: compile.py ROOT SHOWN.

The bytecode says that the sources are in SHOWN. It is the same whoever makes it,
and the loader takes it without looking at its source (PEP 552).
"""
import errno
import os
import py_compile
import sys
import warnings

# Whether a name in bytecode is marked as used again depends on the modules that
# are loaded. What a source can make the compiler load has to be there before.
import linecache, tokenize, traceback, tracemalloc  # noqa: E401,F401

warnings.simplefilter("ignore")

UNCHECKED = py_compile.PycInvalidationMode.UNCHECKED_HASH
# What the name of the source makes impossible is not missed: it has no bytecode.
IMPOSSIBLE = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST)


def sources(root):
    """All of them, largest first, so that two workers end at about one time."""
    found = []
    for where, dirs, files in os.walk(root):
        dirs[:] = [d for d in dirs if d != "__pycache__"]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(where, name)
                found.append((-os.path.getsize(path), path))
    return [path for _, path in sorted(found)]


def compile_all(paths, root, shown):
    for path in paths:
        try:
            # Silent about what is no Python 3: templates, tests of other versions.
            py_compile.compile(path, dfile=shown + path[len(root):], quiet=2, invalidation_mode=UNCHECKED)
        except OSError as e:
            if e.errno not in IMPOSSIBLE:
                raise


def main():
    root, shown = sys.argv[1:]
    paths = sources(root)
    worker = os.fork()
    if worker == 0:
        status = 1
        try:
            compile_all(paths[1::2], root, shown)
            status = 0
        finally:
            os._exit(status)
    compile_all(paths[0::2], root, shown)
    sys.exit(1 if os.waitpid(worker, 0)[1] else 0)


main()
