"""A pipeline's lease that another process takes while a task writes."""

from __future__ import annotations

import threading

from tidelog.errors import LeaseLostError


class EndingLease:
    """`tidelog.ports.TaskFence`: lasts for so many looks at it, of all threads."""

    def __init__(self, looks: int) -> None:
        self._left = looks
        self._lock = threading.Lock()

    def check(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left < 0:
                raise LeaseLostError("another process leads the pipeline")
