"""The plug-in's gate: one test per reason to stay off, and register() in processes with a stand-in for vLLM."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import types

import pytest

import stoker.vllm
from stoker.vllm import gate

REASONS = {
    "tensor parallel size 1": dict(world=1),
    "tensor parallel size 3": dict(world=3),
    "tensor parallel size 16": dict(world=16),
    "spans 2 hosts": dict(hosts=2),
    "pipeline parallel size 2": dict(pipeline=2),
    "data parallel size 4": dict(data_parallel=4),
    "expert parallel": dict(expert_parallel=True),
    "expert load balancing": dict(expert_balancing=True),
    "context parallel size 2": dict(context_parallel=2),
    "sequence parallelism": dict(sequence_parallel=True),
    "dual-batch overlap": dict(dual_batch_overlap=True),
    "LoRA": dict(lora=True),
    "draft head": dict(draft_model=True),
    "sleep mode": dict(sleep_mode=True),
    "compiled with STOCK_TORCH_COMPILE": dict(compilation="STOCK_TORCH_COMPILE"),
    "another post_grad_custom_post_pass": dict(graph_pass_taken=True),
    "additional_config is an object": dict(opaque_config=True),
    "dtype float32": dict(dtype="float32"),
    "leaves out A": dict(tiers=frozenset("BC")),
    "leaves out C": dict(tiers=frozenset("AB"), compilation="vllm"),
    "GPU sm_75": dict(device="sm_75"),
    "no peer access": dict(device="sm_90", peer_access=False),
}


def test_on_engages_with_the_default_facts():
    assert gate.reason_off("on", gate.Facts()) is None
    assert gate.reason_off("reference", gate.Facts()) is None
    assert gate.reason_off("on", gate.Facts(device="sm_90", world=8)) is None


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("mode", ["on", "auto", "reference"])
def test_a_reason_is_named(reason, mode):
    assert reason in gate.reason_off(mode, gate.Facts(**REASONS[reason]))


def test_every_fact_but_the_allowed_ones_is_refused_by_some_test():
    assert {f.name for f in dataclasses.fields(gate.Facts)} == {name for facts in REASONS.values() for name in facts}


def test_auto_needs_a_measured_row(monkeypatch):
    assert "no measured row" in gate.reason_off("auto", gate.Facts(device="sm_90", world=4))
    monkeypatch.setattr(gate, "FASTER", frozenset({("sm_90", 4)}))
    assert gate.reason_off("auto", gate.Facts(device="sm_90", world=4)) is None
    assert "no measured row" in gate.reason_off("auto", gate.Facts(device="sm_90", world=8))


ARCHITECTURE_OF = {"NVIDIA A100": "sm_80", "NVIDIA H100": "sm_90", "NVIDIA H200": "sm_90", "NVIDIA B200": "sm_100",
                   "NVIDIA B300": "sm_103"}


def measured_faster(lines):
    """(architecture, ranks) whose rows, of several GPUs, all say that fused is faster than the best other way."""
    runs = {}
    for line in lines:
        row = json.loads(line)
        if row.get("op") == "finalize" and row.get("placement") == "gpus":
            case = runs.setdefault((row["gpu"], row["world"]), {}).setdefault(
                (row["run"], row["hidden"], row["tokens"], row["dtype"], row["top_k"]), {})
            case[row["kernel"]] = row["us_median"]
    return {(ARCHITECTURE_OF[" ".join(gpu.split()[:2])], world) for (gpu, world), cases in runs.items()
            if all(case["stoker"] < min(time for kernel, time in case.items()
                                        if not kernel.startswith(("stoker", "floor"))) for case in cases.values())}


def test_auto_has_no_more_than_the_benchmark_rows_say():
    def row(kernel, median, world=2, placement="gpus", tokens=1):
        return json.dumps(dict(op="finalize", kernel=kernel, us_median=median, world=world, placement=placement,
                               tokens=tokens, gpu="NVIDIA H200 SXM", run="1", hidden=7168, dtype="bf16", top_k=8))

    rows = [row("stoker", 3), row("unfused", 5), row("pr6631", 4), row("floor", 1), row("stoker", 5, 4, tokens=1),
            row("unfused", 6, 4, tokens=1), row("stoker", 9, 4, tokens=64), row("unfused", 8, 4, tokens=64),
            row("stoker", 1, 8, "streams"), row("unfused", 2, 8, "streams")]
    assert measured_faster(rows) == {("sm_90", 2)}
    benchmarks = pathlib.Path(gate.__file__).parents[3] / "docs/benchmarks"
    assert gate.FASTER <= measured_faster((benchmarks / "h200.jsonl").read_text().splitlines())


def test_an_untested_version_stays_off():
    assert all(gate.version_reason(version) is None for version in gate.TESTED_VLLM)
    assert gate.version_reason(gate.TESTED_VLLM[0] + "+cpu") is None
    for version in ("0.31.0", "0.32.1", "1.0.0rc1"):
        assert version in gate.version_reason(version) and "untested" in gate.version_reason(version)


def test_modes():
    assert gate.mode_of({}) == ("auto", None)
    assert gate.mode_of({"STOKER_VLLM": " Reference "}) == ("reference", None)
    mode, error = gate.mode_of({"STOKER_VLLM": "yes"})
    assert mode == "off" and "'yes'" in error and "auto, on, off, reference" in error


def test_max_tokens():
    assert gate.max_tokens({}) == gate.MAX_TOKENS_DEFAULT
    assert gate.max_tokens({"STOKER_VLLM_MAX_TOKENS": "7"}) == 7
    for bad in ("0", "4097", "many", "-1"):
        with pytest.raises(ValueError, match="1 to 4096"):
            gate.max_tokens({"STOKER_VLLM_MAX_TOKENS": bad})


def test_what_nobody_has_run_is_named():
    assert gate.untested("cpu") == "" and gate.untested("sm_90") == "vLLM on a GPU"
    assert gate.untested("sm_100") == "vLLM on a GPU, and sm_100"


def test_tiers():
    assert gate.tiers({}) == gate.TIERS == set("ABC") and gate.tiers({"STOKER_VLLM_TIERS": " ca"}) == {"A", "C"}
    for bad in ("", "D", "A,B", "off"):
        with pytest.raises(ValueError, match="letters of A, B and C"):
            gate.tiers({"STOKER_VLLM_TIERS": bad})


@pytest.mark.parametrize("left,compilation,reason", [
    ("BC", "none", "leaves out A"), ("AB", "vllm", "leaves out C"), ("AC", "none", None), ("AC", "vllm", None),
    ("A", "none", None), ("C", "vllm", None)])
def test_each_tier_has_its_switch(left, compilation, reason):
    got = gate.reason_off("on", gate.Facts(compilation=compilation, tiers=frozenset(left)))
    assert got is None if reason is None else reason in got


def config(**changes):
    parallel = dict(pipeline_parallel_size=1, data_parallel_size=1, enable_expert_parallel=False, enable_dbo=False,
                    use_ubatching=False, use_sequence_parallel_moe=False, prefill_context_parallel_size=1,
                    decode_context_parallel_size=1, enable_eplb=False)
    model = dict(dtype="torch.bfloat16", enable_sleep_mode=False)
    compilation = dict(mode=0, backend="", inductor_compile_config={})
    top = dict(lora_config=None, speculative_config=None, additional_config={})
    for name, value in changes.items():
        next(part for part in (parallel, model, compilation, top) if name in part)[name] = value
    return types.SimpleNamespace(parallel_config=types.SimpleNamespace(**parallel),
                                 model_config=types.SimpleNamespace(**model),
                                 compilation_config=types.SimpleNamespace(**compilation), **top)


READ = {"pipeline_parallel_size": (2, "pipeline"), "data_parallel_size": (2, "data_parallel"),
        "enable_expert_parallel": (True, "expert_parallel"), "enable_dbo": (True, "dual_batch_overlap"),
        "use_ubatching": (True, "dual_batch_overlap"),
        "use_sequence_parallel_moe": (True, "sequence_parallel"),
        "prefill_context_parallel_size": (2, "context_parallel"),
        "decode_context_parallel_size": (2, "context_parallel"), "enable_eplb": (True, "expert_balancing"),
        "dtype": ("torch.float32", "dtype"), "enable_sleep_mode": (True, "sleep_mode"), "mode": (1, "compilation"),
        "lora_config": (object(), "lora"), "speculative_config": (object(), "draft_model")}


@pytest.mark.parametrize("name", READ)
def test_a_fact_is_read_from_the_configuration(name):
    value, fact = READ[name]
    plain, changed = gate.facts_of(config(), world=2), gate.facts_of(config(**{name: value}), world=2)
    different = {f.name for f in dataclasses.fields(plain)
                 if getattr(plain, f.name) != getattr(changed, f.name)}
    assert different == {fact}
    assert gate.reason_off("on", plain) is None and gate.reason_off("on", changed) is not None


@pytest.mark.parametrize("backend,taken,reason", [
    ("", {}, None), ("inductor", {}, None), ("eager", {}, "VLLM_COMPILE and the backend eager"),
    ("inductor", {"post_grad_custom_post_pass": 1}, "another post_grad_custom_post_pass")])
def test_vllms_own_compilation_is_allowed_with_inductor_and_room_for_the_pass(backend, taken, reason):
    facts = gate.facts_of(config(mode=3, backend=backend, inductor_compile_config=taken), world=2)
    got = gate.reason_off("on", facts)
    assert got is None if reason is None else reason in got
    eager = gate.facts_of(config(inductor_compile_config=taken, additional_config=object()), world=2)
    assert gate.reason_off("on", eager) is None  # the pass is needed for compiled models alone


def test_a_configuration_with_no_place_for_the_passs_identity_is_refused():
    facts = gate.facts_of(config(mode=3, additional_config=object()), world=2)
    assert "additional_config" in gate.reason_off("on", facts)


STAND_IN = """
__version__ = {version!r}
"""
MODELS = """
class Registry:
    models = {{}}
    def register_model(self, architecture, replacement):
        {body}
