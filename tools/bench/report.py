"""Makes docs/benchmarks/h200.md from the rows in docs/benchmarks/h200.jsonl.

    bazel build //moe:kernels_hash_text && tools/bench/report.py
    tools/bench/report.py --check|--fresh --kernels HASH FOLDER

--check changes nothing and fails if the page is not what the rows give; --fresh fails if a row was measured on other
kernels than those of HASH (moe/ptx_hash.py).
"""

import argparse
import itertools
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import targets  # noqa: E402

# Rows that are no way to do the whole operation.
AUXILIARY = ("floor", "traffic", "part ", "packets")


def short(kernel):
    """A column's head: the version of a peer is in the text above the tables."""
    return kernel.replace("all-reduce", "").strip() if kernel.startswith("flashinfer") else kernel


def table(head, lines):
    return ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head),
            *("| " + " | ".join(line) + " |" for line in lines)]


def numbers(key):
    return [str(number) for number in key]


def stale(row, kernels):
    return row.get("ptx_hash") != kernels


def ratio_cell(time, verdict):
    """Median and Stoker's over it; bold, and by how much, where the target is missed."""
    if verdict is None:
        return "–" if time is None else f"{time:.2f} (not counted)"
    if time is None:
        return "did not finish"
    text = f"{time:.2f} ({verdict.ratio:.2f})"
    return text if verdict.holds else f"**{text} +{100 * (verdict.over - 1):.0f}%**"


def times(cells, kernels_now):
    head = ["world", "hidden", "tokens", "bound", "stoker", "again", "flashinfer", "pr6631",
            "fastest not fused", "launch"]
    lines = []
    for key, cell in cells.items():
        own = cell["stoker"]
        bound = targets.bound(cell)
        rest = targets.behind_finalize(cell)
        rest_cell = ratio_cell(rest and rest[1], targets.against_the_rest(cell))
        lines.append([*numbers(key), f"{bound:.2f} ({own['us_median'] / bound:.2f})" if bound
                      else f"{own['bound_us']:.2f} ‡" if "bound_us" in own else "–",
                      f"{own['us_median']:.2f} ({own['us_min']:.2f}, {own['us_p90']:.2f})"
                      + (" †" if stale(own, kernels_now) else ""),
                      f"{targets.median(cell, 'stoker again') or 0:.2f}",
                      ratio_cell(targets.median(cell, targets.flashinfer(cell) or ""),
                                 targets.against_flashinfer(cell)),
                      ratio_cell(targets.median(cell, "pr6631"), targets.against_pr6631(cell)),
                      rest_cell + (f", {short(rest[0])}" if rest else ""), own["launch"]])
    return table(head, lines)


def other_times(cells, kernels):
    lines = []
    for key, cell in cells.items():
        line = numbers(key)
        for kernel in kernels:
            time = targets.median(cell, kernel)
            line.append(f"{time:.2f} ({cell['stoker']['us_median'] / time:.2f})" if time
                        else "did not finish" if "error" in cell.get(kernel, {}) else "–")
        lines.append(line)
    return table(["world", "hidden", "tokens", *map(short, kernels)], lines)


def target_lines(cells):
    head = ["against", "target", "cells that count", "hold", "share", "missed and", "worst ratio"]
    lines = []
    for name, rule, judge, limit in targets.TARGETS:
        share = targets.Share(cells, judge, limit)
        if not share.verdicts:
            continue
        ratios = [verdict.ratio for verdict in share.verdicts.values() if verdict.ratio]
        lines.append([name, rule, str(len(share.verdicts)), str(share.held), f"{share.percent:.0f}%",
                      f"≥ {limit:.2f}: {len(share.beyond)}", f"{max(ratios):.2f}" if ratios else "–"])
    wrong = targets.wrong_protocols(cells)
    both = sum(1 for cell in cells.values()
               if any(targets.median(cell, f"stoker, {name}-shot") for name in ("one", "two")))
    lines_after = [f"The chosen exchange is the faster of the two, or as fast as its A/A pair can tell, in "
                   f"{both - len(wrong)} of {both} cells that have both"
                   + (": not in " + "; ".join("world {}, hidden {}, tokens {}".format(*key) + f" ({gain:.2f} us)"
                                              for key, gain in wrong.items()) if wrong else "") + "."] if both else []
    missing = [key for key in itertools.product(*(sorted({key[i] for key in cells}) for i in range(3)))
               if key not in cells]
    return [*table(head, lines), "", *lines_after, *([""] if lines_after else []),
            *(["Not measured: " + "; ".join("world {}, hidden {}, tokens {}".format(*key) for key in missing) + ".", ""]
              if missing else [])]


