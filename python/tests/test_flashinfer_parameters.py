"""FlashInfer's published test parameters (quantised outputs excepted) against a float64 oracle, with error bounds.

The parameters are those of github.com/flashinfer-ai/flashinfer, tests/comm/test_trtllm_allreduce_fusion.py,
test_trtllm_moe_allreduce_fusion.py and test_trtllm_moe_allreduce_fusion_finalize.py, for their worlds of 2 (and 4 for
the last). Those tests allow absolute errors up to 0.8; here each element has a bound from the contract's roundings.
On a GPU all parameters, by processes that share it; without one the small sizes, on CPU ranks.
"""

import functools
import itertools

import pytest
import torch
import torch.distributed as dist

from stoker import flashinfer_compat as comm
from rank_processes import run

GPU = torch.cuda.is_available()
pytestmark = pytest.mark.usefixtures("gpu_lock") if GPU else []
DTYPES = [torch.float16, torch.bfloat16]
MAX_TOKENS = 2048 if GPU else 16
DEVICE = "cuda:0" if GPU else "cpu"


def draw(*shape, dtype, seed):
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(*shape, generator=generator, device=DEVICE, dtype=torch.float32).to(dtype)


def check(shares, residual, gamma, eps, bias, dtype, got):
    """got: (sum or None, residual_out, norm_out), each None or a tensor.

    shares: for each rank its exact share, float64, and the sum of its terms' absolute values. Each bound adds half a
    unit of T for each rounding to T on the way, and FP32's unit for what is accumulated in FP32.
    """
    unit, wide = torch.finfo(dtype).eps / 2, 64 * 2.0 ** -24
    total, bound = 0, 0
    for share, magnitude in shares:
        total = total + share
        bound = bound + 1.01 * unit * share.abs() + wide * magnitude
    bound = bound + 1.01 * unit * total.abs()
    sum_out, residual_out, norm_out = got
    if sum_out is not None:
        within(sum_out, total, bound)
    if residual_out is None:
        return
    stream = total + residual.double()
    bound = bound + 1.01 * unit * (stream.abs() + bound)
    within(residual_out, stream, bound)
    mean = (stream * stream).mean(-1, keepdim=True) + eps
    scale = (bias + gamma.double()) / torch.sqrt(mean)
    norm = stream * scale
    # The root of the mean moves by at most the root of the bounds' mean square.
    moved = torch.sqrt((bound * bound).mean(-1, keepdim=True) / mean) + wide
    within(norm_out, norm, bound * scale.abs() * (1 + 2 * moved) + norm.abs() * 2 * moved + 1.01 * unit * norm.abs())


def within(actual, wanted, bound):
    excess = (actual.double().view(wanted.shape) - wanted).abs() - bound - torch.finfo(actual.dtype).tiny
    assert excess.max().item() <= 0, f"{int((excess > 0).sum())} elements above their bound, by up to {excess.max()}"


def together():
    """All ranks are here and have nothing left to do. Ranks that share a GPU must not allocate, which may wait for the
    whole GPU, while a peer's launch waits for them."""
    if GPU:
        torch.cuda.synchronize()
    dist.barrier()


def eager_and_graph(call, tensors, times):
    """The outputs of `times` calls, then of a graph with `times` calls: equal, and no stale value may pass."""
    together()
    for _ in range(times):
        call()
    if not GPU:
        return
    together()
    first = [tensor.clone() for tensor in tensors]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    for tensor in tensors:
        tensor.fill_(7.0)
    together()
    graph.replay()
    together()
    assert all(torch.equal(tensor, before) for tensor, before in zip(tensors, first)), "a replay gives other bits"


