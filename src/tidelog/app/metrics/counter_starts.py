"""Since when counters count, as OpenTelemetry wants to be told with each of their values."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.app.metrics.definitions import Metric


@dataclass(frozen=True, slots=True)
class _Seen:
    """A counter as it was told last. ``since_ns``: of the leadership."""

    since_ns: int
    start_ns: int
    at_ns: int
    value: float


class CounterStarts:
    """Remembers each counter that this process has told."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, tuple[str, ...]], _Seen] = {}

    def of(
        self, metric: Metric, labels: tuple[str, ...], value: float, since_ns: int, now_ns: int
    ) -> int:
        """Since when the counter counts, in nanoseconds since 1970: the leadership, but when it was
        told first if it outlives leaderships, or nobody knows since when these last: then its
        first value has no time in which it grew, and stands for no rate (OpenTelemetry, metrics
        data model, "Cumulative streams: handling unknown start time"). One that went down was
        begun anew since it was told last.

        Args:
            metric: of which it is one.
            labels: their values.
            value: how far it is.
            since_ns: the leadership; 0: not known.
            now_ns: when it has this value.
        """
        key = (metric.name, labels)
        since_ns = 0 if metric.of_output else since_ns
        seen = self._seen.get(key)
        if seen is None or seen.since_ns != since_ns:
            start_ns = since_ns or now_ns
        elif value < seen.value:
            start_ns = seen.at_ns
        else:
            start_ns = seen.start_ns
        self._seen[key] = _Seen(since_ns, start_ns, now_ns, value)
        return start_ns
