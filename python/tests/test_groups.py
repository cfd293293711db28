"""Which process groups are refused, with which reason, and two groups in one process."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import reference
import stoker
from rank_processes import run
from stoker import group_facts
from stoker.group_facts import RankFacts


def test_one_host_and_gpus_that_reach_each_other_are_accepted():
    assert group_facts.refusal([RankFacts("a"), RankFacts("a")]) is None
    peers = {"x": True, "y": True}
    assert group_facts.refusal([RankFacts("a", "x", peers), RankFacts("a", "y", peers)]) is None
    # Each rank sees its own GPU only, as CUDA_VISIBLE_DEVICES makes it.
    assert group_facts.refusal([RankFacts("a", "x", {"x": True}), RankFacts("a", "y", {"y": True})]) is None


def test_gpus_without_peer_access_are_refused_by_name():
    reach = {"x": True, "y": True, "z": True}
    ranks = [RankFacts("a", "x", reach), RankFacts("a", "y", reach | {"z": False}), RankFacts("a", "z", reach)]
    reason, message = group_facts.refusal(ranks)
    assert reason == "peer_access"
    assert "rank 1 (y)" in message and "rank 2 (z)" in message


def test_hosts_are_named_by_their_ranks():
    reason, message = group_facts.refusal([RankFacts("a"), RankFacts("b"), RankFacts("a"), RankFacts("b")])
    assert reason == "hosts" and "2 hosts ([0, 2]; [1, 3])" in message


def _refused(**options):
    try:
        stoker.Communicator.from_process_group(device="cpu", max_tokens=4, hidden_max=64, **options).close()
    except stoker.UnsupportedGroupError as error:
        return error.reason, str(error)
    except stoker.StokerError as error:
        return "another error", str(error)
    return "accepted", ""


def _two_hosts(rank, world):
    group_facts.host = lambda: f"host {rank}"
    return _refused()


def test_ranks_on_two_hosts_are_all_refused():
    for reason, message in run(2, _two_hosts):
        assert reason == "hosts" and "2 hosts ([0]; [1])" in message, (reason, message)


def _nine_ranks(results):
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=9)
    results.put(_refused())


def test_more_than_eight_ranks_are_refused_before_any_exchange():
    context = mp.get_context("fork")
    results = context.Queue()
    process = context.Process(target=_nine_ranks, args=(results,))
    process.start()
    reason, message = results.get(timeout=60)
    process.join(10)
    assert reason == "world_size" and "9 ranks: 1 to 8 are supported" in message, (reason, message)


@pytest.mark.parametrize("call", ["from_process_group", "reset", "close"])
def test_nothing_collective_happens_in_a_capture(call, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    communicator = stoker.Communicator(None, 0, torch.device("cuda", 0), None)  # none of its library is reached
    call = {"from_process_group": lambda: stoker.Communicator.from_process_group(device="cuda:0"),
            "reset": communicator.reset, "close": communicator.close}[call]
    with pytest.raises(stoker.StokerError, match="while a CUDA graph is captured"):
        call()


def _launch(communicator, rank, world, seed):
    everyone = [reference.make_inputs(3, 64, 4, r, seed=seed) for r in range(world)]
    mine = everyone[rank]
    residual, _ = torch.ops.stoker.moe_finalize_allreduce_rmsnorm(
        mine["rows"], mine["indices"], mine["weights"], mine["gamma"], communicator.handle, shared=mine["shared"],
        residual=mine["residual"], eps=1e-5, routed_scaling_factor=2.5)
    assert reference.agree(residual, reference.expected(everyone, 2.5, 1e-5)[0])


def _two_engines(rank, world):
    options = {"device": "cpu", "max_tokens": 4, "hidden_max": 64, "name": "engine", "timeout": 30}
    first = stoker.Communicator.from_process_group(**options)
    second = stoker.Communicator.from_process_group(**options)
    assert first.handle != second.handle
    for seed in range(4):
        _launch(first, rank, world, seed)
        _launch(second, rank, world, seed + 10)
    dist.barrier()  # an abort stops launches: the peer's last one has to be over
    second.abort()
    assert first.health() is None
    _launch(first, rank, world, 20)  # what befalls one does not touch the other
    second.close()
    _launch(first, rank, world, 21)
    first.close()
    return os.getpid()


def test_two_engines_in_a_process_have_workspaces_of_their_own():
    results = run(2, _two_engines)
    assert all(isinstance(result, int) for result in results), results
