"""Finds the package in the build tree."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import gpu_lock as lock_file  # noqa: E402


@pytest.fixture(scope="module")
def gpu_lock():
    with lock_file.held():
        yield
