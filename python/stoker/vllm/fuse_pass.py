"""Tier C: a graph pass for compiled models. Two rewrites, where the sum over ranks has no other use:

    all-reduce -> (fused_add_)rms_norm                                          one op
    experts (-> shared + routed) -> all-reduce -> fused_add_rms_norm            one op, the whole tail of a MoE layer

Works on the graph that Inductor's post-grad passes see in vLLM, before its IR is lowered: `vllm::all_reduce`,
`vllm_ir::fused_add_rms_norm`, `vllm_ir::rms_norm`, `vllm::moe_forward_shared`, and `vllm::moe_forward`, which is there
in its auto-functionalised form because it may write into its input. Imports no vLLM, so that it is tested on graphs
made by hand; graph_tier.py puts it into vLLM's pass manager.

The ops that it puts in look up the tail that `use` named for this process, so that nothing of a communicator is baked
into a compiled artefact; the tail chooses the path by shape alone.
"""

import hashlib
import inspect
import operator

import torch
from torch._higher_order_ops.auto_functionalize import auto_functionalized
from torch._inductor.custom_graph_pass import CustomGraphPass

from stoker.vllm import tail as tails

_tail = None
_experts = None
_library = torch.library.Library("stoker_vllm", "FRAGMENT")


def use(tail):
    """The stoker.vllm.tail.Tail of this process's model; None: compiled graphs with the ops raise."""
    global _tail
    _tail = tail


def in_use() -> bool:
    return _tail is not None


def _the_tail():
    if _tail is None:
        raise RuntimeError("stoker: a compiled graph with ops of stoker_vllm runs in a process where "
                           "stoker.vllm.fuse_pass.use was not called")
    return _tail


