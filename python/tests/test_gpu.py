"""The ops on one GPU: eager, captured in a CUDA graph and replayed with changed inputs, compiled; one rank in this
process, and two ranks in processes that share the GPU."""

import pytest
import torch

import reference
import stoker
from rank_processes import run

pytestmark = [pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
              pytest.mark.usefixtures("gpu_lock")]

TENSORS = ("rows", "indices", "weights", "gamma", "shared", "residual")


def on_gpu(inputs):
    return {name: tensor.cuda() for name, tensor in inputs.items()}


def finalize(communicator, inputs, **options):
    return torch.ops.stoker.moe_finalize_allreduce_rmsnorm(
        inputs["rows"], inputs["indices"], inputs["weights"], inputs["gamma"], communicator.handle,
        shared=inputs["shared"], residual=inputs["residual"], eps=1e-5, routed_scaling_factor=2.5, **options)


def check(outputs, everyone):
    for actual, wanted in zip(outputs, reference.expected(everyone, 2.5, 1e-5)):
        assert reference.agree(actual.cpu(), wanted, fraction=0.05)


def capture_and_replay(communicator, everyone_by_seed, rank):
    """A graph of three launches, replayed with each seed's inputs."""
    buffers = on_gpu(everyone_by_seed[0][rank])
    finalize(communicator, buffers)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in range(3):
            outputs = finalize(communicator, buffers, site=launch, programmatic_launch=True)
    for everyone in everyone_by_seed:
        for name in TENSORS:
            buffers[name].copy_(everyone[rank][name])
        graph.replay()
        torch.cuda.synchronize()
        check(outputs, everyone)


def worlds_inputs(world, seeds=3):
    return [[reference.make_inputs(7, 2880, 8, r, seed=seed) for r in range(world)] for seed in range(seeds)]


def test_one_rank_eager_graph_and_compiled():
    with stoker.Communicator.from_process_group(device="cuda", max_tokens=16, hidden_max=2880, name="gpu-one",
                                                timeout=10) as communicator:
        inputs = worlds_inputs(1)
        check(finalize(communicator, on_gpu(inputs[0][0])), inputs[0])
        capture_and_replay(communicator, inputs, 0)
        compiled = torch.compile(lambda x: finalize(communicator, x), fullgraph=True, backend="aot_eager")
        check(compiled(on_gpu(inputs[1][0])), inputs[1])
        assert communicator.health() is None


