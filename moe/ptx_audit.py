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

# Jumps to labels of nvcc; those inside an instruction of ours (`again:`) only go back.
LABEL = re.compile(r"^\s*(\$\w+):")
JUMP = re.compile(r"^\s*(@!?%p\d+\s+)?bra(?:\.uni)?\s+(\$\w+);")
LEAVE = re.compile(r"^\s*(?:ret|exit|trap);")
# Parameters are no memory that another kernel writes, shared memory is the CTA's own.
EARLY = re.compile(r"\b(?:ldu?|st|atom|red|prefetchu?|cp|tex|suld|sust)\.(?!param|(?:volatile\.)?shared)\S+")

FORBIDDEN = [
    (r"\b(rsqrt|sqrt|rcp|div|ex2|lg2|sin|cos)\.approx", "an approximate function"),
    (r"\bdiv\.full", "an approximate division"),
    (r"\.ftz\b", "flush to zero"),
    (r"\b(ld|st)\.volatile(?!\.shared)", "a volatile access to global memory, whose order no contract states"),
    (r"\bmad\.\w+\.f32|\bfma\.rz|\bfma\.rm|\bfma\.rp", "a multiply-add that is not fma.rn"),
    (r"\b(ld|st)\.(relaxed|acquire|release)\.(gpu|cta|cluster)\b", "an access that peers do not see"),
    (r"\bld\.global\.\w*64|\bst\.global\.(?!v4)", "a weak access where only inputs and rows of outputs may be weak"),
    (r"\b(ld|st|atom|red)\.(v\d\.)?[busf]\d+\b", "an access that does not say to which memory"),
    (r"\bbrx\.idx|\bcall\b", "a jump that this audit does not follow"),
    (r"\bbar\.red|\bvote\.all|\bshfl\.up", "an instruction that no file of ours uses"),
]


def entries(text):
    """(name, body) of every kernel in a PTX file."""
    starts = [m.start() for m in ENTRY.finditer(text)]
    for start, end in zip(starts, starts[1:] + [len(text)]):
        yield ENTRY.match(text, start).group(1), text[start:end]


def without_wait(body):
    """The lines that a thread can reach on a way without griddepcontrol.wait."""
    lines = body.splitlines()
    places = {match.group(1): at for at, match in enumerate(map(LABEL.match, lines)) if match}
    reached, starts = set(), [0]
    while starts:
        at = starts.pop()
        while at < len(lines) and at not in reached:
            reached.add(at)
            if "griddepcontrol.wait" in lines[at] or LEAVE.match(lines[at]):
                break
            jump = JUMP.match(lines[at])
            if jump:
                starts.append(places[jump.group(2)])
                if not jump.group(1):
                    break
            at += 1
    return [lines[at] for at in sorted(reached)]


def dependency_breaches(name, body):
    """Whatever way a thread takes, it waits before it reads or writes what another kernel may, and before it ends."""
    found = []
    lines = without_wait(body)
    for access in sorted({match.group(0) for match in map(EARLY.search, lines) if match}):
        found.append(f"{name}: {access} before griddepcontrol.wait")
    if any(map(LEAVE.match, lines)):
        found.append(f"{name}: a way to its end without griddepcontrol.wait")
    return found


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
    if programmatic:
        found += dependency_breaches(name, body)
    elif re.search(r"griddepcontrol|\.cluster\b|\bmapa\b", body):
        found.append(f"{name}: a cluster or a programmatic launch, which GPUs before sm_90 do not have")
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
    found += mailbox_breaches(name, body, producer, exchange, ranks, vectors)
    if not re.search(r"atom\.release\.gpu\.global\.add", body):
        found.append(f"{name}: the ticket is not a release")
    if re.search(r"barrier\.cluster\.arrive(?!\.relaxed)", body):
        found.append(f"{name}: a cluster barrier that waits for the stores to the peers")
    return found


