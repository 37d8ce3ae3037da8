"""Sets of GTIDs, and the positions of the GTIDs that the log reader has read.

MySQL manual, "GTID Format and Storage" (tags: from 8.4 on).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, Self
from uuid import UUID

import numpy as np

from tidelog.codecs.mysql.binlog.items import (
    BinlogServer,
    GtidSource,
    GtidsSeen,
    GtidStateSeen,
    MariaDbSource,
    TableMapSeen,
    unpack_position,
)
from tidelog.codecs.mysql.binlog.scanner import BinlogScanner
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.server_urls import ServerUrl
from tidelog.model.records import Bools, Int64s, Resume
from tidelog.sources.mysql.connect import Connection
from tidelog.sources.mysql.stream.log_parts import read_part
from tidelog.sources.mysql.stream.positions import FILE_START, LogFiles, has_gtids

Source = tuple[UUID, str]  # server uuid, tag
Interval = tuple[int, int]  # first and last number, both inclusive


@dataclass(frozen=True)
class GtidSet:
    """A set of MySQL's GTIDs: by source, sorted intervals that do not touch and are not empty."""

    intervals: Mapping[Source, tuple[Interval, ...]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> GtidSet:
        """Parse ``uuid:1-5:7,uuid:tag:1-3``. Raises ValueError."""
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
        return cls({s: merge_intervals(i) for s, i in found.items() if i})

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
        """bool[n]: True for each number of the source that is in the set."""
        intervals = np.array(self.intervals.get(source, ()), dtype=np.int64).reshape(-1, 2)
        if not len(intervals):
            return np.zeros(len(numbers), dtype=np.bool_)
        at = np.searchsorted(intervals[:, 0], numbers, side="right") - 1
        found: Bools = (at >= 0) & (numbers <= intervals[np.maximum(at, 0), 1])
        return found

    def contains(self, source: GtidSource, numbers: Int64s) -> Bools:
        """Like `contains_all`, for a source as the log's scanner has it."""
        assert isinstance(source, BinlogServer)
        return self.contains_all((source.uuid, source.tag), numbers)

    def issuperset(self, other: GtidSet) -> bool:
        return all(
            any(low <= first and last <= high for low, high in self.intervals.get(source, ()))
            for source, intervals in other.intervals.items()
            for first, last in intervals
        )

    def minus(self, other: GtidSet) -> GtidSet:
        """The GTIDs of this set that are not in the other one."""
        left = {
            source: _subtract(intervals, other.intervals.get(source, ()))
            for source, intervals in self.intervals.items()
        }
        return GtidSet({source: found for source, found in left.items() if found})

    def union(self, other: GtidSet) -> GtidSet:
        merged_sets = dict(self.intervals)
        for source, intervals in other.intervals.items():
            merged_sets[source] = merge_intervals((*merged_sets.get(source, ()), *intervals))
        return GtidSet(merged_sets)


def merge_intervals(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Sort and merge intervals so that they neither touch nor overlap."""
    out: list[Interval] = []
    for first, last in sorted(intervals):
        if out and first <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], last))
        else:
            out.append((first, last))
    return tuple(out)


def _subtract(intervals: Iterable[Interval], holes: Iterable[Interval]) -> tuple[Interval, ...]:
    """Sorted intervals minus sorted others."""
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
    """The MySQL transactions that the log reader has read, and where they begin. Thread-safe.

    The log reader publishes; a chunk reader calls `visible_before`. Batches older than the newest
    `KEPT_BATCHES` are kept as one set with one position, so memory is bounded.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._end = 0
        self._clear(0)

    def start(self, position: int, *, settled: bool = False) -> None:
        """The reader starts or restarts at ``position``; earlier transactions are read again or
        forgotten.

        ``settled``: True if every transaction before the position is known to be visible.
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
        """Record that the reader has read everything before ``end``."""
        with self._lock:
            self._end = max(self._end, end)

    @property
    def end(self) -> int:
        """Everything before this position has been read. Read it before ``gtid_executed``."""
        with self._lock:
            return self._end

    def visible_before(
        self, executed: GtidSet, end: int, *, none_owned: bool = False
    ) -> int | None:
        """The position P such that transactions before P are visible to a SELECT that begins now;
        all others count as invisible. None if it is not known yet: try again.

        With ``binlog_order_commits`` transactions become visible in log order, and each enters
        ``gtid_executed`` after it is visible.

        Args:
            executed: ``@@GLOBAL.gtid_executed``, read before the SELECT's snapshot is taken.
            end: `end`, read before ``executed``.
            none_owned: True if ``@@GLOBAL.gtid_owned``, read after ``end``, was empty: every logged
                transaction is visible.
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
        """The position of the first transaction that is not in ``executed``, and that of the first
        of all.
        """
        first = self._old_position or None
        if not executed.issuperset(self._old):
            return self._old_position, first
        for batch in self._batches:
            if first is None:
                first = int(batch.position[0])
            missing = ~contained(executed, batch)
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
            found[key] = merge_intervals([*found.get(key, ()), *pairs])
    return GtidSet(found)


class GtidContainer(Protocol):
    """A set of transactions by GTID."""

    def contains(self, source: GtidSource, numbers: Int64s) -> Bools:
        """bool[n]: True for each number of the source that is in the set."""
        ...


def contained(held: GtidContainer, seen: GtidsSeen) -> Bools:
    """bool[n]: True for transactions of a part of the log that are in the set."""
    found = np.zeros(len(seen), dtype=np.bool_)
    for index in np.unique(seen.source).tolist():
        mine = seen.source == index
        found[mine] = held.contains(seen.sources[index], seen.number[mine])
    return found


@dataclass(frozen=True)
class MariaDbGtids:
    """The last number of each domain and server; all smaller numbers are included."""

    last: Mapping[MariaDbSource, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``domain-server-number,…``. Raises ValueError."""
        found: dict[MariaDbSource, int] = {}
        for part in text.split(","):
            if part.strip():
                domain, server, number = map(int, part.split("-"))
                source = MariaDbSource(domain, server)
                found[source] = max(number, found.get(source, 0))
        return cls(found)

    def __str__(self) -> str:
        ordered = sorted(self.last.items(), key=lambda one: (one[0].domain, one[0].server_id))
        return ",".join(source.text(number) for source, number in ordered)

    def __bool__(self) -> bool:
        return bool(self.last)

    def contains(self, source: GtidSource, numbers: Int64s) -> Bools:
        """bool[n]: True for each number of the source that is in the set."""
        assert isinstance(source, MariaDbSource)
        contained: Bools = numbers <= self.last.get(source, 0)
        return contained

    def union(self, other: MariaDbGtids) -> MariaDbGtids:
        sources = {*self.last, *other.last}
        return MariaDbGtids(
            {one: max(self.last.get(one, 0), other.last.get(one, 0)) for one in sources}
        )

    def minus(self, other: MariaDbGtids) -> MariaDbGtids:
        """The last numbers of the sources that ``other`` does not hold completely."""
        return MariaDbGtids(
            {one: number for one, number in self.last.items() if number > other.last.get(one, 0)}
        )


Gtids = GtidSet | MariaDbGtids


def parse(flavor: Flavor, text: str) -> Gtids:
    """Parse GTIDs of a flavor. Raises ValueError."""
    return MariaDbGtids.parse(text) if flavor is Flavor.MARIADB else GtidSet.parse(text)


def union_of(known: Gtids, more: Gtids) -> Gtids:
    """The union of both sets, which are of one flavor."""
    if isinstance(known, MariaDbGtids):
        assert isinstance(more, MariaDbGtids)
        return known.union(more)
    assert isinstance(more, GtidSet)
    return known.union(more)


def difference(held: Gtids, other: Gtids) -> Gtids:
    """The first set minus the second; they are of one flavor."""
    if isinstance(held, MariaDbGtids):
        assert isinstance(other, MariaDbGtids)
        return held.minus(other)
    assert isinstance(other, GtidSet)
    return held.minus(other)


def gtids_of(seen: GtidsSeen, flavor: Flavor) -> Gtids:
    """The transactions that begin in a part of the log."""
    if flavor is not Flavor.MARIADB:
        return gtid_set(seen)
    last: dict[MariaDbSource, int] = {}
    for index in np.unique(seen.source).tolist():
        source = seen.sources[index]
        assert isinstance(source, MariaDbSource)
        last[source] = int(seen.number[seen.source == index].max())
    return MariaDbGtids(last)


def read_gtids(
    url: ServerUrl, files: LogFiles, begin: int, end: int, flavor: Flavor
) -> Iterator[GtidStateSeen | GtidsSeen]:
    """The GTIDs of a part of the log, with each file's list of earlier GTIDs. ``begin``: the
    beginning of a file. Errors as `read_part`.
    """
    number, offset = unpack_position(begin)
    scanner: BinlogScanner | None = None
    for stream, part in read_part(url, files, begin, end):
        scanner = scanner or BinlogScanner(
            flavor,
            None,
            checksum=stream.checksum,
            file_number=number,
            offset=offset,
            shift=files.shift,
        )
        for item in scanner.feed(part.data, part.offsets):
            if isinstance(item, TableMapSeen):
                scanner.bind(item.table_id, 0)
            elif isinstance(item, GtidStateSeen | GtidsSeen):
                yield item


def executed_before_file(
    url: ServerUrl, files: LogFiles, number: int, flavor: Flavor
) -> Gtids | None:
    """The transactions executed before a file; None if the file does not list them."""
    begin = files.begin(number)
    for item in read_gtids(url, files, begin, begin + files.sizes[number] - FILE_START, flavor):
        return parse(flavor, item.text) if isinstance(item, GtidStateSeen) else None
    return None


def executed_before(url: ServerUrl, files: LogFiles, position: int, flavor: Flavor) -> Gtids | None:
    """The transactions executed before a position; None if its file does not list earlier ones."""
    found: Gtids | None = None
    begin = files.begin(unpack_position(position)[0])
    for item in read_gtids(url, files, begin, position, flavor):
        if isinstance(item, GtidStateSeen):
            found = parse(flavor, item.text)
        elif found is not None:
            found = union_of(found, gtids_of(item, flavor))
    return found


class LoggedGtids:
    """Adds to each resume position of the event log the transactions before it. Thread-safe: the
    log reader publishes, and the writer reads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._text = ""  # `_executed` as text; empty until it is needed
        self._clear(Flavor.MYSQL, None)

    def start(
        self, connection: Connection, url: ServerUrl, files: LogFiles, begin: Resume
    ) -> Resume:
        """Start at ``begin``, the position from which the log is read. Returns the same position
        with the GTIDs stored with it, or with those that its file lists. Errors as `read_part`.
        """
        flavor = connection.flavor
        known: Gtids | None = None
        if begin.executed:
            known = parse(flavor, begin.executed)
        elif has_gtids(connection):
            upto = max(begin.acknowledge, begin.position)
            known = executed_before(url, files, upto, flavor)
        self.begin(flavor, known, begin)
        return self.with_gtids(begin)

    def begin(self, flavor: Flavor, executed: Gtids | None, begin: Resume) -> None:
        """Set the transactions that were executed before ``begin``; None if they are not known."""
        with self._lock:
            self._clear(flavor, executed)
            self._begin = begin

    def publish(self, seen: GtidsSeen) -> None:
        """Add transactions that begin, before their records are passed on."""
        with self._lock:
            if self._executed is not None and len(seen):
                self._pending.append(seen)

    def with_gtids(self, resume: Resume) -> Resume:
        """The same position with the GTIDs of `Resume`. Positions come in order."""
        with self._lock:
            if self._executed is None:
                return resume
            self._fold(max(resume.acknowledge, resume.position))
            begun = ""
            if resume.position >= resume.acknowledge and resume.ordinal >= 0:
                begun = self._gtid_at(resume.position)
                if not begun:
                    return resume  # better no GTIDs than a set that misses a transaction
            self._text = self._text or str(self._executed)
            return replace(resume, executed=self._text, begun=begun)

    def _clear(self, flavor: Flavor, executed: Gtids | None) -> None:
        self._flavor = flavor
        self._executed = executed
        self._text = ""
        self._pending: deque[GtidsSeen] = deque()
        self._begin = Resume(0, 0, -1)

    def _fold(self, bound: int) -> None:
        """Count transactions that begin before ``bound`` as executed."""
        while self._pending and int(self._pending[0].position[0]) < bound:
            seen = self._pending.popleft()
            over = int(np.searchsorted(seen.position, bound))
            if over < len(seen):
                self._pending.appendleft(_slice(seen, over, len(seen)))
            assert self._executed is not None
            self._executed = union_of(self._executed, gtids_of(_slice(seen, 0, over), self._flavor))
            self._text = ""

    def _gtid_at(self, position: int) -> str:
        """The GTID of the transaction that begins there; empty if it is not known."""
        if self._pending and int(self._pending[0].position[0]) == position:
            return self._pending[0].text(0)
        return self._begin.begun if self._begin.position == position else ""


def _slice(seen: GtidsSeen, first: int, after: int) -> GtidsSeen:
    return GtidsSeen(
        seen.position[first:after],
        seen.number[first:after],
        seen.source[first:after],
        seen.sources,
    )
