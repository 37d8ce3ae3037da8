"""Reads a part of the binlog over its own connection: events again, or ahead of the stream.

Used for prepared XA transactions, for DDL between the current position and the log's end, and for
the GTIDs up to a position. The rows of a prepared XA transaction become records of the group that
commits it: they are read again then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from tidelog.codecs.mysql.binlog.events import (
    CHECKSUM_BYTES,
    HEADER_BYTES,
    EventType,
    Header,
    Query,
    parse_header,
    parse_query,
    parse_rotate,
    parse_transaction_payload,
    parse_xa_prepare,
    payload_slices,
    without_checksum,
)
from tidelog.codecs.mysql.binlog.items import (
    Alter,
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
from tidelog.ports import LogEvent
from tidelog.sources.mysql.connect import Connection
from tidelog.sources.mysql.errors import translate_errors
from tidelog.sources.mysql.stream.positions import LogFiles, log_files
from tidelog.sources.mysql.stream.replication import BinlogStream, ReceivedEvents, log_positions

WAIT_S = 60.0
_BEGIN = b"\0BEGIN"
_SLICE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LogPart:
    """Whole events back to back, valid until the next part is read.

    Attributes:
        data, offsets: as `BinlogScanner.feed` takes them.
        ends: int64[n], the position after each event; 0 for events that the server made up.
        checksum: whether the server now adds checksums to events; events of an older file may
            differ.
    """

    data: UInt8s
    offsets: Int64s
    ends: Int64s
    checksum: bool

    @property
    def types(self) -> UInt8s:
        found: UInt8s = self.data[self.offsets[:-1] + 4]
        return found

    def header(self, index: int) -> Header:
        """The event's header."""
        start = int(self.offsets[index])
        return parse_header(self.data[start : start + HEADER_BYTES].tobytes())

    def body(self, index: int) -> bytes:
        """The event's body, without its checksum if it has one: ``binlog_checksum`` may have been
        different when its file was written.
        """
        event = self.data[self.offsets[index] : self.offsets[index + 1]].tobytes()
        return without_checksum(event)[HEADER_BYTES:]


def read_part(
    url: str | ServerUrl, files: LogFiles, begin: int, end: int
) -> Iterator[tuple[BinlogStream, LogPart]]:
    """The events of ``[begin, end)``; both are positions between groups. Errors as
    `BinlogStream.start`.
    """
    number, offset = unpack_position(begin)
    stream = BinlogStream(url, None, purpose="log-part")
    with contextlib.closing(stream):
        stream.start(files.name(number), offset, wait=False)
        at = begin
        while at < end:
            received = stream.receive(WAIT_S)
            if received is None:
                raise ConnectionLostError(
                    "reading a part of the binlog: the server stopped sending"
                )
            part, at = _events_before(received, stream.checksum, files, at, end)
            if len(part.ends):
                yield stream, part
            if received.ended:
                return


def queries(part: LogPart) -> Iterator[tuple[int, Header, Query]]:
    """The statements of a part, each with the position after it and its event's header. BEGIN is
    left out, and so are statements that only announce or abandon an ALTER.
    """
    text_ends = part.offsets[1:] - (CHECKSUM_BYTES if part.checksum else 0)
    for event_type in (EventType.QUERY, EventType.QUERY_COMPRESSED):
        found = np.flatnonzero(part.types == event_type)
        if event_type == EventType.QUERY:
            # BEGIN is by far the most frequent: one per transaction on MySQL. The database's final
            # 0 precedes it.
            last = part.data[text_ends[found][:, None] + np.arange(-len(_BEGIN), 0)]
            found = found[~(last == np.frombuffer(_BEGIN, np.uint8)).all(axis=1)]
        for index in found.tolist():
            compressed = event_type == EventType.QUERY_COMPRESSED
            query = parse_query(part.body(index), compressed=compressed)
            if query.status.alter not in (Alter.START, Alter.ROLLBACK):
                yield int(part.ends[index]), part.header(index), query


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


