"""One name for the shipped kernels: the first 16 hex digits of the SHA-256 of their PTX for sm_90, comments left out.

    moe/ptx_hash.py KERNELS.sm_90.ptx            prints it
    moe/ptx_hash.py --header KERNELS.sm_90.ptx   prints a C++ header that defines STOKER_KERNELS_PTX_HASH

Rows of benchmarks carry it, so that a row that was measured on other kernels than today's can be told.
"""

import hashlib
import re
import sys


def ptx_hash(text):
    return hashlib.sha256(re.sub(r"//[^\n]*", "", text).encode()).hexdigest()[:16]


def main(words):
    header = words[:1] == ["--header"]
    paths = [word for word in words if word.endswith(".sm_90.ptx")]
    if len(paths) != 1:
        sys.exit("one PTX file for sm_90 is needed")
    with open(paths[0], encoding="utf-8") as file:
        name = ptx_hash(file.read())
    print(f'#pragma once\n#define STOKER_KERNELS_PTX_HASH "{name}"' if header else name)


if __name__ == "__main__":
    main(sys.argv[1:])
