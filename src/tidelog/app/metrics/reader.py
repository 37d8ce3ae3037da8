"""What the metrics of a process are made of, for all who want them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from tidelog.app.metrics.definitions import LEADING, METRICS, Metric
from tidelog.app.overview import consumers_of, overview
from tidelog.errors import TidelogError
from tidelog.eventlog.reader import EventLog

logger = logging.getLogger(__name__)

STATUS_EVERY_S: Final = 1.0
LOG_EVERY_S: Final = 5.0
"""What the event log says, which may be on an object store, is at most so old."""

Known = tuple[tuple[str, ...], float]
"""The labels' values, and the metric's."""


class Readings:
    """The metrics' values in one process. Thread-safe.

    Args:
        status: the status document of the capture that leads in this process; None: it does not.
        log_path: the event log, beside which pipelines note how far they are.
    """

    def __init__(self, status: Callable[[], dict[str, Any] | None], log_path: str) -> None:
        self._status = status
        self._log_path = log_path
        self._lock = threading.Lock()
        self._log_lock = threading.Lock()  # apart: an object store may be slow, and status is not
        self._of_log: dict[str, Any] = {"outputs": []}
        self._log_due = 0.0
        self._log: EventLog | None = None
        self._times: dict[tuple[int, int], tuple[int, int]] = {}
        self._status_due = 0.0
        self._known: dict[str, Any] | None = None

    def status(self) -> dict[str, Any] | None:
        """The status, at most a second old: to make it takes a moment, and anybody may ask for
        health.
        """
        with self._lock:
            now = time.monotonic()
            if now >= self._status_due:
                self._known, self._status_due = self._status(), now + STATUS_EVERY_S
            return self._known

    def forget(self) -> None:
        """The status is another one now."""
        self._status_due = 0.0  # without the lock: who ends its lead waits for nobody

    def document(self) -> dict[str, Any] | None:
        """The status with what the event log says; None where this process does not lead."""
        status = self.status()
        if status is None:
            return None
        with self._log_lock:
            now = time.monotonic()
            if now >= self._log_due:
                self._log_due = now + LOG_EVERY_S
                self._look_at_log()
            return {**status, "leader": status.get("holder"), **self._of_log}

    def samples(self) -> Iterator[tuple[Metric, list[Known]]]:
        """Each metric with what is known of it now; `LEADING` alone where this process does not
        lead.
        """
        document = self.document()
        yield LEADING, [((), float(document is not None))]
        if document is None:
            return
        found = overview(document, time.time_ns() // 1_000_000)
        for metric in METRICS:
            samples = metric.samples(document, found)
            yield metric, [(labels, float(x)) for labels, x in samples if x is not None]

    def _look_at_log(self) -> None:
        """What can't be read now is as it was: an alert must not end because of that."""
        try:
            self._log = self._log or EventLog.open(self._log_path)
            segments = self._log.chain().segments
            self._of_log = {
                "log": {
                    "segments": len(segments),
                    "payload_bytes": sum(meta.payload_bytes for meta in segments),
                },
                **consumers_of(self._log, self._times),
            }
        except (TidelogError, OSError) as error:
            self._log = None
            logger.warning("metrics of event log and outputs are as they were: %s", error)
