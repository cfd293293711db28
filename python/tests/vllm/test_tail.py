"""The tail's choice of path, its counters, STOKER_STRICT, and failures in serving: without vLLM, on CPU ranks."""

import pathlib
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist

import stoker
from stoker.vllm import health, server_exit, tail as tails

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from test_ranks import run  # noqa: E402

CAPACITY, HIDDEN = 8, 64
OPS = (tails.PLAIN, tails.EXPERTS)


def inputs(tokens, hidden, rank, dtype=torch.bfloat16):
    own = torch.Generator().manual_seed(rank)
    common = torch.Generator().manual_seed(99)
    return dict(rows=torch.randn(2 * tokens, hidden, generator=own).to(dtype),
                indices=torch.arange(2 * tokens, dtype=torch.int32).view(tokens, 2),
                weights=torch.rand(tokens, 2, generator=own),
                shared=torch.randn(tokens, hidden, generator=own).to(dtype),
                residual=torch.randn(tokens, hidden, generator=common).to(dtype),
                gamma=torch.randn(hidden, generator=common).to(dtype))


def both(tail, given):
    """What the two calls give, as bits, and what they counted."""
    tails._counters.clear()
    finalized = tail.finalize_allreduce_rmsnorm(given["rows"], given["indices"], given["weights"], given["shared"],
                                                2.5, given["residual"], given["gamma"], 1e-5, 1)
    plain = tail.allreduce_rmsnorm(given["shared"], given["residual"], given["gamma"], 1e-5, 2)
    return [t.view(torch.int16).tolist() for t in (*finalized, *plain)], tails.counters()


def _paths(rank, world):
    with stoker.Communicator.from_process_group(device="cpu", max_tokens=CAPACITY, hidden_max=HIDDEN, name="tail",
                                                timeout=20) as communicator:
        fused = tails.Tail(dist.group.WORLD, CAPACITY, HIDDEN, communicator, strict=False)
        plain = tails.Tail(dist.group.WORLD, CAPACITY, HIDDEN, None, strict=False)
        got, counted = both(fused, inputs(5, HIDDEN, rank))
        wanted, counted_plain = both(plain, inputs(5, HIDDEN, rank))
        assert counted == {f"{op} fused": 1 for op in OPS} and counted_plain == {f"{op} reference": 1 for op in OPS}
        assert got == wanted
        # One token more than the workspace takes: the same bits for the tokens before, on the unfused path.
        large = inputs(CAPACITY + 1, HIDDEN, rank)
        beyond, counted = both(fused, large)
        assert counted == {f"{op} fallback: tokens above the workspace": 1 for op in OPS}
        assert beyond == both(plain, large)[0]
        # What vLLM does itself: its own all-reduce and norm get the partial sums.
        given = []
        own = tails.Tail(dist.group.WORLD, CAPACITY, HIDDEN, communicator, strict=False,
                         unfused=lambda *arguments: given.append(arguments) or (large["shared"], large["residual"]))
        both(own, large)
        wanted = torch.ops.stoker.moe_finalize(large["rows"], large["indices"], large["weights"],
                                               shared=large["shared"], routed_scaling_factor=2.5)
        assert torch.equal(given[0][0], wanted) and torch.equal(given[1][0], large["shared"])
        for shape, reason in (((3, 2 * HIDDEN), "hidden size"), ((3, 20), "hidden size")):
            assert fused.refusal(*shape, torch.bfloat16) == reason
        assert fused.refusal(3, HIDDEN, torch.float32) == "dtype"
        strict = tails.Tail(dist.group.WORLD, CAPACITY, HIDDEN, communicator, strict=True)
        both(strict, inputs(5, HIDDEN, rank))
        with pytest.raises(RuntimeError, match="9 tokens of 64.*takes 8 tokens.*STOKER_STRICT"):
            both(strict, large)
        return "done"