def test_reduction_eager_and_captured():
    def made(seed):
        inputs = reference.make_inputs(7, 2880, 8, 0, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        inputs["active"] = (0.5 * torch.randn(9, 7, 2880, generator=generator)).bfloat16()
        inputs["scales"] = torch.rand(9, 7, generator=generator)
        return inputs

    with stoker.Communicator.from_process_group(device="cuda", max_tokens=16, hidden_max=2880, name="gpu-reduce",
                                                timeout=10) as communicator:
        buffers = on_gpu(made(0))

        def run():
            return torch.ops.stoker.moe_reduce_allreduce_rmsnorm(
                buffers["active"], buffers["scales"], buffers["gamma"], communicator.handle, shared=buffers["shared"],
                residual=buffers["residual"], eps=1e-5, programmatic_launch=True)

        run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
            residual, _ = run()
        for seed in range(3):
            inputs = made(seed)
            for name in TENSORS + ("active", "scales"):
                buffers[name].copy_(inputs[name])
            graph.replay()
            torch.cuda.synchronize()
            partial = (inputs["active"].double() * inputs["scales"].double().unsqueeze(-1)).sum(0)
            total = (partial + inputs["shared"].double()).bfloat16().double()
            assert reference.agree(residual.cpu(), (total + inputs["residual"].double()).bfloat16())
        assert communicator.health() is None


def check_all_reduce(communicator, rank, world):
    """Eager, in place, and in a graph with changed inputs."""
    def everyone(seed):
        return [reference.make_inputs(7, 2880, 8, r, seed=seed)["shared"] for r in range(world)]

    def wanted(seed):
        return sum(one.float() for one in everyone(seed)).to(torch.bfloat16)

    buffer = everyone(0)[rank].cuda()
    total = torch.ops.stoker.all_reduce(buffer, communicator.handle)
    assert torch.equal(total.cpu(), wanted(0))
    torch.ops.stoker.all_reduce.out(buffer, communicator.handle, out=buffer)
    assert torch.equal(buffer.cpu(), wanted(0))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total = torch.ops.stoker.all_reduce(buffer, communicator.handle, site=1, programmatic_launch=True)
    for seed in range(1, 4):
        buffer.copy_(everyone(seed)[rank])
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(total.cpu(), wanted(seed))


def test_all_reduce_of_one_rank():
    with stoker.Communicator.from_process_group(device="cuda", max_tokens=16, hidden_max=2880, name="gpu-sum",
                                                timeout=10) as communicator:
        check_all_reduce(communicator, 0, 1)
        x = torch.zeros(17, 2880, dtype=torch.bfloat16, device="cuda")
        with pytest.raises(RuntimeError, match="NCCL would take them, but a group of one rank"):
            torch.ops.stoker.all_reduce(x, communicator.handle)


def test_calls_beyond_the_capacity_go_through_nccl_where_it_is_asked_for():
    everyone = [[reference.make_inputs(100, 2880, 8, 0, seed=seed)] for seed in range(3)]
    with stoker.Communicator.from_process_group(device="cuda", max_tokens=16, hidden_max=2880, name="gpu-nccl",
                                                timeout=10, nccl_max_tokens=128) as communicator:
        assert "NCCL up to 128 tokens" in repr(communicator)
        check(finalize(communicator, on_gpu(everyone[0][0])), everyone[0])
        capture_and_replay(communicator, everyone, 0)
        assert communicator.health() is None


def test_finalize_alone_eager_and_captured():
    inputs = worlds_inputs(1)
    buffers = on_gpu(inputs[0][0])

    def run():
        return torch.ops.stoker.moe_finalize(buffers["rows"], buffers["indices"], buffers["weights"],
                                             shared=buffers["shared"], routed_scaling_factor=2.5,
                                             programmatic_launch=True)

    assert reference.agree(run().cpu(), reference.partial(inputs[0][0], 2.5))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
        out = run()
    for everyone in inputs:
        for name in TENSORS:
            buffers[name].copy_(everyone[0][name])
        graph.replay()
        torch.cuda.synchronize()
        assert reference.agree(out.cpu(), reference.partial(everyone[0], 2.5))


def test_opcheck_on_cuda():
    with stoker.Communicator.from_process_group(device="cuda", max_tokens=16, hidden_max=64, name="gpu-opcheck",
                                                timeout=10) as communicator:
        inputs = on_gpu(reference.make_inputs(3, 64, 4, rank=0))
        torch.library.opcheck(torch.ops.stoker.moe_finalize_allreduce_rmsnorm.default,
                              (inputs["rows"], inputs["indices"], inputs["weights"], inputs["gamma"],
                               communicator.handle), dict(shared=inputs["shared"], residual=inputs["residual"]))
        torch.library.opcheck(torch.ops.stoker.allreduce_rmsnorm.default,
                              (inputs["shared"], inputs["gamma"], communicator.handle))
        torch.library.opcheck(torch.ops.stoker.all_reduce.default, (inputs["shared"], communicator.handle))
        torch.library.opcheck(torch.ops.stoker.moe_finalize.default,
                              (inputs["rows"], inputs["indices"], inputs["weights"]), dict(shared=inputs["shared"]))


def test_a_cpu_tensor_is_refused():
    with stoker.Communicator.from_process_group(device="cuda", max_tokens=16, hidden_max=64, name="gpu-mixed",
                                                timeout=10) as communicator:
        inputs = on_gpu(reference.make_inputs(3, 64, 4, rank=0))
        inputs["gamma"] = inputs["gamma"].cpu()
        with pytest.raises(RuntimeError, match="gamma is on the CPU and the rows are on cuda:0; all tensors"):
            finalize(communicator, inputs)


def _rank(rank, world):
    with stoker.Communicator.from_process_group(device="cuda:0", max_tokens=16, hidden_max=2880, name="gpu-two",
                                                timeout=30) as communicator:
        inputs = worlds_inputs(world)
        check(finalize(communicator, on_gpu(inputs[0][rank])), inputs[0])
        capture_and_replay(communicator, inputs, rank)
        check_all_reduce(communicator, rank, world)
        assert communicator.health() is None
    return "right"


def test_two_ranks_in_processes_that_share_the_gpu():
    assert run(2, _rank, deadline=150, start="spawn") == ["right", "right"]
