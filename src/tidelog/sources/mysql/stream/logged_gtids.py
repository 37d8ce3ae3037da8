"""Which transactions a log holds, by names that are the same on all of a source's servers: GTIDs.

MySQL: sets of numbers of a server (and tag). MariaDB: the last number of each domain and server;
its manual, "Global Transaction ID" and ``gtid_binlog_state``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from tidelog.codecs.mysql.binlog.items import (
    GtidSource,
    GtidsSeen,
    GtidStateSeen,
    MariaDbSource,
    TableMapSeen,
)
from tidelog.codecs.mysql.binlog.position import unpack
from tidelog.codecs.mysql.binlog.scanner import BinlogScanner
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.model.mysql_urls import ServerUrl
from tidelog.model.records import Bools, Int64s, Resume
from tidelog.sources.mysql.connect import Connection
from tidelog.sources.mysql.stream.gtids import GtidSet, gtid_set
from tidelog.sources.mysql.stream.log_parts import read_part
from tidelog.sources.mysql.stream.positions import FILE_START, LogFiles, has_gtids


@dataclass(frozen=True)
class MariaDbGtids:
    """The last number of each domain and server; those before it are in, too."""

    last: Mapping[MariaDbSource, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses ``domain-server-number,…``. Raises ValueError."""
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

    def holds(self, source: GtidSource, numbers: Int64s) -> Bools:
        """bool[n]: is each number of the source in?"""
        assert isinstance(source, MariaDbSource)
        inside: Bools = numbers <= self.last.get(source, 0)
        return inside

    def union(self, other: MariaDbGtids) -> MariaDbGtids:
        sources = {*self.last, *other.last}
        return MariaDbGtids(
            {one: max(self.last.get(one, 0), other.last.get(one, 0)) for one in sources}
        )

    def minus(self, other: MariaDbGtids) -> MariaDbGtids:
        """The last ones of those that ``other`` does not hold all of."""
        return MariaDbGtids(
            {one: number for one, number in self.last.items() if number > other.last.get(one, 0)}
        )


Gtids = GtidSet | MariaDbGtids


def parse(flavor: Flavor, text: str) -> Gtids:
    """Raises ValueError."""
    return MariaDbGtids.parse(text) if flavor is Flavor.MARIADB else GtidSet.parse(text)


def joined(known: Gtids, more: Gtids) -> Gtids:
    """Those of both, which are of one flavour."""
    if isinstance(known, MariaDbGtids):
        assert isinstance(more, MariaDbGtids)
        return known.union(more)
    assert isinstance(more, GtidSet)
    return known.union(more)


def without(held: Gtids, other: Gtids) -> Gtids:
    """Those of the first that are not in the second; they are of one flavour."""
    if isinstance(held, MariaDbGtids):
        assert isinstance(other, MariaDbGtids)
        return held.minus(other)
    assert isinstance(other, GtidSet)
    return held.minus(other)


def named(seen: GtidsSeen, flavor: Flavor) -> Gtids:
    """Those that begin in a stretch of the log."""
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
    """The GTIDs of a part of the log, with what each file says was before it. ``begin``: of a file.
    Errors as `read_part`.
    """
    number, offset = unpack(begin)
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


def before_file(url: ServerUrl, files: LogFiles, number: int, flavor: Flavor) -> Gtids | None:
    """What was executed before a file; None: it does not say."""
    begin = files.begin(number)
    for item in read_gtids(url, files, begin, begin + files.sizes[number] - FILE_START, flavor):
        return parse(flavor, item.text) if isinstance(item, GtidStateSeen) else None
    return None


def executed_before(url: ServerUrl, files: LogFiles, position: int, flavor: Flavor) -> Gtids | None:
    """What was executed before a position; None: its file, which is read, does not say."""
    found: Gtids | None = None
    begin = files.begin(unpack(position)[0])
    for item in read_gtids(url, files, begin, position, flavor):
        if isinstance(item, GtidStateSeen):
            found = parse(flavor, item.text)
        elif found is not None:
            found = joined(found, named(item, flavor))
    return found


class LoggedGtids:
    """Says of each place that an event log goes on from which transactions are before it.
    Thread-safe: the reader of the log publishes, and who writes asks.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._text = ""  # of `_executed`; empty: it is not made yet
        self._clear(Flavor.MYSQL, None)

    def start(
        self, connection: Connection, url: ServerUrl, files: LogFiles, begin: Resume
    ) -> Resume:
        """The log is read from ``begin`` on: the same place, with the GTIDs that were noted with
        it, or as its file says. Errors as `read_part`.
        """
        flavor = connection.flavor
        known: Gtids | None = None
        if begin.executed:
            known = parse(flavor, begin.executed)
        elif has_gtids(connection):
            upto = max(begin.acknowledge, begin.position)
            known = executed_before(url, files, upto, flavor)
        self.begin(flavor, known, begin)
        return self.located(begin)

    def begin(self, flavor: Flavor, executed: Gtids | None, begin: Resume) -> None:
        """``executed``: before ``begin``; None: it is not known."""
        with self._lock:
            self._clear(flavor, executed)
            self._begin = begin

    def publish(self, seen: GtidsSeen) -> None:
        """Transactions that begin, before what they hold is given on."""
        with self._lock:
            if self._executed is not None and len(seen):
                self._pending.append(seen)

    def located(self, resume: Resume) -> Resume:
        """The same place with the GTIDs of `Resume`. Places come in order."""
        with self._lock:
            if self._executed is None:
                return resume
            self._fold(max(resume.acknowledge, resume.position))
            begun = ""
            if resume.position >= resume.acknowledge and resume.ordinal >= 0:
                begun = self._at(resume.position)
                if not begun:
                    return resume  # better none than one that leaves a transaction out
            self._text = self._text or str(self._executed)
            return replace(resume, executed=self._text, begun=begun)

    def _clear(self, flavor: Flavor, executed: Gtids | None) -> None:
        self._flavor = flavor
        self._executed = executed
        self._text = ""
        self._pending: deque[GtidsSeen] = deque()
        self._begin = Resume(0, 0, -1)

    def _fold(self, bound: int) -> None:
        """What begins before ``bound`` is over."""
        while self._pending and int(self._pending[0].position[0]) < bound:
            seen = self._pending.popleft()
            over = int(np.searchsorted(seen.position, bound))
            if over < len(seen):
                self._pending.appendleft(_slice(seen, over, len(seen)))
            assert self._executed is not None
            self._executed = joined(self._executed, named(_slice(seen, 0, over), self._flavor))
            self._text = ""

    def _at(self, position: int) -> str:
        """The one that begins there; empty: it is not known."""
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
