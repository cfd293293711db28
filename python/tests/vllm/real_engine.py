"""Real vLLM on two CPU ranks with the plug-in: run by `tools/test --vllm` in the environment of vllm_cpu.lock.

Tiers A and B (the replaced model and the replaced MoERunner) on vLLM's CPU platform, eager; tier C (the graph pass) on
a platform of the tests (compiling_platform.py). Each engine is a process of its own.
"""

import functools
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import fp32_model
import pytest
import serving
import tiny_model
import torch

HERE = pathlib.Path(__file__).parent
PACKAGE = HERE.parents[1]
TOKENS, LAYERS, RANKS = 64, 4, 2
ENGINE_SECONDS = 600


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model.make(tmp_path_factory.mktemp("model"), layers=LAYERS)


def entry_points(folder, text):
    """A folder that makes the package known to the entry points, as its wheel does, and plug-ins of the tests."""
    information = folder / "stoker-0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: stoker\nVersion: 0\n")
    (information / "entry_points.txt").write_text(text)
    return folder


OURS = "[vllm.general_plugins]\nstoker = stoker.vllm:register\n"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    return entry_points(tmp_path_factory.mktemp("installed"), OURS)


@pytest.fixture(scope="module")
def compiling(tmp_path_factory):
    """Beside the package, the platform of the tests: vLLM's CPU platform with VLLM_COMPILE."""
    return entry_points(tmp_path_factory.mktemp("compiling"),
                        OURS + "[vllm.platform_plugins]\ncompiling = compiling_platform:name\n")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def cuda_norm(tmp_path_factory):
    """Beside the package, a plug-in that gives stock's norm the roundings of its CUDA kernel."""
    return entry_points(tmp_path_factory.mktemp("cuda_norm"), OURS + "cuda_norm = cuda_norm_plugin:register\n")


@pytest.fixture(scope="module")
def failing(tmp_path_factory):
    """Beside the package, a plug-in that lets rank 1 fail once a file is there."""
    return entry_points(tmp_path_factory.mktemp("failing"), OURS + "fault = fault_plugin:register\n")


def environment_of(paths, **variables):
    cores = sorted(os.sched_getaffinity(0))[:RANKS]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
    environment.update(
        PYTHONPATH=":".join(str(path) for path in paths), PYTHONDONTWRITEBYTECODE="1", GLOO_SOCKET_IFNAME="lo",
        VLLM_HOST_IP="127.0.0.1", VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1",
        VLLM_CPU_OMP_THREADS_BIND="|".join(str(core) for core in cores),
        # The scheduler in this process sees all prompts at once; the workers are forked from it.
        VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_WORKER_MULTIPROC_METHOD="fork",
        VLLM_ALLOW_INSECURE_SERIALIZATION="1")
    environment.update(variables)
    return environment


def start(model, paths, *arguments, **variables):
    done = subprocess.run([sys.executable, str(HERE / "engine_run.py"), model, str(RANKS), str(TOKENS), *arguments],
                          env=environment_of(paths, **variables), capture_output=True, text=True,
                          timeout=ENGINE_SECONDS)
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


def run_sequences(model, paths, out, mode, sequences, **variables):
    """What teacher_forced.py saves into `out` with this mode."""
    given = out.with_suffix(".json")
    given.write_text(json.dumps(sequences))
    done = subprocess.run([sys.executable, str(HERE / "teacher_forced.py"), model, str(RANKS), str(given), str(out)],
                          env=environment_of(paths, STOKER_VLLM=mode, **variables), capture_output=True, text=True,
                          timeout=ENGINE_SECONDS)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return torch.load(out)


def by_place(results, exact):
    """The relative distance to the FP32 run for each place: its mean and its median over tokens."""
    distances = [(mine - theirs).norm(dim=-1) / theirs.norm(dim=-1) for (mine, _), (theirs, _) in zip(results, exact)]
    together = torch.cat(distances, 1)
    return together.mean(1), together.median(1).values


def other_argmax(stock, fused, exact, head):
    """(tokens whose top-2 margin is above stock's own error, those of them with another argmax)."""
    sure, other = 0, 0
    for (_, a), (_, b), (_, c) in zip(stock, fused, exact):
        stock_logits, fused_logits, logits = (normed @ head.t() for normed in (a, b, c))
        best = stock_logits.topk(2).values
        certain = best[:, 0] - best[:, 1] > (stock_logits - logits).abs().amax(-1)
        sure += int(certain.sum())
        other += int((certain & (stock_logits.argmax(-1) != fused_logits.argmax(-1))).sum())
    return sure, other


