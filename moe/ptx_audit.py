"""What must and must not be in the PTX of every shipped kernel.

    moe/ptx_audit.py FILE.ptx ...        exit status 1 and a line for every breach
    moe/ptx_audit.py --self-test FILE    spoils the file in every way that is looked for, and wants each to be found

The simulator and the CPU ranks run the same body; what nvcc makes of it is seen here.
"""

import re
import sys

ENTRY = re.compile(r"^\.visible \.entry (\S+?)\(", re.MULTILINE)
# Names are mangled: ...FusedKernelINS0_8FinalizeENS_4comm7OneShotENS2_4Bf16ELi4ELi1EE...
# or ...AllReduceKernelINS_4comm7OneShotENS2_4Bf16ELi4ELi1EE...
NAME = re.compile(r"(Finalize|Plain|Reduction|AllReduce)(?:E|KernelI)\w*?(OneShot|TwoShot|Nccl)E\w*?(Bf16|Fp16)E"
                  r"Li(\d+)ELi(\d+)E")
# Not part of the table, without an exchange.
LOCAL = re.compile(r"LocalFinalizeKernel\w*?(Bf16|Fp16)E")

FORBIDDEN = [
    (r"\b(rsqrt|sqrt|rcp|div|ex2|lg2|sin|cos)\.approx", "an approximate function"),
    (r"\bdiv\.full", "an approximate division"),
    (r"\.ftz\b", "flush to zero"),
    (r"\b(ld|st)\.volatile(?!\.shared)", "a volatile access to global memory, whose order no contract states"),
    (r"\bmad\.\w+\.f32|\bfma\.rz|\bfma\.rm|\bfma\.rp", "a multiply-add that is not fma.rn"),
    (r"\bbar\.red|\bvote\.all|\bshfl\.up", "an instruction that no file of ours uses"),
]


def entries(text):
    """(name, body) of every kernel in a PTX file."""
    starts = [m.start() for m in ENTRY.finditer(text)]
    for start, end in zip(starts, starts[1:] + [len(text)]):
        yield ENTRY.match(text, start).group(1), text[start:end]


def expected_route_fmas(producer, vectors):
    """Rows in chunks of eight (four for several vectors); the first chunk of routes is code of its own."""
    rows = 8 if vectors == 1 else 4
    return {"Finalize": 2, "Reduction": 1, "Plain": 0}[producer] * rows * 8 * vectors


def expected_fmas(producer, vectors):
    """The routes, the squares, and the mean's one. A plain all-reduce has none of them."""
    if producer == "AllReduce":
        return 0
    return expected_route_fmas(producer, vectors) + 8 * vectors + 1


def breaches(name, body, programmatic):
    """What every kernel must keep, then what its kind must."""
    found = []
    for pattern, what in FORBIDDEN:
        if re.search(pattern, body):
            found.append(f"{name}: {what}")
    wait = body.find("griddepcontrol.wait")
    if not programmatic:
        if re.search(r"griddepcontrol|\.cluster\b|\bmapa\b", body):
            found.append(f"{name}: a cluster or a programmatic launch, which GPUs before sm_90 do not have")
    elif wait < 0:
        found.append(f"{name}: no griddepcontrol.wait")
    else:
        early = re.search(r"\b(ld\.(relaxed|global|acquire)\S*|atom\.\S+|st\.(relaxed|global|release)\S*)", body[:wait])
        if early:
            found.append(f"{name}: {early.group(1)} before griddepcontrol.wait")
    if LOCAL.search(name):
        return found + local_breaches(name, body)
    match = NAME.search(name)
    if not match:
        return found + [f"{name}: a kernel whose name says no producer"]
    return found + fused_breaches(name, body, match)


def count_breaches(name, body, fmas, outputs):
    found = []
    there = len(re.findall(r"\bfma\.rn\.f32", body))
    if there != fmas:
        found.append(f"{name}: {there} fma.rn.f32; the contract has {fmas}")
    weak = len(re.findall(r"\bst\.global\.v4\.u32", body))
    if weak != outputs:
        found.append(f"{name}: {weak} weak vector stores; {outputs} outputs are written")
    return found


def local_breaches(name, body):
    found = count_breaches(name, body, expected_route_fmas("Finalize", 1), 1)
    if re.search(r"\.sys\b|\batom\.|\bred\.", body):
        found.append(f"{name}: an access to memory that others share")
    return found


