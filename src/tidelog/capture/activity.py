"""Operations by table and kind over the last day: the activity log of the DBLog paper.

Records that are appended to the event log are counted in buckets of five minutes, and the leader
stores the counts every five minutes. Memory is bounded: the `TABLES_COUNTED` busiest tables
have counts of their own for 26 hours; all others share one. Before the bucket in which a table gets
its own counts, its operations are in the shared ones.

A sudden drop of a table's operations begins with a bucket if

1. the table was busy and steady: in the hour that ended one bucket before, the median bucket had at
   least `BUSY` operations of the kind, and none had less than `STEADY` of that. The bucket between
   is ignored: the drop may have begun within it;
2. then it is nearly idle: this bucket and the next have at most `LOW` of the median;
3. this is not the table's daily pattern: one day before, at about this time, it was not as idle.

A rate that falls slowly, as in an evening, breaks the first condition before it meets the second;
so do tables that are idle, or busy only at times. A bucket that is not known, because capture did
not run or lagged, is never part of a drop. The drop ends with a bucket that has `BACK` of the
median.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from tidelog.capture.writer_thread import Appended, Appender
from tidelog.errors import StateError
from tidelog.model.records import ChunkMeta, Int64s, LogBatch, RecordKind, Resume
from tidelog.ports import StateStore

# Counts in buckets. Pure.

BUCKET_S: Final = 300
BUCKETS: Final = 312
"""More than a day, so that an hour can be compared with that of the day before."""
TABLES_COUNTED: Final = 20
KINDS: Final = ("insert", "update", "delete", "dump")
WHOLE: Final = 0.9
"""A table's count in a bucket is known only if capture followed the log for this share of it."""
_VERSION: Final = 1

Counts = list[int]
"""One count for each of `KINDS`."""


@dataclass(slots=True)
class ActivityBucket:
    """The counts of five minutes.

    Attributes:
        at_s: when they begin.
        seen_s: seconds of them in which capture followed the log.
        tables: counts of the tables that have their own.
        rest: counts of all other tables.
    """

    at_s: int
    seen_s: float = 0.0
    tables: dict[str, Counts] = field(default_factory=dict)
    rest: Counts = field(default_factory=lambda: [0] * len(KINDS))

    @property
    def whole(self) -> bool:
        return self.seen_s >= WHOLE * BUCKET_S