def error_targets(cells):
    worst = {}
    for (world, _, _), cell in cells.items():
        if world != 4:
            continue
        for kernel in ("stoker", "stoker, fp32 residual"):
            row = cell.get(kernel, {})
            for which in ("residual", "norm"):
                if f"err_{which}_mean" in row:
                    worst[kernel, which] = max(worst.get((kernel, which), 0.0), row[f"err_{which}_mean"])
    names = {("stoker", "residual"): 6.05, ("stoker", "norm"): 1.80, ("stoker, fp32 residual", "residual"): 5.6}
    return [f"- {kernel}, {which}_out: {worst[kernel, which] * 1e3:.2f} at most, allowed {limit:.2f}"
            f"{'' if worst[kernel, which] * 1e3 <= limit else ' (missed)'}"
            for (kernel, which), limit in names.items() if (kernel, which) in worst]


def errors(cells, kernels):
    lines = []
    for key, found in cells.items():
        line = [*numbers(key), f"{found['stoker']['err_floor'] * 1e3:.2f}"]
        for kernel in kernels:
            row = found.get(kernel, {})
            line.append(f"{row['err_residual_mean'] * 1e3:.2f} ({row['err_residual_max'] * 1e3:.0f}) / "
                        f"{row['err_norm_mean'] * 1e3:.2f} ({row['err_norm_max'] * 1e3:.0f})"
                        if "err_residual_mean" in row else "–")
        lines.append(line)
    return table(["world", "hidden", "tokens", "floor", *map(short, kernels)], lines)


def rates(cells, kernels):
    def rate(row):
        if "bytes_per_us" not in row:
            return "–"
        return f"{row['bytes_per_us'] / 1e3:.0f}"

    lines = [[*numbers(key), f"{cell['stoker'].get('bytes', 0) / 1e6:.2f}",
              *(rate(cell.get(kernel, {})) for kernel in kernels)] for key, cell in cells.items()]
    return table(["world", "hidden", "tokens", "MB of Stoker", *map(short, kernels)], lines)


def budgets(cells):
    lines = []
    for key, cell in cells.items():
        parts = targets.budget(cell)
        if parts:
            lines.append([str(key[0]), str(key[1]), *(f"{part:.2f}" for part in parts),
                          f"{cell['stoker']['us_median']:.2f}", f"{targets.median(cell, 'floor') or 0:.2f}"])
    if not lines:
        return []
    return ["## Where the time of one token goes", "",
            "Microseconds: the launch cut off behind each part (`tools/bench/stages.cu`), replayed in turns with the "
            "whole; a part is what it adds to the one before. The parts follow the row; \"guards\" is what headers, "
            "tickets, deadline and abort word add to it. \"floor\" is the launch without data, guards included: edge, "
            "headers, one packet to and from every peer, the reduction.", "",
            *table(["world", "hidden", *targets.PARTS, "guards", "whole", "floor"], lines), ""]


def packets(cells):
    names = ("packets, sentinel", "packets, tagged")
    found = {key: [targets.median(cell, name) for name in names] for key, cell in cells.items()}
    lines = [[*numbers(key), f"{sentinel:.2f}", f"{tagged:.2f} ({sentinel / tagged:.2f})"]
             for key, (sentinel, tagged) in found.items() if sentinel and tagged]
    if not lines:
        return []
    return ["## Which packet", "",
            "The exchange alone, a row of every rank pushed to all others and summed, with the packets of the "
            "mailboxes (eight elements, empty while a word is the sentinel) and with tagged ones (seven elements and "
            "16 bits of the epoch); `tools/bench/packets.cu`, decided in [packets.md](../decisions/packets.md). "
            "Microseconds a launch; in brackets sentinel over tagged.", "",
            *table(["world", "hidden", "tokens", "sentinel", "tagged"], lines), ""]


def loopback(cells):
    if not cells:
        return []
    names = sorted({kernel for cell in cells.values() for kernel in cell} - {"stoker", "stoker again"})
    lines = []
    for key, cell in cells.items():
        own = cell["stoker"]
        lines.append([*numbers(key), f"{own['us_median']:.2f} ({own['us_min']:.2f}, {own['us_p90']:.2f})",
                      f"{targets.median(cell, 'stoker again') or 0:.2f}",
                      *(f"{targets.median(cell, name):.2f}" if targets.median(cell, name) else "–" for name in names),
                      own["launch"]])
    return ["## One rank with the whole GPU", "",
            "*Loopback*: the peers' packets come from a kernel on eight SMs, one launch ahead; pushes go to mailboxes "
            "on the same GPU. Nothing waits for a peer and there is no wire: this guards the launch shapes of a rank "
            "that has a GPU for itself, and says nothing of several GPUs. Microseconds a launch: median (minimum, 90th "
            "percentile).", "",
            *table(["world", "hidden", "tokens", "stoker", "again", *names, "launch"], lines), ""]


