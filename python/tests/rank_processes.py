"""Runs a function in several rank processes, with gloo for the set-up."""

import ctypes
import os
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


def run(world, body, deadline=90, start="fork"):
    """The results of `body(rank, world)` by rank; every process is gone when it returns.

    start: "spawn" for bodies that use a GPU; they must then be picklable."""
    context = mp.get_context(start)
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=_rank_main, args=(r, world, folder + "/store", body, results))
                     for r in range(world)]
        for process in processes:
            process.start()
        got = {}
        end = time.monotonic() + deadline
        try:
            while len(got) < world and time.monotonic() < end:
                if not results.empty():
                    rank, result = results.get()
                    got[rank] = result
                time.sleep(0.01)
        finally:
            for process in processes:
                process.join(2)
                if process.is_alive():
                    process.kill()
                    process.join()
    assert len(got) == world, f"only ranks {sorted(got)} of {world} returned within {deadline} s"
    return [got[r] for r in range(world)]
