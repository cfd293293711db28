"""The counters of tail.py as Prometheus metrics, in vLLM's multiprocess mode.

Workers have no metrics page; where PROMETHEUS_MULTIPROC_DIR is set when vLLM starts, each writes its numbers into a
file there, and the API server's /metrics shows them with vLLM's own:
    stoker_forwards_total{rank}
    stoker_calls_total{op, path, reason, rank}    path: fused, reference, fallback; reason: of a fallback, else empty
Without that variable nothing is imported and nothing is counted here.
"""

import os


class Publisher:
    """publish() adds what was counted since the last call: a few dictionary look-ups. One thread at a time."""

    def __init__(self, rank, counter):
        """counter: prometheus_client.Counter."""
        self._rank, self._published = str(rank), {}
        self._forwards = counter("stoker_forwards", "Forward passes of a model with Stoker's plug-in", ["rank"])
        self._calls = counter("stoker_calls", "Calls of the plug-in's tails", ["op", "path", "reason", "rank"])

    def publish(self, counters):
        for name, value in counters.items():
            new = value - self._published.get(name, 0)
            self._published[name] = value
            if new == 0:
                continue
            if name == "forwards":
                self._forwards.labels(self._rank).inc(new)
            else:
                op, how = name.split(" ", 1)
                path, _, reason = how.partition(": ")
                self._calls.labels(op, path, reason, self._rank).inc(new)


_publisher = None


def publisher(rank):
    """The Publisher of this process, or None where nothing is asked for or prometheus_client is missing."""
    global _publisher
    if _publisher is None and os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        try:
            from prometheus_client import Counter
        except ImportError:
            return None
        _publisher = Publisher(rank, Counter)
    return _publisher
