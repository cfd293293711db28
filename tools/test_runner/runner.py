"""Runs the test suites with their time budgets and counts their cases. See tools/test.

Only the standard library is used: the Python environment of the tests may not be there yet.
"""

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import kernel_table  # noqa: E402
import results  # noqa: E402
import torch_version  # noqa: E402
import vllm_cpu  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Suite:
    name: str
    tags: str
    budget_minutes: float


OTHER_SUITES = ["suite:simulator", "suite:ranks", "suite:ops", "suite:offload"]
SUITES = [
    Suite("fast", ",".join("-" + tag for tag in OTHER_SUITES), 5),
    Suite("simulator and mutants", "suite:simulator", 8),
    Suite("ranks and faults", "suite:ranks", 10),
    Suite("ops and Python", "suite:ops", 5),
    Suite("offload", "suite:offload", 8),
]
SETUP_MINUTES = 15
BUILD_MINUTES = 15
# Runs that are asked for by name: a line each.
RECORD = ROOT / "docs/benchmarks/runs_by_name.jsonl"


@dataclasses.dataclass(frozen=True)
class Named:
    """What was asked for by name. Such a run has no budgets, and leaves a line in RECORD."""

    long: bool = False
    config: str | None = None

    def __bool__(self):
        return self.long or self.config is not None

    def text(self):
        return " ".join((["--long"] if self.long else []) + ([f"--config={self.config}"] if self.config else []))

    def build_flags(self):
        return [f"--config={self.config}"] if self.config else []

    def test_flags(self):
        return self.build_flags() + (["--test_env=STOKER_LONG=1", "--test_timeout=14400"] if self.long else [])


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def seed() -> str:
    """Of the tests that explore: the commit's, so that a run can be repeated."""
    return str(int(commit()[:8], 16)) if commit() else "1"


class Report:
    """The lines of the summary, and whether a step failed or took too long."""

    def __init__(self, budgets=True):
        self.lines = []
        self.bad = []
        self.budgets = budgets

    def step(self, name, seconds, budget_minutes, outcome):
        over = self.budgets and seconds > budget_minutes * 60
        self.lines.append(f"  {name:<24} {seconds:7.1f} s of {budget_minutes * 60:5.0f} s  {outcome}"
                          + ("  OVER ITS BUDGET" if over else ""))
        if over:
            self.bad.append(f"{name} took {seconds:.0f} s; its budget is {budget_minutes} min")