def mailbox_breaches(name, body, producer, exchange, ranks, vectors):
    """Weak stores are counted and weak accesses of 64 bits forbidden already: here that nothing else has gone weak."""
    found = []
    # Polls, and looks at the words of a packet that is not whole yet.
    polls = len(re.findall(r"\bld\.relaxed\.sys\.global\.v4\.u32", body))
    wanted = {"OneShot": 8, "TwoShot": 25, "Nccl": 0}[exchange] * vectors
    if polls != wanted:
        found.append(f"{name}: {polls} mailbox loads at system scope; {wanted} are written")
    # Indices and weights, or scales.
    words = len(re.findall(r"\bld\.global\.u32", body))
    inputs = {"Finalize": 5, "Reduction": 2 * vectors + 1}.get(producer, 0)
    if words != inputs:
        found.append(f"{name}: {words} weak loads of a word; {inputs} inputs are read")
    if ranks > 1 and exchange != "Nccl":
        # Pushes to the peers, re-arming of what they pushed, and of what this rank keeps for itself.
        pushes = len(re.findall(r"\bst\.relaxed\.sys\.global\.v4\.u32", body))
        least = (2 * ranks + (1 if exchange == "TwoShot" else -1)) * vectors
        if pushes < least:
            found.append(f"{name}: {pushes} mailbox stores at system scope; {least} are needed")
        for access in ("ld", "st"):
            if len(re.findall(rf"\b{access}\.relaxed\.sys\.global\.u64", body)) < 2:
                found.append(f"{name}: not both words of the header by a {access} at system scope")
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
    def first(there, instead):
        return lambda t: t.replace(there, instead, 1)

    wait = "griddepcontrol.wait;"
    of_waits = {
        "load before the wait": first(wait, f"ld.global.u32 %r1, [%rd1];\n\t{wait}"),
        "load on a way around the wait": first(wait, f"\n\t@%p1 bra $L_around;\n\t{wait}\n$L_around:\n"),
        "an end without the wait": first(wait, f"\n\t@!%p1 bra $L_on;\n\tret;\n$L_on:\n\t{wait}"),
        "no wait": lambda t: t.replace("griddepcontrol.wait", "griddepcontrol.nothing"),
    }
    of_mailboxes = {
        "weak mailbox store": first("st.relaxed.sys.global.v4.u32", "st.global.v4.u32"),
        "weak mailbox load": first("ld.relaxed.sys.global.v4.u32", "ld.global.v4.u32"),
        "mailbox load within the GPU": first("ld.relaxed.sys.global.v4.u32", "ld.relaxed.gpu.global.v4.u32"),
        "volatile poll": lambda t: t.replace("ld.relaxed.sys.global.v4.u32", "ld.volatile.global.v4.u32"),
    }
    of_norms = {
        "approximate root": first("sqrt.rn.f32", "sqrt.approx.f32"),
        "fma too many": lambda t: re.sub(r"\bmul(\.rn)?\.f32", "fma.rn.f32", t, count=1),
    }
    spoilings = {
        "flush to zero": first("add.rn.f32", "add.rn.ftz.f32"),
        "access without a state space": first("ld.global.v4.u32", "ld.v4.u32"),
        "weak store of half a header": first("st.relaxed.sys.global.u64", "st.global.u64"),
        "weak load of half a header": first("ld.relaxed.sys.global.u64", "ld.global.u64"),
        "weak store of a word": first("st.relaxed.sys.global.u32", "st.global.u32"),
        "weak load of a word": first("ld.relaxed.sys.global.u32", "ld.global.u32"),
        "weak ticket": lambda t: t.replace("atom.release.gpu.global.add", "atom.relaxed.gpu.global.add"),
    }
    if "griddepcontrol.wait" in text:
        spoilings["cluster barrier with release"] = lambda t: t.replace("arrive.relaxed", "arrive.release")
        spoilings.update(of_waits)
    else:  # below sm_90
        spoilings["programmatic launch before sm_90"] = first("ret;", "griddepcontrol.wait; ret;")
    if LOCAL.search(text):  # without an exchange, a reduction or a residual
        spoilings = {**of_waits, "fma too many": of_norms["fma too many"],
                     "output at system scope": lambda t: t.replace("st.global.v4.u32", "st.relaxed.sys.global.v4.u32")}
    elif "AllReduceKernel" in text:  # without a norm; the first two, which sum one rank, add nothing
        del spoilings["flush to zero"]
    else:
        spoilings.update(of_norms)
    if not LOCAL.search(text) and not re.search(r"PlainE\w*?NcclE", text):
        spoilings.update(of_mailboxes)
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
