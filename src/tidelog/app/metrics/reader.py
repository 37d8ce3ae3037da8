"""Computes the values of a process's metrics."""

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
"""The greatest age of what was read from the event log, which may be on an object store."""

Known = tuple[tuple[str, ...], float]
"""The labels' values, and the metric's value."""


class Readings:
    """The values of the metrics in one process. Thread-safe.

    Args:
        status: returns the status document if this process leads capture, else None.
        log_path: the event log, beside which pipelines store their progress.
    """

    def __init__(self, status: Callable[[], dict[str, Any] | None], log_path: str) -> None:
        self._status = status
        self._log_path = log_path
        self._lock = threading.Lock()
        # separate: an object store may be slow, and status is not
        self._log_lock = threading.Lock()
        self._log_values: dict[str, Any] = {"outputs": []}
        self._log_due = 0.0
        self._log: EventLog | None = None
        self._times: dict[tuple[int, int], tuple[int, int]] = {}
        self._status_due = 0.0
        self._cached_status: dict[str, Any] | None = None

    def status(self) -> dict[str, Any] | None:
        """Return the status, at most a second old: it takes a moment, and anybody may ask for
        health.
        """
        with self._lock:
            now = time.monotonic()
            if now >= self._status_due:
                self._cached_status, self._status_due = self._status(), now + STATUS_EVERY_S
            return self._cached_status

    def forget(self) -> None:
        """Forget the status, because it has changed."""
        self._status_due = 0.0  # without the lock: a leader that ends waits for nobody

    def document(self) -> dict[str, Any] | None:
        """Return the status with the event log's part; None if this process does not lead."""
        status = self.status()
        if status is None:
            return None
        with self._log_lock:
            now = time.monotonic()
            if now >= self._log_due:
                self._log_due = now + LOG_EVERY_S
                self._read_log()
            return {**status, "leader": status.get("holder"), **self._log_values}

    def samples(self) -> Iterator[tuple[Metric, list[Known]]]:
        """Yield each metric with its known samples; only `LEADING` if this process is no leader."""
        document = self.document()
        yield LEADING, [((), float(document is not None))]
        if document is None:
            return
        current = overview(document, time.time_ns() // 1_000_000)
        for metric in METRICS:
            samples = metric.samples(document, current)
            yield metric, [(labels, float(x)) for labels, x in samples if x is not None]

    def _read_log(self) -> None:
        """Read the event log; on errors keep the old values: an alert must not end by them."""
        try:
            self._log = self._log or EventLog.open(self._log_path)
            segments = self._log.chain().segments
            self._log_values = {
                "log": {
                    "segments": len(segments),
                    "payload_bytes": sum(meta.payload_bytes for meta in segments),
                },
                **consumers_of(self._log, self._times),
            }
        except (TidelogError, OSError) as error:
            self._log = None
            logger.warning("metrics of event log and outputs are not updated: %s", error)
