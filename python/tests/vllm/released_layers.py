"""Tier A against vLLM's released sources: the layers of DeepSeek-V3.2 and GLM-5, which cannot run without a GPU.

The released classes with parts that stand in for attention, experts and embedding, on two CPU ranks: the fused forward
against the released one. Run by `tools/test --vllm`.
"""

import dataclasses
import pathlib
import sys
import tempfile
import types

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import rank_processes  # noqa: E402

HIDDEN, LAYERS, TOKENS, EXPERTS, TOP_K = 64, 3, 5, 6, 2


class Attention(torch.nn.Module):
    """A row-parallel projection that is not reduced."""

    def __init__(self, seed):
        super().__init__()
        self.weight = drawn(HIDDEN, HIDDEN, seed=seed) / 8

    def forward(self, positions, hidden_states):
        return torch.tanh(hidden_states.float() + positions.float().unsqueeze(1) / 8).bfloat16() @ self.weight


def drawn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def experts_rows(weights, x):
    """Un-finalized rows of a rank: every token's TOP_K routes."""
    from vllm.model_executor.layers.fused_moe.moe_output import UnfinalizedMoEOutput

    scores = torch.softmax((x.float() @ weights[:, 0].float().t()), -1)
    chosen, ids = torch.topk(scores, TOP_K)
    rows = torch.einsum("th,tkh->tkh", x.float(), weights[ids, 1].float()).bfloat16().reshape(-1, HIDDEN)
    indices = torch.arange(len(x) * TOP_K, dtype=torch.int32).view(len(x), TOP_K)
    return UnfinalizedMoEOutput(rows, chosen, indices)


def finalized(rows):
    picked = rows.gemm2_permuted[rows.expanded_idx_to_permuted_idx.long()].float()
    return (picked * rows.expert_weights.unsqueeze(-1)).sum(1).bfloat16()


def fake_runner(kind, seed):
    """A runner of this class without its kernels: _forward_impl is what its experts and shared expert compute."""
    runner = object.__new__(kind)
    torch.nn.Module.__init__(runner)
    weights, shared = drawn(EXPERTS, 2, HIDDEN, seed=seed), drawn(HIDDEN, HIDDEN, seed=seed + 1) / 8
    runner.layer_name, runner._shared_experts = f"runner {seed}", object()
    runner.routed_input_transform = runner.routed_output_transform = runner.router = None
    runner.routed_scaling_factor = 1.0
    runner.moe_config = types.SimpleNamespace(skip_final_all_reduce=True, hidden_dim=HIDDEN,
                                              hidden_dim_unpadded=HIDDEN, in_dtype=torch.bfloat16)
    runner.routed_experts = types.SimpleNamespace(quant_method=types.SimpleNamespace(moe_kernel=None))
    runner._forward_impl = lambda x, logits, shared_in, ids: (x @ shared, experts_rows(weights, x))

    def released(hidden_states, router_logits):
        share, rows = runner._forward_impl(hidden_states, None, None, None)
        return share + finalized(rows)

    runner.released = released
    return runner


def build(nvidia, seed):
    """A released model: dense first layer, experts in the others, parts of this rank drawn from seed."""
    from vllm.model_executor.layers.layernorm import RMSNorm
    from vllm.model_executor.models.deepseek_v2 import DeepseekV2MLP, DeepseekV2MoE
    from stoker.vllm.runner import StokerMoERunner

    def bare(kind):
        made = object.__new__(kind)
        torch.nn.Module.__init__(made)
        return made

    def norm(seed):
        made = RMSNorm(HIDDEN, eps=1e-5)
        made.weight.data = (1 + drawn(HIDDEN, seed=seed) / 8)
        return made

    model = bare(nvidia.DeepseekV32Model)
    layers = []
    for index in range(LAYERS):
        layer = bare(nvidia.DeepseekV32DecoderLayer)
        layer.use_sequence_parallel = False
        layer.self_attn = Attention(seed + 10 * index)
        layer.input_layernorm, layer.post_attention_layernorm = norm(1000 + index), norm(1100 + index)
        if index == 0:
            layer.mlp = bare(DeepseekV2MLP)
            weight = drawn(HIDDEN, HIDDEN, seed=seed + 5) / 8
            layer.mlp.forward = lambda x, weight=weight: x @ weight
        else:
            layer.mlp = bare(DeepseekV2MoE)
            layer.mlp.is_sequence_parallel = False
            layer.mlp.experts = fake_runner(StokerMoERunner, seed + 10 * index + 3)
        layers.append(layer)
    model.layers, model.norm = torch.nn.ModuleList(layers), norm(1200)
    model.start_layer, model.end_layer, model.use_sequence_parallel = 0, LAYERS, False
    model.replicated_embed, model.aux_hidden_state_layers = False, ()
    table = drawn(32, HIDDEN, seed=1300)  # the same on all ranks
    model.embed_tokens = lambda ids: table[ids]
    return model


