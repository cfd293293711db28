"""Whether the plug-in may engage: pure functions from facts to a verdict. Imports neither vLLM nor CUDA."""

import dataclasses
import os

from stoker._library import GPUS_TESTED

MODES = ("auto", "on", "off", "reference")

# The releases of vLLM that the tests run with (`tools/test --vllm`). On any other the plug-in stays off.
TESTED_VLLM = ("0.32.0",)
WORLDS = (2, 4, 8)
# (GPU architecture, ranks) for which docs/benchmarks has rows of several GPUs where the fused op is faster than the
# best unfused one. None yet: the rows there are from one GPU.
FASTER = frozenset()
ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_103")
MAX_TOKENS_DEFAULT = 128
# A: the layers of eager models. B: experts leave their rows un-finalized where they can. C: the graph pass of models
# that vLLM compiles.
TIERS = frozenset("ABC")


@dataclasses.dataclass(frozen=True)
class Facts:
    """What the verdict depends on, as read from vLLM's configuration by `facts_of`."""

    world: int = 2
    pipeline: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    dual_batch_overlap: bool = False
    lora: bool = False
    sequence_parallel: bool = False
    draft_model: bool = False
    sleep_mode: bool = False
    compilation: str = "none"  # "none", "vllm" (VLLM_COMPILE with Inductor: the graph pass), or another
    graph_pass_taken: bool = False  # the user has set a post-grad pass, and there is room for one
    opaque_config: bool = False  # no place in vLLM's configuration hash for the graph pass's identity
    context_parallel: int = 1
    expert_balancing: bool = False
    dtype: str = "bfloat16"
    hosts: int = 1
    device: str = "cpu"  # "cpu", or the GPU architecture such as "sm_90"
    peer_access: bool = True
    tiers: frozenset = TIERS  # that STOKER_VLLM_TIERS leaves on


def mode_of(environment=None):
    """(mode, error): STOKER_VLLM, `auto` when unset; error is None or what is wrong with it."""
    value = (os.environ if environment is None else environment).get("STOKER_VLLM", "auto").strip().lower()
    if value not in MODES:
        return "off", f"STOKER_VLLM={value!r} is not one of {', '.join(MODES)}"
    return value, None


def version_reason(version):
    """None where this release of vLLM is tested, else why the plug-in stays off."""
    plain = version.split("+")[0]
    if plain in TESTED_VLLM:
        return None
    return f"vLLM {version} is untested; tested: {', '.join(TESTED_VLLM)}"


def untested(device):
    """What of this device no test of the project has run, for the line that says what is on; "" for nothing."""
    if device == "cpu":
        return ""
    return "vLLM on a GPU" if device in GPUS_TESTED else f"vLLM on a GPU, and {device}"


def reason_off(mode, facts):
    """None where the plug-in may engage with these facts, else the one reason why not."""
    checks = (
        (mode == "off", "STOKER_VLLM=off"),
        (facts.world == 1, "tensor parallel size 1: there is no all-reduce"),
        (facts.world not in WORLDS, f"tensor parallel size {facts.world}; supported: 2, 4, 8"),
        (facts.hosts != 1, f"the tensor-parallel group spans {facts.hosts} hosts; supported: 1"),
        (facts.pipeline != 1, f"pipeline parallel size {facts.pipeline}: a stage's last layer has no successor"),
        (facts.data_parallel != 1, f"data parallel size {facts.data_parallel}; supported: 1"),
        (facts.expert_parallel, "expert parallel: the experts' combine is a collective of its own"),
        (facts.expert_balancing, "expert load balancing (EPLB)"),
        (facts.context_parallel != 1, f"context parallel size {facts.context_parallel}; supported: 1"),
        (facts.sequence_parallel, "sequence parallelism: the residual stream is scattered"),
        (facts.dual_batch_overlap, "dual-batch overlap: two launches of a group would be in flight"),
        (facts.lora, "LoRA: its adapters add to the experts' output after the GEMM"),
        (facts.draft_model, "speculative decoding: a draft head or its auxiliary hidden states"
                            " take the layer's reduced output"),
        (facts.sleep_mode, "sleep mode: it would release memory that peers have mapped"),
        (facts.compilation not in ("none", "vllm"),
         f"the model is compiled with {facts.compilation}; supported: vLLM's own compilation, or --enforce-eager"),
        (facts.compilation == "none" and "A" not in facts.tiers, "STOKER_VLLM_TIERS leaves out A: eager models"),
        (facts.compilation == "vllm" and "C" not in facts.tiers, "STOKER_VLLM_TIERS leaves out C: compiled models"),
        (facts.graph_pass_taken, "another post_grad_custom_post_pass is set, and vLLM takes one"),
        (facts.opaque_config, "additional_config is an object of another plug-in's, and a compiled graph's cache key"
                              " needs a place there"),
        (facts.dtype not in ("bfloat16", "float16"), f"dtype {facts.dtype}; supported: bfloat16, float16"),
        (facts.device != "cpu" and facts.device not in ARCHITECTURES,
         f"GPU {facts.device}; supported: {', '.join(ARCHITECTURES)}"),
        (not facts.peer_access, "no peer access between the GPUs of the group"),
        (mode == "auto" and (facts.device, facts.world) not in FASTER,
         f"no measured row says that fused is faster on {facts.device} with {facts.world} ranks;"
         " STOKER_VLLM=on engages it"),
    )
    return next((reason for refused, reason in checks if refused), None)