class Unfinalized:  # vLLM's UnfinalizedMoEOutput
    def __init__(self, given):
        self.gemm2_permuted, self.expert_weights = given["rows"], given["weights"]
        self.expanded_idx_to_permuted_idx = given["indices"]


def _take(rank, world):
    """What experts leave: rows, or a finalized share with or without a shared expert, on the path that fits."""
    with stoker.Communicator.from_process_group(device="cpu", max_tokens=CAPACITY, hidden_max=HIDDEN, name="take",
                                                timeout=20) as communicator:
        tail, given = tails.Tail(dist.group.WORLD, CAPACITY, HIDDEN, communicator), inputs(5, HIDDEN, rank)
        rest = (given["residual"], given["gamma"], 1e-5, 1)
        rows = tail.take(Unfinalized(given), given["shared"], 2.5, *rest)
        finalized = torch.ops.stoker.moe_finalize(given["rows"], given["indices"], given["weights"],
                                                  shared=given["shared"], routed_scaling_factor=2.5)
        assert tail.takes_rows(5, HIDDEN, torch.bfloat16) and not tail.takes_rows(CAPACITY + 1, HIDDEN, torch.bfloat16)
        assert not tails.Tail(None, CAPACITY, HIDDEN, rows=False).takes_rows(5, HIDDEN, torch.bfloat16)
        tails._counters.clear()
        for routed, shared, scaling, op in ((finalized, None, 1.0, tails.PLAIN), (finalized, 0 * finalized, 1.0,
                                                                                  tails.EXPERTS)):
            got = tail.take(routed, shared, scaling, *rest)
            assert all(torch.equal(a, b) for a, b in zip(got, rows))
            assert tails.counters()[f"{op} fused"] == 1
    return "done"


def test_what_experts_leave_is_taken():
    assert run(2, _take) == ["done", "done"]


def test_fused_reference_and_fallback_give_the_same_bits_and_are_counted():
    assert run(2, _paths) == ["done", "done"]


def _failure(rank, world):
    communicator = stoker.Communicator.from_process_group(device="cpu", max_tokens=CAPACITY, hidden_max=HIDDEN,
                                                          name="failing", timeout=20)
    tail = tails.Tail(dist.group.WORLD, CAPACITY, HIDDEN, communicator, strict=False)
    both(tail, inputs(2, HIDDEN, rank))
    tail.check()
    dist.barrier()
    if rank == 1:
        communicator.abort()
    end = time.monotonic() + 10
    while communicator.health() is None and time.monotonic() < end:
        time.sleep(0.01)
    for attempt in (tail.check, lambda: both(tail, inputs(2, HIDDEN, rank))):
        try:
            attempt()
            return "went on after a failure"
        except RuntimeError as error:
            said = str(error)
    return said


def test_after_a_failure_on_one_rank_both_raise_at_the_check_and_at_the_next_call():
    for said in run(2, _failure):
        assert said.startswith("stoker: ") or "abort" in said, said


def watch(report, **options):
    ended = threading.Event()
    statuses = []

    def end(status):
        statuses.append(status)
        ended.set()

    watcher = health.Watcher(report, end=end, poll=0.01, **options)
    watcher.start()
    return watcher, ended, statuses


def test_the_watcher_ends_the_worker_after_its_grace(caplog):
    reports = iter([None, None])
    watcher, ended, statuses = watch(lambda: next(reports, "stoker: rank 1 aborted"), grace=0.05)
    assert ended.wait(10) and statuses == [server_exit.EXIT_STATUS]
    assert "rank 1 aborted" in caplog.text
    watcher.stop()


def test_the_watcher_leaves_a_healthy_or_stopped_worker_alone():
    watcher, ended, statuses = watch(lambda: None, grace=0.01)
    assert not ended.wait(0.1)
    watcher.stop()
    failing, _, _ = watch(lambda: "stoker: failed", grace=60)
    time.sleep(0.1)
    failing.stop()
    assert statuses == [] and not watcher.is_alive() and not failing.is_alive()
