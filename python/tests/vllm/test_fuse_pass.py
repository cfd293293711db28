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


def close(got, wanted, atol=0.03):
    for actual, expected in zip(got, wanted):
        torch.testing.assert_close(actual, expected, rtol=0.02, atol=atol)


def test_every_all_reduce_before_a_norm_is_fused_and_the_values_stay(tail):
    module = traced(layers)
    tails._counters.clear()
    assert fuse_pass.rewrite(module.graph, GROUP) == {"allreduce_rmsnorm": 3}
    left = names(module.graph)
    assert left.count("stoker_vllm::allreduce_rmsnorm") == 3
    assert not {"vllm::all_reduce", "vllm_ir::rms_norm", "vllm_ir::fused_add_rms_norm"} & set(left)
    sites = [node.args[4] for node in module.graph.nodes
             if fuse_pass._op_name(node) == "stoker_vllm::allreduce_rmsnorm"]
    assert sites == [0, 1, 2]
    module.recompile()
    close(module(*arguments()), layers(*arguments()))
    assert tails.counters() == {"allreduce_rmsnorm fused": 3}


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
    assert fuse_pass.rewrite(module.graph, GROUP) == {}
    assert str(module.graph) == before


def test_keyword_arguments_are_understood():
    graph = torch.fx.Graph()
    x, residual, gamma = (graph.placeholder(name) for name in ("x", "residual", "gamma"))
    total = graph.call_function(torch.ops.vllm.all_reduce.default, (x,), dict(group_name=GROUP))
    norm = graph.call_function(OPS.fused_add_rms_norm.default, (total,),
                               dict(x_residual=residual, epsilon=1e-6, weight=gamma))
    graph.output(graph.call_function(operator.getitem, (norm, 1)))
    assert fuse_pass.rewrite(graph, GROUP) == {"allreduce_rmsnorm": 1}
    fused = next(node for node in graph.nodes if fuse_pass._op_name(node) == "stoker_vllm::allreduce_rmsnorm")
    assert fused.args == (x, residual, gamma, 1e-6, 0)


class Rows:  # vLLM's UnfinalizedMoEOutput
    def __init__(self, hidden):
        tokens = len(hidden)
        self.gemm2_permuted = torch.cat([hidden * 2, hidden * 3])
        self.expert_weights = torch.tensor([[0.25, 0.75]]).expand(tokens, 2)
        self.expanded_idx_to_permuted_idx = torch.arange(2 * tokens, dtype=torch.int32).view(2, tokens).t().contiguous()


@torch.library.custom_op("vllm::moe_forward", mutates_args=("hidden_states",))
def moe_forward(hidden_states: torch.Tensor, router_logits: torch.Tensor, shared_experts_input: torch.Tensor | None,
                input_ids: torch.Tensor | None, layer_name: str, hidden_dim_unpadded: int) -> torch.Tensor:
    out = hidden_states * 2.75  # 0.25 * 2 + 0.75 * 3
    hidden_states.mul_(-1)
    return out


@torch.library.custom_op("vllm::moe_forward_shared", mutates_args=())
def moe_forward_shared(hidden_states: torch.Tensor, router_logits: torch.Tensor,
                       shared_experts_input: torch.Tensor | None, input_ids: torch.Tensor | None, layer_name: str,
                       hidden_dim_unpadded: int) -> tuple[torch.Tensor, torch.Tensor]:
    return shared_experts_input + 1, hidden_states * 2.75


moe_forward.register_fake(lambda hidden, *rest: torch.empty_like(hidden))
moe_forward_shared.register_fake(lambda hidden, *rest: (torch.empty_like(hidden), torch.empty_like(hidden)))
asked = []


def experts(layer_name, hidden_states, router_logits, shared_experts_input, input_ids, catch):
    asked.append((layer_name, catch))
    shared = None if shared_experts_input is None else shared_experts_input + 1
    rows = Rows(hidden_states) if catch else hidden_states * 2.75
    if shared_experts_input is None:
        hidden_states.mul_(-1)
    return rows, shared


@pytest.fixture
def moe():
    fuse_pass.define_moe_tail(str, experts)
    asked.clear()


def moe_layers(x, residual, gamma):
    """Two tails of experts, without and with a shared expert, and a norm behind attention before each."""
    for layer in range(2):
        normed, residual = OPS.fused_add_rms_norm(torch.ops.vllm.all_reduce(x, GROUP), residual, gamma, 1e-5)
        if layer == 0:
            partial = torch.ops.vllm.moe_forward(normed, normed, None, None, f"layer {layer}", 0)
        else:
            shared, routed = torch.ops.vllm.moe_forward_shared(normed, normed, normed, None, f"layer {layer}", 0)
            partial = shared + routed
        x, residual = OPS.fused_add_rms_norm(torch.ops.vllm.all_reduce(partial, GROUP), residual, gamma, 1e-5)
        if layer == 0:
            x = x + normed  # what the experts left in their input
    return x, residual


def functional(body, inputs):
    """The graph as Inductor's post-grad passes see it: functional, in-place ops auto-functionalised."""
    graphs = []

    def inner(module, inputs):
        graphs.append(module)
        return module.forward

    from torch._dynamo.backends.common import aot_autograd

    torch._dynamo.reset()
    with torch._inductor.config.patch(enable_auto_functionalized_v2=False), torch.no_grad():
        torch.compile(body, fullgraph=True, backend=aot_autograd(fw_compiler=inner, inference_compiler=inner))(*inputs)
    return graphs[-1]


