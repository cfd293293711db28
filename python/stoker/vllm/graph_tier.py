"""Tier C in vLLM: puts the graph pass into the pass manager of a model that vLLM is about to compile."""

import torch
import vllm.model_executor.layers.fused_moe.runner.moe_runner as moe_runner
from vllm.compilation.passes.inductor_pass import InductorPass
from vllm.platforms import current_platform

from stoker.vllm import fuse_pass
from stoker.vllm.runner import StokerMoERunner


class VllmFusePass(fuse_pass.FusePass, InductorPass):
    """vLLM takes its own kind of pass alone."""


def install(vllm_config, tail, group_name):
    """Before the model is built. From then on vLLM compiles its graphs with the pass, after its own fusions but
    before its IR is lowered; vLLM's own fusion of all-reduce and norm is switched off for this engine.

    The pass's identity goes into vLLM's configuration hash, so that no graph compiled without it is taken from a
    cache, nor the other way round.
    """
    compilation = vllm_config.compilation_config
    fuse_pass.define_moe_tail(moe_runner._layer_name_type, _experts)
    fuse_pass.use(tail)
    made = VllmFusePass(group_name)
    compilation.inductor_compile_config[current_platform.pass_key] = made
    compilation.pass_config.fuse_allreduce_rms = False
    vllm_config.additional_config["stoker"] = made.uuid()


def _experts(layer_name, hidden_states, router_logits, shared_experts_input, input_ids, catch):
    layer = moe_runner.get_layer_from_name(moe_runner._resolve_layer_name(layer_name))
    if isinstance(layer, StokerMoERunner) and layer.stoker_refusal() is None:
        return layer.stoker_experts(hidden_states, router_logits, shared_experts_input, input_ids, catch)
    shared, routed = moe_runner._unpack(layer._forward_impl(hidden_states, router_logits, shared_experts_input,
                                                            input_ids))
    return routed, shared


def as_op(runner):
    """On a CPU vLLM calls the experts as a function, which leaves no op in the graph; on a GPU this changes nothing."""
    name = "moe_forward" if runner._shared_experts is None else "moe_forward_shared"
    runner._forward_entry = getattr(torch.ops.vllm, name)
