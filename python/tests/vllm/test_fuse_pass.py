"""The graph pass on graphs made by hand with the ops that vLLM's passes see."""

import operator

import pytest
import torch

import stoker
from stoker.vllm import fuse_pass, tail as tails

GROUP = "tp:0"
HIDDEN = 64


@torch.library.custom_op("vllm::all_reduce", mutates_args=())
def all_reduce(tensor: torch.Tensor, group_name: str) -> torch.Tensor:
    return tensor.clone()  # a group of one rank


@torch.library.custom_op("vllm_ir::fused_add_rms_norm", mutates_args=())
def fused_add_rms_norm(x: torch.Tensor, x_residual: torch.Tensor, weight: torch.Tensor | None, epsilon: float,
                       variance_size: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    total = x + x_residual
    return rms_norm(total, weight, epsilon), total


@torch.library.custom_op("vllm_ir::rms_norm", mutates_args=())
def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float,
             variance_size: int | None = None) -> torch.Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + epsilon)
    return (wide * weight.float()).to(x.dtype)


all_reduce.register_fake(lambda tensor, group_name: torch.empty_like(tensor))
rms_norm.register_fake(lambda x, *rest: torch.empty_like(x))
fused_add_rms_norm.register_fake(lambda x, *rest: (torch.empty_like(x), torch.empty_like(x)))
OPS = torch.ops.vllm_ir


@pytest.fixture(scope="module")
def tail():
    with stoker.Communicator.from_process_group(device="cpu", max_tokens=8, hidden_max=HIDDEN, name="pass",
                                                timeout=5) as communicator:
        tail = tails.Tail(None, 8, HIDDEN, communicator, strict=True)
        fuse_pass.use(tail)
        yield tail
        fuse_pass.use(None)


def layers(x, residual, gamma, group=GROUP):
    """A first norm without a residual, then two with, as in a decoder."""
    start = torch.ops.vllm.all_reduce(x, group)
    normed = OPS.rms_norm(start, gamma, 1e-5)
    normed, residual = OPS.fused_add_rms_norm(torch.ops.vllm.all_reduce(normed * 2, group), start, gamma, 1e-5)
    normed, residual = OPS.fused_add_rms_norm(torch.ops.vllm.all_reduce(normed + x, group), residual, gamma, 1e-5)
    return normed, residual


def arguments():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(5, HIDDEN, generator=generator).bfloat16() for _ in range(2)] + [
        torch.randn(HIDDEN, generator=generator).bfloat16()]


def traced(body):
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(lambda x, residual, gamma: body(x, residual, gamma))(*arguments())


def names(graph):
    return [fuse_pass._op_name(node) for node in graph.nodes if fuse_pass._op_name(node)]


def close(got, wanted):
    for actual, expected in zip(got, wanted):
        torch.testing.assert_close(actual, expected, rtol=0.02, atol=0.03)


def test_every_all_reduce_before_a_norm_is_fused_and_the_values_stay(tail):
    module = traced(layers)
    tails._counters.clear()
    assert fuse_pass.rewrite(module.graph, GROUP) == 3
    left = names(module.graph)
    assert left.count("stoker_vllm::allreduce_rmsnorm") == 3
    assert not {"vllm::all_reduce", "vllm_ir::rms_norm", "vllm_ir::fused_add_rms_norm"} & set(left)
    sites = [node.args[4] for node in module.graph.nodes
             if fuse_pass._op_name(node) == "stoker_vllm::allreduce_rmsnorm"]
    assert sites == [0, 1, 2]
    module.recompile()
    close(module(*arguments()), layers(*arguments()))
    assert tails.counters() == {"fused": 3}


def sum_used_elsewhere(x, residual, gamma):
    total = torch.ops.vllm.all_reduce(x, GROUP)
    normed, residual = OPS.fused_add_rms_norm(total, residual, gamma, 1e-5)
    return normed, total


def sum_used_before(x, residual, gamma):
    total = torch.ops.vllm.all_reduce(x, GROUP)
    return OPS.rms_norm(total, total[0] * 1, 1e-5)


@pytest.mark.parametrize("body", [
    sum_used_elsewhere,
    sum_used_before,
    lambda x, residual, gamma: layers(x, residual, gamma, group="world:0"),
    lambda x, residual, gamma: OPS.fused_add_rms_norm(x, residual, gamma, 1e-5),
    lambda x, residual, gamma: OPS.rms_norm(torch.ops.vllm.all_reduce(x, GROUP), gamma, 1e-5, 32),
], ids=["sum used elsewhere", "sum used before", "another group", "no all-reduce", "a part of the hidden size"])
def test_what_cannot_be_fused_stays_as_it_is(body):
    module = traced(body)
    before = str(module.graph)
    assert fuse_pass.rewrite(module.graph, GROUP) == 0
    assert str(module.graph) == before


def test_keyword_arguments_are_understood():
    graph = torch.fx.Graph()
    x, residual, gamma = (graph.placeholder(name) for name in ("x", "residual", "gamma"))
    total = graph.call_function(torch.ops.vllm.all_reduce.default, (x,), dict(group_name=GROUP))
    norm = graph.call_function(OPS.fused_add_rms_norm.default, (total,),
                               dict(x_residual=residual, epsilon=1e-6, weight=gamma))
    graph.output(graph.call_function(operator.getitem, (norm, 1)))
    assert fuse_pass.rewrite(graph, GROUP) == 1
    fused = next(node for node in graph.nodes if fuse_pass._op_name(node) == "stoker_vllm::allreduce_rmsnorm")
    assert fused.args == (x, residual, gamma, 1e-6, 0)


def test_opcheck(tail):
    x, residual, gamma = arguments()
    torch.library.opcheck(fuse_pass.allreduce_rmsnorm, (x, residual, gamma, 1e-5, 0),
                          test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"))


def test_the_cache_key_depends_on_the_group_and_a_missing_tail_is_named():
    assert fuse_pass.FusePass("a").uuid() != fuse_pass.FusePass("b").uuid()
    assert fuse_pass.FusePass("a").uuid() == fuse_pass.FusePass("a").uuid()
    fuse_pass.use(None)
    with pytest.raises(RuntimeError, match="fuse_pass.use was not called"):
        fuse_pass.allreduce_rmsnorm(*arguments(), 1e-5, 0)
