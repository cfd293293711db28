"""What the tests wait for has a deadline, and says what did not come."""

import multiprocessing
import os
import signal
import time

import pytest

import gpu_lock
import rank_processes


def _hangs_on_rank_1(rank, world):
    if rank == 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(300)
    return os.getpid()


def test_a_rank_that_does_not_return_is_named_and_gone():
    start = time.monotonic()
    with pytest.raises(AssertionError, match=r"only ranks \[0\] of 2 returned within 3 s"):
        rank_processes.run(2, _hangs_on_rank_1, deadline=3)
    assert time.monotonic() - start < 30 and multiprocessing.active_children() == []


class Unkillable:
    """A process that stands in a driver's call: nothing ends it."""

    name, pid, killed, waited = "Rank-7", 4711, False, 0.0

    def join(self, timeout):
        self.waited += timeout

    def is_alive(self):
        return True

    def kill(self):
        self.killed = True


def test_a_process_that_no_kill_ends_is_an_error_and_not_a_wait():
    process = Unkillable()
    with pytest.raises(RuntimeError, match=r"Rank-7 \(process 4711\) still there 1 s after SIGKILL"):
        rank_processes.end([process], seconds=0.1, after_kill=1)
    assert process.killed and process.waited <= 1.2


def test_a_gpu_lock_that_another_holds_is_an_error_that_names_the_file(tmp_path):
    path = tmp_path / "lock"
    with gpu_lock.held(path):
        start = time.monotonic()
        with pytest.raises(TimeoutError, match=f"another GPU test has held {path} for 0.3 s"):
            with gpu_lock.held(path, 0.3):
                pass
        assert 0.3 <= time.monotonic() - start < 10
    with gpu_lock.held(path, 0.3):
        pass
