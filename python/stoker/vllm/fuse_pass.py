"""Tier C: a graph pass for compiled models, all-reduce -> (fused_add_)rms_norm into one op.

Works on the graph that Inductor's post-grad passes see in vLLM, before its IR is lowered: `vllm::all_reduce` and
`vllm_ir::fused_add_rms_norm` or `vllm_ir::rms_norm`, auto-functionalised forms left alone. Imports no vLLM, so that
it is tested on graphs made by hand. The gate does not switch it on yet: compiled models are refused (docs/vllm.md).

The op that it puts in looks up the tail that `use` named for this process, so that nothing of a communicator is baked
into a compiled artefact; the tail chooses the path by shape alone.
"""

import hashlib
import inspect
import operator

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass

_tail = None


def use(tail):
    """The stoker.vllm.tail.Tail of this process's model; None: compiled graphs with the op raise."""
    global _tail
    _tail = tail


@torch.library.custom_op("stoker_vllm::allreduce_rmsnorm", mutates_args=())
def allreduce_rmsnorm(partial: torch.Tensor, residual: torch.Tensor | None, gamma: torch.Tensor, eps: float,
                      site: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm_out, residual_out); without a residual, residual_out is the sum over ranks."""
    if _tail is None:
        raise RuntimeError("stoker: a compiled graph with stoker_vllm::allreduce_rmsnorm runs in a process where "
                           "stoker.vllm.fuse_pass.use was not called")
    return _tail.allreduce_rmsnorm(partial, residual, gamma, eps, site)


@allreduce_rmsnorm.register_fake
def _(partial, residual, gamma, eps, site):
    return torch.empty_like(partial), torch.empty_like(partial)


class FusePass(CustomGraphPass):
    """For `post_grad_custom_post_pass`. matched: how many all-reduces the calls so far have replaced."""

    def __init__(self, group_name):
        self.group_name = group_name  # of the tensor-parallel group; all-reduces of other groups stay
        self.matched = 0

    def uuid(self):
        source = inspect.getsource(inspect.getmodule(type(self)))
        return hashlib.sha256(f"{source}{self.group_name}".encode()).hexdigest()

    def __call__(self, graph):
        self.matched += rewrite(graph, self.group_name)


def rewrite(graph, group_name):
    """Rewrites in place; returns the number of all-reduces replaced. Each gets the next number as its site."""
    replaced = 0
    for norm in list(graph.nodes):
        found = _match(norm, group_name)
        if found is None:
            continue
        reduce, residual, gamma, eps = found
        with graph.inserting_before(norm):
            fused = graph.call_function(torch.ops.stoker_vllm.allreduce_rmsnorm.default,
                                        (reduce.args[0], residual, gamma, eps, replaced))
            outputs = [graph.call_function(operator.getitem, (fused, index)) for index in (0, 1)]
        value = norm.meta.get("val")
        first = value[0] if isinstance(value, (tuple, list)) else value
        for output in outputs:
            output.meta["val"] = first
        fused.meta["val"] = (first, first)
        if residual is None:
            norm.replace_all_uses_with(outputs[0])
            _erase(graph, [norm])
            reduce.replace_all_uses_with(outputs[1])  # the residual stream of a first layer
        else:
            getters = list(norm.users)
            for getter in getters:
                getter.replace_all_uses_with(outputs[getter.args[1]])
            _erase(graph, getters + [norm])
        _erase(graph, [reduce])
        replaced += 1
    graph.lint()
    return replaced


def _match(norm, group_name):
    """(all-reduce, residual or None, gamma, eps) where this node is a norm that can be fused, else None."""
    name = _op_name(norm)
    if name not in ("vllm_ir::fused_add_rms_norm", "vllm_ir::rms_norm"):
        return None
    adds = name == "vllm_ir::fused_add_rms_norm"
    names = ("x", "x_residual", "weight", "epsilon", "variance_size") if adds else (
        "x", "weight", "epsilon", "variance_size")
    given = dict(zip(names, norm.args)) | dict(norm.kwargs)
    reduce = given["x"]
    if _op_name(reduce) != "vllm::all_reduce" or given["weight"] is None or given.get("variance_size") is not None:
        return None
    if (dict(zip(("tensor", "group_name"), reduce.args)) | dict(reduce.kwargs))["group_name"] != group_name:
        return None
    if adds and (len(reduce.users) != 1 or any(user.target is not operator.getitem for user in norm.users)):
        return None  # somebody else needs the sum itself
    if not adds and not _before_all(norm, reduce):
        return None
    return reduce, given.get("x_residual"), given["weight"], given["epsilon"]


def _before_all(norm, reduce):
    """Whether the sum's other users come after the norm, so that they can take it from the fused op."""
    order = {node: index for index, node in enumerate(norm.graph.nodes)}
    return all(order[user] >= order[norm] for user in reduce.users)


def _op_name(node):
    if not isinstance(node, torch.fx.Node) or not isinstance(node.target, torch._ops.OpOverload):
        return None
    return node.target._schema.name


def _erase(graph, nodes):
    for node in nodes:
        graph.erase_node(node)