def allreduce_rmsnorm(partial: torch.Tensor, residual: torch.Tensor | None, gamma: torch.Tensor, eps: float,
                      site: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm_out, residual_out); without a residual, residual_out is the sum over ranks."""
    return _the_tail().allreduce_rmsnorm(partial, residual, gamma, eps, site)


def _like_first(first, *rest):
    return torch.empty_like(first), torch.empty_like(first)


def _define(name, function, mutates):
    _library.define(name + torch.library.infer_schema(function, mutates_args=mutates))
    _library.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"stoker_vllm::{name}", _like_first, lib=_library)


_define("allreduce_rmsnorm", allreduce_rmsnorm, ())


def define_moe_tail(layer_name_type, experts):
    """Defines stoker_vllm::moe_tail and ::moe_tail_shared, once in a process; a second call replaces `experts` alone.

    They take the arguments of vLLM's moe_forward and moe_forward_shared, whose layer_name is a layer_name_type, then
    (residual, gamma, eps, site), and return (norm_out, residual_out).
    experts(layer_name, hidden_states, router_logits, shared_experts_input, input_ids, catch) -> (routed, shared) as
    Tail.take wants them; catch: whether rows may be left un-finalized.
    """
    global _experts
    first, _experts = _experts is None, experts
    if not first:
        return

    def moe_tail(hidden_states, router_logits, shared_experts_input, input_ids, layer_name, hidden_dim_unpadded,
                 residual, gamma, eps, site):
        tail = _the_tail()
        catch = tail.takes_rows(*residual.shape, residual.dtype)
        routed, shared = _experts(layer_name, hidden_states, router_logits, shared_experts_input, input_ids, catch)
        return tail.take(routed, shared, 1.0, residual, gamma, eps, site)

    tensor = torch.Tensor
    moe_tail.__annotations__ = dict(
        hidden_states=tensor, router_logits=tensor, shared_experts_input=tensor | None, input_ids=tensor | None,
        layer_name=layer_name_type, hidden_dim_unpadded=int, residual=tensor, gamma=tensor, eps=float, site=int)
    moe_tail.__annotations__["return"] = tuple[tensor, tensor]
    _define("moe_tail", moe_tail, ("hidden_states",))
    _define("moe_tail_shared", moe_tail, ())


class FusePass(CustomGraphPass):
    """For `post_grad_custom_post_pass`. replaced: how many all-reduces the calls so far have replaced, by op."""

    def __init__(self, group_name):
        self.group_name = group_name  # of the tensor-parallel group; all-reduces of other groups stay
        self.replaced = {}

    def uuid(self):
        source = inspect.getsource(inspect.getmodule(FusePass)) + inspect.getsource(tails)
        return hashlib.sha256(f"{source}{self.group_name}".encode()).hexdigest()

    def __call__(self, graph):
        for name, times in rewrite(graph, self.group_name).items():
            self.replaced[name] = self.replaced.get(name, 0) + times


def rewrite(graph, group_name):
    """Rewrites in place; returns the number of all-reduces replaced by each op. Each gets the next number as its
    site."""
    replaced = {}
    for norm in list(graph.nodes):
        found = _match(norm, group_name)
        if found is None:
            continue
        reduce, *rest = found
        experts = _match_experts(norm, reduce, rest[0])
        with graph.inserting_before(norm):
            if experts is None:
                name = "allreduce_rmsnorm"
                _replace_norm(graph, norm, reduce, (reduce.args[0], *rest, sum(replaced.values())))
            else:
                name = "moe_tail"
                _replace_experts(graph, norm, reduce, experts, (*rest, sum(replaced.values())))
        replaced[name] = replaced.get(name, 0) + 1
    graph.lint()
    return replaced


def _value(norm):
    value = norm.meta.get("val")
    return value[0] if isinstance(value, (tuple, list)) else value


def _outputs(graph, fused, values):
    outputs = []
    for index, value in enumerate(values):
        outputs.append(graph.call_function(operator.getitem, (fused, index)))
        outputs[-1].meta["val"] = value
    fused.meta["val"] = tuple(values)
    return outputs


def _replace_norm(graph, norm, reduce, arguments):
    fused = graph.call_function(torch.ops.stoker_vllm.allreduce_rmsnorm.default, arguments)
    outputs = _outputs(graph, fused, [_value(norm)] * 2)
    if arguments[1] is None:
        norm.replace_all_uses_with(outputs[0])
        _erase(graph, [norm])
        reduce.replace_all_uses_with(outputs[1])  # the residual stream of a first layer
        _erase(graph, [reduce])
    else:
        _replace_getters(graph, norm, outputs)
        _erase(graph, [norm, reduce])


def _replace_experts(graph, norm, reduce, experts, rest):
    call, between, given = experts
    given = given | dict(zip(("residual", "gamma", "eps", "site"), rest))
    values = [_value(norm)] * 2
    if call.target is auto_functionalized:
        fused = graph.call_function(auto_functionalized, (torch.ops.stoker_vllm.moe_tail.default,), given)
        values.append(given["hidden_states"].meta.get("val"))
    else:
        fused = graph.call_function(torch.ops.stoker_vllm.moe_tail_shared.default, tuple(given.values()))
    outputs = _outputs(graph, fused, values)
    _replace_getters(graph, norm, outputs)
    _erase(graph, [norm, reduce, *between])
    if call.target is auto_functionalized:
        _replace_getters(graph, call, [None, outputs[2]])  # the input as the experts left it
    _erase(graph, [call])


def _replace_getters(graph, node, outputs):
    for getter in list(node.users):
        getter.replace_all_uses_with(outputs[getter.args[1]])
        graph.erase_node(getter)


def _named(node, names):
    return dict(zip(names, node.args)) | dict(node.kwargs)


def _match(norm, group_name):
    """(all-reduce, residual or None, gamma, eps) where this node is a norm that can be fused, else None."""
    name = _op_name(norm)
    if name not in ("vllm_ir::fused_add_rms_norm", "vllm_ir::rms_norm"):
        return None
    adds = name == "vllm_ir::fused_add_rms_norm"
    given = _named(norm, ("x", "x_residual", "weight", "epsilon", "variance_size") if adds else
                   ("x", "weight", "epsilon", "variance_size"))
    reduce = given["x"]
    if _op_name(reduce) != "vllm::all_reduce" or given["weight"] is None or given.get("variance_size") is not None:
        return None
    if _named(reduce, ("tensor", "group_name"))["group_name"] != group_name:
        return None
    if adds and (len(reduce.users) != 1 or any(user.target is not operator.getitem for user in norm.users)):
        return None  # somebody else needs the sum itself
    if not adds and not _all_after(reduce.users, norm):
        return None
    return reduce, given.get("x_residual"), given["weight"], given["epsilon"]


_EXPERTS = ("hidden_states", "router_logits", "shared_experts_input", "input_ids", "layer_name", "hidden_dim_unpadded")


def _match_experts(norm, reduce, residual):
    """(call of the experts, the nodes between it and the all-reduce from the last on, its arguments), or None."""
    partial = reduce.args[0] if reduce.args else reduce.kwargs["tensor"]
    if _experts is None or residual is None or len(partial.users) != 1:
        return None
    if _op_name(partial) == "aten::add":  # shared + routed
        parts = partial.args
        if len(parts) != 2 or partial.kwargs or any(not _only(part, partial) for part in parts):
            return None
        call, (first, second) = parts[0].args[0], (part.args[1] for part in parts)
        if parts[1].args[0] is not call or {first, second} != {0, 1} or len(call.users) != 2:
            return None
        if _op_name(call) != "vllm::moe_forward_shared":
            return None
        between, given = [partial, *parts], _named(call, _EXPERTS)
    elif partial.target is operator.getitem and partial.args[1] == 0 and partial.args[0].target is auto_functionalized:
        call, between = partial.args[0], [partial]
        if call.args[0] is not getattr(torch.ops.vllm.moe_forward, "default", None):
            return None
        later = [user for user in call.users if user is not partial]
        if any(user.target is not operator.getitem for user in later):
            return None
        if not all(_all_after(user.users, norm) for user in later):
            return None
        given = dict(call.kwargs)
    else:
        return None
    if given["hidden_dim_unpadded"] != 0:
        return None
    return call, between, {name: given.get(name) for name in _EXPERTS}


def _only(part, user):
    return isinstance(part, torch.fx.Node) and part.target is operator.getitem and list(part.users) == [user]


def _all_after(users, norm):
    """Whether these nodes come after the norm, so that they can take what the fused op returns."""
    order = {node: index for index, node in enumerate(norm.graph.nodes)}
    return all(order[user] >= order[norm] for user in users)


def _op_name(node):
    if not isinstance(node, torch.fx.Node) or not isinstance(node.target, torch._ops.OpOverload):
        return None
    return node.target._schema.name


def _erase(graph, nodes):
    for node in nodes:
        graph.erase_node(node)
