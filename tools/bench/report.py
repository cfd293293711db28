"""Makes docs/benchmarks/h200.md from the rows in docs/benchmarks/h200.jsonl.

    tools/bench/report.py [--check] [FOLDER]

--check changes nothing and fails if the page is not what the rows give.
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


def ratio(own, peer):
    if "us_median" not in peer:
        return "did not finish"
    return f"{own['us_median'] / peer['us_median']:.2f}"


def page(rows):
    if not rows:
        raise SystemExit("there are no rows")
    peers = sorted({row["kernel"] for row in rows if not row["kernel"].startswith("stoker")})
    first = rows[0]
    runs = sorted({row["run"] for row in rows})
    lines = [
        "# Finalize + all-reduce + residual + RMSNorm on one GPU",
        "",
        "Made by `tools/bench/report.py` from `h200.jsonl`; do not edit. The method is in [README.md](README.md).",
        "",
        f"{first['gpu']}, driver {first['driver']}, {first['date']}, commit {first['commit']}, run {', '.join(runs)}; "
        f"ranks as {first['placement']}, top-k {first['top_k']}, {first['dtype']}, programmatic launch "
        f"{'on' if first['programmatic'] else 'off'}. Microseconds per launch: median (minimum, 90th percentile).",
        "",
        "The peer was compiled with Stoker's flags (`-fmad=false`), where its own build uses `-use_fast_math` and "
        "contraction; the effect on its times has not been measured and may flatter the ratios.",
        "",
        "Errors are mean absolute differences from FP64: residual_out / norm_out, beside the rounding floor of "
        "residual_out.",
        "",
    ]
    head = ["world", "hidden", "tokens", "stoker", "again"]
    for peer in peers:
        head += [peer, "ratio", "its error"]
    head += ["stoker's error", "floor", "launch"]
    lines += ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for (world, hidden, tokens), kernels in sorted(cells(rows).items()):
        own = kernels["stoker"]
        out = [str(world), str(hidden), str(tokens),
               f"{own['us_median']:.2f} ({own['us_min']:.2f}, {own['us_p90']:.2f})",
               f"{kernels['stoker again']['us_median']:.2f}"]
        for peer in peers:
            row = kernels.get(peer)
            if row is None:
                out += ["–", "–", "–"]
            elif "us_median" in row:
                out += [f"{row['us_median']:.2f}", ratio(own, row),
                        f"{row['err_residual_mean']:.2e} / {row['err_norm_mean']:.2e}"]
            else:
                out += ["–", "did not finish", "–"]
        out += [f"{own['err_residual_mean']:.2e} / {own['err_norm_mean']:.2e}", f"{own['err_floor']:.2e}",
                own["launch"]]
        lines.append("| " + " | ".join(out) + " |")
    lines += ["", "The launch shape reads: clusters x (CTAs a cluster x row threads a CTA) x 16-byte vectors a thread.",
              ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the page is not current")
    default = pathlib.Path(__file__).resolve().parents[2] / "docs/benchmarks"
    parser.add_argument("folder", nargs="?", default=str(default))
    arguments = parser.parse_args()
    folder = pathlib.Path(arguments.folder)
    text = page(load(folder / "h200.jsonl"))
    target = folder / "h200.md"
    if arguments.check:
        if not target.exists() or target.read_text() != text:
            sys.exit(f"{target} is not what the rows give: run tools/bench/report.py")
        return
    target.write_text(text)


if __name__ == "__main__":
    main()