def on_ranks(body):
    with tempfile.TemporaryDirectory() as folder:
        def rank_body(rank, world):
            from vllm.config import VllmConfig, set_current_vllm_config
            from vllm.distributed import init_distributed_environment, initialize_model_parallel

            with set_current_vllm_config(VllmConfig()), torch.no_grad():
                init_distributed_environment(world, rank, f"file://{folder}/vllm", rank, "gloo")
                initialize_model_parallel(world)
                return body(rank)

        return rank_processes.run(2, rank_body, deadline=200)


def _forward(rank):
    import vllm.models.deepseek_v32.nvidia.model as nvidia
    from vllm.distributed.parallel_state import get_tp_group

    import stoker
    from stoker.vllm import deepseek_v32, engage, tail as tails

    ids, positions = torch.arange(TOKENS) * 3, torch.arange(TOKENS)
    released = build(nvidia, 100 * (rank + 1))
    for layer in released.layers[1:]:
        layer.mlp.experts.forward = layer.mlp.experts.released
    wanted = released(ids, positions)
    communicator = stoker.Communicator.from_process_group(get_tp_group().cpu_group, device="cpu", max_tokens=8,
                                                          hidden_max=HIDDEN, name="dsa", timeout=20)
    tail = tails.Tail(get_tp_group().cpu_group, 8, HIDDEN, communicator, strict=True)
    fused = build(nvidia, 100 * (rank + 1))
    engagement = engage.Engagement("on", tail=tail)
    deepseek_v32.arm(fused, engagement)
    got = fused(ids, positions)
    # Other roundings, a few of which meet where a difference of large numbers is small.
    apart = (got.float() - wanted.float()).abs()
    assert apart.max() < 0.15 and apart.mean() < 0.01, (apart.max(), apart.mean())
    embedded = fused(None, positions, inputs_embeds=released.embed_tokens(ids))
    assert torch.equal(embedded, got)
    experts = LAYERS - 1
    assert tails.counters() == {"allreduce_rmsnorm fused": 2 * (LAYERS + 1),
                                "moe_finalize_allreduce_rmsnorm fused": 2 * experts}, tails.counters()
    fused.aux_hidden_state_layers = (1,)
    with pytest.raises(RuntimeError, match="auxiliary hidden states"):
        fused(ids, positions)
    communicator.close()
    return "done"


def _refusals(rank):
    import vllm.models.deepseek_v32.nvidia.model as nvidia
    from vllm.model_executor.layers.layernorm import GemmaRMSNorm

    from stoker.vllm import deepseek_v32, engage, tail as tails

    model = build(nvidia, 1)
    assert deepseek_v32.refusal(model) is None
    model.norm = GemmaRMSNorm(HIDDEN)
    assert "GemmaRMSNorm" in deepseek_v32.refusal(model)
    engagement = engage.Engagement("on", tail=tails.Tail(None, 8, HIDDEN))
    deepseek_v32.arm(model, engagement)
    assert engagement.tail is None and type(model) is nvidia.DeepseekV32Model
    assert all(type(layer) is nvidia.DeepseekV32DecoderLayer for layer in model.layers)
    other = build(nvidia, 1)
    other.layers[1].__class__ = type("Other", (nvidia.DeepseekV32DecoderLayer,), {})
    assert "a layer is a Other" in deepseek_v32.refusal(other)
    # Experts that sum over ranks by themselves do not defer; the released model's leave the sum to the norm.
    runner = build(nvidia, 1).layers[1].mlp.experts
    assert runner.stoker_refusal(sums_later=True) is None and "leaves the sum" in runner.stoker_refusal()
    runner.moe_config.skip_final_all_reduce = False
    assert runner.stoker_refusal() is None and "sums over ranks itself" in runner.stoker_refusal(sums_later=True)
    for change, reason in (({"routed_input_transform": object()}, "transform"),
                           ({"routed_scaling_factor": 2.5}, "float16"), ):
        for name, value in change.items():
            setattr(runner, name, value)
        runner.moe_config.in_dtype = torch.float16
        assert reason in runner.stoker_refusal()
        runner.routed_input_transform = None
    runner.routed_scaling_factor, runner.moe_config.hidden_dim = 1.0, 2 * HIDDEN
    assert "padded" in runner.stoker_refusal()
    return "done"


