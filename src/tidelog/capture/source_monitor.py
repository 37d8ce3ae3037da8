"""Summarizes a source's answers: capture's lag, retained log, and requests without an answer.

All is derived from one query a second, so it relies neither on the server's clock nor on
transactions' times: a table that nobody writes to for an hour is not an hour late.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

from tidelog.errors import SourceError
from tidelog.ports import Catalogue, Retention, SourceLoad
from tidelog.system.processes import unix_ms


@dataclass
class UnansweredRequests:
    """Counts failed requests in a row. ``error``: of the last one; ``since_ms``: of the first one;
    None: the last request succeeded. No cell values.
    """

    error: str = ""
    since_ms: int | None = None

    def failed(self, error: object) -> None:
        self.error = str(error)
        if self.since_ms is None:
            self.since_ms = unix_ms()

    def answered(self) -> None:
        self.since_ms = None

    def summary(self) -> dict[str, Any] | None:
        """For status."""
        return None if self.since_ms is None else asdict(self)


KEPT_SAMPLES = 3600
"""Number of log ends that are remembered; of more, every second one is forgotten."""
RATE_OVER_S, RATE_FROM_S = 600.0, 240.0
"""The decrease of room in the log is averaged over this many seconds, and reported after as many.
The room is a sawtooth: the server removes whole files, at checkpoints and ends of transactions.
"""


class SourceMonitor:
    """Summarizes the source's last answers. Thread-safe. Times are of a monotonic clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: deque[tuple[float, int]] = deque()  # (time, the log's end), ascending
        self._spare: deque[tuple[float, int]] = deque()
        self._written: deque[tuple[float, int]] = deque()  # the log's ends at the same times
        self._load: SourceLoad | None = None
        self._first_end: int | None = None  # what is before it was written before the start
        self._failed: tuple[str, int] | None = None

    def refresh(self, catalogue: Catalogue, reached: int) -> SourceLoad:
        """Query the source's load, and note it. Notes and raises what `Catalogue.load` raises."""
        try:
            load = catalogue.load(reached)
        except SourceError as error:
            self.failed(str(error), unix_ms())
            raise
        self.observe(time.monotonic(), reached, load)
        return load

    @property
    def lag_bytes(self) -> int:
        """The bytes that capture had not read at the last query."""
        load = self._load
        return 0 if load is None else load.lag_bytes

    def observe(self, now_s: float, reached: int, load: SourceLoad) -> None:
        """Note an answer of the source; capture had reached a position."""
        with self._lock:
            self._load, self._failed = load, None
            if self._first_end is None:
                self._first_end = load.end
            while self._ends and self._ends[0][1] <= reached:
                self._ends.popleft()
            if load.end > (self._ends[-1][1] if self._ends else reached):
                self._ends.append((now_s, load.end))
            if len(self._ends) > KEPT_SAMPLES:
                self._ends = deque(list(self._ends)[::2])
            spare = load.retention.spare_bytes
            if spare is None:
                self._spare.clear()
                self._written.clear()
                return
            self._spare.append((now_s, spare))
            self._written.append((now_s, load.end))
            while self._spare[0][0] < now_s - RATE_OVER_S:
                self._spare.popleft()
                self._written.popleft()

    def failed(self, message: str, now_ms: int) -> None:
        """Note that the source did not answer; ``message`` contains no cell values."""
        with self._lock:
            self._failed = message, now_ms if self._failed is None else self._failed[1]

    def summary(self, now_s: float, reached: int, last_commit_us: int = 0) -> dict[str, Any]:
        """For status. ``last_commit_us``: commit time of the newest captured transaction, by the
        source's clock; 0: there is none yet.

        ``position``: as the server writes it. ``lag_s``: how long the log's end has been after
        ``reached``, as exact as the queries are frequent. ``retained_bytes``, ``spare_bytes``,
        ``kept_s``: see `tidelog.ports.Retention`. ``lost_in_s``: seconds until it removes what
        capture needs, at the rate of the last minutes. ``lasts_s``: the same if capture stopped
        now. ``error``, ``error_since_ms``: it does not answer.
        """
        with self._lock:
            load = self._load
            retention = Retention() if load is None else load.retention
            message, since_ms = self._failed or (None, None)
            return {
                "position": None if load is None else load.reached,
                "lag_s": None if load is None else self._lag_s(now_s, reached, last_commit_us),
                "retained_bytes": retention.retained_bytes,
                "spare_bytes": retention.spare_bytes,
                "kept_s": retention.kept_s,
                "lost_in_s": self._lost_in_s(),
                "lasts_s": self._lasts_s(),
                "error": message,
                "error_since_ms": since_ms,
            }

    def _lag_s(self, now_s: float, reached: int, last_commit_us: int) -> float | None:
        first = next((at for at, end in self._ends if end > reached), now_s)
        lag_s = max(0.0, now_s - first)
        if self._first_end is not None and reached < self._first_end:
            # Capture was down when the log had its end there, so it is not known since when.
            if not last_commit_us:
                return None
            lag_s = max(lag_s, time.time() - last_commit_us / 1e6)
        return round(lag_s, 1)

    def _lost_in_s(self) -> float | None:
        """Extrapolated from the least room in each half of the time."""
        samples = tuple(self._spare)
        if not samples or samples[-1][0] - samples[0][0] < RATE_FROM_S:
            return None
        half = (samples[0][0] + samples[-1][0]) / 2
        least = [
            min((room, at) for at, room in samples if (at > half) == later)
            for later in (False, True)
        ]
        (before, began), (now, last) = least
        if before <= now:
            return None
        return round(now * (last - began) / (before - now), 1)

    def _lasts_s(self) -> float | None:
        """Room and positions are both in bytes here."""
        if not self._written or self._written[-1][0] - self._written[0][0] < RATE_FROM_S:
            return None
        (began, first), (last, end) = self._written[0], self._written[-1]
        spare = self._spare[-1][1]
        return round(spare * (last - began) / (end - first), 1) if end > first else None
