"""How vLLM's server process ends after a report, with stand-ins for vLLM's program and its engine process."""

import os
import pathlib
import subprocess
import sys
import time

import pytest

from stoker.vllm import server_exit

PACKAGE = pathlib.Path(server_exit.__file__).parents[2]
PROGRAM = """
import multiprocessing, os, sys, time
import stoker.vllm
from stoker.vllm import server_exit

def engine(kind):
    if kind == "another user":
        os.setuid(65534)
    time.sleep(0.3)  # the parent knows its child by then
    server_exit.tell("stoker: the report\\xfc" + 5000 * "x")
    if kind == "hangs":
        time.sleep(600)
    time.sleep(0.3)
    sys.exit(3)

if __name__ == "__main__":
    stoker.vllm.register()
    process = multiprocessing.get_context(sys.argv[2]).Process(target=engine, args=(sys.argv[1],), name="EngineCore")
    process.start()
    print(process.pid, server_exit.VARIABLE in os.environ, flush=True)
    time.sleep(float(sys.argv[3]))  # then a clean end, as vLLM's own watchdog makes one
    os._exit(0)
"""
VLLM = {"__init__.py": '__version__ = "0.32.0"\n', "program.py": PROGRAM, "model_executor/__init__.py": "",
        "model_executor/models/__init__.py": "class ModelRegistry:\n    register_model = staticmethod(print)\n"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stand_in")
    for name, text in VLLM.items():
        path = folder / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "script.py").write_text(PROGRAM)
    return folder


def run(folder, how, kind, start="fork", seconds=5, **variables):
    """(exit status, process id of the engine, whether it listened, what it wrote to standard error)

    seconds: after which the program ends by itself with 0."""
    environment = dict(os.environ, PYTHONPATH=f"{PACKAGE}:{folder}", **{"STOKER_VLLM": "on", **variables})
    environment.pop(server_exit.VARIABLE, None)
    done = subprocess.run([sys.executable, *how, kind, start, str(seconds)], env=environment, capture_output=True,
                          text=True, timeout=200)
    engine, listened = done.stdout.splitlines()[-1].split()
    return done.returncode, int(engine), listened == "True", done.stderr


def gone(process):
    """Within 10 s: whoever inherits what was killed has to take note of it."""
    for _ in range(200):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


OWN = ["-m", "vllm.program"]


@pytest.mark.parametrize("start,seconds", [("fork", 5), ("spawn", 60)])  # the second imports torch once more
def test_the_server_ends_with_70_after_its_engine(folder, start, seconds):
    status, engine, listened, errors = run(folder, OWN, "ends", start, seconds)
    assert listened and status == server_exit.EXIT_STATUS == 70, errors
    assert "stoker: the report" in errors and "this server ends with status 70" in errors
    assert f"EngineCore (process {engine}) ended with status 3" in errors and gone(engine)


def test_an_engine_that_hangs_is_killed_within_5_s(folder):
    status, engine, _, errors = run(folder, OWN, "hangs")
    assert status == 70 and f"EngineCore (process {engine}) does not end and is killed" in errors
    assert gone(engine)


def test_a_script_is_left_alone_and_so_is_a_server_that_is_to_stay(folder):
    for how, variables in (([str(folder / "script.py")], {}), (OWN, {"VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1"}),
                           (OWN, {"STOKER_VLLM": "off"})):
        status, _, listened, errors = run(folder, how, "ends", **variables)
        assert status == 0 and not listened and "ends with status" not in errors, (how, errors)


def test_another_users_report_counts_for_nothing(folder):
    if os.geteuid() != 0:
        pytest.skip("cannot become another user: needs root")
    status, _, listened, errors = run(folder, OWN, "another user")
    assert status == 0 and listened and "the report" not in errors


def test_telling_nobody_is_no_error(monkeypatch):
    monkeypatch.delenv(server_exit.VARIABLE, raising=False)
    server_exit.tell("report")
    monkeypatch.setenv(server_exit.VARIABLE, "stoker-vllm-nobody")
    server_exit.tell("report")