def facts_of(vllm_config, world, hosts=1, device="cpu", peer_access=True, switched_on=TIERS):
    """Reads a vllm.config.VllmConfig. world, hosts: of the tensor-parallel group."""
    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    compilation = vllm_config.compilation_config
    return Facts(
        world=world,
        pipeline=parallel.pipeline_parallel_size,
        data_parallel=parallel.data_parallel_size,
        expert_parallel=bool(parallel.enable_expert_parallel),
        dual_batch_overlap=bool(getattr(parallel, "enable_dbo", False) or getattr(parallel, "use_ubatching", False)),
        lora=vllm_config.lora_config is not None,
        sequence_parallel=bool(getattr(parallel, "use_sequence_parallel_moe", False)),
        draft_model=vllm_config.speculative_config is not None,
        sleep_mode=bool(getattr(model, "enable_sleep_mode", False)),
        compilation=_compilation(compilation),
        graph_pass_taken=_compilation(compilation) == "vllm"
        and "post_grad_custom_post_pass" in compilation.inductor_compile_config,
        opaque_config=_compilation(compilation) == "vllm" and not isinstance(vllm_config.additional_config, dict),
        context_parallel=max(getattr(parallel, "prefill_context_parallel_size", 1),
                             getattr(parallel, "decode_context_parallel_size", 1)),
        expert_balancing=bool(getattr(parallel, "enable_eplb", False)),
        dtype=str(model.dtype).removeprefix("torch."),
        hosts=hosts,
        device=device,
        peer_access=peer_access,
        tiers=switched_on,
    )


def _compilation(compilation):
    modes = ("none", "STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE", "vllm")
    mode = modes[int(compilation.mode or 0)]
    if mode == "vllm" and compilation.backend not in ("", "inductor"):
        return f"VLLM_COMPILE and the backend {compilation.backend}"
    return mode


def tiers(environment=None):
    """Those that are on: STOKER_VLLM_TIERS, all of TIERS unless it names fewer."""
    text = (os.environ if environment is None else environment).get("STOKER_VLLM_TIERS", "ABC").strip().upper()
    if not text or not TIERS.issuperset(text):
        raise ValueError(f"STOKER_VLLM_TIERS={text!r}; letters of A, B and C are needed (STOKER_VLLM=off for none)")
    return frozenset(text)


def max_tokens(environment=None):
    """The largest launch: STOKER_VLLM_MAX_TOKENS, 1 to 4096; more tokens take the unfused path."""
    text = (os.environ if environment is None else environment).get("STOKER_VLLM_MAX_TOKENS", "")
    if not text:
        return MAX_TOKENS_DEFAULT
    if not text.isdigit() or not 1 <= int(text) <= 4096:
        raise ValueError(f"STOKER_VLLM_MAX_TOKENS={text!r}; a number from 1 to 4096 is needed")
    return int(text)