def _registered(rank):
    import vllm.models.deepseek_v32 as released
    import vllm.models.deepseek_v32.nvidia.model as nvidia

    from stoker.vllm import deepseek_v32

    # On this platform vLLM serves the generic model, which is left as it is.
    assert deepseek_v32.StokerDeepseekV32ForCausalLM is released.DeepseekV32ForCausalLM
    assert deepseek_v32.StokerGlmMoeDsaForCausalLM is released.GlmMoeDsaForCausalLM
    made = deepseek_v32.engaged(nvidia.DeepseekV32ForCausalLM)
    assert issubclass(made, nvidia.DeepseekV32ForCausalLM) and made.stoker_arm is deepseek_v32.EngagedDsa.stoker_arm
    return "done"


def _never_defer(rank):
    """Tiers A and B of a model with reduced sums: what keeps a sum where it is, and that nothing is half done."""
    from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm

    from stoker.vllm import consumer, engage, tail as tails
    from stoker.vllm.runner import StokerMoERunner

    tail = tails.Tail(None, 8, HIDDEN)

    def layer():
        runner = fake_runner(StokerMoERunner, 7)
        runner.moe_config.skip_final_all_reduce = False
        return types.SimpleNamespace(
            self_attn=types.SimpleNamespace(o_proj=types.SimpleNamespace(bias=None, reduce_results=True)),
            post_attention_layernorm=RMSNorm(HIDDEN), mlp=types.SimpleNamespace(experts=runner))

    kept = layer()
    for successor, reason in ((GemmaRMSNorm(HIDDEN), "GemmaRMSNorm"), (RMSNorm(HIDDEN, has_weight=False), "no weight"),
                              (RMSNorm(HIDDEN, var_hidden_size=8), "a part of the hidden size"),
                              (torch.nn.Identity(), "Identity")):  # the last: a stage of a pipeline, a draft head
        assert reason in engage.arm_experts(kept, successor, tail, 2)
        assert kept.mlp.experts.stoker_tail is None and type(successor) is not consumer.ConsumerNorm
    assert "no mixture" in engage.arm_experts(types.SimpleNamespace(mlp=object()), RMSNorm(HIDDEN), tail, 2)
    kept.self_attn.o_proj.bias = torch.zeros(HIDDEN)
    assert "bias" in engage.arm_attention(kept, tail, 1)
    kept.self_attn.o_proj.bias, kept.post_attention_layernorm = None, GemmaRMSNorm(HIDDEN)
    assert "GemmaRMSNorm" in engage.arm_attention(kept, tail, 1) and kept.self_attn.o_proj.reduce_results
    taken, successor = layer(), RMSNorm(HIDDEN)
    assert engage.arm_attention(taken, tail, 1) is None and not taken.self_attn.o_proj.reduce_results
    assert engage.arm_experts(taken, successor, tail, 2) is None and taken.mlp.experts.stoker_tail is tail
    assert type(successor) is type(taken.post_attention_layernorm) is consumer.ConsumerNorm
    return "done"