def _finalize(rank, world, dtype):
    tokens, hidden, top_k, eps, scaling = 16, 7168, 8, 1e-5, 2.5
    handles, pointers = comm.trtllm_create_ipc_workspace_for_all_reduce_fusion(rank, world, MAX_TOKENS, hidden,
                                                                              device=DEVICE)
    for pdl, loop in itertools.product([True, False], range(5)):
        common = 100 * loop

        def inputs(of):
            own = common + of + 1
            indices = torch.randint(0, tokens * top_k, (tokens, top_k), dtype=torch.int32,
                                    generator=torch.Generator().manual_seed(own)).to(DEVICE)
            rows, shared = (draw(count, hidden, dtype=dtype, seed=own + seed)
                            for count, seed in ((tokens * top_k, 0), (tokens, 1000)))
            return rows, indices, draw(tokens, top_k, dtype=dtype, seed=own + 2000), shared

        def share(of):
            rows, indices, weights, shared = inputs(of)
            terms = rows.double()[indices.long()] * weights.double().unsqueeze(-1) * scaling
            return terms.sum(1) + shared.double(), terms.abs().sum(1) + shared.double().abs()

        rows, indices, weights, shared = inputs(rank)
        residual, gamma = draw(tokens, hidden, dtype=dtype, seed=common), draw(hidden, dtype=dtype, seed=common + 1)
        norm_out, residual_out = torch.empty_like(residual), torch.empty_like(residual)
        eager_and_graph(lambda: comm.trtllm_moe_finalize_allreduce_fusion(
            allreduce_in=rows, residual_in=residual, norm_weight=gamma, expanded_idx_to_permuted_idx=indices,
            workspace_ptrs=pointers, launch_with_pdl=pdl, world_rank=rank, world_size=world, eps=eps,
            shared_expert_output=shared, expert_scale_factor=weights, norm_out=norm_out, residual_out=residual_out,
            quant_out=None, scale_out=None, routed_scaling_factor=scaling), (norm_out, residual_out), 5)
        check(map(share, range(world)), residual, gamma, eps, 0.0, dtype, (None, residual_out, norm_out))
    return _end(handles)


def _min_latency(rank, world, dtype):
    hidden, eps = 7168, 1e-3
    handles, pointers = comm.trtllm_create_ipc_workspace_for_all_reduce_fusion(rank, world, MAX_TOKENS, hidden,
                                                                              device=DEVICE)
    counts = [1, 64, 128, 256, 2048] if GPU else [1, 16]
    for tokens, experts, pdl in itertools.product(counts, [8, 12, 16], [True, False]):
        common = 10 * tokens

        def inputs(of):
            own = common + of + experts
            return (draw(experts * tokens * hidden, dtype=dtype, seed=own),
                    draw(experts * tokens, dtype=torch.float32, seed=own + 1000),
                    draw(tokens * hidden, dtype=dtype, seed=own + 2000))

        def share(of):
            active, scales, given = inputs(of)
            total = given.double().view(tokens, hidden)
            magnitude = total.abs()
            for expert, scale in zip(active.view(experts, tokens, hidden), scales.double().view(experts, tokens, 1)):
                total = total + expert.double() * scale
                magnitude = magnitude + (expert.double() * scale).abs()
            return total, magnitude

        active, scales, given = inputs(rank)
        residual, gamma = draw(tokens * hidden, dtype=dtype, seed=common), draw(hidden, dtype=dtype, seed=common + 1)
        outputs = [torch.empty_like(residual) for _ in range(3)]
        for layout in comm.QuantizationSFLayout:
            before = [tensor.clone() for tensor in outputs]
            eager_and_graph(lambda: comm.trtllm_moe_allreduce_fusion(
                world_size=world, world_rank=rank, token_num=tokens, hidden_dim=hidden, workspace_ptrs=pointers,
                launch_with_pdl=pdl, residual_in=residual, rms_gamma=gamma, rms_eps=eps, scale_factor=0.5,
                moe_reduction_device_num_experts=experts, moe_reduction_scale_input=scales,
                moe_reduction_active_experts_token_input=active, moe_reduction_token_input=given, layout_code=layout,
                moe_allreduce_out=outputs[0], residual_out=outputs[1], norm_out=outputs[2], quant_out=None,
                scale_out=None), outputs, 3 if layout == comm.QuantizationSFLayout.LINEAR else 1)
            assert layout == 0 or all(torch.equal(a, b) for a, b in zip(before, outputs))
        check(map(share, range(world)), residual.view(tokens, hidden), gamma, eps, 0.0, dtype, outputs)
    return _end(handles)