def run_setup(report):
    start = time.monotonic()
    done = subprocess.run([str(ROOT / "tools/setup")], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    report.step("set-up", time.monotonic() - start, SETUP_MINUTES, "done" if done.returncode == 0 else "FAILED")
    if done.returncode != 0:
        report.bad.append("set-up failed")


# Bazel draws its progress on a terminal; elsewhere it writes a line every 20 s.
PROGRESS = [] if sys.stdout.isatty() else ["--curses=no", "--color=no", "--show_progress_rate_limit=20"]


def bazel(arguments):
    """Bazel's output without the sandbox's own chatter; returns its exit status."""
    if "--noshow_progress" not in arguments and sys.stdout.isatty():
        return subprocess.run(["bazel", *arguments], cwd=ROOT).returncode
    process = subprocess.Popen(["bazel", *arguments], cwd=ROOT, text=True, errors="replace",
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    for line in process.stdout:
        if "src/main/tools/linux-sandbox" not in line and not line.startswith("INFO: From"):
            print(line, end="", flush=True)
    return process.wait()


def run_build(report, named):
    print("Building everything ...", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        profile = pathlib.Path(folder) / "profile.gz"
        start = time.monotonic()
        status = bazel(["build", *PROGRESS, "--show_result=0", "--keep_going", f"--profile={profile}",
                        *named.build_flags(), "//..."])
        report.step("build", time.monotonic() - start, BUILD_MINUTES, "done" if status == 0 else "FAILED")
        if status != 0:
            report.bad.append("the build failed")
            return
        if named.config:
            return  # the table's limits are those of the default build
        summary = kernel_table.summarize(kernel_table.read_profile(profile), kernel_table.read_ptx(ROOT))
    report.lines.append(f"    {summary.line}")
    report.bad += summary.breaches


def run_suite(suite, report, total, named):
    print(f"Suite: {suite.name}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        events = pathlib.Path(folder) / "events.json"
        start = time.monotonic()
        status = bazel(["test", "--noshow_progress", "--keep_going", "--build_tests_only",
                        f"--build_event_json_file={events}", f"--test_tag_filters={suite.tags}",
                        f"--test_env=STOKER_SEED={seed()}", *named.test_flags(),
                        f"--test_env=HOME={os.environ.get('HOME', '/root')}", "//..."])
        seconds = time.monotonic() - start
        counts = results.count_events(events.read_text(encoding="utf-8")) if events.exists() else results.Counts()
    no_tests = 4  # Bazel's exit status for "no test targets were found"
    if status not in (0, no_tests) and counts.failed == 0:
        counts.add(results.Counts(failed=1, failures=[f"suite {suite.name}: bazel exited with {status}"]))
    report.step(suite.name, seconds, suite.budget_minutes,
                counts.line() if status != no_tests else "no tests yet")
    total.add(counts)


def parse_arguments():
    parser = argparse.ArgumentParser(description="Runs every test that this machine can run.")
    parser.add_argument("--suite", choices=[s.name for s in SUITES], action="append",
                        help="only this suite (may be given several times)")
    parser.add_argument("--long", action="store_true",
                        help=f"explore and repeat far more; hours, no budgets, recorded in {RECORD.relative_to(ROOT)}")
    parser.add_argument("--config", choices=["all_archs", "asan", "ubsan", "tsan"],
                        help="build and test that way; no budgets, recorded like --long")
    parser.add_argument("--vllm", action="store_true",
                        help="only the plug-in in real vLLM on CPU ranks; installs vLLM, recorded too")
    parser.add_argument("--torch", metavar="VERSION", type=torch_version.check_version,
                        help="the wheel with this torch alone, such as 2.10.0 or newest; installs it, recorded too")
    return checked(parser, parser.parse_args())


def checked(parser, arguments):
    """Refuses what would be left undone: --vllm and --torch are runs of their own."""
    rest = {"--suite": arguments.suite, "--long": arguments.long, "--config": arguments.config,
            "--torch": arguments.torch, "--vllm": arguments.vllm}
    given = [name for name, value in rest.items() if value]
    for alone in ("--vllm", "--torch"):
        if alone in given and len(given) > 1:
            parser.error(f"{alone} is a run of its own: leave out {', '.join(n for n in given if n != alone)}")
    return arguments


def record(what, result, seconds):
    line = {"what": what, "result": result, "seconds": round(seconds), "commit": commit(),
            "date": datetime.date.today().isoformat()}
    with open(RECORD, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(f"Recorded in {RECORD.relative_to(ROOT)}")


def main():
    arguments = parse_arguments()
    start = time.monotonic()
    if arguments.vllm:
        passed, words = vllm_cpu.run()
        record("--vllm", words, time.monotonic() - start)
        return 0 if passed else 1
    named = Named(arguments.long, arguments.config)
    report = Report(budgets=not named)
    total = results.Counts()
    if arguments.torch:
        passed, words = torch_version.run(ROOT, arguments.torch)
        record(f"--torch {arguments.torch}", f"{'passed' if passed else 'FAILED'}: {words}", time.monotonic() - start)
        print(f"{'passed' if passed else 'FAILED'}: {words}")
        return 0 if passed else 1
    print("Setting up (nothing is installed that is there already) ...", flush=True)
    run_setup(report)
    if not report.bad:
        print(f"Seed of exploring tests: {seed()}", flush=True)
        run_build(report, named)
        for suite in SUITES:
            if not arguments.suite or suite.name in arguments.suite:
                run_suite(suite, report, total, named)
    print("\nTime and cases by step:")
    print("\n".join(report.lines))
    for reason, count in sorted(total.skip_reasons.items()):
        print(f"  skipped {count}: {reason}")
    for failure in total.failures + report.bad:
        print(f"  FAILED {failure}")
    total.failed += len(report.bad)
    if total.passed + total.failed == 0:
        total.failed = 1
    if named and not arguments.suite:
        record(named.text(), total.line(), time.monotonic() - start)
    print(total.line(), flush=True)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
