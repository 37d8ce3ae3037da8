"""Throughput and lag over time: the last half hour in memory, the last day in the state store.

Coarse on purpose: a document of a few hundred points, written once in five minutes by the capture
that leads.
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
"""Outputs that are remembered; more would make the document large."""


@dataclass(slots=True)
class HistoryPoint:
    """What was seen in a span of time.

    Attributes:
        at_s: when it begins, in seconds since 1970.
        records: captured in it.
        over_s: seconds of it that these were captured in.
        lag_s: the largest of the source; None: not known.
        outputs: the largest lag of each.
    """

    at_s: int
    records: int = 0
    over_s: float = 0.0
    lag_s: float | None = None
    outputs: dict[str, float] = field(default_factory=dict)

    def join(self, other: HistoryPoint) -> None:
        """Take in what another one saw."""
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

    def note(self, found: Overview) -> bool:
        """One more look; True if a bucket is complete, and should be stored."""
        at_ms = found.at_ms
        if at_ms is None:
            return False
        with self._lock:
            leadership = (found.leader, found.epoch, found.since_ms)
            point = HistoryPoint(
                at_ms // 1000, lag_s=None if found.source.silent_s else found.source.lag_s
            )
            if self._last is not None and self._last[1] >= at_ms:
                return False  # nobody has written anything since
            if self._last is not None and self._last[0] == leadership:
                point.records = max(0, found.records - self._last[2])
                point.over_s = (at_ms - self._last[1]) / 1000
            for output in found.outputs[:MOST_OUTPUTS]:
                if output.lag_s is not None:
                    point.outputs[f"{output.pipeline}/{output.output}"] = output.lag_s
            self._last = leadership, at_ms, found.records
            self._recent.append(point)
            return self._collect(point)

    def _collect(self, point: HistoryPoint) -> bool:
        bucket_s = point.at_s // BUCKET_S * BUCKET_S
        complete = self._open is not None and self._open.at_s != bucket_s
        if self._open is not None and complete:
            self._day = _newest([*self._day, self._open])
        if self._open is None or complete:
            self._open = HistoryPoint(bucket_s)
        self._open.join(point)
        return complete

    def load(self, state: StateStore) -> None:
        """What is stored is the last day; what this process saw is laid over it."""
        stored = state.get(HISTORY_KEY)
        if stored is None:
            return
        with self._lock:
            self._day = _newest([*_points(stored.value), *self._day])

    def store(self, state: StateStore) -> None:
        """By the capture that leads."""
        with self._lock:
            value = [asdict(point) for point in self._day]
        state.put(HISTORY_KEY, value, None)

    def to_json(self) -> dict[str, Any]:
        """Both spans, oldest first."""
        with self._lock:
            day = [*self._day, *([] if self._open is None else [self._open])]
            return {
                "recent": [asdict(point) for point in self._recent],
                "day": [asdict(point) for point in _newest(day)],
            }


def _points(rows: Any) -> list[HistoryPoint]:
    """Another version may have stored fields more, or less: what is no point is left out."""
    known = {each.name for each in fields(HistoryPoint)}
    return [
        HistoryPoint(**{name: value for name, value in row.items() if name in known})
        for row in rows
        if "at_s" in row
    ]


def _newest(points: Iterable[HistoryPoint]) -> list[HistoryPoint]:
    """A day of them; of two of one time the later in the list."""
    by_time = {point.at_s: point for point in points}
    return [by_time[at] for at in sorted(by_time)][-BUCKETS:]
