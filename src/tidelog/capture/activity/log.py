"""Counts the records appended to the event log, by table and kind. The leader stores the last day's
counts in the state store every five minutes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np

from tidelog.capture.activity.day import BUCKET_S, KINDS, Day
from tidelog.capture.activity.drops import DropSpan, find_drops
from tidelog.capture.writer_thread import Appended, Appender
from tidelog.errors import StateError
from tidelog.model.records import ChunkMeta, Int64s, Kind, LogBatch, Resume
from tidelog.ports import StateStore

ACTIVITY_KEY: Final = "activity"
GAP_S: Final = 10.0
"""After a longer time between two polls, capture may have stood still."""
LATE_S: Final = 60.0
"""With a longer lag, changes are counted at another time than they happened."""
DROPS: Final = 20
_OTHER: Final = len(KINDS)
_PLACES = np.full(256, _OTHER, np.int64)
for _place, _kind in enumerate((Kind.INSERT, Kind.UPDATE, Kind.DELETE, Kind.DUMP_ROW)):
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
        self._day = Day()
        self._at_s: int | None = None  # of the open bucket
        self._seen_s = 0.0
        self._polled_s: float | None = None
        self._drops: list[dict[str, Any]] = []
        stored = state.get(ACTIVITY_KEY)
        with suppress(AttributeError, KeyError, TypeError, ValueError):  # damaged, or foreign
            day = self._day if stored is None else Day.from_json(stored.value)
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


def _drops(day: Day) -> list[dict[str, Any]]:
    """Drops of the day: those that still last come first, then the newest."""
    drops = [
        (drop.end is not None, -drop.start, table, kind, drop)
        for table in day.since
        for kind in KINDS[:-1]  # the end of a dump is no drop
        for drop in find_drops(day.series(table, kind))
    ]
    drops.sort(key=lambda each: each[:4])
    return [_drop_document(day, table, kind, drop) for _, _, table, kind, drop in drops[:DROPS]]


def _drop_document(day: Day, table: str, kind: str, drop: DropSpan) -> dict[str, Any]:
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

    def append_control(self, message: dict[str, Any]) -> Appended:
        return self._log.append_control(message)

    def append_position(self, resume: Resume) -> Appended:
        return self._log.append_position(self._located(resume))

    def idle(self) -> None:
        self._log.idle()
