"""Finds the package in the build tree."""

import fcntl
import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))


@pytest.fixture(scope="module")
def gpu_lock():
    """One GPU test at a time on a machine: the lock file of testing/gpu_lock.h."""
    with open(f"/tmp/stoker-gpu-{os.geteuid()}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
