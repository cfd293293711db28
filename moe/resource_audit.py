"""Registers and spills of every shipped kernel, from what ptxas says.

    moe/resource_audit.py RESOURCES.txt      exit status 1 and a line for every kernel over its limit

64 registers are part of the protocol (moe/kernel_entry.cuh). A spill in the kernels of small launches costs a
microsecond: ptxas then has two rows of a token in flight instead of eight (docs/decisions/launch_shape.md).
"""

import re
import sys

KERNEL = re.compile(r"Compiling entry function '(\S+)' for 'sm_90'(.*?)Used (\d+) registers", re.DOTALL)
SPILLS = re.compile(r"(\d+) bytes spill stores")
NAME = re.compile(r"(Finalize|Plain|Reduction|AllReduce)(?:E|KernelI)\w*?(OneShot|TwoShot|Nccl)E\w*?(?:Bf16|Fp16)E"
                  r"Li(\d+)ELi(\d+)E")
MOST_REGISTERS = 64
# Eight rows are in flight, so nothing may be spilled.
LOCAL = re.compile(r"LocalFinalizeKernel")
# With fewer the eight rows and their eight sums cannot be held at once.
FEWEST_LOCAL_REGISTERS = 48


def most_spills(producer, exchange, ranks, vectors):
    """Bytes stored. What is allowed is what there is today where nothing better was found."""
    if ranks <= 4 and (vectors == 1 or (vectors == 2 and exchange != "TwoShot")):
        # Of the reduction the last token of a cluster, stored before the grid dependency; its rows are all in flight.
        return 16 if producer == "Reduction" else 0
    if vectors == 4:  # only for rows that fit no other shape
        return 2000
    return 64 if vectors == 1 else 400


def breaches(text):
    found, count = [], 0
    for name, between, registers in KERNEL.findall(text):
        match = NAME.search(name)
        if LOCAL.search(name):
            limit, what = 0, "local finalize"
        elif match:
            producer, exchange = match.group(1), match.group(2)
            ranks, vectors = int(match.group(3)), int(match.group(4))
            limit = most_spills(producer, exchange, ranks, vectors)
            what = f"{producer}, {exchange}, {ranks} ranks, {vectors} vectors"
        else:
            continue
        count += 1
        spills = SPILLS.search(between)
        spilled = int(spills.group(1)) if spills else 0
        if spilled > limit:
            found.append(f"{what}: {spilled} bytes are spilled; at most {limit}")
        if LOCAL.search(name) and int(registers) < FEWEST_LOCAL_REGISTERS:
            found.append(f"{what}: {registers} registers; at least {FEWEST_LOCAL_REGISTERS} for eight rows in flight")
        if int(registers) > MOST_REGISTERS:
            found.append(f"{what}: {registers} registers; at most {MOST_REGISTERS}")
    return found, count


def self_test():
    name = "_Z11FusedKernelINS0_8FinalizeENS_4comm7OneShotENS3_4Bf16ELi4ELi1EE"
    entry = (f"Compiling entry function '{name}' for 'sm_90'\n"
             "  48 bytes stack frame, {} bytes spill stores, 8 bytes spill loads\nptxas info : Used {} registers\n")
    good, spilled, fat = (breaches(entry.format(*numbers))[0] for numbers in ((0, 64), (92, 64), (0, 72)))
    return [] if not good and spilled and fat else ["the audit does not find what it looks for"]


def main(words):
    with open(words[0], encoding="utf-8") as file:
        found, count = breaches(file.read())
    found += self_test()
    for line in found:
        print(line)
    print(f"{count} kernels, {len(found)} breaches")
    return 1 if found or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
