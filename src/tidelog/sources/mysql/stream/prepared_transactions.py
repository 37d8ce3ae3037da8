"""Yields the rows of XA transactions when they are committed.

The log has the rows where the transaction is prepared. They become records of the group that
commits it: they are kept, or read again then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from tidelog.codecs.mysql.binlog.events import (
    HEADER_BYTES,
    EventType,
    parse_header,
    parse_transaction_payload,
    parse_xa_prepare,
    payload_slices,
)
from tidelog.codecs.mysql.binlog.items import (
    QuerySeen,
    RowsNoticed,
    RowsOfPreparedTransaction,
    Scanned,
    TableMapSeen,
    WatchedBinlogRow,
    XaSeen,
    XaState,
    pack_position,
    unpack_position,
)
from tidelog.codecs.mysql.binlog.scanner import BinlogScanner
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.server_urls import ServerUrl
from tidelog.errors import ConnectionLostError, GapError
from tidelog.model.records import Int64s, LogBatch, Resume, UInt8s
from tidelog.model.schema import TableName
from tidelog.ports import LogEvent, RowsUnlogged
from tidelog.sources.mysql.connect import Connection
from tidelog.sources.mysql.ddl import RESHAPES, Effect, Statement, read_statement
from tidelog.sources.mysql.errors import translate_errors
from tidelog.sources.mysql.stream.log_parts import LogPart, queries, read_part
from tidelog.sources.mysql.stream.log_tables import CapturedTables
from tidelog.sources.mysql.stream.positions import LogFiles, log_files
from tidelog.sources.mysql.stream.replication import ReceivedEvents

_SLICE_BYTES = 1 << 20
GROUP_BEGINS = (
    EventType.GTID,
    EventType.ANONYMOUS_GTID,
    EventType.GTID_TAGGED,
    EventType.MARIADB_GTID,
)


def prepared_groups(parts: Iterable[LogPart]) -> Iterator[tuple[int, int, bytes]]:
    """The XA transactions that consecutive parts of the log prepare: begin and end of the group,
    and xid.
    """
    begin = 0
    for part in parts:
        wanted = np.isin(
            part.types, (*GROUP_BEGINS, EventType.XA_PREPARE, EventType.TRANSACTION_PAYLOAD)
        )
        for index in np.flatnonzero(wanted).tolist():
            end = int(part.ends[index])
            kind, body = part.types[index], None
            if kind == EventType.XA_PREPARE:
                body = part.body(index)
            elif kind == EventType.TRANSACTION_PAYLOAD:
                body = _payload_prepare(part.body(index))
            else:
                begin = end - int(part.offsets[index + 1] - part.offsets[index])
            if body is not None:
                xid, one_phase = parse_xa_prepare(body)
                if not one_phase:
                    yield begin, end, xid


def _payload_prepare(body: bytes) -> bytes | None:
    """The body of the XA_PREPARE event at the end of a compressed transaction, if there is one."""
    payload = parse_transaction_payload(body)
    last = b""
    inner = memoryview(body)[payload.start :]
    for piece in payload_slices(inner, payload.compressed, _SLICE_BYTES):
        at = 0
        while at < len(piece):
            length = parse_header(piece[at : at + HEADER_BYTES]).length
            last = piece[at : at + length]
            at += length
    return last[HEADER_BYTES:] if last[4:5] == bytes([EventType.XA_PREPARE]) else None


MAX_GROUP_BYTES = 1 << 20
MAX_KEPT_BYTES = 32 << 20
"""Most bytes of events kept of one prepared group, and of all prepared groups."""


@dataclass(frozen=True, slots=True)
class XaEvents:
    """A group's events back to back.

    Attributes:
        data, offsets: as `BinlogScanner.feed` takes them.
        checksum: whether the events end in a checksum.
        version: the version of the server that wrote them.
    """

    data: UInt8s
    offsets: Int64s
    checksum: bool
    version: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """The position of a prepared group, ``[begin, end)``, and its events if they are kept."""

    begin: int
    end: int
    events: XaEvents | None = None


class TableStatements:
    """The tables that statements truncated or altered, each with the last position of one.

    MySQL 8.0.12 holds no lock of a table for a prepared transaction that lost its connection: the
    table can be truncated before the commit, whose rows then change nothing. MariaDB 10.11 and
    MySQL 9.7 hold it.
    """

    def __init__(self) -> None:
        self._truncated: dict[TableName, int] = {}
        self._altered: dict[TableName | str, int] = {}  # also databases that were dropped

    def note(self, statement: Statement, position: int) -> None:
        """Store the effects of a statement; the statements may come in any order."""
        for each in statement.effects:
            if each.effect is Effect.TRUNCATED:
                self._truncated[each.table] = max(self._truncated.get(each.table, 0), position)
            elif each.effect in RESHAPES or each.unlogged is not None:
                self._altered[each.table] = max(self._altered.get(each.table, 0), position)
        if (database := statement.database) is not None:
            self._altered[database] = max(self._altered.get(database, 0), position)

    def truncated(self, table: TableName, since: int) -> bool:
        """Return True if the table was truncated after the position ``since``."""
        return self._truncated.get(table, 0) > since

    def altered(self, table: TableName, since: int) -> bool:
        """Return True if the table was altered, dropped or renamed after the position ``since``."""
        last = max(self._altered.get(table, 0), self._altered.get(table.namespace, 0))
        return last > since


class PreparedGroups:
    """The groups that are prepared and neither committed nor rolled back, as far as the stream has
    shown them.

    Attributes:
        statements: those since the first of them was prepared.
    """

    def __init__(self) -> None:
        self.statements = TableStatements()
        self._groups: dict[bytes, Group] = {}
        self._kept = 0  # bytes
        self._received: ReceivedEvents | None = None
        self._begins: Int64s = np.empty(0, dtype=np.int64)  # indexes of groups' first events
        self._ends: Iterator[int] = iter(())  # indexes after the last events of XA groups

    def clear(self) -> None:
        self.statements = TableStatements()
        self._groups.clear()
        self._kept = 0
        self.receive(None)

    def note_statement(self, statement: Statement, position: int) -> None:
        """Store what a statement did to tables while a transaction is prepared."""
        if self._groups:
            self.statements.note(statement, position)

    def receive(self, received: ReceivedEvents | None) -> None:
        """Set the received events that contain the next groups."""
        self._received = received
        self._ends = iter(())
        if received is not None and len(received.offsets) > 1:
            types = received.data[received.offsets[:-1] + 4]
            self._begins = np.flatnonzero(np.isin(types, GROUP_BEGINS))
            self._ends = iter((np.flatnonzero(types == EventType.XA_PREPARE) + 1).tolist())

    def take(self, seen: XaSeen, version: tuple[int, ...], *, checksum: bool) -> Group | None:
        """Store a group that was prepared, or return the group that a commit or rollback ends, if
        it is known.

        Args:
            seen: the event.
            version: the version of the server that wrote the stream's file.
            checksum: whether events now end in a checksum.
        """
        if seen.state is XaState.ONE_PHASE:
            return Group(seen.begin, seen.end, self._events(seen, version, checksum))
        if seen.state is XaState.PREPARED:
            self._drop(seen.xid)
            if not self._groups:
                self.statements = TableStatements()
            events = self._events(seen, version, checksum)
            if events is not None and self._kept + len(events.data) > MAX_KEPT_BYTES:
                events = None
            if events is not None:
                self._kept += len(events.data)
            self._groups[seen.xid] = Group(seen.begin, seen.end, events)
            return None
        return self._drop(seen.xid)

    def _drop(self, xid: bytes) -> Group | None:
        group = self._groups.pop(xid, None)
        if group is not None and group.events is not None:
            self._kept -= len(group.events.data)
        return group

    def _events(self, seen: XaSeen, version: tuple[int, ...], checksum: bool) -> XaEvents | None:
        """A copy of the group's events; None if it is large or was not received as a whole."""
        for last in self._ends:
            if self._log_pos(last - 1) == seen.end & 0xFFFF_FFFF:
                break
        else:
            return None
        assert self._received is not None
        data, offsets = self._received.data, self._received.offsets
        # Not all of the file's events are sent: MariaDB leaves out those that annotate rows.
        before = int(np.searchsorted(self._begins, last)) - 1
        if before < 0:
            return None
        first = int(self._begins[before])
        begin, end = int(offsets[first]), int(offsets[last])
        length = int(offsets[first + 1]) - begin
        whole = self._log_pos(first) == (seen.begin + length) & 0xFFFF_FFFF
        if not whole or end - begin > MAX_GROUP_BYTES:
            return None
        copied = data[begin:end].copy()
        return XaEvents(copied, offsets[first : last + 1] - begin, checksum, version)

    def _log_pos(self, index: int) -> int:
        """The low 32 bits of the event's end in its file."""
        assert self._received is not None
        at = int(self._received.offsets[index]) + 13
        return int.from_bytes(self._received.data[at : at + 4].tobytes(), "little")


