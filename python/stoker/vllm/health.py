"""The backstop of failures in serving: a thread that watches the group's health page and ends the worker.

The first line is `Tail.check`, once a step where the model makes its logits. Where a worker waits elsewhere and never
gets there (for a peer that has raised already, in vLLM's own collectives), the watcher logs the report and, after a
grace that lets the exception arrive first, ends the process; vLLM's engine notices a worker that is gone and stops.
"""

import logging
import os
import threading

from stoker.vllm import server_exit

POLL_SECONDS = 0.2
GRACE_SECONDS = 0.5

logger = logging.getLogger("vllm.stoker")


class Watcher(threading.Thread):
    """A daemon thread. health: a callable that returns None or the report; end: called with the exit status."""

    def __init__(self, health, end=os._exit, poll=POLL_SECONDS, grace=GRACE_SECONDS):
        super().__init__(name="stoker-health", daemon=True)
        self._health, self._end, self._poll, self._grace = health, end, poll, grace
        self._ended = threading.Event()

    def run(self):
        while not self._ended.wait(self._poll):
            report = self._health()
            if report is None:
                continue
            server_exit.tell(report)
            logger.error("%s; this worker ends in %.1f s", report, self._grace)
            if not self._ended.wait(self._grace):
                self._end(server_exit.EXIT_STATUS)
            return

    def stop(self):
        """Returns when the thread has ended, at most one poll later."""
        self._ended.set()
        self.join(self._poll + 5)