def modular_runner(reduce, top_k=TOP_K, weight_on_input=False):
    """(runner, x, weights, rows in the order [token, route]): a released modular kernel with the released finalize, and
    experts of the test whose output is every route's row, or with `reduce` by themselves the weighted sum."""
    import vllm.model_executor.layers.fused_moe.modular_kernel as mk
    from vllm.model_executor.layers.fused_moe.prepare_finalize.no_dp_ep import MoEPrepareAndFinalizeNoDPEPModular
    from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceNoOP

    from stoker.vllm.runner import StokerMoERunner

    def rows_of(x, w2, ids):
        return torch.einsum("tk,tenk->ten", x.float(), w2[ids].float()).bfloat16()

    class Experts(mk.FusedMoEExpertsModular):
        expects_unquantized_inputs, a2_scale, quant_config = True, None, None

        def workspace_shapes(self, m, n, k, topk, *rest):
            return (0,), (0,), (m, k) if reduce is TopKWeightAndReduceNoOP else (m, topk, k)

        def finalize_weight_and_reduce_impl(self):
            return reduce()

        def apply(self, output, hidden_states, w2, topk_weights, topk_ids, **rest):
            rows = rows_of(hidden_states, w2, topk_ids)
            if reduce is TopKWeightAndReduceNoOP:
                rows = (rows.float() * topk_weights.unsqueeze(-1)).sum(1).bfloat16()
            output.copy_(rows)

    Experts.__abstractmethods__ = frozenset()
    experts = object.__new__(Experts)
    experts.moe_config = types.SimpleNamespace(moe_parallel_config=None)
    finalize = MoEPrepareAndFinalizeNoDPEPModular()
    kernel = types.SimpleNamespace(impl=mk.FusedMoEKernelModularImpl(finalize, experts),
                                   output_is_reduced=finalize.output_is_reduced)
    x, w2 = drawn(TOKENS, HIDDEN, seed=1), drawn(EXPERTS, HIDDEN, HIDDEN, seed=2) / 8
    weights, ids = torch.topk(torch.softmax(drawn(TOKENS, EXPERTS, seed=3).float(), -1), top_k)
    runner = fake_runner(StokerMoERunner, 7)
    runner.routed_experts.quant_method.moe_kernel = kernel
    runner._forward_impl = lambda hidden, logits, shared_in, input_ids: (None, kernel.impl.apply(
        hidden, torch.empty(EXPERTS, 2 * HIDDEN, HIDDEN), w2, ids, weights, global_num_experts=EXPERTS,
        apply_router_weight_on_input=weight_on_input))
    given = x * weights.bfloat16() if weight_on_input else x
    return runner, x, weights, rows_of(given, w2, ids)


def _modular(rank):
    """Tier B where a GPU's kernels have it: at the finalize of the modular kernel."""
    import vllm._custom_ops as ops
    from vllm.model_executor.layers.fused_moe import topk_weight_and_reduce as reduces
    from vllm.model_executor.layers.fused_moe.moe_output import UnfinalizedMoEOutput

    from stoker.vllm.runner import CatchingPrepareFinalize

    ops.moe_sum = lambda rows, out: out.copy_(rows.float().sum(1))  # the released finalize's own op, missing on a CPU
    for reduce in (reduces.TopKWeightAndReduceDelegate, reduces.TopKWeightAndReduceContiguous):
        runner, x, weights, rows = modular_runner(reduce)
        summed = (rows.float() * weights.unsqueeze(-1)).sum(1)
        caught, _ = runner.stoker_experts(x, None, None, None, catch=True)
        assert isinstance(caught, UnfinalizedMoEOutput) and torch.equal(caught.expert_weights, weights)
        assert torch.equal(caught.gemm2_permuted[caught.expanded_idx_to_permuted_idx.long()], rows)
        finalize = runner.routed_experts.quant_method.moe_kernel.impl.prepare_finalize
        assert type(finalize) is CatchingPrepareFinalize and not finalize.stoker_on and finalize.caught is None
        own, _ = runner.stoker_experts(x, None, None, None, catch=False)  # a step above the workspace
        assert isinstance(own, torch.Tensor) and (own.float() - summed).abs().max() < 0.05
    # Experts that sum inside their kernel give the sum.
    runner, x, weights, rows = modular_runner(reduces.TopKWeightAndReduceNoOP)
    share, _ = runner.stoker_experts(x, None, None, None, catch=True)
    assert torch.equal(share, (rows.float() * weights.unsqueeze(-1)).sum(1).bfloat16())
    # Weights that went into the input are not applied again.
    runner, x, _, rows = modular_runner(reduces.TopKWeightAndReduceDelegate, top_k=1, weight_on_input=True)
    caught, _ = runner.stoker_experts(x, None, None, None, catch=True)
    assert torch.equal(caught.expert_weights, torch.ones(TOKENS, 1))
    assert torch.equal(caught.gemm2_permuted.view(TOKENS, 1, HIDDEN), rows)
    runner.routed_experts.quant_method.moe_kernel.output_is_reduced = lambda: True
    with pytest.raises(RuntimeError, match="already sums over ranks"):
        runner.stoker_experts(x, None, None, None, catch=True)
    # After an error inside the experts vLLM's own finalize is back.
    def fail(*arguments):
        raise RuntimeError("inside")

    runner._forward_impl = fail
    with pytest.raises(RuntimeError, match="inside"):
        runner.stoker_experts(x, None, None, None, catch=True)
    assert not runner.routed_experts.quant_method.moe_kernel.impl.prepare_finalize.stoker_on
    return "done"