ModelRegistry = Registry()
"""
DRIVER = """
import json, logging, sys
if {configured}:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
import stoker.vllm
stoker.vllm.register(); stoker.vllm.register()
import torch
from vllm.model_executor.models import ModelRegistry
print(json.dumps([ModelRegistry.models, torch.cuda.is_initialized()]))
"""


def start(folder, mode, version="0.32.0", body="self.models[architecture] = replacement", configured=True):
    models = folder / "vllm/model_executor/models"
    models.mkdir(parents=True)
    (folder / "vllm/__init__.py").write_text(STAND_IN.format(version=version))
    (folder / "vllm/model_executor/__init__.py").write_text("")
    (models / "__init__.py").write_text(MODELS.format(body=body))
    package = pathlib.Path(gate.__file__).parents[2]
    environment = dict(os.environ, PYTHONPATH=f"{package}:{folder}", STOKER_VLLM=mode)
    driver = DRIVER.replace("{configured}", str(configured))
    done = subprocess.run([sys.executable, "-c", driver], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    models, cuda = json.loads(done.stdout.splitlines()[-1])
    assert cuda is False
    return models, [line for line in done.stderr.splitlines() if "Stoker" in line]


@pytest.mark.parametrize("mode", ["auto", "reference"])
def test_register_replaces_the_models_and_leaves_the_line_to_the_engine(tmp_path, mode):
    models, lines = start(tmp_path, mode)
    assert models == stoker.vllm.MODELS and len(models) == 3 and lines == []
    package = pathlib.Path(gate.__file__).parent
    for replacement in models.values():
        module, _, name = replacement.partition(":")
        assert name in (package / f"{module.rsplit('.', 1)[1]}.py").read_text()


@pytest.mark.parametrize("mode,version,body,reason", [
    ("off", "0.32.0", "self.models[architecture] = replacement", "STOKER_VLLM=off"),
    ("perhaps", "0.32.0", "self.models[architecture] = replacement", "'perhaps' is not one of"),
    ("on", "0.99.0", "self.models[architecture] = replacement", "vLLM 0.99.0 is untested"),
    ("on", "0.32.0", "raise RuntimeError('registry is closed')", "RuntimeError: registry is closed"),
])
def test_register_says_why_it_does_nothing_and_never_raises(tmp_path, mode, version, body, reason):
    models, lines = start(tmp_path, mode, version, body)
    assert models == {} and len(lines) == 1 and "Stoker is off: " in lines[0] and reason in lines[0]


def test_the_line_is_said_before_vllm_has_configured_its_logging(tmp_path):
    _, lines = start(tmp_path, "off", configured=False)
    assert lines == ["INFO Stoker is off: STOKER_VLLM=off"]
