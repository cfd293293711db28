"""Engages the plug-in for one model: facts, verdict, communicator, and which layers are fused."""

import dataclasses
import logging

import torch
import torch.distributed as dist
import vllm.ir
from vllm.distributed import tensor_model_parallel_all_reduce
from vllm.distributed.parallel_state import get_tp_group, in_the_same_node_as
from vllm.platforms import current_platform

import stoker
from stoker.vllm import consumer, fuse_pass, gate, health, metrics, tail as tails
from stoker.vllm.runner import StokerMoERunner, register_runner

logger = logging.getLogger("vllm.stoker")
_engines = 0


@dataclasses.dataclass
class Engagement:
    """What one model uses. tail is None where the plug-in is off; reason says why."""

    mode: str
    reason: str | None = None
    tail: tails.Tail | None = None
    compiled: bool = False  # by vLLM, with the graph pass; else the layers are replaced
    untested: str = ""  # what no test of this project has run


def prepare(vllm_config, eager=False) -> Engagement:
    """Before the model is built; collective over the tensor-parallel group. Never raises for what it can refuse.

    eager: the model is not compiled, whatever the configuration says."""
    mode, _ = gate.mode_of()
    group = get_tp_group()
    facts = _facts(vllm_config, group)
    if eager:
        facts = dataclasses.replace(facts, compilation="none", graph_pass_taken=False, opaque_config=False)
    compiled = facts.compilation == "vllm"
    reason = gate.reason_off(mode, facts) or register_runner()
    if reason is None and compiled and fuse_pass.in_use():
        reason = "another compiled model of this process has the graph pass"
    reason = _of_any_rank(group, reason)
    if reason is not None:
        return Engagement(mode, reason)
    hidden, capacity = vllm_config.model_config.get_hidden_size(), gate.max_tokens()
    capacity = min(capacity, vllm_config.scheduler_config.max_num_batched_tokens)
    communicator = None
    if mode != "reference":
        communicator, reason = _communicator(group, capacity, hidden)
        if reason is not None:
            return Engagement(mode, reason)
    tail = tails.Tail(_device_group(group), capacity, hidden, communicator, unfused=_vllms_own, rows="B" in facts.tiers)
    if compiled:
        from stoker.vllm import graph_tier

        graph_tier.install(vllm_config, tail, group.unique_name)
    return Engagement(mode, tail=tail, compiled=compiled, untested=gate.untested(facts.device))


def _communicator(group, capacity, hidden):
    """(communicator, None), or (None, why there is none): the same on all ranks."""
    global _engines
    _engines += 1
    communicator, error = None, None
    device = "cpu" if current_platform.is_cpu() else group.device
    try:
        communicator = stoker.Communicator.from_process_group(
            group.cpu_group, device=device, max_tokens=capacity, hidden_max=hidden, name=f"vllm{_engines}",
            nccl_max_tokens=0)  # larger calls are vLLM's own
    except stoker.StokerError as caught:
        error = str(caught)
    reason = _of_any_rank(group, error)
    if reason is not None:
        if communicator is not None:
            communicator.close()
        return None, reason
    return communicator, None


def _of_any_rank(group, reason):
    """This rank's reason, else that of the first rank that has one, else None: so all ranks go the same way.
    Collective over the tensor-parallel group."""
    reasons = [None] * group.world_size
    dist.all_gather_object(reasons, reason, group=group.cpu_group)
    return reason or next((f"rank {rank}: {theirs}" for rank, theirs in enumerate(reasons) if theirs), None)


def _vllms_own(partial, residual, gamma, eps):
    """Steps beyond the workspace: vLLM's all-reduce, then its norm. (norm_out, residual_out)"""
    total = tensor_model_parallel_all_reduce(partial)
    if residual is None:
        return vllm.ir.ops.rms_norm(total, gamma, eps), total
    return vllm.ir.ops.fused_add_rms_norm(total, residual, gamma, eps)


class EngagedModel:
    """Mixed into a vLLM model class with a `model` of decoder layers. Where the gate refuses, nothing is changed."""

    stoker_eager = False  # the class is not compiled, whatever the configuration says

    def __init__(self, *, vllm_config, prefix=""):
        self.__dict__["_stoker"] = prepare(vllm_config, self.stoker_eager)
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.stoker_arm()
        if self._stoker.tail is not None and self._stoker.tail.communicator is not None:
            health.Watcher(self._stoker.tail.communicator.health).start()

    def stoker_arm(self):
        arm(self.model, self._stoker)

    def forward(self, *args, **kwargs):
        tails.count("forwards")
        return super().forward(*args, **kwargs)

    def compute_logits(self, hidden_states, *args, **kwargs):
        # Once a step, on every rank, outside captured graphs: the step's launches are done, then one host read.
        shared = self._stoker.tail
        if shared is not None and shared.communicator is not None:
            if hidden_states.is_cuda and not torch.cuda.is_current_stream_capturing():
                torch.cuda.current_stream().synchronize()
            shared.check()
        publisher = metrics.publisher(get_tp_group().rank_in_group)
        if publisher is not None:
            publisher.publish(tails.counters())
        return super().compute_logits(hidden_states, *args, **kwargs)


