"""How many kernels are shipped and what compiling them cost, with the limits of both.

The time is nvcc's own, from Bazel's profile of the build that just ran. A build that took the object
from a cache tells nothing about it, and the summary says so instead of giving a number.
"""

import dataclasses
import gzip
import json
import pathlib
import re

# The source files of the table (moe/kernels.inc).
PARTS = ("all_reduce_kernels", "kernels", "nccl_kernels", "reduction_kernels")
# As tools/bazel/cuda.bzl announces their objects.
OBJECT_ACTIONS = [f"Compiling moe/_objs/kernel_objects/{part}.cu.o with nvcc" for part in PARTS]
# What Bazel names the span in which it runs an action's own process.
PROCESS = "subprocess.run"
PTX_PATHS = [f"bazel-bin/moe/{part}.sm_90.ptx" for part in PARTS]
ENTRY = re.compile(r"^\.visible \.entry ", re.MULTILINE)
MOST_KERNELS = 300
MOST_SECONDS = 8 * 60


@dataclasses.dataclass(frozen=True)
class Summary:
    line: str
    breaches: list[str]


def read_profile(path: pathlib.Path) -> dict:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)


def read_ptx(root: pathlib.Path) -> str:
    """Of all parts; nothing if one is missing."""
    paths = [root / path for path in PTX_PATHS]
    return "".join(path.read_text(encoding="utf-8") for path in paths) if all(p.is_file() for p in paths) else ""


def _within(inner: dict, outer: dict) -> bool:
    return (inner.get("tid") == outer.get("tid") and inner["ts"] >= outer["ts"]
            and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"])


def nvcc_seconds(profile: dict) -> float | None:
    """Of all parts that were compiled. None if nvcc ran for none: the objects were there or came from a cache."""
    spans = [e for e in profile["traceEvents"] if "dur" in e and "ts" in e]
    processes = [e for e in spans if e.get("name") == PROCESS]
    times = []
    for action in (e for e in spans if e.get("name") in OBJECT_ACTIONS):
        inside = [p["dur"] / 1e6 for p in processes if _within(p, action)]
        times += [max(inside)] if inside else []
    return sum(times) if times else None


def summarize(profile: dict, ptx: str) -> Summary:
    kernels = len(ENTRY.findall(ptx))
    seconds = nvcc_seconds(profile)
    breaches = []
    if kernels == 0:
        breaches.append(f"no kernel found in {' and '.join(PTX_PATHS)}")
    if kernels > MOST_KERNELS:
        breaches.append(f"{kernels} kernels are shipped; at most {MOST_KERNELS} may be")
    if seconds is None:
        cost = "nvcc did not run (built already, or from the disk cache)"
    else:
        cost = f"nvcc {seconds:.1f} s of {MOST_SECONDS} s"
        if seconds > MOST_SECONDS:
            breaches.append(f"compiling the kernel table took {seconds:.0f} s; at most {MOST_SECONDS} s may be")
    return Summary(f"kernel table, sm_90: {kernels} of at most {MOST_KERNELS} kernels; {cost}", breaches)