def fused_breaches(name, body, match):
    producer, exchange, ranks, vectors = match.group(1), match.group(2), int(match.group(4)), int(match.group(5))
    # Outputs: two a vector, of tokens that this rank sums and of those that others do, and two of the NaN fill.
    # Anything more would be a mailbox store gone weak.
    # A plain all-reduce has one output.
    outputs = (1 if producer == "AllReduce" else 2) * (vectors * (2 if exchange == "TwoShot" else 1) + 1)
    found = count_breaches(name, body, expected_fmas(producer, vectors), outputs)
    if ranks > 1 and exchange != "Nccl":
        pushes = len(re.findall(r"st\.relaxed\.sys\.global\.v4\.u32", body))
        # Pushes to the peers and re-arming of what they pushed.
        if pushes < 2 * (ranks - 1) * vectors:
            found.append(f"{name}: {pushes} mailbox stores at system scope; {2 * (ranks - 1) * vectors} are needed")
        if not re.search(r"ld\.relaxed\.sys\.global\.v4\.u32", body):
            found.append(f"{name}: no mailbox load at system scope")
    if not re.search(r"atom\.release\.gpu\.global\.add", body):
        found.append(f"{name}: the ticket is not a release")
    if re.search(r"barrier\.cluster\.arrive(?!\.relaxed)", body):
        found.append(f"{name}: a cluster barrier that waits for the stores to the peers")
    return found


def audit(text):
    found, count = [], 0
    target = re.search(r"^\.target sm_(\d+)", text, re.MULTILINE)
    programmatic = target is None or int(target.group(1)) >= 90
    for name, body in entries(text):
        count += 1
        found += breaches(name, body, programmatic)
    if count == 0:
        found.append("no kernel in the file")
    return found, count


def self_test(text):
    """Each spoiling of the first kernels must be found. Two hold all that is spoilt."""
    third = [m.start() for m in ENTRY.finditer(text)][2:3]
    text = text[:third[0]] if third else text
    spoilings = {
        "approximate root": lambda t: t.replace("sqrt.rn.f32", "sqrt.approx.f32", 1),
        "flush to zero": lambda t: t.replace("add.rn.f32", "add.rn.ftz.f32", 1),
        "fma too many": lambda t: re.sub(r"\bmul(\.rn)?\.f32", "fma.rn.f32", t, count=1),
        "weak mailbox store": lambda t: t.replace("st.relaxed.sys.global.v4.u32", "st.global.v4.u32", 1),
        "volatile poll": lambda t: t.replace("ld.relaxed.sys.global.v4.u32", "ld.volatile.global.v4.u32"),
        "load before the wait": lambda t: t.replace("griddepcontrol.wait;",
                                                    "ld.global.u32 %r1, [%rd1]; griddepcontrol.wait;", 1),
        "no wait": lambda t: t.replace("griddepcontrol.wait", "griddepcontrol.nothing"),
        "cluster barrier with release": lambda t: t.replace("cluster.arrive.relaxed", "cluster.arrive.release"),
        "weak ticket": lambda t: t.replace("atom.release.gpu.global.add", "atom.relaxed.gpu.global.add"),
    }
    if "griddepcontrol.wait" not in text:  # below sm_90
        del spoilings["load before the wait"], spoilings["no wait"], spoilings["cluster barrier with release"]
        spoilings["programmatic launch before sm_90"] = lambda t: t.replace("ret;", "griddepcontrol.wait; ret;", 1)
    if LOCAL.search(text):  # without an exchange, a reduction or a residual
        keep = ("fma too many", "load before the wait", "no wait")
        spoilings = {name: spoil for name, spoil in spoilings.items() if name in keep}
        spoilings["output at system scope"] = lambda t: t.replace("st.global.v4.u32", "st.relaxed.sys.global.v4.u32")
    if "AllReduceKernel" in text:  # without a norm
        del spoilings["approximate root"], spoilings["fma too many"]
        spoilings.pop("flush to zero")  # of the first two, which sum one rank
    if re.search(r"PlainE\w*?NcclE", text):  # without mailboxes
        del spoilings["weak mailbox store"], spoilings["volatile poll"]
    missed = [name for name, spoil in spoilings.items() if spoil(text) == text or not audit(spoil(text))[0]]
    return [f"the spoiling \"{name}\" was not found" for name in missed]


def main(arguments):
    check_itself = arguments[:1] == ["--self-test"]
    found, total = [], 0
    for path in arguments[1:] if check_itself else arguments:
        text = open(path, encoding="utf-8").read()
        here, count = audit(text)
        found += here
        total += count
        if check_itself:
            found += self_test(text)
    for line in found:
        print(line)
    print(f"{total} kernels, {len(found)} breaches")
    return 1 if found or total == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