def test_how_far_each_layer_is_from_an_fp32_run(model, installed, cuda_norm, tmp_path):
    """Teacher-forced: the prompts with stock's own 64 tokens, each sequence in one step of the fused size.

    Further than stock here: vLLM's CPU norm is of the FP32 sum of input and residual, while the op's, as that of vLLM's
    CUDA kernel, is of the rounded stream. That moves a few tokens to another expert, and those dominate the mean. So
    stock with its CUDA kernel's roundings in the norm is what 5% is held against. Rows are bfloat16, as on a GPU, while
    vLLM's CPU experts sum them in FP32: a few tokens near a tie may fall to the other side.
    """
    import transformers

    stock_tokens = engine(model, installed, "off")[0]["tokens"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    sequences = [tokenizer(prompt)["input_ids"] + tokens for prompt, tokens in zip(tiny_model.PROMPTS, stock_tokens)]
    assert max(map(len, sequences)) <= 128
    exact, head = fp32_model.run(model, sequences)
    paths = [PACKAGE, installed]
    stock = run_sequences(model, paths, tmp_path / "stock", "off", sequences)
    cuda = run_sequences(model, [PACKAGE, HERE, cuda_norm], tmp_path / "cuda", "off", sequences)
    sums = run_sequences(model, paths, tmp_path / "sums", "on", sequences, STOKER_VLLM_TIERS="AC")
    rows = run_sequences(model, paths, tmp_path / "rows", "on", sequences)
    assert [streams.shape for streams, _ in stock] == [streams.shape for streams, _ in exact]
    runs = dict(stock=stock, cuda=cuda, sums=sums, rows=rows)
    distances = {name: by_place(results, exact) for name, results in runs.items()}
    for name, (mean, median) in distances.items():
        print(f"distance from FP32 by place, {name}: mean {[round(x, 4) for x in mean.tolist()]},"
              f" median {[round(x, 4) for x in median.tolist()]}")
    ratios = {}
    for name, base in itertools.product(("sums", "rows"), ("stock", "cuda")):
        mean, median = ((mine / theirs).max().item() for mine, theirs in zip(distances[name], distances[base]))
        sure, other = other_argmax(runs[base], runs[name], exact, head)
        ratios[name, base] = mean, median, other / sure
        print(f"{name} over {base}: mean up to {mean:.3f}, median up to {median:.3f}; of {sum(map(len, sequences))}"
              f" tokens {sure} have a margin above the base's own error, {other} of these have another argmax")
    assert 0 < distances["stock"][0].max() < 0.1
    assert all(mean <= 1.6 and median <= 1.15 and other < 0.05 for mean, median, other in ratios.values()), ratios
    for name, allowed in (("sums", 0), ("rows", 0.01)):
        mean, median, other = ratios[name, "cuda"]
        assert mean <= 1.05 and median <= 1.05 and other <= allowed, ratios


def test_off_auto_and_not_installed_give_the_same_tokens(model, installed):
    """`auto` is what a user has who sets nothing; it stays off where no measured row says that fused is faster."""
    off, lines = engine(model, installed, "off")
    assert len(lines) == 1 and "Stoker is off: STOKER_VLLM=off" in lines[0]
    auto, lines = engine(model, installed, "auto")
    assert len(lines) == 1 and "Stoker is off: no measured row says that fused is faster on cpu with 2" in lines[0]
    stock, lines = engine(model, installed, None)
    assert lines == []
    assert off["tokens"] == auto["tokens"] == stock["tokens"]


def test_a_tier_that_is_switched_off_is_not_used(model, installed, compiling, cache):
    """Without A an eager model is vLLM's own, without C a compiled one; B: the distance from an FP32 run has both."""
    for without, paths, how in (("A", [PACKAGE, installed], []), ("C", [PACKAGE, HERE, compiling], ["--compiled"])):
        done, lines = start(model, paths, "--counters", *how, STOKER_VLLM="on", VLLM_CACHE_ROOT=str(cache),
                            STOKER_VLLM_TIERS="ABC".replace(without, ""))
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        assert len(lines) == 1 and f"Stoker is off: STOKER_VLLM_TIERS leaves out {without}" in lines[0], lines
        line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
        counted = json.loads(line.removeprefix("RESULT "))["counters"]
        assert all("fused" not in name for counters in counted for name in counters), counted


def test_a_failed_worker_ends_the_engine_with_the_report(model, installed):
    start_time = time.monotonic()
    done, _ = start(model, [PACKAGE, installed], "--fail", STOKER_VLLM="on")
    everything = done.stdout + done.stderr
    assert "FAILED NOW" in done.stdout, everything[-4000:]
    assert done.returncode != 0 and "RESULT" not in done.stdout
    assert "the group was stopped by the host of rank 1" in everything, everything[-4000:]
    assert time.monotonic() - start_time < ENGINE_SECONDS


@functools.cache
def compiled_engine(model, compiling, cache, mode):
    """(result, lines) of an engine that compiles its model with VLLM_COMPILE. cache: vLLM's, with compiled graphs."""
    done, lines = start(model, [PACKAGE, HERE, compiling], "--counters", "--compiled", STOKER_VLLM=mode,
                        VLLM_CACHE_ROOT=str(cache))
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT ")), lines


def test_a_compiled_model_has_the_graph_pass_in_every_layer(model, compiling, cache):
    """A norm behind the embedding, and in each layer one behind attention and the whole tail behind the experts."""
    result, lines = compiled_engine(model, compiling, cache, "on")
    assert len(lines) == 1 and f"{LAYERS} expert tails of {LAYERS} layers, by graph pass" in lines[0], lines
    for counted in result["counters"]:
        forwards = counted.pop("forwards")
        # Warming up compiles with more tokens than the workspace takes: one forward on vLLM's own path.
        wide = {op: counted.pop(f"{op} fallback: tokens above the workspace") for op in
                ("allreduce_rmsnorm", "moe_finalize_allreduce_rmsnorm") if f"{op} fallback: tokens above the workspace"
                in counted}
        steps = forwards - 1
        assert steps == TOKENS and sum(wide.values()) == 2 * LAYERS + 1, (forwards, wide)
        assert counted == {"allreduce_rmsnorm fused": (LAYERS + 1) * steps,
                           "moe_finalize_allreduce_rmsnorm fused": LAYERS * steps}


def test_a_compiled_model_gives_the_tokens_of_its_reference_path(model, compiling, cache):
    on, _ = compiled_engine(model, compiling, cache, "on")
    reference, _ = compiled_engine(model, compiling, cache, "reference")
    assert on["tokens"] == reference["tokens"]
    assert len({tuple(tokens) for tokens in on["tokens"]}) == len(tiny_model.PROMPTS)


def test_a_compiled_model_starts_with_the_tokens_of_an_eager_one(model, compiling, installed, cache):
    on, _ = compiled_engine(model, compiling, cache, "on")
    eager, _ = engine(model, installed, "on")
    agreeing = sum(a[0] == b[0] for a, b in zip(on["tokens"], eager["tokens"]))
    assert agreeing >= len(tiny_model.PROMPTS) - 1  # Inductor's own kernels round elsewhere


def test_graphs_compiled_with_the_pass_are_not_taken_without_it(model, compiling, cache):
    """The same cache: with `off` no op of the plug-in may run, which has no tail there and would raise."""
    compiled_engine(model, compiling, cache, "on")
    off, lines = compiled_engine(model, compiling, cache, "off")
    assert off["counters"] == [{}] * RANKS and "STOKER_VLLM=off" in lines[0]


def test_a_failure_in_serving_ends_the_stream_with_the_error_and_the_engine(model, failing, tmp_path):
    fault, folder = tmp_path / "fault", tmp_path / "metrics"
    folder.mkdir()
    environment = environment_of([PACKAGE, HERE, failing], STOKER_VLLM="on", STOKER_TEST_FAULT=str(fault),
                                 PROMETHEUS_MULTIPROC_DIR=str(folder), VLLM_ENABLE_V1_MULTIPROCESSING="1",
                                 VLLM_WORKER_MULTIPROC_METHOD="spawn")
    log = tmp_path / "log"
    with serving.server(model, environment, log) as (process, port):
        healthy = serving.token_ids(serving.stream(port, model, "A rank sums", 300))
        assert len(healthy) == 300
        check_metrics(serving.get(port, "/metrics")[1])
        events, failed_at = [], None
        for event in serving.stream(port, model, "A rank sums", 300):
            events.append(event)
            if len(events) == 10:
                failed_at = time.monotonic()
                fault.touch()
        stream_seconds = time.monotonic() - failed_at
        status = process.wait(30)
        server_seconds = time.monotonic() - failed_at
    got, text = serving.token_ids(events), log.read_text(encoding="utf-8")
    print(f"the stream ended {stream_seconds:.1f} s after the failure, the server {server_seconds:.1f} s after it")
    assert 10 <= len(got) < 300 and got == healthy[:len(got)], "a token of a failed step reached the client"
    errors = [event for event in events if isinstance(event, dict) and "error" in event]
    assert len(errors) == 1 and [event for event in events if event != "[DONE]"][-1] is errors[0]
    assert "the group was stopped by the host of rank 1" in text
    assert "EngineCore encountered a fatal error" in text and "died unexpectedly (exit code: 70)" in text
    engine = re.search(r"EngineCore \(process \d+\) (ended with status 1\b|does not end and is killed)", text)
    assert engine is not None, text[-4000:]
    assert status == 70 and stream_seconds < 5 and server_seconds < 5


def check_metrics(page):
    """Of both ranks, the calls that the model makes in each forward."""
    values = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in page.splitlines()
              if line.startswith("stoker_")}
    for rank in range(RANKS):
        forwards = values[f'stoker_forwards_total{{rank="{rank}"}}']
        calls = {name: value for name, value in values.items() if "stoker_calls_total" in name
                 and f'rank="{rank}"' in name}
        assert forwards >= 300 and sum(calls.values()) == 2 * LAYERS * forwards, values
        assert all('path="fused"' in name or "tokens above the workspace" in name for name in calls), calls