def _device_group(group):
    return group.device_group if dist.get_backend(group.device_group) != "gloo" else group.cpu_group


def _facts(vllm_config, group):
    device, peers = "cpu", True
    if not current_platform.is_cpu():
        major, minor = torch.cuda.get_device_capability(group.device)
        device = f"sm_{major}{minor}"
        count = torch.cuda.device_count()
        peers = all(torch.cuda.can_device_access_peer(group.device.index, other)
                    for other in range(min(count, group.world_size)) if other != group.device.index)
    hosts = 1 if all(in_the_same_node_as(group.cpu_group, 0)) else 2
    return gate.facts_of(vllm_config, group.world_size, hosts=hosts, device=device, peer_access=peers,
                         switched_on=gate.tiers())


def arm(model, engagement):
    """Arms the decoder layers of a built model with `layers` and a final `norm`; says in one INFO line what is on.

    A layer defers only where its successor can consume: the next layer's input norm, or the final norm for the last.
    """
    if engagement.tail is None:
        say_off(engagement.reason)
        return
    layers = list(model.layers)
    successors = [layer.input_layernorm for layer in layers[1:]] + [model.norm]
    norms, experts, why_not = 0, 0, []
    for index, (layer, successor) in enumerate(zip(layers, successors)):
        if engagement.compiled:
            attention, reason = None, compiled_experts(layer)
        else:
            attention = arm_attention(layer, engagement.tail, 2 * index + 1)
            reason = arm_experts(layer, successor, engagement.tail, 2 * index + 2)
        norms += attention is None
        experts += reason is None
        why_not += [f"layer {index}: {why}" for why in (attention, reason) if why]
    say_on(engagement, norms, experts, len(layers), why_not)


def arm_attention(layer, tail, site):
    """The sum over ranks after attention moves into the norm behind it. Returns why not, or None."""
    projection, norm = layer.self_attn.o_proj, layer.post_attention_layernorm
    if projection.bias is not None or not projection.reduce_results:
        return "its output projection has a bias or is not reduced"
    reason = consumer.refusal(norm)
    if reason is None:
        projection.reduce_results = False
        consumer.arm(norm, tail, site, partial=True)
    return reason


def arm_experts(layer, successor, tail, site):
    """The experts' finalize and sum over ranks move into the successor's norm. Returns why not, or None."""
    runner = getattr(layer.mlp, "experts", None)
    if not isinstance(runner, StokerMoERunner):
        return "it has no mixture of experts"
    reason = runner.stoker_refusal() or consumer.refusal(successor)
    if reason is None:
        runner.arm(tail)
        consumer.arm(successor, tail, site, partial=False)
    return reason


def compiled_experts(layer):
    """Why the graph pass cannot take this layer's experts into the tail, or None."""
    from stoker.vllm import graph_tier

    runner = getattr(layer.mlp, "experts", None)
    if not isinstance(runner, StokerMoERunner):
        return "it has no mixture of experts"
    if current_platform.is_cpu():
        graph_tier.as_op(runner)
    if runner.routed_scaling_factor != 1.0:
        return "its experts are scaled in the graph"
    return runner.stoker_refusal()


def say_off(reason):
    if get_tp_group().rank_in_group == 0:
        logger.info("Stoker is off: %s", reason)


def say_on(engagement, norms, experts, layers, why_not):
    if get_tp_group().rank_in_group == 0:
        logger.info("%s", summary(engagement, norms, experts, layers, why_not))


def summary(engagement, norms, experts, layers, why_not):
    tail = engagement.tail
    if tail.communicator is None:
        how = "the unfused reference path"
    else:
        how = repr(tail.communicator)
    by = "by graph pass, " if engagement.compiled else ""
    text = (f"Stoker is on ({engagement.mode}): {norms} attention and {experts} expert tails of {layers} layers, {by}"
            f"up to {tail.capacity} tokens, {how}")
    if why_not:
        text += "; not fused: " + ", ".join(why_not)
    return text + (f"; untested here: {engagement.untested}" if engagement.untested else "")
