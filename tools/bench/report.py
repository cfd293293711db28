"""Makes docs/benchmarks/h200.md from the rows in docs/benchmarks/h200.jsonl.

    bazel build //moe:kernels_hash_text && tools/bench/report.py
    tools/bench/report.py --check|--fresh --kernels HASH FOLDER

--check changes nothing and fails if the page is not what the rows give; --fresh fails if a row was measured on other
kernels than those of HASH (moe/ptx_hash.py).
"""

import argparse
import json
import pathlib
import sys


def load(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def cells(rows):
    """By (world, hidden, tokens): kernel name → row; Stoker's second measurement is 'again'."""
    table = {}
    for row in rows:
        key = (row["world"], row["hidden"], row["tokens"])
        table.setdefault(key, {})[row["kernel"]] = row
    return table


def short(kernel):
    """A column's head: the version of a peer is in the text above the tables."""
    return kernel.replace("all-reduce", "").strip() if kernel.startswith("flashinfer") else kernel


def table(head, lines):
    return ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head),
            *("| " + " | ".join(line) + " |" for line in lines)]


def time_cell(own, row):
    """Median, and Stoker's time over it."""
    if row is None:
        return "–"
    if "us_median" not in row:
        return "did not finish"
    return f"{row['us_median']:.2f} ({own['us_median'] / row['us_median']:.2f})"


def stale(row, kernels):
    return row.get("ptx_hash") != kernels


def times(rows, peers, kernels_now):
    head = ["world", "hidden", "tokens", "stoker", "again", *map(short, peers), "launch"]
    lines = []
    for (world, hidden, tokens), kernels in sorted(cells(rows).items()):
        own = kernels["stoker"]
        lines.append([str(world), str(hidden), str(tokens),
                      f"{own['us_median']:.2f} ({own['us_min']:.2f}, {own['us_p90']:.2f})"
                      + (" †" if stale(own, kernels_now) else ""),
                      f"{kernels['stoker again']['us_median']:.2f}",
                      *(time_cell(own, kernels.get(peer)) for peer in peers), own["launch"]])
    return table(head, lines)


def errors(rows, kernels):
    head = ["world", "hidden", "tokens", "floor", *map(short, kernels)]
    lines = []
    for (world, hidden, tokens), found in sorted(cells(rows).items()):
        line = [str(world), str(hidden), str(tokens), f"{found['stoker']['err_floor'] * 1e3:.2f}"]
        for kernel in kernels:
            row = found.get(kernel, {})
            line.append(f"{row['err_residual_mean'] * 1e3:.2f} ({row['err_residual_max'] * 1e3:.0f}) / "
                        f"{row['err_norm_mean'] * 1e3:.2f} ({row['err_norm_max'] * 1e3:.0f})"
                        if "us_median" in row else "–")
        lines.append(line)
    return table(head, lines)


def page(rows, kernels_now):
    if not rows:
        raise SystemExit("there are no rows")
    names = {row["kernel"] for row in rows} - {"stoker", "stoker again"}
    peers = sorted(names, key=lambda name: (not name.startswith("stoker"), name))
    first = rows[0]
    runs = sorted({row["run"] for row in rows})
    return "\n".join([
        "# Finalize + all-reduce + residual + RMSNorm on one GPU",
        "",
        "Made by `tools/bench/report.py` from `h200.jsonl`; do not edit. The method and the contenders are in "
        "[README.md](README.md).",
        "",
        f"{first['gpu']}, driver {first['driver']}, {first['date']}, commit {first['commit']}, run {', '.join(runs)}; "
        f"ranks as {first['placement']}, top-k {first['top_k']}, {first['dtype']}, programmatic launch "
        f"{'on' if first['programmatic'] else 'off'}.",
        "",
        "## Time",
        "",
        "Microseconds a launch: median (minimum, 90th percentile) of Stoker; median of the others, and in brackets "
        "Stoker's median over it. \"again\" is Stoker's second measurement in the same turns: a difference below "
        "that between the two is none.",
        "",
        *times(rows, peers, kernels_now),
        "",
        *(["† measured on an older kernel: the PTX of the shipped kernels has changed since.", ""]
          if any(stale(row, kernels_now) for row in rows if row["kernel"] == "stoker") else []),
        "The launch shape reads: clusters x (CTAs a cluster x row threads a CTA) x 16-byte vectors a thread.",
        "",
        "## Error",
        "",
        "Thousandths: mean (maximum) absolute difference from FP64 of residual_out / norm_out, beside the mean error "
        "of rounding the exact residual_out.",
        "",
        *errors(rows, ["stoker", *(peer for peer in peers if not peer.startswith(("stoker", "hand")))]),
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
    rows = load(folder / "h200.jsonl")
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
