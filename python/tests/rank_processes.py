"""Runs a function in several rank processes, with gloo for the set-up."""

import contextlib
import ctypes
import os
import queue
import signal
import tempfile
import time

import torch.distributed as dist
import torch.multiprocessing as mp


def _end_with_the_parent():
    """A rank whose parent is killed must not go on waiting for its peers, with the GPU."""
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def _rank_main(rank, world, store, body, results):
    _end_with_the_parent()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        results.put((rank, body(rank, world)))
    except Exception as error:  # reported to the parent, which fails the test
        results.put((rank, f"{type(error).__name__}: {error}"))


def end(processes, seconds=2.0, after_kill=10.0):
    """Every process is gone when this returns: killed where it is there after `seconds`.

    RuntimeError names those that are there `after_kill` later still, in a driver's call for instance."""
    limit = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, limit - time.monotonic()))
    for process in processes:
        if process.is_alive():
            process.kill()
    limit = time.monotonic() + after_kill
    for process in processes:
        process.join(max(0.0, limit - time.monotonic()))
    left = [f"{process.name} (process {process.pid})" for process in processes if process.is_alive()]
    if left:
        raise RuntimeError(f"{', '.join(left)} still there {after_kill:.0f} s after SIGKILL")


def run(world, body, deadline=90, start="fork"):
    """The results of `body(rank, world)` by rank; every process is gone when it returns.

    AssertionError names the ranks that did not return within `deadline` seconds; RuntimeError: see `end`.
    start: "spawn" for bodies that use a GPU; they must then be picklable."""
    context = mp.get_context(start)
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=_rank_main, args=(r, world, folder + "/store", body, results))
                     for r in range(world)]
        for process in processes:
            process.start()
        got = {}
        limit = time.monotonic() + deadline
        try:
            while len(got) < world and time.monotonic() < limit:
                with contextlib.suppress(queue.Empty):
                    rank, result = results.get(timeout=0.05)
                    got[rank] = result
        finally:
            end(processes)
    assert len(got) == world, f"only ranks {sorted(got)} of {world} returned within {deadline} s"
    return [got[r] for r in range(world)]
