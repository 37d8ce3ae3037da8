"""Rows of XA transactions, which are records of the group that commits them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tidelog.codecs.mysql.binlog.items import (
    BinlogRowOf,
    RowsNoticed,
    RowsOfPreparedTransaction,
    Scanned,
    TableMapSeen,
    XaSeen,
    XaState,
)
from tidelog.codecs.mysql.binlog.position import unpack
from tidelog.codecs.mysql.binlog.scanner import BinlogScanner
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.errors import ConnectionLostError
from tidelog.model.mysql_urls import ServerUrl
from tidelog.model.records import LogBatch, Resume
from tidelog.ports import LogEvent
from tidelog.sources.mysql.connect import Connection
from tidelog.sources.mysql.errors import translated
from tidelog.sources.mysql.stream.log_parts import LogPart, read_part
from tidelog.sources.mysql.stream.positions import LogFiles, log_files
from tidelog.sources.mysql.stream.xa import Group, PreparedGroups, XaEvents, find_prepared


class XaRows:
    """Gives the rows of groups once they are committed. Used by one thread.

    Args:
        url: of the server.
        connected: gives an SQL connection.
        events: what a scanner's items tell.

    Attributes:
        prepared: the groups that are not decided.
        version: of the server that wrote the file that the stream is in.
    """

    def __init__(
        self,
        url: ServerUrl,
        connected: Callable[[], Connection],
        events: Callable[[BinlogScanner, Iterator[Scanned]], Iterator[LogEvent]],
    ) -> None:
        self.prepared = PreparedGroups()
        self.version: tuple[int, ...] = ()
        self._url = url
        self._connected = connected
        self._events = events
        self._flavor = Flavor.MYSQL
        self._files: LogFiles | None = None

    def start(self, flavor: Flavor, files: LogFiles) -> None:
        """A stream begins, of this server and these files."""
        self._flavor, self._files = flavor, files
        self.prepared.clear()

    def take(self, scanner: BinlogScanner, seen: XaSeen, idle_at: int) -> Iterator[LogEvent]:
        """A group was prepared or decided: its rows, if it was committed.

        ``idle_at``: the furthest that was acknowledged, or may have been.
        """
        group = self.prepared.take(seen, self.version, checksum=scanner.checksum)
        if seen.state not in (XaState.COMMITTED, XaState.ONE_PHASE) or seen.durable:
            return
        known = group is not None
        if group is None:
            with translated("reading an XA transaction"):
                self._files = log_files(self._connected())
            group = find_prepared(self._url, self._files, seen)
        yield from self._committed(scanner, seen, group, idle_at, known=known)

    def _committed(
        self, scanner: BinlogScanner, seen: XaSeen, group: Group, idle_at: int, *, known: bool
    ) -> Iterator[LogEvent]:
        """The rows of a prepared group as records of the group that committed it."""
        resume = scanner.resume
        # Until all rows are durable, a restart must find the group again: in the stream, or by
        # looking for it where it was prepared before what is acknowledged already.
        acknowledge = max(idle_at, min(resume.acknowledge, group.begin))
        if not known:
            acknowledge = resume.acknowledge
        held = Resume(acknowledge, resume.position, resume.ordinal)
        number, offset = unpack(group.begin)
        again: BinlogScanner | None = None
        for events in self._events_of(group):
            if again is None:
                again = BinlogScanner(
                    self._flavor,
                    held,
                    checksum=events.checksum,
                    file_number=number,
                    offset=offset,
                    as_of=RowsOfPreparedTransaction(seen.begin, seen.commit_ts),
                    # Events that are read again begin with what the file says of itself.
                    server_version=events.version if isinstance(events, XaEvents) else (),
                    shift=self._url.pin.shift,
                )
            yield from self._xa_rows(again, again.feed(events.data, events.offsets))
        if again is None or again.in_transaction:
            raise ConnectionLostError("the server sent a prepared XA transaction incompletely")
        after = again.resume
        scanner.skip_to(after.position, after.ordinal)

    def _events_of(self, group: Group) -> Iterator[XaEvents | LogPart]:
        """The events that were kept, or read again."""
        if group.events is not None:
            yield group.events
            return
        assert self._files is not None  # of which the names alone matter here
        for _, part in read_part(self._url, self._files, group.begin, group.end):
            yield part

    def _xa_rows(self, again: BinlogScanner, items: Iterator[Scanned]) -> Iterator[LogEvent]:
        for item in items:
            if isinstance(item, LogBatch | TableMapSeen | BinlogRowOf | RowsNoticed):
                yield from self._events(again, iter([item]))
