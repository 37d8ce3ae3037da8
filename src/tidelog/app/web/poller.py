"""Polls the status of one Tidelog in a thread, so that a state store that hangs delays no other.

Throughput and lag are kept over time: half an hour in memory, a day in the state store. They are
coarse on purpose: a document of a few hundred points, which the leader writes every five minutes.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from tidelog.app.overview import Overview, overview
from tidelog.app.overview.reader import StatusReader
from tidelog.config import Config
from tidelog.errors import TidelogError
from tidelog.ports import StateStore
from tidelog.state.opening import look_every_s

# Throughput and lag over time.

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


# The poller.

logger = logging.getLogger(__name__)

READ_EVERY_S: Final = 1.0
LOG_EVERY_S: Final = 2.0
SELDOM_EVERY_S: Final = 20.0
"""Seconds between two reads of what changes every few minutes."""
SILENT_S: Final = 10.0
_WARN_AGAIN_S: Final = 60.0
_END_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class PollResult:
    """The result of a poll. All open pages share it, so it is never changed.

    Attributes:
        overview: the overview without its tables; None: it could not be read.
        tables: the tables by name.
        trouble: why it could not be read.
    """

    overview: dict[str, Any] | None
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    trouble: str = ""


class Poller:
    """Polls once a second while somebody calls `latest`, else for the history. Thread-safe.

    Args:
        config: the configuration.
        keep: called with each overview for the history.
    """

    def __init__(self, config: Config, keep: Callable[[Overview], None]) -> None:
        self._config = config
        self._keep = keep
        self._every_s = max(READ_EVERY_S, 2 * look_every_s(config.state.place))
        self._sample_s = max(SAMPLE_S, self._every_s)
        self._reader: StatusReader | None = None
        self._requested = threading.Event()
        self._closed = threading.Event()
        self._result: PollResult | None = None
        self._result_at = time.monotonic()
        self._silent: PollResult | None = None
        self._warned_at = float("-inf")
        self._activity: dict[str, Any] | None = None
        self._results: dict[str, Any] = {"verified": None, "checked": None}
        self._seldom_due = 0.0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._result_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="tidelog-web-look", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._requested.set()
        if self._thread is not None:
            self._thread.join(_END_S)

    def latest(self) -> PollResult | None:
        """Return the last result without waiting (None: nothing yet), and request a new poll."""
        self._requested.set()
        last, silent_s = self._result, time.monotonic() - self._result_at
        if silent_s <= self._sample_s + SILENT_S:
            self._silent = None
            return last
        silent = self._silent
        if silent is None:
            since = time.strftime("%H:%M:%S", time.gmtime(time.time() - silent_s))
            self._silent = silent = PollResult(None, trouble=f"no answer since {since} UTC")
        return silent

    def activity(self) -> dict[str, Any] | None:
        """Return `StatusReader.activity`, half a minute old at most. Does not wait."""
        return self._activity

    def results(self) -> dict[str, Any]:
        """Return `StatusReader.results`, half a minute old at most. Does not wait."""
        return self._results

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        """Poll until `close`. Capture runs on whatever happens here."""
        sample_due = 0.0
        try:
            while not self._closed.is_set():
                self._requested.clear()
                begun = time.monotonic()
                current = self._poll()
                if current is not None and begun >= sample_due:
                    sample_due = begun + self._sample_s
                    self._sample(current)
                if self._closed.wait(begun + self._every_s - time.monotonic()):
                    break
                self._requested.wait(max(0.0, begun + self._sample_s - time.monotonic()))
        finally:
            self._drop_reader()

    def _poll(self) -> Overview | None:
        current = None
        try:
            if self._reader is None:
                self._reader = StatusReader(self._config, log_every_s=LOG_EVERY_S)
            current = overview(self._reader.read(), time.time_ns() // 1_000_000)
            shown = current.to_dict()
            tables = {row["table"]: row for row in shown.pop("tables")}
            self._publish(PollResult(shown, tables))
            if time.monotonic() >= self._seldom_due:
                self._seldom_due = time.monotonic() + SELDOM_EVERY_S
                self._activity = self._reader.activity()
                self._results = self._reader.results()
        except Exception as error:  # noqa: BLE001 - another version's documents may raise anything
            self._drop_reader()
            self._publish(PollResult(None, trouble=_message_of(error)))
            self._warn(error)
        return current

    def _publish(self, result: PollResult) -> None:
        self._result, self._result_at = result, time.monotonic()

    def _sample(self, current: Overview) -> None:
        try:
            self._keep(current)
        except Exception as error:  # noqa: BLE001 - as above
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if time.monotonic() > self._warned_at + _WARN_AGAIN_S:
            self._warned_at = time.monotonic()
            logger.warning("the web page's history is not updated: %s", _message_of(error))

    def _drop_reader(self) -> None:
        if self._reader is not None:
            with contextlib.suppress(Exception):
                self._reader.__exit__()
            self._reader = None


def _message_of(error: Exception) -> str:
    """Return the message of our own errors, which have no values; else only the kind."""
    return str(error) if isinstance(error, TidelogError) else type(error).__name__
