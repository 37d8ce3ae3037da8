"""How many operations of each kind the busiest tables had, in buckets of five minutes. Pure.

What it holds is bounded: so many tables are told apart for a day and two hours, all others are
counted together. A table is told apart from the bucket on in which it was taken in; before that it
is among the others.
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
"""A bucket tells nothing of a table unless capture followed the log for so much of it."""
_VERSION: Final = 1

Counts = list[int]
"""One for each of `KINDS`."""


@dataclass(slots=True)
class Bucket:
    """Five minutes. ``at_s``: when they begin; ``seen_s``: seconds of them in which capture
    followed the log; ``tables``: those that are told apart and had any; ``rest``: all others.
    """

    at_s: int
    seen_s: float = 0.0
    tables: dict[str, Counts] = field(default_factory=dict)
    rest: Counts = field(default_factory=lambda: [0] * len(KINDS))

    @property
    def whole(self) -> bool:
        return self.seen_s >= WHOLE * BUCKET_S


class Day:
    """Ascending buckets; where capture did not run, there is none. ``since``: from when on each
    table is told apart.
    """

    def __init__(self) -> None:
        self.buckets: list[Bucket] = []
        self.since: dict[str, int] = {}

    def add(self, at_s: int, seen_s: float, counts: Mapping[str, Sequence[int]]) -> None:
        """A bucket that is over, with the counts of all tables. One of the same time is joined; one
        of an earlier time, by a clock that was set back, is left out.
        """
        if self.buckets and at_s < self.buckets[-1].at_s:
            return
        bucket = self.buckets[-1] if self.buckets and self.buckets[-1].at_s == at_s else None
        if bucket is None:
            bucket = Bucket(at_s)
            self.buckets.append(bucket)
        bucket.seen_s = min(BUCKET_S, round(bucket.seen_s + seen_s, 1))
        self._take_in(at_s, {table: sum(found) for table, found in counts.items()})
        for table, found in counts.items():
            at = bucket.rest
            if table in self.since:
                at = bucket.tables.setdefault(table, [0] * len(KINDS))
            _join(at, found)
        del self.buckets[:-BUCKETS]

    def _take_in(self, at_s: int, counts: Mapping[str, int]) -> None:
        """Tell the busiest apart, where there is room, or where one had more in these minutes than
        the least busy one on the whole day.
        """
        others = [table for table in counts if table not in self.since and counts[table]]
        totals = {table: self.total(table) for table in self.since} if others else {}
        for table in sorted(others, key=lambda each: (-counts[each], each)):
            if len(totals) >= TABLES:
                least = min(totals, key=lambda each: (totals[each], each))
                if totals[least] >= counts[table]:
                    return  # nor has any that follows
                del totals[least], self.since[least]
                for bucket in self.buckets:
                    _join(bucket.rest, bucket.tables.pop(least, ()))
            self.since[table] = at_s
            totals[table] = counts[table]

    def total(self, table: str) -> int:
        """Its operations, of all buckets."""
        return sum(sum(bucket.tables.get(table, ())) for bucket in self.buckets)

    def series(self, table: str, kind: str) -> list[int | None]:
        """Its operations of a kind by bucket, from the first to the last; None: not known."""
        place, by_time = KINDS.index(kind), {bucket.at_s: bucket for bucket in self.buckets}
        if not by_time:
            return []
        found: list[int | None] = []
        for at_s in range(self.buckets[0].at_s, self.buckets[-1].at_s + 1, BUCKET_S):
            bucket = by_time.get(at_s)
            known = bucket is not None and bucket.whole and at_s >= self.since[table]
            counts = bucket.tables.get(table) if bucket is not None else None
            found.append(None if not known else counts[place] if counts else 0)
        return found

    def to_json(self) -> dict[str, Any]:
        """By table, the busiest first; 0 stands for a bucket without any."""
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
        """An empty one of what another version wrote otherwise."""
        found = cls()
        if data.get("version") != _VERSION:
            return found
        for at_s, seen_s, rest in zip(data["at_s"], data["seen_s"], data["rest"], strict=True):
            found.buckets.append(Bucket(at_s, seen_s, rest=list(rest or [0] * len(KINDS))))
        for each in data["tables"]:
            found.since[each["table"]] = each["since_s"]
            for bucket, counts in zip(found.buckets, each["counts"], strict=True):
                if counts:
                    bucket.tables[each["table"]] = list(counts)
        return found


def _join(into: Counts, more: Sequence[int]) -> None:
    for place, count in enumerate(more):
        into[place] += count