def page(rows, kernels_now):
    if not rows:
        raise SystemExit("there are no rows")
    cells = targets.cells(rows)
    names = {row["kernel"] for row in rows if not row["kernel"].startswith(AUXILIARY)} - {"stoker", "stoker again"}
    peers = sorted(names, key=lambda name: (not name.startswith("stoker"), name))
    timed = [name for name in peers if any(targets.median(cell, name) for cell in cells.values())]
    fused = next(filter(None, map(targets.flashinfer, cells.values())), None)
    first = rows[0]
    traffic = sorted({row["kernel"] for row in rows if row["kernel"].startswith("traffic")})
    has_rates = any("bytes_per_us" in row for row in rows)
    return "\n".join([
        "# Finalize + all-reduce + residual + RMSNorm on one GPU",
        "",
        "Made by `tools/bench/report.py` from `h200.jsonl`; do not edit. The method and the contenders are in "
        "[README.md](README.md).",
        "",
        f"{first['gpu']}, driver {first['driver']}, {first['date']}, commit {first['commit']}, run "
        f"{', '.join(sorted({row['run'] for row in rows}))}; ranks as {first['placement']}, top-k {first['top_k']}, "
        f"{first['dtype']}, programmatic launch {'on' if first['programmatic'] else 'off'}; FlashInfer is "
        f"{fused or 'not among the rows'}.",
        "",
        "## Targets",
        "",
        *target_lines(cells),
        "![time over tokens](h200_time.svg)",
        "",
        "![ratios](h200_ratio.svg)",
        "",
        "## Time",
        "",
        "Microseconds a launch. Stoker: median (minimum, 90th percentile); \"again\" is its second measurement in the "
        "same turns: a difference below that between the two is none. Bound: the launch without data plus the cell's "
        "bytes at the rate of the same accesses without waiting (in brackets Stoker's median over it). Others: median "
        "(Stoker's median over it), **bold** with what is missing where the target is not met.",
        "",
        *times(cells, kernels_now),
        "",
        *(["† measured on an older kernel: the PTX of the shipped kernels has changed since.", ""]
          if any(stale(cell["stoker"], kernels_now) for cell in cells.values()) else []),
        *(["‡ no bound: the accesses without waiting took longer than the whole launch, so they were not measured at "
           "their best; only the ratio counts there.", ""]
          if any("bound_us" in cell["stoker"] and not targets.bound(cell) for cell in cells.values()) else []),
        "The launch shape reads: clusters x (CTAs a cluster x row threads a CTA) x 16-byte vectors a thread.",
        "",
        "## All contenders",
        "",
        *other_times(cells, [name for name in timed if name not in (fused, "pr6631")]),
        "",
        *budgets(cells),
        *packets(cells),
        *loopback(targets.cells(rows, "loopback")),
        *(["## Bytes", "",
           "What all ranks read and write together in a launch, every access counted once "
           "(`tools/bench/least_bytes.h`), and GB/s: bytes over the median. \"traffic\" is the same accesses of "
           "Stoker's exchanges without waiting.", "",
           *rates(cells, ["stoker", *traffic, *timed]), ""] if has_rates else []),
        "## Error",
        "",
        "Thousandths: mean (maximum) absolute difference from FP64 of residual_out / norm_out, beside the mean error "
        "of rounding the exact residual_out. World 4:",
        "",
        *error_targets(cells),
        "",
        *errors(cells, ["stoker", *(peer for peer in peers if peer == "stoker, fp32 residual"
                                    or not peer.startswith(("stoker", "hand", "ung")))]),
        "",
    ])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the page is not current")
    parser.add_argument("--fresh", action="store_true", help="change nothing; fail if a row is of an older kernel")
    parser.add_argument("--kernels", help="hash of the tree's kernels; default: as Bazel built it")
    parser.add_argument("folder", nargs="?", default=str(root / "docs/benchmarks"))
    arguments = parser.parse_args()
    kernels_now = arguments.kernels or (root / "bazel-bin/moe/kernels_hash_text.txt").read_text()
    kernels_now = kernels_now.strip()
    folder = pathlib.Path(arguments.folder)
    rows = targets.load(folder / "h200.jsonl")
    if arguments.fresh:
        old = [row for row in rows if row["kernel"].startswith("stoker") and stale(row, kernels_now)]
        if old:
            sys.exit(f"{len(old)} rows are of other kernels than {kernels_now}: measure again")
        return
    text = page(rows, kernels_now)
    target = folder / "h200.md"
    if arguments.check:
        if not target.exists() or target.read_text() != text:
            sys.exit(f"{target} is not what the rows give: run tools/bench/report.py")
        return
    target.write_text(text)


if __name__ == "__main__":
    main()
