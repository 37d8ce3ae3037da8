"""Counts operations by table and kind in buckets of five minutes. Pure.

Memory is bounded: the `TABLES` busiest tables have counts of their own for 26 hours; all others
share one. Before the bucket in which a table gets its own counts, its operations are in the shared
ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

BUCKET_S: Final = 300
BUCKETS: Final = 312
"""More than a day, so that an hour can be compared with that of the day before."""
TABLES: Final = 20
KINDS: Final = ("insert", "update", "delete", "dump")
WHOLE: Final = 0.9
"""A table's count in a bucket is known only if capture followed the log for this share of it."""
_VERSION: Final = 1

Counts = list[int]
"""One count for each of `KINDS`."""


@dataclass(slots=True)
class Bucket:
    """Five minutes. ``at_s``: when they begin; ``seen_s``: seconds of them in which capture
    followed the log; ``tables``: counts of the tables that have their own; ``rest``: of all others.
    """

    at_s: int
    seen_s: float = 0.0
    tables: dict[str, Counts] = field(default_factory=dict)
    rest: Counts = field(default_factory=lambda: [0] * len(KINDS))

    @property
    def whole(self) -> bool:
        return self.seen_s >= WHOLE * BUCKET_S


class Day:
    """Buckets in ascending order; a time when capture did not run has none. ``since``: the time
    from which each table has counts of its own.
    """

    def __init__(self) -> None:
        self.buckets: list[Bucket] = []
        self.since: dict[str, int] = {}

    def add(self, at_s: int, seen_s: float, counts: Mapping[str, Sequence[int]]) -> None:
        """Add a finished bucket with the counts of all tables. A bucket of the same time is merged;
        an earlier one (the clock was set back) is ignored.
        """
        if self.buckets and at_s < self.buckets[-1].at_s:
            return
        bucket = self.buckets[-1] if self.buckets and self.buckets[-1].at_s == at_s else None
        if bucket is None:
            bucket = Bucket(at_s)
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
            if len(totals) >= TABLES:
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
    def from_json(cls, data: Mapping[str, Any]) -> Day:
        """Read the document; returns an empty day if another version wrote it."""
        day = cls()
        if data.get("version") != _VERSION:
            return day
        for at_s, seen_s, rest in zip(data["at_s"], data["seen_s"], data["rest"], strict=True):
            day.buckets.append(Bucket(at_s, seen_s, rest=list(rest or [0] * len(KINDS))))
        for each in data["tables"]:
            day.since[each["table"]] = each["since_s"]
            for bucket, counts in zip(day.buckets, each["counts"], strict=True):
                if counts:
                    bucket.tables[each["table"]] = list(counts)
        return day


def _add_counts(into: Counts, more: Sequence[int]) -> None:
    for place, count in enumerate(more):
        into[place] += count