def _events_before(
    received: ReceivedEvents, checksum: bool, files: LogFiles, at: int, end: int
) -> tuple[LogPart, int]:
    """The events that end at or before ``end``, and the position after them."""
    data, offsets = received.data, received.offsets
    count = len(offsets) - 1
    ends = np.zeros(count, dtype=np.int64)
    types = data[offsets[:-1] + 4]
    log_pos, in_file = log_positions(data, offsets)
    first = 0
    for rotate in [*np.flatnonzero(types == EventType.ROTATE).tolist(), count]:
        number, here = unpack_position(at)
        chosen = first + np.flatnonzero(in_file[first:rotate])
        # The header has only the low 32 bits of the offset; no batch is long enough to confuse
        # them.
        ends[chosen] = pack_position(number, 0) | (here + (log_pos[chosen] - here & 0xFFFF_FFFF))
        if len(chosen):
            if ends[chosen[-1]] > end:
                cut = int(chosen[np.argmax(ends[chosen] > end)])
                return LogPart(data, offsets[: cut + 1], ends[:cut], checksum), end
            at = int(ends[chosen[-1]])
        if rotate == count:
            break
        event = data[offsets[rotate] : offsets[rotate + 1]].tobytes()
        name, offset = parse_rotate(without_checksum(event)[HEADER_BYTES:])
        place = pack_position(files.number(name), offset)
        if place >= end:
            return LogPart(data, offsets[: rotate + 1], ends[:rotate], checksum), end
        at = max(at, place)
        first = rotate + 1
    return LogPart(data, offsets, ends, checksum), at


# XA transactions.

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


class PreparedGroups:
    """The groups that are prepared and neither committed nor rolled back, as far as the stream has
    shown them.
    """

    def __init__(self) -> None:
        self._groups: dict[bytes, Group] = {}
        self._kept = 0  # bytes
        self._received: ReceivedEvents | None = None
        self._begins: Int64s = np.empty(0, dtype=np.int64)  # indexes of groups' first events
        self._ends: Iterator[int] = iter(())  # indexes after the last events of XA groups

    def clear(self) -> None:
        self._groups.clear()
        self._kept = 0
        self.receive(None)

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


def find_prepared(url: ServerUrl, files: LogFiles, seen: XaSeen) -> Group:
    """Find a group that was prepared before the stream began, from the newest file backward. Raises
    GapError if the log no longer has it.
    """
    last, _ = unpack_position(seen.begin)
    for number in sorted((n for n in files.sizes if n <= last), reverse=True):
        begin = files.begin(number)
        end = seen.begin if number == last else pack_position(number, files.sizes[number])
        parts = (part for _, part in read_part(url, files, begin, end))
        found = [
            Group(first, last) for first, last, xid in prepared_groups(parts) if xid == seen.xid
        ]
        if found:
            return found[-1]
    raise GapError(
        f"the XA transaction that is committed at {files.describe(seen.begin)} was prepared before "
        "the oldest binlog that the source still has: its rows are lost. Start a new event log "
        "and dump the tables again"
    )


class XaRows:
    """Yields the rows of groups once they are committed. Used by one thread.

    Args:
        url: the server.
        connected: returns an SQL connection.
        events: converts a scanner's items to events.

    Attributes:
        prepared: the groups that are neither committed nor rolled back.
        version: the version of the server that wrote the stream's current file.
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
        self._get_connection = connected
        self._events = events
        self._flavor = Flavor.MYSQL
        self._files: LogFiles | None = None

    def start(self, flavor: Flavor, files: LogFiles) -> None:
        """Start a stream of this server and these files."""
        self._flavor, self._files = flavor, files
        self.prepared.clear()

    def take(self, scanner: BinlogScanner, seen: XaSeen, idle_at: int) -> Iterator[LogEvent]:
        """Process a group that was prepared, committed or rolled back; yields its rows if it was
        committed. ``idle_at``: the furthest position that was acknowledged, or may have been.
        """
        group = self.prepared.take(seen, self.version, checksum=scanner.checksum)
        if seen.state not in (XaState.COMMITTED, XaState.ONE_PHASE) or seen.durable:
            return
        known = group is not None
        if group is None:
            with translate_errors("reading an XA transaction"):
                self._files = log_files(self._get_connection())
            group = find_prepared(self._url, self._files, seen)
        yield from self._committed(scanner, seen, group, idle_at, known=known)

    def _committed(
        self, scanner: BinlogScanner, seen: XaSeen, group: Group, idle_at: int, *, known: bool
    ) -> Iterator[LogEvent]:
        """The rows of a prepared group as records of the group that committed it."""
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
            yield from self._xa_changes(again, items, durable=seen.end <= idle_at)
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
        self, again: BinlogScanner, items: Iterator[Scanned], *, durable: bool
    ) -> Iterator[LogEvent]:
        """The changes of a group's items. A statement's are visible only now, though the stream had
        it when it was prepared; ``durable``: its effects were stored before the stream began.
        """
        for item in items:
            if isinstance(item, QuerySeen):
                yield from self._events(again, iter([replace(item, durable=durable)]))
            elif isinstance(item, LogBatch | TableMapSeen | WatchedBinlogRow | RowsNoticed):
                yield from self._events(again, iter([item]))
