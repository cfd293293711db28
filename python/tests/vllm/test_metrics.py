"""The counters as Prometheus metrics: what is added, and that nothing happens where it is not asked for."""

import sys
import types

import pytest

from stoker.vllm import metrics

CALLS = "moe_finalize_allreduce_rmsnorm"


class Counter:
    """As prometheus_client's, for the names and values alone."""

    made = {}

    def __init__(self, name, _help, labels):
        self.name, self.names = name, labels

    def labels(self, *values):
        assert len(values) == len(self.names)
        self.key = (self.name, *values)
        return self

    def inc(self, amount):
        self.made[self.key] = self.made.get(self.key, 0) + amount


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(metrics, "_publisher", None)
    monkeypatch.setattr(Counter, "made", {})
    monkeypatch.setitem(sys.modules, "prometheus_client", types.SimpleNamespace(Counter=Counter))


def test_what_is_new_is_added_by_op_path_and_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    publisher = metrics.publisher(1)
    assert metrics.publisher(1) is publisher
    publisher.publish({"forwards": 2, f"{CALLS} fused": 5})
    publisher.publish({"forwards": 3, f"{CALLS} fused": 9, f"{CALLS} fallback: tokens above the workspace": 1})
    publisher.publish({"forwards": 3, f"{CALLS} fused": 9, f"{CALLS} fallback: tokens above the workspace": 1})
    assert Counter.made == {("stoker_forwards", "1"): 3, ("stoker_calls", CALLS, "fused", "", "1"): 9,
                            ("stoker_calls", CALLS, "fallback", "tokens above the workspace", "1"): 1}


def test_without_the_folder_or_the_package_there_is_no_publisher(monkeypatch, tmp_path):
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    assert metrics.publisher(0) is None
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert metrics.publisher(0) is None
