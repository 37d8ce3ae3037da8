"""MySQL's GTIDs: sets, and which of them the log's reader has seen where.

MySQL manual, "GTID Format and Storage" (tags: from 8.4 on).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

import numpy as np

from tidelog.codecs.mysql.binlog.items import BinlogServer, GtidSource, GtidsSeen
from tidelog.model.records import Bools, Int64s

Source = tuple[UUID, str]  # server uuid, tag
Interval = tuple[int, int]  # first and last number, both inside


@dataclass(frozen=True)
class GtidSet:
    """A set of MySQL's GTIDs: by source, intervals that are sorted, apart and not empty."""

    intervals: Mapping[Source, tuple[Interval, ...]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> GtidSet:
        """Parses ``uuid:1-5:7,uuid:tag:1-3``. Raises ValueError."""
        found: dict[Source, list[Interval]] = {}
        for part in text.replace("\n", "").split(","):
            if not part.strip():
                continue
            name, *rest = (piece.strip() for piece in part.split(":"))
            source: Source = (UUID(name), "")
            found.setdefault(source, [])
            for piece in rest:
                first, _, last = piece.partition("-")
                if not first.isdigit():
                    source = (source[0], piece.lower())
                    found.setdefault(source, [])
                    continue
                found[source].append((int(first), int(last or first)))
        return cls({s: merged(i) for s, i in found.items() if i})

    def __str__(self) -> str:
        by_uuid: dict[UUID, list[str]] = {}
        for (uuid, tag), intervals in sorted(
            self.intervals.items(), key=lambda item: (str(item[0][0]), item[0][1])
        ):
            texts = by_uuid.setdefault(uuid, [])
            if tag:
                texts.append(tag)
            texts += [f"{a}-{b}" if b > a else str(a) for a, b in intervals]
        return ",".join(":".join([str(uuid), *texts]) for uuid, texts in by_uuid.items())

    def __bool__(self) -> bool:
        return bool(self.intervals)

    def contains_all(self, source: Source, numbers: Int64s) -> Bools:
        """bool[n]: is each number of the source in the set?"""
        intervals = np.array(self.intervals.get(source, ()), dtype=np.int64).reshape(-1, 2)
        if not len(intervals):
            return np.zeros(len(numbers), dtype=np.bool_)
        at = np.searchsorted(intervals[:, 0], numbers, side="right") - 1
        found: Bools = (at >= 0) & (numbers <= intervals[np.maximum(at, 0), 1])
        return found

    def holds(self, source: GtidSource, numbers: Int64s) -> Bools:
        """As `contains_all`, of a source as the log's scanner has it."""
        assert isinstance(source, BinlogServer)
        return self.contains_all((source.uuid, source.tag), numbers)

    def issuperset(self, other: GtidSet) -> bool:
        return all(
            any(low <= first and last <= high for low, high in self.intervals.get(source, ()))
            for source, intervals in other.intervals.items()
            for first, last in intervals
        )

    def minus(self, other: GtidSet) -> GtidSet:
        """What is in this set and not in the other one."""
        left = {
            source: _cut_out(intervals, other.intervals.get(source, ()))
            for source, intervals in self.intervals.items()
        }
        return GtidSet({source: found for source, found in left.items() if found})

    def union(self, other: GtidSet) -> GtidSet:
        joined = dict(self.intervals)
        for source, intervals in other.intervals.items():
            joined[source] = merged((*joined.get(source, ()), *intervals))
        return GtidSet(joined)


def merged(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Sorted intervals that neither touch nor overlap."""
    out: list[Interval] = []
    for first, last in sorted(intervals):
        if out and first <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], last))
        else:
            out.append((first, last))
    return tuple(out)


def _cut_out(intervals: Iterable[Interval], holes: Iterable[Interval]) -> tuple[Interval, ...]:
    """Sorted intervals, without what is in sorted others."""
    left: list[Interval] = []
    for first, last in intervals:
        for begin, end in holes:
            if end < first or begin > last:
                continue
            if begin > first:
                left.append((first, begin - 1))
            first = end + 1
        if first <= last:
            left.append((first, last))
    return tuple(left)


KEPT_BATCHES = 256


class SeenGtids:
    """Which MySQL transactions the log's reader has seen, and where they begin. Thread-safe.

    The reader publishes; a chunk reader asks `visible_before`. What is older than the newest
    `KEPT_BATCHES` batches is kept as one set with one position, so memory is bounded.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._end = 0
        self._clear(0)

    def start(self, position: int, *, settled: bool = False) -> None:
        """The reader (re)starts at ``position``; what it saw before is seen again or forgotten.

        ``settled``: every transaction before the position is known to be visible.
        """
        with self._lock:
            self._clear(position)
            self._settled = settled

    def publish(self, seen: GtidsSeen) -> None:
        if not len(seen):
            return
        with self._lock:
            self._batches.append(seen)
            if len(self._batches) > KEPT_BATCHES:
                self._compact()

    def reach(self, end: int) -> None:
        """The reader has seen everything before ``end``."""
        with self._lock:
            self._end = max(self._end, end)

    @property
    def end(self) -> int:
        """Everything before this has been seen. Ask before ``gtid_executed`` is read."""
        with self._lock:
            return self._end

    def visible_before(
        self, executed: GtidSet, end: int, *, none_owned: bool = False
    ) -> int | None:
        """The position P: transactions before P are visible to a SELECT that begins now, those from
        P on count as invisible; None if that can't be known yet: try again.

        With ``binlog_order_commits`` transactions become visible in log order, and each enters
        ``gtid_executed`` after it is visible.

        Args:
            executed: ``@@GLOBAL.gtid_executed``, read before the SELECT's snapshot is taken.
            end: `end`, read before ``executed`` was.
            none_owned: ``@@GLOBAL.gtid_owned``, read after ``end`` was, was empty: no transaction
                stands between the binlog and its visibility.
        """
        with self._lock:
            position, first = self._first_missing(executed)
            if none_owned:
                self._settled = True
            elif not self._settled:
                if position is not None and position == first:
                    return None  # those before the first may be invisible too
                if first is None:
                    return None
                self._settled = True
            return end if position is None else min(position, end)

    def _clear(self, position: int) -> None:
        self._batches: deque[GtidsSeen] = deque()
        self._old = GtidSet()
        self._old_position = 0
        self._end = position
        self._settled = False

    def _first_missing(self, executed: GtidSet) -> tuple[int | None, int | None]:
        """Where the first transaction that is not in ``executed`` begins, and the first of all."""
        first = self._old_position or None
        if not executed.issuperset(self._old):
            return self._old_position, first
        for batch in self._batches:
            if first is None:
                first = int(batch.position[0])
            missing = ~inside(executed, batch)
            if missing.any():
                return int(batch.position[np.argmax(missing)]), first
        return None, first

    def _compact(self) -> None:
        while len(self._batches) > KEPT_BATCHES // 2:
            batch = self._batches.popleft()
            if not self._old:
                self._old_position = int(batch.position[0])
            self._old = self._old.union(gtid_set(batch))


def gtid_set(seen: GtidsSeen) -> GtidSet:
    """The GTIDs as a set (MySQL)."""
    found: dict[Source, tuple[Interval, ...]] = {}
    for index, source in enumerate(seen.sources):
        numbers = np.unique(seen.number[seen.source == index])
        if len(numbers) and isinstance(source, BinlogServer):
            breaks = np.flatnonzero(np.diff(numbers) != 1)
            firsts = numbers[np.concatenate(([0], breaks + 1))]
            lasts = numbers[np.concatenate((breaks, [len(numbers) - 1]))]
            pairs = zip(firsts.tolist(), lasts.tolist(), strict=True)
            key = (source.uuid, source.tag)
            found[key] = merged([*found.get(key, ()), *pairs])
    return GtidSet(found)


class Held(Protocol):
    """Transactions by their GTIDs."""

    def holds(self, source: GtidSource, numbers: Int64s) -> Bools:
        """bool[n]: is each number of the source in?"""
        ...


def inside(held: Held, seen: GtidsSeen) -> Bools:
    """bool[n]: which of those that begin in a stretch of the log are held?"""
    found = np.zeros(len(seen), dtype=np.bool_)
    for index in np.unique(seen.source).tolist():
        mine = seen.source == index
        found[mine] = held.holds(seen.sources[index], seen.number[mine])
    return found
