"""Asks Python's `packaging` for the tags of some targets: one line each, in order.

    python3 oracle.py            # writes the .txt files beside it

Written with packaging 26.4. The platforms of glibc and musl are given by hand,
as packaging only tells those of the machine that it runs on.
"""
import pathlib

from packaging.tags import compatible_tags, cpython_tags

def manylinux(minor, arch):
    legacy = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    for m in range(minor, 4 if arch == "x86_64" else 16, -1):
        yield f"manylinux_2_{m}_{arch}"
        if m in legacy:
            yield f"{legacy[m]}_{arch}"
    yield f"linux_{arch}"

def musllinux(minor, arch):
    for m in range(minor, -1, -1):
        yield f"musllinux_1_{m}_{arch}"
    yield f"linux_{arch}"

for name, minor, platforms in [
    ("cp312-glibc236-x86_64", 12, list(manylinux(36, "x86_64"))),
    ("cp311-glibc217-aarch64", 11, list(manylinux(17, "aarch64"))),
    ("cp313-musl12-x86_64", 13, list(musllinux(2, "x86_64"))),
]:
    tags = [*cpython_tags((3, minor), platforms=platforms), *compatible_tags((3, minor), interpreter=f"cp3{minor}", platforms=platforms)]
    pathlib.Path(__file__).with_name(name + ".txt").write_text("".join(f"{t}\n" for t in tags))