def find_prepared(
    url: ServerUrl, files: LogFiles, seen: XaSeen, *, fold: bool
) -> tuple[Group, TableStatements]:
    """Find a group that was prepared before the stream began, from the newest file backward, and
    the statements between it and its commit, perhaps with earlier ones. Raises GapError if the log
    no longer has it.
    """
    statements = TableStatements()

    def read(begin: int, end: int) -> Iterator[LogPart]:
        for _, part in read_part(url, files, begin, end):
            for at, _, query in queries(part):
                mode = query.status.sql_mode
                statements.note(
                    read_statement(query.text(), query.database, fold=fold, sql_mode=mode), at
                )
            yield part

    last, _ = unpack_position(seen.begin)
    for number in sorted((n for n in files.sizes if n <= last), reverse=True):
        begin = files.begin(number)
        end = seen.begin if number == last else pack_position(number, files.sizes[number])
        found = [
            Group(first, last)
            for first, last, xid in prepared_groups(read(begin, end))
            if xid == seen.xid
        ]
        if found:
            return found[-1], statements
    raise GapError(
        f"the XA transaction that is committed at {files.describe(seen.begin)} was prepared before "
        "the oldest binlog that the source still has: its rows are lost. "
        "`tidelog reset CONFIG` has the tables dumped again"
    )