def test_the_whole_tail_behind_experts_is_one_op(tail, moe):
    wanted = moe_layers(*[x.clone() for x in arguments()])
    module = functional(moe_layers, arguments())
    assert fuse_pass.rewrite(module.graph, GROUP) == {"allreduce_rmsnorm": 2, "moe_tail": 2}
    left = names(module.graph)
    assert "stoker_vllm::moe_tail_shared" in left and not [name for name in left if name.startswith("vllm")], left
    module.recompile()
    tails._counters.clear()
    close(module(*[x.clone() for x in arguments()]), wanted, atol=0.1)  # of a stream up to 30
    assert asked == [("layer 0", True), ("layer 1", True)]
    assert tails.counters() == {f"{op} fused": 2 for op in (tails.PLAIN, tails.EXPERTS)}


def test_the_rewritten_graph_compiles_with_inductor(tail, moe):
    from torch._inductor import config

    wanted = moe_layers(*[x.clone() for x in arguments()])
    made = fuse_pass.FusePass(GROUP)
    torch._dynamo.reset()
    options = {"post_grad_custom_post_pass": made, "enable_auto_functionalized_v2": False,
               "force_disable_caches": True}  # a graph from a cache has met the pass already
    with config.patch(options), torch.no_grad():
        got = torch.compile(moe_layers, fullgraph=True)(*[x.clone() for x in arguments()])
    assert made.replaced == {"allreduce_rmsnorm": 2, "moe_tail": 2}
    close(got, wanted, atol=0.1)


def test_beyond_the_workspace_the_experts_finalize_themselves(tail, moe):
    many = [x if x.dim() == 1 else x.repeat(2, 1) for x in arguments()]
    hidden, residual, gamma = many
    tail.strict, tail._beyond = False, OPS.fused_add_rms_norm
    try:
        got = torch.ops.stoker_vllm.moe_tail(hidden.clone(), hidden, None, None, "far", 0, residual, gamma, 1e-5, 0)
    finally:
        tail.strict, tail._beyond = True, tail._reference
    assert asked == [("far", False)]
    close(got, OPS.fused_add_rms_norm(hidden * 2.75, residual, gamma, 1e-5))


def experts_out_used_elsewhere(x, residual, gamma):
    partial = torch.ops.vllm.moe_forward(x * 1, x, None, None, "layer", 0)
    total = torch.ops.vllm.all_reduce(partial, GROUP)
    return *OPS.fused_add_rms_norm(total, residual, gamma, 1e-5), partial


def input_used_before(x, residual, gamma):
    hidden = x * 1
    partial = torch.ops.vllm.moe_forward(hidden, x, None, None, "layer", 0)
    return OPS.fused_add_rms_norm(torch.ops.vllm.all_reduce(partial, GROUP), residual + hidden, gamma, 1e-5)


def padded(x, residual, gamma):
    partial = torch.ops.vllm.moe_forward(x * 1, x, None, None, "layer", HIDDEN)
    return OPS.fused_add_rms_norm(torch.ops.vllm.all_reduce(partial, GROUP), residual, gamma, 1e-5)


def scaled(x, residual, gamma):
    shared, routed = torch.ops.vllm.moe_forward_shared(x, x, x, None, "layer", 0)
    return OPS.fused_add_rms_norm(torch.ops.vllm.all_reduce(shared + routed * 2, GROUP), residual, gamma, 1e-5)


@pytest.mark.parametrize("body", [experts_out_used_elsewhere, input_used_before, padded, scaled])
def test_experts_that_cannot_be_taken_stay_and_the_norm_is_fused(tail, moe, body):
    module = functional(body, arguments())
    assert fuse_pass.rewrite(module.graph, GROUP) == {"allreduce_rmsnorm": 1}
    module.recompile()
    close(module(*[x.clone() for x in arguments()]), body(*[x.clone() for x in arguments()]))


def test_opcheck_of_the_moe_tail(tail, moe):
    x, residual, gamma = arguments()
    for name in ("moe_tail", "moe_tail_shared"):
        shared = x if name == "moe_tail_shared" else None
        torch.library.opcheck(getattr(torch.ops.stoker_vllm, name).default,
                              (x, x, shared, None, "layer", 0, residual, gamma, 1e-5, 0),
                              test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"))


def test_opcheck(tail):
    x, residual, gamma = arguments()
    torch.library.opcheck(torch.ops.stoker_vllm.allreduce_rmsnorm.default, (x, residual, gamma, 1e-5, 0),
                          test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"))


def test_the_cache_key_depends_on_the_group_and_a_missing_tail_is_named():
    assert fuse_pass.FusePass("a").uuid() != fuse_pass.FusePass("b").uuid()
    assert fuse_pass.FusePass("a").uuid() == fuse_pass.FusePass("a").uuid()
    fuse_pass.use(None)
    with pytest.raises(RuntimeError, match="fuse_pass.use was not called"):
        torch.ops.stoker_vllm.allreduce_rmsnorm(*arguments(), 1e-5, 0)