def _plain(rank, world, dtype):
    for hidden in [1024, 2048, 4096, 7168, 8192] if GPU else [1024]:
        _plain_of(rank, world, dtype, hidden)
    return "done"


def _plain_of(rank, world, dtype, hidden):
    eps = 1e-3
    handles, pointers, metadata = comm.trtllm_create_ipc_workspace_for_all_reduce_fusion(
        rank, world, MAX_TOKENS, hidden, create_metadata=True, device=DEVICE)
    patterns = [comm.AllReduceFusionPattern.kAllReduce, comm.AllReduceFusionPattern.kARResidualRMSNorm]
    counts = [1, 128, 1024, 2048] if GPU else [1, 16]
    for tokens, bias, pattern in itertools.product(counts, [0.0, 1.0], patterns):
        def share(of):
            exact = draw(tokens * hidden, dtype=dtype, seed=tokens + of).double().view(tokens, hidden)
            return exact, exact.abs()

        given = draw(tokens * hidden, dtype=dtype, seed=tokens + rank)
        residual, gamma = draw(tokens * hidden, dtype=dtype, seed=7), draw(hidden, dtype=dtype, seed=8)
        outputs = [torch.empty_like(given) for _ in range(3)]
        written = outputs[:1] if pattern == 0 else outputs
        first = None
        options = [(pdl, oneshot, at_end, fp32, layout)
                   for pdl in (True, False) for oneshot in (True, False, None) for at_end in (True, False)
                   for fp32 in (True, False) for layout in comm.QuantizationSFLayout
                   if tokens >= world or oneshot]
        for number, (pdl, oneshot, at_end, fp32, layout) in enumerate(options):
            def call():
                comm.trtllm_allreduce_fusion(
                    allreduce_in=given, world_size=world, world_rank=rank, token_num=tokens, hidden_dim=hidden,
                    workspace_ptrs=pointers, launch_with_pdl=pdl, use_oneshot=oneshot,
                    trigger_completion_at_end=at_end, fp32_acc=fp32, pattern_code=pattern, allreduce_out=outputs[0],
                    residual_in=residual, residual_out=outputs[1], norm_out=outputs[2], quant_out=None, scale_out=None,
                    rms_gamma=gamma, rms_eps=eps, weight_bias=bias, scale_factor=0.5, layout_code=layout,
                    metadata=metadata)

            if number % 18 == 0:  # the options change nothing in the launch but its being programmatic
                eager_and_graph(call, written, 5)
            else:
                together()
                call()
            first = first or [tensor.clone() for tensor in written]
            assert all(torch.equal(a, b) for a, b in zip(first, written)), "an option changes the numbers"
        check(map(share, range(world)), residual.view(tokens, hidden), gamma, eps, bias, dtype,
              outputs if pattern == 1 else (outputs[0], None, None))
    _end(handles)


def _end(handles):
    assert comm.health(handles) is None
    comm.trtllm_destroy_ipc_workspace_for_all_reduce_fusion(handles)
    return "done"


def on_ranks(body, world, **options):
    results = run(world, functools.partial(body, **options), deadline=100, start="spawn" if GPU else "fork")
    print(body.__name__, world, options, results, flush=True)  # at once: a limit may end the run of all tests
    assert results == ["done"] * world


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("world", [2, 4])
def test_moe_finalize_allreduce_fusion(world, dtype):
    on_ranks(_finalize, world, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_moe_allreduce_fusion(dtype):
    on_ranks(_min_latency, 2, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_allreduce_fusion(dtype):
    on_ranks(_plain, 2, dtype=dtype)


def test_the_bound_rejects_an_error_of_two_units():
    wanted = torch.ones(4, dtype=torch.float64)
    unit = torch.finfo(torch.bfloat16).eps
    within(torch.ones(4).bfloat16(), wanted, unit / 2 * wanted)
    with pytest.raises(AssertionError, match="1 elements above"):
        within(torch.tensor([1, 1, 1 + 2 * unit, 1]).bfloat16(), wanted, unit * wanted)
