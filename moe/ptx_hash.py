"""One name for the kernels that finalize: the first 16 hex digits of the SHA-256 of their PTX for sm_90.

    moe/ptx_hash.py KERNELS.sm_90.ptx            prints it
    moe/ptx_hash.py --header KERNELS.sm_90.ptx   prints a C++ header that defines STOKER_KERNELS_PTX_HASH

Rows of benchmarks carry it, so that a row that was measured on other kernels than today's can be told. Other kernels of
the table do not count, nor do comments and the numbers that nvcc gives to functions in order of appearance.
"""

import hashlib
import re
import sys

ENTRY = re.compile(r"^\.visible \.entry (\w*FusedKernel\w*8Finalize\w*)\(.*?^}", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"//[^\n]*")
NUMBERED = re.compile(r"(\$L__BB|__local_depot)\d+")


def ptx_hash(text):
    kernels = {match.group(1): NUMBERED.sub(r"\1", COMMENT.sub("", match.group(0))) for match in ENTRY.finditer(text)}
    if not kernels:
        sys.exit("no kernel that finalizes was found")
    return hashlib.sha256("".join(kernels[name] for name in sorted(kernels)).encode()).hexdigest()[:16]


def self_test():
    finalize = ".visible .entry _Z11FusedKernelIN8FinalizeE(\n)\n{{\n$L__BB{}_1:\n\tadd.{} %r1; // {}\n}}\n"
    plain = ".visible .entry _Z11FusedKernelIN5PlainE(\n)\n{\n\tsub;\n}\n"
    name = ptx_hash(finalize.format(0, "s32", "here"))
    if name != ptx_hash(plain + finalize.format(1, "s32", "there")) or name == ptx_hash(finalize.format(0, "u32", "")):
        sys.exit("the hash does not tell kernels apart as it says")


def main(words):
    self_test()
    header = words[:1] == ["--header"]
    paths = [word for word in words if word.endswith(".sm_90.ptx")]
    if len(paths) != 1:
        sys.exit("one PTX file for sm_90 is needed")
    with open(paths[0], encoding="utf-8") as file:
        name = ptx_hash(file.read())
    print(f'#pragma once\n#define STOKER_KERNELS_PTX_HASH "{name}"' if header else name)


if __name__ == "__main__":
    main(sys.argv[1:])