def _agreement(rank):
    """A reason of one rank keeps all of them off, and is named."""
    import os

    from stoker.vllm import engage, gate, tail as tails

    os.environ["STOKER_VLLM"] = "on"
    engage._facts = lambda config, group: gate.Facts(peer_access=rank == 0)
    engagement = engage.prepare(None)
    assert engagement.tail is None
    assert engagement.reason == ("rank 1: " if rank == 0 else "") + "no peer access between the GPUs of the group"
    said = engage.summary(engage.Engagement("on", tail=tails.Tail(None, 8, HIDDEN), untested=gate.untested("sm_80")),
                          2, 2, 2, [])
    assert said.endswith("; untested here: vLLM on a GPU, and sm_80"), said
    return "done"


@pytest.mark.parametrize("body", [_forward, _refusals, _registered, _never_defer, _modular, _agreement])
def test_on_two_ranks(body):
    assert on_ranks(body) == ["done", "done"]


def test_what_the_gate_reads_has_these_names_in_vllms_configuration():
    """The gate takes a missing name for a feature that this vLLM has not; here none may be missing."""
    from vllm.config import CompilationConfig, CompilationMode, ModelConfig, ParallelConfig, PassConfig, VllmConfig

    names = {ParallelConfig: "pipeline_parallel_size data_parallel_size enable_expert_parallel enable_dbo use_ubatching"
                             " use_sequence_parallel_moe prefill_context_parallel_size decode_context_parallel_size"
                             " enable_eplb",
             ModelConfig: "enable_sleep_mode dtype get_hidden_size", PassConfig: "fuse_allreduce_rms",
             CompilationConfig: "mode backend pass_config inductor_compile_config",
             VllmConfig: "lora_config speculative_config additional_config"}
    for kind, wanted in names.items():
        known = set(dir(kind)) | set(getattr(kind, "__dataclass_fields__", ()))
        assert set(wanted.split()) <= known, (kind, set(wanted.split()) - known)
    assert [int(mode) for mode in CompilationMode] == [0, 1, 2, 3] and CompilationMode.VLLM_COMPILE == 3


REFUSED = {
    "pipeline parallel size 2": ("parallel_config", "pipeline_parallel_size", 2),
    "data parallel size 2": ("parallel_config", "data_parallel_size", 2),
    "expert parallel": ("parallel_config", "enable_expert_parallel", True),
    "expert load balancing": ("parallel_config", "enable_eplb", True),
    "context parallel size 2": ("parallel_config", "decode_context_parallel_size", 2),
    "context parallel size 4": ("parallel_config", "prefill_context_parallel_size", 4),
    "dual-batch overlap": ("parallel_config", "enable_dbo", True),
    "dual-batch overlap: two": ("parallel_config", "ubatch_size", 2),  # use_ubatching
    "LoRA": (None, "lora_config", types.SimpleNamespace()),
    "speculative decoding": (None, "speculative_config", types.SimpleNamespace()),
    "sleep mode": ("model_config", "enable_sleep_mode", True),
    "dtype float32": ("model_config", "dtype", torch.float32),
    "compiled with DYNAMO_TRACE_ONCE": ("compilation_config", "mode", 2),
}


def engaging_config():
    """vLLM's own configuration classes, with what this CPU platform makes of them undone."""
    from vllm.config import CompilationMode, VllmConfig

    config = VllmConfig()
    config.model_config = types.SimpleNamespace(dtype=torch.bfloat16, enable_sleep_mode=False)
    config.compilation_config.mode = CompilationMode.NONE
    return config


@pytest.mark.parametrize("reason", REFUSED)
def test_a_feature_is_refused_as_vllms_configuration_says_it(reason):
    from stoker.vllm import gate

    config = engaging_config()
    assert gate.reason_off("on", gate.facts_of(config, world=2)) is None
    part, name, value = REFUSED[reason]
    setattr(config if part is None else getattr(config, part), name, value)
    assert reason in gate.reason_off("on", gate.facts_of(config, world=2))


def test_sequence_parallel_experts_are_refused():
    """In vLLM they come with expert and data parallel alone, which have reasons of their own in front."""
    from stoker.vllm import gate

    config = engaging_config()
    config.parallel_config.enable_expert_parallel = True
    config.parallel_config.tensor_parallel_size = config.parallel_config.data_parallel_size = 2
    facts = gate.facts_of(config, world=2)
    assert facts.sequence_parallel and gate.reason_off("on", facts) is not None
    alone = dataclasses.replace(facts, expert_parallel=False, data_parallel=1)
    assert "sequence parallelism" in gate.reason_off("on", alone)
