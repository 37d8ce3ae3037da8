"""GTIDs of both flavours: sets, and which of them the log's reader has seen where.

MySQL manual, "GTID Format and Storage" (tags: from 8.4 on); MariaDB knowledge base, "GTID".
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

import numpy as np

from tidelog.model.records import Bools, Int64s
from tidelog.wire.binlog_items import GtidsSeen, MariaDbSource, MySqlSource

Source = tuple[UUID, str]  # server uuid, tag
Interval = tuple[int, int]  # first and last number, both inside


@dataclass(frozen=True)
class GtidSet:
    """A set of MySQL's GTIDs: by source, intervals that are sorted, apart and not empty."""

    intervals: Mapping[Source, tuple[Interval, ...]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> GtidSet:
        """Of ``uuid:1-5:7,uuid:tag:1-3``; raises ValueError."""
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

    def contains(self, source: Source, number: int) -> bool:
        intervals = self.intervals.get(source, ())
        at = bisect_right(intervals, (number, 1 << 63)) - 1
        return at >= 0 and number <= intervals[at][1]

    def contains_all(self, source: Source, numbers: Int64s) -> Bools:
        """bool[n]: is each number of the source in the set?"""
        intervals = np.array(self.intervals.get(source, ()), dtype=np.int64).reshape(-1, 2)
        if not len(intervals):
            return np.zeros(len(numbers), dtype=np.bool_)
        at = np.searchsorted(intervals[:, 0], numbers, side="right") - 1
        inside: Bools = (at >= 0) & (numbers <= intervals[np.maximum(at, 0), 1])
        return inside

    def issuperset(self, other: GtidSet) -> bool:
        return all(
            any(low <= first and last <= high for low, high in self.intervals.get(source, ()))
            for source, intervals in other.intervals.items()
            for first, last in intervals
        )

    def union(self, other: GtidSet) -> GtidSet:
        joined = {source: list(intervals) for source, intervals in self.intervals.items()}
        for source, intervals in other.intervals.items():
            joined.setdefault(source, []).extend(intervals)
        return GtidSet({source: merged(found) for source, found in joined.items()})

    def encode(self) -> bytes:
        """As COM_BINLOG_DUMP_GTID takes it. Raises ValueError for tags, whose form differs."""
        parts = [struct.pack("<Q", len(self.intervals))]
        for (uuid, tag), intervals in self.intervals.items():
            if tag:
                raise ValueError("tagged GTIDs can't be encoded")
            parts.append(uuid.bytes + struct.pack("<Q", len(intervals)))
            parts += [struct.pack("<QQ", first, last + 1) for first, last in intervals]
        return b"".join(parts)


@dataclass(frozen=True)
class GtidPosition:
    """MariaDB's position: the last GTID of each domain (of one server: the last in the log)."""

    last: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """domain: (server id, sequence number)."""

    @classmethod
    def parse(cls, text: str) -> GtidPosition:
        """Of ``0-1-100,1-2-5``; raises ValueError. Of several GTIDs of a domain, the greatest."""
        found: dict[int, tuple[int, int]] = {}
        for part in text.replace("\n", "").split(","):
            if not part.strip():
                continue
            domain, server, number = (int(piece) for piece in part.strip().split("-"))
            if domain not in found or found[domain][1] < number:
                found[domain] = (server, number)
        return cls(found)

    def __str__(self) -> str:
        return ",".join(f"{d}-{server}-{n}" for d, (server, n) in sorted(self.last.items()))

    def __bool__(self) -> bool:
        return bool(self.last)

    def contains(self, domain: int, number: int) -> bool:
        return domain in self.last and number <= self.last[domain][1]

    def issuperset(self, other: GtidPosition) -> bool:
        return all(self.contains(domain, number) for domain, (_, number) in other.last.items())

    def after(self, gtids: Iterable[tuple[int, int, int]]) -> GtidPosition:
        """The position after further ``(domain, server id, number)``, in log order."""
        return GtidPosition({**self.last, **{d: (server, n) for d, server, n in gtids}})


def merged(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Sorted intervals that neither touch nor overlap."""
    out: list[Interval] = []
    for first, last in sorted(intervals):
        if out and first <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], last))
        else:
            out.append((first, last))
    return tuple(out)


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
            missing = ~_inside(executed, batch)
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
        if len(numbers) and isinstance(source, MySqlSource):
            breaks = np.flatnonzero(np.diff(numbers) != 1)
            firsts = numbers[np.concatenate(([0], breaks + 1))]
            lasts = numbers[np.concatenate((breaks, [len(numbers) - 1]))]
            pairs = zip(firsts.tolist(), lasts.tolist(), strict=True)
            key = (source.uuid, source.tag)
            found[key] = merged([*found.get(key, ()), *pairs])
    return GtidSet(found)


def last_gtids(seen: GtidsSeen) -> list[tuple[int, int, int]]:
    """The GTIDs as ``(domain, server id, number)``, in log order (MariaDB)."""
    return [
        (source.domain, source.server_id, int(number))
        for source, number in zip(
            (seen.sources[index] for index in seen.source), seen.number, strict=True
        )
        if isinstance(source, MariaDbSource)
    ]


def _inside(executed: GtidSet, batch: GtidsSeen) -> Bools:
    inside = np.ones(len(batch), dtype=np.bool_)
    for index in np.unique(batch.source).tolist():
        source = batch.sources[index]
        if isinstance(source, MySqlSource):
            mine = batch.source == index
            inside[mine] = executed.contains_all((source.uuid, source.tag), batch.number[mine])
    return inside