class XaRows:
    """Yields the rows of groups once they are committed. Used by one thread.

    Args:
        url: the server.
        connected: returns an SQL connection.
        events: converts a scanner's items to events.
        captured: the captured tables.
        prepared: the groups that are neither committed nor rolled back.

    Attributes:
        version: the version of the server that wrote the stream's current file.
    """

    def __init__(
        self,
        url: ServerUrl,
        connected: Callable[[], Connection],
        events: Callable[[BinlogScanner, Iterator[Scanned]], Iterator[LogEvent]],
        captured: CapturedTables,
        prepared: PreparedGroups,
    ) -> None:
        self.version: tuple[int, ...] = ()
        self._prepared = prepared
        self._url = url
        self._get_connection = connected
        self._events = events
        self._captured = captured
        self._flavor = Flavor.MYSQL
        self._files: LogFiles | None = None

    def start(self, flavor: Flavor, files: LogFiles) -> None:
        """Start a stream of this server and these files."""
        self._flavor, self._files = flavor, files
        self._prepared.clear()

    def take(self, scanner: BinlogScanner, seen: XaSeen, idle_at: int) -> Iterator[LogEvent]:
        """Process a group that was prepared, committed or rolled back; yields its rows if it was
        committed. ``idle_at``: the furthest position that was acknowledged, or may have been.
        """
        group = self._prepared.take(seen, self.version, checksum=scanner.checksum)
        if seen.state not in (XaState.COMMITTED, XaState.ONE_PHASE) or seen.durable:
            return
        known, statements = group is not None, self._prepared.statements
        if group is None:
            with translate_errors("reading an XA transaction"):
                self._files = log_files(self._get_connection())
            group, statements = find_prepared(
                self._url, self._files, seen, fold=self._captured.fold
            )
        tables: set[TableName] = set()
        yield from self._committed(scanner, seen, group, idle_at, tables, known=known)
        for table in sorted(tables):
            if statements.altered(table, group.end) or statements.truncated(table, group.end):
                reason = "a statement changed it while an XA transaction with its rows was prepared"
                yield RowsUnlogged(table, reason, seen.begin)

    def _committed(
        self,
        scanner: BinlogScanner,
        seen: XaSeen,
        group: Group,
        idle_at: int,
        tables: set[TableName],
        *,
        known: bool,
    ) -> Iterator[LogEvent]:
        """The rows of a prepared group as records of the group that committed it; adds the captured
        tables that they are of to ``tables``. Rows of tables that were truncated since, as far as
        the stream has shown it, are left out.
        """
        resume = scanner.resume
        # Until all rows are durable, a restart must find the group again: in the stream, or by a
        # search if it was prepared before the acknowledged position.
        acknowledge = max(idle_at, min(resume.acknowledge, group.begin))
        if not known:
            acknowledge = resume.acknowledge
        resume_at = Resume(acknowledge, resume.position, resume.ordinal)
        number, offset = unpack_position(group.begin)
        again: BinlogScanner | None = None
        for events in self._group_events(group):
            if again is None:
                again = BinlogScanner(
                    self._flavor,
                    resume_at,
                    checksum=events.checksum,
                    file_number=number,
                    offset=offset,
                    as_of=RowsOfPreparedTransaction(seen.begin, seen.commit_ts),
                    # Events that are read again begin with the file's format description.
                    server_version=events.version if isinstance(events, XaEvents) else (),
                    shift=self._url.pin.shift,
                )
            items = again.feed(events.data, events.offsets)
            since = group.end if known else seen.end
            yield from self._xa_changes(again, items, since, tables, durable=seen.end <= idle_at)
        if again is None or again.in_transaction:
            raise ConnectionLostError("the server sent a prepared XA transaction incompletely")
        after = again.resume
        scanner.skip_to(after.position, after.ordinal)

    def _group_events(self, group: Group) -> Iterator[XaEvents | LogPart]:
        """The kept events, or the events read again."""
        if group.events is not None:
            yield group.events
            return
        assert self._files is not None  # only the names matter here
        for _, part in read_part(self._url, self._files, group.begin, group.end):
            yield part

    def _xa_changes(
        self,
        again: BinlogScanner,
        items: Iterator[Scanned],
        since: int,
        tables: set[TableName],
        *,
        durable: bool,
    ) -> Iterator[LogEvent]:
        """The changes of a group's items. A statement's are visible only now, though the stream had
        it when it was prepared; ``durable``: its effects were stored before the stream began.
        """
        for item in items:
            if isinstance(item, TableMapSeen):
                table = TableName(item.database, item.table)
                if self._prepared.statements.truncated(table, since):
                    again.bind(item.table_id, 0)
                    continue
                if table in self._captured:
                    tables.add(table)
            if isinstance(item, QuerySeen):
                yield from self._events(again, iter([replace(item, durable=durable)]))
            elif isinstance(item, LogBatch | TableMapSeen | WatchedBinlogRow | RowsNoticed):
                yield from self._events(again, iter([item]))