class ActivityDay:
    """Buckets in ascending order; a time when capture did not run has none. ``since``: the time
    from which each table has counts of its own.
    """

    def __init__(self) -> None:
        self.buckets: list[ActivityBucket] = []
        self.since: dict[str, int] = {}

    def add(self, at_s: int, seen_s: float, counts: Mapping[str, Sequence[int]]) -> None:
        """Add a finished bucket with the counts of all tables. A bucket of the same time is merged;
        an earlier one (the clock was set back) is ignored.
        """
        if self.buckets and at_s < self.buckets[-1].at_s:
            return
        bucket = self.buckets[-1] if self.buckets and self.buckets[-1].at_s == at_s else None
        if bucket is None:
            bucket = ActivityBucket(at_s)
            self.buckets.append(bucket)
        bucket.seen_s = min(BUCKET_S, round(bucket.seen_s + seen_s, 1))
        self._track_busiest(at_s, {table: sum(operations) for table, operations in counts.items()})
        for table, operations in counts.items():
            at = bucket.rest
            if table in self.since:
                at = bucket.tables.setdefault(table, [0] * len(KINDS))
            _add_counts(at, operations)
        del self.buckets[:-BUCKETS]

    def _track_busiest(self, at_s: int, counts: Mapping[str, int]) -> None:
        """Give the busiest tables counts of their own: while there is room, or in place of the
        least busy table, if they had more in this bucket than that one on the whole day.
        """
        others = [table for table in counts if table not in self.since and counts[table]]
        totals = {table: self.total(table) for table in self.since} if others else {}
        for table in sorted(others, key=lambda each: (-counts[each], each)):
            if len(totals) >= TABLES_COUNTED:
                least = min(totals, key=lambda each: (totals[each], each))
                if totals[least] >= counts[table]:
                    return  # no later one is busier
                del totals[least], self.since[least]
                for bucket in self.buckets:
                    _add_counts(bucket.rest, bucket.tables.pop(least, ()))
            self.since[table] = at_s
            totals[table] = counts[table]

    def total(self, table: str) -> int:
        """The table's operations in all buckets."""
        return sum(sum(bucket.tables.get(table, ())) for bucket in self.buckets)

    def series(self, table: str, kind: str) -> list[int | None]:
        """The table's operations of a kind, for each bucket from first to last; None: not known."""
        place, by_time = KINDS.index(kind), {bucket.at_s: bucket for bucket in self.buckets}
        if not by_time:
            return []
        values: list[int | None] = []
        for at_s in range(self.buckets[0].at_s, self.buckets[-1].at_s + 1, BUCKET_S):
            bucket = by_time.get(at_s)
            known = bucket is not None and bucket.whole and at_s >= self.since[table]
            counts = bucket.tables.get(table) if bucket is not None else None
            values.append(None if not known else counts[place] if counts else 0)
        return values

    def to_json(self) -> dict[str, Any]:
        """The document, busiest table first; 0 stands for a bucket without operations."""
        busiest = sorted(self.since, key=lambda each: (-self.total(each), each))
        return {
            "version": _VERSION,
            "at_s": [bucket.at_s for bucket in self.buckets],
            "seen_s": [bucket.seen_s for bucket in self.buckets],
            "tables": [
                {
                    "table": table,
                    "since_s": self.since[table],
                    "counts": [bucket.tables.get(table, 0) for bucket in self.buckets],
                }
                for table in busiest
            ],
            "rest": [bucket.rest if any(bucket.rest) else 0 for bucket in self.buckets],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ActivityDay:
        """Read the document; returns an empty day if another version wrote it."""
        day = cls()
        if data.get("version") != _VERSION:
            return day
        for at_s, seen_s, rest in zip(data["at_s"], data["seen_s"], data["rest"], strict=True):
            day.buckets.append(ActivityBucket(at_s, seen_s, rest=list(rest or [0] * len(KINDS))))
        for each in data["tables"]:
            day.since[each["table"]] = each["since_s"]
            for bucket, counts in zip(day.buckets, each["counts"], strict=True):
                if counts:
                    bucket.tables[each["table"]] = list(counts)
        return day


def _add_counts(into: Counts, more: Sequence[int]) -> None:
    for place, count in enumerate(more):
        into[place] += count


# Sudden drops. Pure.

BUCKETS_BEFORE: Final = 12
BUSY: Final = 100
STEADY: Final = 0.4
LOW: Final = 0.1
LASTING: Final = 2
BACK: Final = 0.5
A_DAY: Final = 86_400 // BUCKET_S
BUCKETS_ABOUT: Final = 3
"""Buckets before and after the same time of the previous day."""

Series = Sequence[int | None]


@dataclass(frozen=True, slots=True)
class DropSpan:
    """A drop in a series: its first bucket and the one that ends it (None: not ended); the median
    bucket's count before it, and the largest count within it.
    """

    start: int
    end: int | None
    before: int
    then: int


def find_drops(series: Series) -> Iterator[DropSpan]:
    """The drops in the operations of one table and kind, by bucket; None: not known."""
    at = 0
    while at <= len(series) - LASTING:
        level = _level(series, at)
        if level is None or not _still(series[at : at + LASTING], level):
            at += 1
            continue
        if _usual(series, at, level):
            at += 1
            continue
        end = next(
            (later for later in range(at, len(series)) if (series[later] or 0) >= BACK * level),
            None,
        )
        inside = [count for count in series[at:end] if count is not None]
        yield DropSpan(at, end, level, max(inside))
        if end is None:
            return
        at = end


def _level(series: Series, at: int) -> int | None:
    """The median bucket of the hour before; None if the table was not busy and steady."""
    hour = series[max(0, at - 1 - BUCKETS_BEFORE) : max(0, at - 1)]
    known = [count for count in hour if count is not None]
    if len(known) < BUCKETS_BEFORE:
        return None
    level = int(statistics.median(known))
    return level if level >= BUSY and min(known) >= STEADY * level else None


def _still(counts: Series, level: int) -> bool:
    return all(count is not None and count <= LOW * level for count in counts)


def _usual(series: Series, at: int, level: int) -> bool:
    """Was the table as idle at about this time on the previous day?"""
    then = range(at - A_DAY - BUCKETS_ABOUT, at - A_DAY + LASTING + BUCKETS_ABOUT)
    return any(
        _still(series[each : each + LASTING], level)
        for each in then
        if each >= 0 and each + LASTING <= at
    )


# The counts of a leader.

ACTIVITY_KEY: Final = "activity"
GAP_S: Final = 10.0
"""After a longer time between two polls, capture may have stood still."""
LATE_S: Final = 60.0
"""With a longer lag, changes are counted at another time than they happened."""
DROPS_SHOWN: Final = 20
_OTHER: Final = len(KINDS)
_PLACES = np.full(256, _OTHER, np.int64)
for _place, _kind in enumerate(
    (RecordKind.INSERT, RecordKind.UPDATE, RecordKind.DELETE, RecordKind.DUMP_ROW)
):
    _PLACES[_kind] = _place


class Activity:
    """Counts of the last day, loaded from what the last leader stored. Thread-safe. ``table_of``:
    the table name of a schema id.
    """

    def __init__(self, state: StateStore, table_of: Callable[[int], str]) -> None:
        self._state = state
        self._table_of = table_of
        self._lock = threading.Lock()
        self._counts: dict[int, Int64s] = {}
        self._day = ActivityDay()
        self._at_s: int | None = None  # of the open bucket
        self._seen_s = 0.0
        self._polled_s: float | None = None
        self._drops: list[dict[str, Any]] = []
        stored = state.get(ACTIVITY_KEY)
        with suppress(AttributeError, KeyError, TypeError, ValueError):  # damaged, or foreign
            day = self._day if stored is None else ActivityDay.from_json(stored.value)
            self._day, self._drops = day, _drops(day)

    def count(self, batches: Sequence[LogBatch]) -> None:
        """Count durable batches. Vectorized: every record passes here."""
        if not batches:
            return
        codes = [
            batch.schema_id.astype(np.int64) * (_OTHER + 1) + _PLACES[batch.kind]
            for batch in batches
        ]
        totals = np.bincount(np.concatenate(codes))
        with self._lock:
            for code in np.flatnonzero(totals).tolist():
                schema_id, place = divmod(code, _OTHER + 1)
                if schema_id and place != _OTHER:
                    counts = self._counts.setdefault(schema_id, np.zeros(_OTHER, np.int64))
                    counts[place] += totals[code]

    def poll(self, now_s: float, lag_s: float | None) -> None:
        """Close the bucket whose time has passed, and store it. Called about once a second;
        ``lag_s``: the lag of capture, None: not known.
        """
        at_s = int(now_s // BUCKET_S * BUCKET_S)
        if self._at_s is None or at_s < self._at_s:  # at the start, or the clock was set back
            self._at_s = at_s
        if at_s > self._at_s:
            with self._lock:
                counts, self._counts = self._counts, {}
            self._day.add(self._at_s, self._seen_s, self._by_table(counts))
            self._at_s, self._seen_s = at_s, 0.0
            self._drops = _drops(self._day)
            document = {**self._day.to_json(), "drops": self._drops}
            with suppress(StateError):  # the next bucket stores it too
                self._state.put(ACTIVITY_KEY, document, None)
        elif self._polled_s is not None and lag_s is not None and lag_s < LATE_S:
            passed_s = now_s - self._polled_s
            self._seen_s += passed_s if 0 < passed_s < GAP_S else 0.0
        self._polled_s = now_s

    def drops(self) -> list[dict[str, Any]]:
        """Sudden drops of the last day, the newest first."""
        return self._drops

    def _by_table(self, counts: dict[int, Int64s]) -> dict[str, list[int]]:
        """Counts by table name; a table has several schema ids while its schema changes."""
        by_table: dict[str, Int64s] = {}
        for schema_id, each in counts.items():
            table = self._table_of(schema_id)
            by_table[table] = by_table[table] + each if table in by_table else each
        return {table: each.tolist() for table, each in by_table.items()}


def _drops(day: ActivityDay) -> list[dict[str, Any]]:
    """Drops of the day: those that still last come first, then the newest."""
    drops = [
        (drop.end is not None, -drop.start, table, kind, drop)
        for table in day.since
        for kind in KINDS[:-1]  # the end of a dump is no drop
        for drop in find_drops(day.series(table, kind))
    ]
    drops.sort(key=lambda each: each[:4])
    return [
        _drop_document(day, table, kind, drop) for _, _, table, kind, drop in drops[:DROPS_SHOWN]
    ]


def _drop_document(day: ActivityDay, table: str, kind: str, drop: DropSpan) -> dict[str, Any]:
    def at_ms(bucket: int) -> int:
        return (day.buckets[0].at_s + bucket * BUCKET_S) * 1000

    return {
        "table": table,
        "kind": kind,
        "at_ms": at_ms(drop.start),
        "until_ms": None if drop.end is None else at_ms(drop.end),
        "before_per_min": round(drop.before * 60 / BUCKET_S, 1),
        "then_per_min": round(drop.then * 60 / BUCKET_S, 1),
    }


class CountingAppender:
    """An `Appender` that counts records once they are durable. ``located``: see
    `tidelog.app.sources.kinds.SourceParts`.
    """

    def __init__(
        self,
        log: Appender,
        activity: Activity,
        located: Callable[[Resume], Resume] = lambda resume: resume,
    ) -> None:
        self._log = log
        self._activity = activity
        self._located = located

    @property
    def next_offset(self) -> int:
        return self._log.next_offset

    def append_log(self, batches: Sequence[LogBatch], resume: Resume) -> Appended:
        appended = self._log.append_log(batches, self._located(resume))
        self._activity.count(batches)
        return appended

    def append_chunk(self, rows: LogBatch, chunk: ChunkMeta, position: int) -> Appended:
        appended = self._log.append_chunk(rows, chunk, position)
        self._activity.count([rows])
        return appended

    def append_controls(self, messages: Sequence[dict[str, Any]]) -> tuple[Appended, Sequence[int]]:
        return self._log.append_controls(messages)

    def append_position(self, resume: Resume) -> Appended:
        return self._log.append_position(self._located(resume))

    def idle(self) -> None:
        self._log.idle()
