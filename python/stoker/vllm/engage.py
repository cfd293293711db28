"""Engages the plug-in for one model: facts, verdict, communicator, and which layers are fused."""

import dataclasses
import logging

import torch
import torch.distributed as dist
from vllm.distributed.parallel_state import get_tp_group, in_the_same_node_as
from vllm.platforms import current_platform

import stoker
from stoker.vllm import consumer, gate, health, tail as tails
from stoker.vllm.runner import StokerMoERunner, register_runner

logger = logging.getLogger("vllm.stoker")
_engines = 0


@dataclasses.dataclass
class Engagement:
    """What one model uses. tail is None where the plug-in is off; reason says why."""

    mode: str
    reason: str | None = None
    tail: tails.Tail | None = None


def prepare(vllm_config) -> Engagement:
    """Before the model is built; collective over the tensor-parallel group. Never raises for what it can refuse."""
    mode, _ = gate.mode_of()
    group = get_tp_group()
    reason = gate.reason_off(mode, _facts(vllm_config, group)) or register_runner()
    if reason is not None:
        return Engagement(mode, reason)
    hidden, capacity = vllm_config.model_config.get_hidden_size(), gate.max_tokens()
    capacity = min(capacity, vllm_config.scheduler_config.max_num_batched_tokens)
    if mode == "reference":
        return Engagement(mode, tail=tails.Tail(_device_group(group), capacity, hidden))
    global _engines
    _engines += 1
    communicator, error = None, None
    device = "cpu" if current_platform.is_cpu() else group.device
    try:
        communicator = stoker.Communicator.from_process_group(
            group.cpu_group, device=device, max_tokens=capacity, hidden_max=hidden, name=f"vllm{_engines}")
    except stoker.StokerError as caught:
        error = str(caught)
    made = torch.tensor(0 if communicator is None else 1)
    dist.all_reduce(made, op=dist.ReduceOp.MIN, group=group.cpu_group)
    if made.item() == 0:  # on all ranks or on none
        if communicator is not None:
            communicator.close()
        return Engagement(mode, error or "another rank could not make its communicator")
    return Engagement(mode, tail=tails.Tail(_device_group(group), capacity, hidden, communicator))


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
    return gate.facts_of(vllm_config, group.world_size, hosts=hosts, device=device, peer_access=peers)


def arm(model, engagement):
    """Arms the decoder layers of a built model with `layers` and a final `norm`; says in one INFO line what is on.

    A layer defers only where its successor can consume: the next layer's input norm, or the final norm for the last.
    """
    rank0 = get_tp_group().rank_in_group == 0
    if engagement.tail is None:
        if rank0:
            logger.info("Stoker is off: %s", engagement.reason)
        return
    layers = list(model.layers)
    successors = [layer.input_layernorm for layer in layers[1:]] + [model.norm]
    norms, experts, why_not = 0, 0, []
    for index, (layer, successor) in enumerate(zip(layers, successors)):
        reason = arm_attention(layer, engagement.tail, 2 * index + 1)
        norms += reason is None
        why_not += [f"layer {index}: {reason}"] if reason else []
        reason = arm_experts(layer, successor, engagement.tail, 2 * index + 2)
        experts += reason is None
        why_not += [f"layer {index}: {reason}"] if reason else []
    if engagement.tail.communicator is not None:
        health.Watcher(engagement.tail.communicator.health).start()
    if rank0:
        logger.info("%s", summary(engagement, norms, experts, len(layers), why_not))


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


def summary(engagement, norms, experts, layers, why_not):
    tail = engagement.tail
    if tail.communicator is None:
        how = "the unfused reference path"
    else:
        how = repr(tail.communicator)
    text = (f"Stoker is on ({engagement.mode}): {norms} attention and {experts} expert tails of {layers} layers, "
            f"up to {tail.capacity} tokens, {how}")
    return text + ("" if not why_not else "; not fused: " + ", ".join(why_not))
