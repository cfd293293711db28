"""The ops on several CPU ranks: processes, with gloo for the set-up."""

import time

import pytest
import torch

import reference
import stoker
from rank_processes import run


def _parity(rank, world):
    with stoker.Communicator.from_process_group(device="cpu", max_tokens=16, hidden_max=264, name="parity",
                                                timeout=30) as communicator:
        outputs = []
        for launch in range(6):
            everyone = [reference.make_inputs(5, 264, 8, r, seed=launch) for r in range(world)]
            mine = everyone[rank]
            residual, norm = torch.ops.stoker.moe_finalize_allreduce_rmsnorm(
                mine["rows"], mine["indices"], mine["weights"], mine["gamma"], communicator.handle,
                shared=mine["shared"], residual=mine["residual"], eps=1e-5, routed_scaling_factor=2.5, site=launch)
            wanted_residual, wanted_norm = reference.expected(everyone, 2.5, 1e-5)
            assert reference.agree(residual, wanted_residual), f"residual of launch {launch}"
            assert reference.agree(norm, wanted_norm, fraction=0.05), f"norm of launch {launch}"
            total = torch.ops.stoker.all_reduce(mine["shared"], communicator.handle, site=launch)
            wanted = sum(one["shared"].float() for one in everyone).to(total.dtype)  # rank by rank, one rounding
            assert torch.equal(total, wanted), f"sum of launch {launch}"
            outputs.append((residual.view(torch.int16).sum().item(), norm.view(torch.int16).sum().item()))
        return outputs


@pytest.mark.parametrize("world", [2, 4])
def test_all_ranks_agree_with_torch_and_with_each_other(world):
    results = run(world, _parity)
    assert all(isinstance(result, list) for result in results), results
    assert all(result == results[0] for result in results), results


def _mismatch(rank, world):
    with stoker.Communicator.from_process_group(device="cpu", max_tokens=16, hidden_max=64, name="mismatch",
                                                timeout=60) as communicator:
        inputs = reference.make_inputs(6 if rank == 0 else 7, 64, 4, rank)
        start = time.monotonic()
        try:
            torch.ops.stoker.moe_finalize_allreduce_rmsnorm(inputs["rows"], inputs["indices"], inputs["weights"],
                                                            inputs["gamma"], communicator.handle)
        except RuntimeError as error:
            assert time.monotonic() - start < 20
            communicator.reset()
            inputs = reference.make_inputs(6, 64, 4, rank)
            torch.ops.stoker.moe_finalize_allreduce_rmsnorm(inputs["rows"], inputs["indices"], inputs["weights"],
                                                            inputs["gamma"], communicator.handle)
            return "reported " + str(error)
        return "nothing was reported"


def test_six_tokens_against_seven_is_reported_on_both_sides_and_reset_works():
    for rank, result in enumerate(run(2, _mismatch)):
        assert result.startswith(f"reported stoker: rank {rank} of 2: "), result
        assert "6 tokens" in result and "7 tokens" in result, result


def _missing(rank, world):
    if rank == 1:
        time.sleep(4)
        return "stayed away"
    try:
        stoker.Communicator.from_process_group(device="cpu", max_tokens=16, hidden_max=64, name="missing",
                                               setup_timeout=1)
    except stoker.StokerError as error:
        return str(error)
    return "nothing was reported"


def test_a_missing_peer_at_start_is_named():
    results = run(2, _missing)
    for words in ("agreeing on the plan", "Ranks 1 failed", "1000 ms"):
        assert words in results[0], results[0]


def _shorter(rank, world):
    with stoker.Communicator.from_process_group(device="cpu", max_tokens=16, hidden_max=64,
                                                name="shorter") as communicator:
        if rank == 1:
            return "launched nothing"
        communicator.set_timeout(0.2)
        inputs = reference.make_inputs(3, 64, 4, rank)
        start = time.monotonic()
        try:
            torch.ops.stoker.allreduce_rmsnorm(inputs["shared"], inputs["gamma"], communicator.handle)
        except RuntimeError as error:
            return f"{time.monotonic() - start < 30} {error}"
        return "nothing was reported"


def test_a_timeout_set_later_holds_and_the_late_rank_is_named():
    result = run(2, _shorter)[0]
    assert result.startswith("True ") and "rank 0 waited" in result and "for rank 1" in result, result


def _plans_differ(rank, world):
    try:
        stoker.Communicator.from_process_group(device="cpu", max_tokens=16, hidden_max=64 * (rank + 1), name="differ",
                                               setup_timeout=5)
    except stoker.StokerError as error:
        return str(error)
    return "nothing was reported"


def test_different_hidden_sizes_are_refused_with_both_values():
    for rank, result in enumerate(run(2, _plans_differ)):
        assert result.startswith(f"stoker: rank {rank} of 2: "), result
        assert "largest hidden size differs" in result and "64" in result and "128" in result, result


def _bad_input(rank, world):
    with stoker.Communicator.from_process_group(device="cpu", max_tokens=16, hidden_max=64, name="bad",
                                                timeout=30) as communicator:
        inputs = reference.make_inputs(3, 64, 4, rank)
        said = []
        for gamma in (inputs["gamma"].double(), inputs["gamma"][:8].contiguous()):
            try:
                torch.ops.stoker.allreduce_rmsnorm(inputs["shared"], gamma, communicator.handle)
            except RuntimeError as error:
                said.append(str(error))
        return said


def test_errors_of_arguments_name_the_rank_too():
    for rank, (dtype, shape) in enumerate(run(2, _bad_input)):
        assert dtype.startswith(f"stoker: rank {rank} of 2: gamma is float64"), dtype
        assert shape.startswith(f"stoker: rank {rank} of 2: gamma has the shape [8]; [64]"), shape
