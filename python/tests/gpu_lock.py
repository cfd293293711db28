"""One GPU test at a time on a machine: the lock file of testing/gpu_lock.h, held by a `with` block."""

import contextlib
import fcntl
import os
import time

SECONDS = 600


@contextlib.contextmanager
def held(path=None, seconds=SECONDS):
    """TimeoutError names the file where another test holds it for longer than `seconds`."""
    path = path or f"/tmp/stoker-gpu-{os.geteuid()}.lock"
    limit = time.monotonic() + seconds
    with open(path, "w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > limit:
                    raise TimeoutError(f"another GPU test has held {path} for {seconds} s") from None
                time.sleep(0.05)
        yield
