"""Makes the table "What the guards cost" of docs/benchmarks/h200_no_hang.md from the rows in h200_guards.jsonl.

    python3 tools/bench/guards.py [--check] [FOLDER]

The rows are those of `stoker bench guards`; of a cell measured twice the last counts. --check changes nothing and fails
if the table is not what the rows give. While there are no rows the table stays as it is.
"""

import argparse
import json
import pathlib
import sys

BEGIN, END = "<!-- made by tools/bench/guards.py -->\n", "<!-- end -->\n"
# What a launch may pay: microseconds for one token, a share of the unguarded time from 16 tokens on.
MOST_US, MOST_SHARE = 0.15, 0.02


def within(row):
    cost = row["us_cost"]
    if row["tokens"] == 1:
        return cost <= MOST_US
    return row["tokens"] < 16 or cost <= MOST_SHARE * row["us_unguarded"]


def line(row):
    share = 100 * row["us_cost"] / row["us_unguarded"]
    cost = f"{row['us_cost']:+.3f} ± {row['us_cost_ci95']:.3f} us ({share:+.1f}%)"
    builds = row["shipped"], row["unguarded"]
    pair = [", ".join(str(build[key]) for build in builds) for key in
            ("registers", "local_bytes", "ctas_per_sm", "clusters")]
    return [str(row["world"]), str(row["tokens"]), row["exchange"], row["launch"], f"{row['us_shipped']:.2f}",
            f"{row['us_unguarded']:.2f}", cost if within(row) else f"**{cost}**",
            f"{row['us_control']:+.3f} ± {row['us_control_ci95']:.3f}", *pair]


def table(rows):
    cells = {(row["world"], row["hidden"], row["tokens"]): row for row in rows}
    first = rows[-1]
    head = ["world", "tokens", "exchange", "launch", "shipped", "unguarded", "cost", "A/A", "registers", "local bytes",
            "CTAs an SM", "clusters"]
    return "\n".join([
        f"{first['gpu']}, driver {first['driver']}, {first['date']}, commit {first['commit']}, kernels "
        f"{first['ptx_hash']}; hidden {first['hidden']}, top-k {first['top_k']}, {first['dtype']}, ranks as "
        f"{first['placement']}. Microseconds a launch: medians of the turns; cost is the mean difference of "
        f"{first['pairs']} pairs with its 95% interval, A/A the same between two graphs of the shipped kernel, in "
        "turns with them. Bold: above 0.15 us at one token or 2% from 16 tokens on. Then, of the shipped and the "
        "unguarded build: registers and bytes of local memory a thread, CTAs that one SM and clusters that the GPU "
        "holds at once.",
        "",
        "| " + " | ".join(head) + " |",
        "|" + " --- |" * len(head),
        *("| " + " | ".join(line(row)) + " |" for _, row in sorted(cells.items())),
        ""])


def replaced(page, rows):
    before, found, rest = page.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not (found and closed):
        sys.exit("the page has no place for the table")
    return before + BEGIN + table(rows) + END + after


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the table is not current")
    parser.add_argument("folder", nargs="?", default=pathlib.Path(__file__).resolve().parents[2] / "docs/benchmarks")
    arguments = parser.parse_args()
    folder = pathlib.Path(arguments.folder)
    source, target = folder / "h200_guards.jsonl", folder / "h200_no_hang.md"
    if not source.exists():
        return
    rows = [json.loads(text) for text in source.read_text().splitlines() if text.strip()]
    text = replaced(target.read_text(), rows)
    if not arguments.check:
        target.write_text(text)
    elif text != target.read_text():
        sys.exit(f"{target} is not what the rows give: run tools/bench/guards.py")


if __name__ == "__main__":
    main()
