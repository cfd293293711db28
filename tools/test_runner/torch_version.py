"""`tools/test --torch VERSION`: the wheel with another torch than the pinned one, in an environment of its own.

Installs that torch (about 5 GB on disk) beside the other environments, then the wheel without its dependencies, and
runs python/tests/installed_check.py: the import without a GPU, opcheck, and two CPU ranks.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

NEWEST = "newest"


def check_version(text) -> str:
    """`text` where it names a release of torch or the newest one; else the error that argparse shows."""
    if text == NEWEST or re.fullmatch(r"\d+\.\d+(\.\d+)?", text):
        return text
    raise argparse.ArgumentTypeError(f"{text!r}: a release of torch such as 2.10.0, or {NEWEST}")


def environment(version) -> pathlib.Path:
    """The Python of the environment with that torch; made where it is missing, CalledProcessError where it cannot."""
    cache = pathlib.Path(os.environ.get("STOKER_CACHE", pathlib.Path.home() / ".cache/stoker"))
    folder = cache / f"torch-{version}"
    python, complete = folder / "bin" / "python", folder / "complete"
    # The newest one is looked for each time; an interrupted installation goes on where it was.
    if version == NEWEST or not complete.exists():
        print(f"Installing torch {version} (about 5 GB on disk) into {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        wanted = "torch" if version == NEWEST else f"torch=={version}"
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--upgrade", "--disable-pip-version-check",
                        "--progress-bar", "off", wanted, "numpy"], check=True)
        complete.touch()
    return python


def run(root, version) -> tuple[bool, str]:
    """(whether it passed, one line: the versions that the check printed, or the last words of what failed)."""
    try:
        python = environment(version)
        subprocess.run(["bazel", "build", "--noshow_progress", "//python:wheel"], cwd=root, check=True)
        (wheel,) = (root / "bazel-bin/python/stoker_wheel").glob("*.whl")
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--force-reinstall",
                        "--disable-pip-version-check", wheel], check=True)
        done = subprocess.run([python, root / "python/tests/installed_check.py"], capture_output=True, text=True,
                              cwd="/", timeout=600)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        what = "timed out" if isinstance(error, subprocess.TimeoutExpired) else f"exit status {error.returncode}"
        words = [re.sub(r"^/.*/(?=.)", "", str(word)) for word in error.cmd]  # a record names no folder of a machine
        return False, f"{' '.join(words)}: {what}"
    words = (done.stdout if done.returncode == 0 else done.stdout + done.stderr).strip().splitlines() or ["no output"]
    if done.returncode != 0:
        return False, words[-1]
    facts = json.loads(words[-1])
    if not facts.pop("stoker").startswith(str(python.parents[1])):
        return False, "the package was not imported from that environment"
    return True, ", ".join(f"{name} {value}" for name, value in facts.items())
