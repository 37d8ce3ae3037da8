"""Throughput and lag over time: half an hour in memory, a day in the state store.

Coarse on purpose: a document of a few hundred points, which the leader writes every five minutes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from tidelog.app.overview import Overview
from tidelog.ports import StateStore

HISTORY_KEY: Final = "web-history"
BUCKET_S: Final = 300
BUCKETS: Final = 288
SAMPLE_S: Final = 5.0
SAMPLES: Final = 360
MOST_OUTPUTS: Final = 16
"""The number of outputs to remember; more would make the document large."""


@dataclass(slots=True)
class HistoryPoint:
    """Throughput and lag in a span of time.

    Attributes:
        at_s: the start, in seconds since 1970.
        records: the number of captured records.
        over_s: the seconds in which they were captured.
        lag_s: the largest lag of the source; None: not known.
        outputs: the largest lag of each output.
    """

    at_s: int
    records: int = 0
    over_s: float = 0.0
    lag_s: float | None = None
    outputs: dict[str, float] = field(default_factory=dict)

    def merge(self, other: HistoryPoint) -> None:
        """Add the values of another point."""
        self.records += other.records
        self.over_s = round(self.over_s + other.over_s, 3)
        self.lag_s = max(
            (lag for lag in (self.lag_s, other.lag_s) if lag is not None), default=None
        )
        for name, lag in other.outputs.items():
            self.outputs[name] = max(self.outputs.get(name, 0.0), lag)


class History:
    """Collects points. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: deque[HistoryPoint] = deque(maxlen=SAMPLES)
        self._day: list[HistoryPoint] = []
        self._open: HistoryPoint | None = None
        self._last: tuple[object, int, int] | None = None

    def add(self, overview: Overview) -> bool:
        """Add an overview; return True if a bucket is complete and should be stored."""
        at_ms = overview.at_ms
        if at_ms is None:
            return False
        with self._lock:
            leadership = (overview.leader, overview.epoch, overview.since_ms)
            point = HistoryPoint(
                at_ms // 1000, lag_s=None if overview.source.silent_s else overview.source.lag_s
            )
            if self._last is not None and self._last[1] >= at_ms:
                return False  # nobody has written anything since
            if self._last is not None and self._last[0] == leadership:
                point.records = max(0, overview.records - self._last[2])
                point.over_s = (at_ms - self._last[1]) / 1000
            for output in overview.outputs[:MOST_OUTPUTS]:
                if output.lag_s is not None:
                    point.outputs[f"{output.pipeline}/{output.output}"] = output.lag_s
            self._last = leadership, at_ms, overview.records
            self._recent.append(point)
            return self._collect(point)

    def _collect(self, point: HistoryPoint) -> bool:
        bucket_s = point.at_s // BUCKET_S * BUCKET_S
        complete = self._open is not None and self._open.at_s != bucket_s
        if self._open is not None and complete:
            self._day = _newest([*self._day, self._open])
        if self._open is None or complete:
            self._open = HistoryPoint(bucket_s)
        self._open.merge(point)
        return complete

    def load(self, state: StateStore) -> None:
        """Load the last day from the state store, under what this process has added."""
        stored = state.get(HISTORY_KEY)
        if stored is None:
            return
        with self._lock:
            self._day = _newest([*_points(stored.value), *self._day])

    def store(self, state: StateStore) -> None:
        """Store the last day; only the leader does."""
        with self._lock:
            value = [asdict(point) for point in self._day]
        state.put(HISTORY_KEY, value, None)

    def to_json(self) -> dict[str, Any]:
        """Return both spans, the oldest first."""
        with self._lock:
            day = [*self._day, *([] if self._open is None else [self._open])]
            return {
                "recent": [asdict(point) for point in self._recent],
                "day": [asdict(point) for point in _newest(day)],
            }


def _points(rows: Any) -> list[HistoryPoint]:
    """Return the valid points; another version may have stored more fields, or fewer."""
    names = {each.name for each in fields(HistoryPoint)}
    return [
        HistoryPoint(**{name: value for name, value in row.items() if name in names})
        for row in rows
        if "at_s" in row
    ]


def _newest(points: Iterable[HistoryPoint]) -> list[HistoryPoint]:
    """Return a day of points; of two of one time, the later in the list."""
    by_time = {point.at_s: point for point in points}
    return [by_time[at] for at in sorted(by_time)][-BUCKETS:]
