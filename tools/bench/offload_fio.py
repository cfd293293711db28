#!/usr/bin/env python3
"""One io_uring lane against fio on the same file: random direct reads, 16 in flight, blocks of 256 KiB to 1 MiB.

    bazel build //offload/io:lane_bench
    tools/bench/offload_fio.py FOLDER --out=rows.jsonl

Makes a file of 2 GiB of random bytes in FOLDER, which should lie on the disk in question, and removes it. Pairs in the
order ABBA, each pass 512 MiB of other blocks; a row gives the median over pairs of lane over fio with a 95% interval
(bootstrap). Needs fio (Debian: apt-get install fio).
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys

FILE_MIB, PASS_MIB, DEPTH = 2048, 512, 16


def lane(program, path, block, seed):
    command = [program, path, str(block), str(PASS_MIB), str(DEPTH), str(seed)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def fio(path, block, seed):
    command = ["fio", "--name=r", f"--filename={path}", "--rw=randread", f"--bs={block}", "--direct=1",
               "--ioengine=io_uring", f"--iodepth={DEPTH}", f"--io_size={PASS_MIB}m", f"--size={FILE_MIB}m",
               f"--randseed={seed}", "--norandommap", "--thread", "--output-format=json"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found["jobs"][0]["read"]["bw_bytes"] * 1e-9


def interval(values):
    chosen = random.Random(0)
    medians = sorted(statistics.median(chosen.choices(values, k=len(values))) for _ in range(2000))
    return [round(v, 4) for v in (statistics.median(values), medians[50], medians[1949])]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--program", default="bazel-bin/offload/io/lane_bench")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--out", default="")
    arguments = parser.parse_args()
    if shutil.which("fio") is None:
        sys.exit("fio is not installed; nothing is measured (Debian: apt-get install fio)")
    path = arguments.folder / "stoker_fio.bin"
    try:
        with open(path, "wb") as file:
            for _ in range(FILE_MIB // 16):
                file.write(os.urandom(16 << 20))
            os.fsync(file.fileno())
        for block in (256 << 10, 512 << 10, 1 << 20):
            ours, theirs = [], []
            for pair in range(arguments.pairs):
                a = lane(arguments.program, path, block, 4 * pair + 1)
                b = fio(path, block, 4 * pair + 2) + fio(path, block, 4 * pair + 3)
                ours.append((a + lane(arguments.program, path, block, 4 * pair + 4)) / 2)
                theirs.append(b / 2)
            ratio, low, high = interval([a / b for a, b in zip(ours, theirs)])
            row = {"op": "lane", "kernel": "io_uring lane", "block": block, "depth": DEPTH, "pairs": arguments.pairs,
                   "value": ratio, "unit": "fraction of fio", "ci95": [low, high],
                   "lane_gbs": round(statistics.median(ours), 3), "fio_gbs": round(statistics.median(theirs), 3),
                   "load_average": round(os.getloadavg()[0], 1)}
            print(json.dumps(row), flush=True)
            if arguments.out:
                with open(arguments.out, "a", encoding="utf-8") as out:
                    out.write(json.dumps(row) + "\n")
    finally:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
