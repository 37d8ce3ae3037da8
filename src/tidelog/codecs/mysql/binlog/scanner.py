"""The binlog stream of MySQL and MariaDB → records of the event log, sans-IO.

`BinlogScanner` takes whole binlog events and gives `LogBatch`es of rows, with what a consumer must
see in its place between them. Rows stay wire bytes in the event log's form; nothing here decodes a
value. Formats: `tidelog.codecs.mysql.binlog.events`.

**Groups.** A transaction is a group of events: from a GTID event (or, without GTIDs, from the first
event) to an XID event, a COMMIT, a ROLLBACK, or its only statement. Where it begins is the position
and the transaction id of its records.

**Ordinals.** Every row on the wire, TRUNCATE and DELETE counts one within its transaction, from 0,
before any filter: ``(position, ordinal)`` names the same record after a restart with other
filters. Of tables with types that are not known each event counts one.

**XA.** The rows of a group that prepares are not given (they may yet be rolled back); a scanner
with ``as_of`` gives them once they are committed.

**Compression.** Events within a transaction payload bear the payload's place in the file.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Collection, Generator, Iterator, Mapping
from typing import NoReturn

import numpy as np

from tidelog.codecs.mysql.binlog import position as binlog_position
from tidelog.codecs.mysql.binlog.events.compression import (
    COMPRESSED_ROWS,
    inflated_rows,
    parse_transaction_payload,
    payload_slices,
)
from tidelog.codecs.mysql.binlog.events.fields import Fields
from tidelog.codecs.mysql.binlog.events.files import parse_format, parse_heartbeat_v2, parse_rotate
from tidelog.codecs.mysql.binlog.events.gtids import (
    parse_gtid,
    parse_gtid_list,
    parse_mariadb_gtid,
    parse_previous_gtids,
    parse_tagged_gtid,
)
from tidelog.codecs.mysql.binlog.events.header import (
    CHECKSUM_BYTES,
    HEADER_BYTES,
    IGNORABLE,
    EventType,
    Header,
    parse_header,
    without_checksum,
)
from tidelog.codecs.mysql.binlog.events.statements import (
    Query,
    changes_rows,
    first_words,
    parse_query,
)
from tidelog.codecs.mysql.binlog.events.table_map import parse_table_map
from tidelog.codecs.mysql.binlog.events.xa import parse_xa_prepare
from tidelog.codecs.mysql.binlog.items import (
    Alter,
    AsOf,
    BinlogRowOf,
    BinlogServer,
    FormatSeen,
    GtidSource,
    GtidsSeen,
    GtidStateSeen,
    MariaDbSource,
    QuerySeen,
    RolledBackSeen,
    RotateSeen,
    RowsNoticed,
    TableMapSeen,
    TableMetadata,
    XaSeen,
    XaState,
)
from tidelog.codecs.mysql.binlog.kernels import slots as kernel
from tidelog.codecs.mysql.binlog.kernels.events import split
from tidelog.codecs.mysql.binlog.kernels.scan import scan
from tidelog.codecs.mysql.binlog.tables import ScannedTables
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.errors import DecodeError, GapError
from tidelog.model.records import Int64s, Kind, LogBatch, Resume, UInt8s

__all__ = [
    "START",
    "Alter",
    "AsOf",
    "BinlogRowOf",
    "BinlogScanner",
    "BinlogServer",
    "FormatSeen",
    "GtidSource",
    "GtidStateSeen",
    "GtidsSeen",
    "MariaDbSource",
    "QuerySeen",
    "RolledBackSeen",
    "RotateSeen",
    "RowsNoticed",
    "Scanned",
    "TableMapSeen",
    "TableMetadata",
    "XaSeen",
    "XaState",
]

START = Resume(acknowledge=0, position=0, ordinal=-1)
"""Resume of a log that holds nothing yet."""

Scanned = (
    LogBatch
    | TableMapSeen
    | BinlogRowOf
    | RowsNoticed
    | QuerySeen
    | GtidsSeen
    | XaSeen
    | RotateSeen
    | FormatSeen
    | GtidStateSeen
    | RolledBackSeen
)

BATCH_BYTES = 8 << 20
"""A batch holds at most about so many bytes of payload."""

BATCH_RECORDS = 1 << 17
BATCH_GTIDS = 1 << 15
SLICE_BYTES = 4 << 20
"""Of a compressed transaction, so much is held inflated."""

_TORN = "is torn or malformed"
_FAULTS = {
    kernel.MALFORMED: _TORN,
    kernel.BAD_CHECKSUM: "does not match its checksum",
    kernel.OUT_OF_ORDER: "stands before the end of the one before",
    kernel.NESTED: "stands inside a transaction",
    kernel.OUTSIDE: "stands outside a transaction",
    kernel.UNMAPPED: "is of a table without a table map",
    kernel.COLUMN_COUNT: "has another number of columns than its table map",
    kernel.TORN_ROW: "holds a row that does not fit its table map",
}
_MADE_UP = frozenset({EventType.ROTATE, EventType.HEARTBEAT, EventType.HEARTBEAT_V2})
_PLACING = _MADE_UP | {EventType.FORMAT_DESCRIPTION}
_UNLIKE_OTHERS = _PLACING | {EventType.TRANSACTION_PAYLOAD}
_GTIDS = frozenset({EventType.GTID, EventType.GTID_TAGGED, EventType.MARIADB_GTID})
_LOADING = frozenset({EventType.BEGIN_LOAD_QUERY, EventType.APPEND_BLOCK, EventType.DELETE_FILE})
_PASSED = frozenset({EventType.IGNORABLE, EventType.START_ENCRYPTION})
_BEGINS = re.compile(r"\bSTART\s+TRANSACTION\s*$", re.IGNORECASE)
_XID = re.compile(r"X'[0-9a-f]*'\s*,\s*X'[0-9a-f]*'\s*,\s*-?\d+", re.IGNORECASE)


class BinlogScanner:
    """Scans one stream. Not thread-safe; of no use after an error.

    Args:
        flavor: which server writes the log.
        resume: records up to its ``(position, ordinal)`` are skipped; None: nothing is.
        checksum: events end in a CRC32 until a format description says otherwise.
        file_number: of the file that the stream begins in.
        offset: in it, where the stream begins: a group boundary.
        as_of: yield the rows of prepared XA groups, as of the group that committed them.
    """

    def __init__(
        self,
        flavor: Flavor,
        resume: Resume | None = None,
        *,
        checksum: bool,
        file_number: int,
        offset: int,
        as_of: AsOf | None = None,
    ) -> None:
        begin = resume or START
        self._flavor = flavor
        self._begin = begin
        self._as_of = as_of
        state = self._state = np.zeros(kernel.STATE_SLOTS, dtype=np.int64)
        state[kernel.FILE] = binlog_position.pack(file_number, 0)
        state[kernel.OFFSET] = offset
        state[kernel.LAST_POSITION] = begin.position
        state[kernel.LAST_ORDINAL] = begin.ordinal
        state[kernel.CHECKSUM] = checksum
        state[kernel.SOURCE] = -1
        self._tables = ScannedTables()
        self._sources: tuple[GtidSource, ...] = ()
        self._source_keys = np.zeros((8, 16), dtype=np.uint8)
        self._prepared: dict[bytes, int] = {}
        self._xid = b""
        self._placed = False
        self._skipped = False
        self._kind = np.empty(BATCH_RECORDS, dtype=np.uint8)
        self._schema_id = np.empty(BATCH_RECORDS, dtype=np.int32)
        self._position = np.empty(BATCH_RECORDS, dtype=np.int64)
        self._ordinal = np.empty(BATCH_RECORDS, dtype=np.int64)
        self._commit_ts = np.empty(BATCH_RECORDS, dtype=np.int64)
        self._payload_offsets = np.empty(BATCH_RECORDS + 1, dtype=np.int32)
        self._payload = np.empty(BATCH_BYTES, dtype=np.uint8)
        self._gtid_position = np.empty(BATCH_GTIDS, dtype=np.int64)
        self._gtid_number = np.empty(BATCH_GTIDS, dtype=np.int64)
        self._gtid_source = np.empty(BATCH_GTIDS, dtype=np.int32)
        # Compiles (or loads) the kernel now and not in the middle of the stream.
        for _ in self.feed(np.empty(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)):
            pass

    # -------------------------------------------------------------- where it stands

    @property
    def resume(self) -> Resume:
        """Where a restart goes on once everything yielded so far is durable."""
        safe = int(self._state[kernel.GROUP_START]) if self.in_transaction else self.position
        oldest = self.oldest_prepared
        if oldest is not None:
            safe = min(safe, oldest)
        if self._as_of is not None:
            safe = 0
        return Resume(
            acknowledge=max(self._begin.acknowledge, safe),
            position=int(self._state[kernel.LAST_POSITION]),
            ordinal=int(self._state[kernel.LAST_ORDINAL]),
        )

    @property
    def in_transaction(self) -> bool:
        """Is a group of events open?"""
        return bool(self._state[kernel.IN_GROUP])

    @property
    def checksum(self) -> bool:
        """Do events end in a CRC32 now?"""
        return bool(self._state[kernel.CHECKSUM])

    @property
    def position(self) -> int:
        """The packed end of what was scanned."""
        return int(self._state[kernel.FILE] | self._state[kernel.OFFSET])

    @property
    def oldest_prepared(self) -> int | None:
        """Where the oldest XA transaction begins that is prepared and not decided; None: none."""
        return min(self._prepared.values(), default=None)

    # -------------------------------------------------------------- answers

    def bind(
        self,
        table_id: int,
        schema_id: int,
        *,
        watch: bool = False,
        old_digits: Mapping[int, int] | None = None,
    ) -> None:
        """Say what becomes of a table's rows: their schema version, 0 to drop them.

        Must answer each `TableMapSeen` before the next item is taken.
        ``watch``: yield each row as a `BinlogRowOf` instead. ``old_digits``: of columns, by index,
        in MariaDB's old temporal format (`tidelog.codecs.mysql.types.old_digits`), which the table
        map does not tell.
        """
        self._tables.bind(table_id, kernel.WATCHED if watch else schema_id, old_digits or {})

    def notice(self, table_id: int, *, deletes: bool, columns: Collection[int]) -> None:
        """Tell (`RowsNoticed`) of deleted rows, and of updates that change one of ``columns``, by
        index. To be called with `bind`; the rows may be dropped all the same. Costs no more than
        the comparison of these columns, until something is noticed.
        """
        self._tables.notice(table_id, deletes=deletes, columns=columns)

    @property
    def tables(self) -> int:
        """How many tables' maps are kept. The server numbers a table anew whenever it opens it."""
        return len(self._tables)

    def forget_tables(self) -> None:
        """Ask anew (`TableMapSeen`) for every table, e.g. after DDL. Not while rows may follow a
        table map that was passed: between transactions, or at a `QuerySeen`.
        """
        self._tables.clear()

    def truncate(self, schema_id: int) -> LogBatch | None:
        """The record of a TRUNCATE, to be called while its `QuerySeen` is the last item taken.
        None if it is durable.
        """
        state = self._state
        ordinal = int(state[kernel.NEXT_ORDINAL]) - 1
        if (int(state[kernel.RECORD_POSITION]), ordinal) != self._last() or self._skipped:
            return None
        payload = struct.pack("!ciBI", b"T", 1, 0, 0)
        position = np.array([state[kernel.RECORD_POSITION]], dtype=np.int64)
        return LogBatch(
            kind=np.array([Kind.TRUNCATE], dtype=np.uint8),
            schema_id=np.array([schema_id], dtype=np.int32),
            position=position,
            ordinal=np.array([ordinal], dtype=np.int64),
            xid=position,
            commit_ts=np.array([state[kernel.COMMIT_TS]], dtype=np.int64),
            payload_offsets=np.array([0, len(payload)], dtype=np.int32),
            payload=np.frombuffer(payload, dtype=np.uint8),
            resume=self.resume,
        )

    def skip_to(self, position: int, ordinal: int) -> None:
        """Records up to here were taken elsewhere (those of a committed XA transaction)."""
        if (position, ordinal) > self._last():
            self._state[kernel.LAST_POSITION] = position
            self._state[kernel.LAST_ORDINAL] = ordinal

    def feed(self, data: UInt8s, offsets: Int64s) -> Iterator[Scanned]:
        """Scan whole events back to back (19-byte header … checksum); take all items before the
        next feed. ``offsets`` int64[n + 1]: event ``i`` is ``data[offsets[i]:offsets[i + 1]]``.

        Raises:
            DecodeError: the stream is no binlog; what precedes the fault is yielded first.
            GapError: the server logged an incident: it lost events.
        """
        yield from self._scan(data, offsets, kernel.WHOLE)

    # -------------------------------------------------------------- batches

    def _scan(self, data: UInt8s, offsets: Int64s, mode: int) -> Iterator[Scanned]:
        data = readonly(data, np.uint8)
        offsets = readonly(offsets, np.int64)
        if len(offsets) == 0 or offsets[0] < 0 or not offsets[0] <= offsets[-1] <= len(data):
            raise self._fault("event offsets do not fit the data")
        state = self._state
        first = 0
        while True:
            state[kernel.MODE] = mode
            tables = self._tables
            stopped = scan(
                data,
                offsets,
                first,
                tables.ids,
                tables.numbers,
                tables.tables,
                tables.walks,
                tables.steps,
                tables.maps,
                self._source_keys,
                state,
                self._kind,
                self._schema_id,
                self._position,
                self._ordinal,
                self._commit_ts,
                self._payload_offsets,
                self._payload,
                self._gtid_position,
                self._gtid_number,
                self._gtid_source,
            )
            cursor = int(state[kernel.CURSOR])
            records = int(state[kernel.RECORDS])
            gtids = int(state[kernel.GTIDS])
            if gtids:
                yield GtidsSeen(
                    self._gtid_position[:gtids].copy(),
                    self._gtid_number[:gtids].copy(),
                    self._gtid_source[:gtids].copy(),
                    self._sources,
                )
            for seen, what in self._tables.noticed():
                yield RowsNoticed(
                    seen.database,
                    seen.table,
                    bool(what & kernel.DELETED),
                    bool(what & kernel.REKEYED),
                    int(state[kernel.LAST_POSITION]),
                )
            if stopped == kernel.WATCHED_ROW:
                yield self._row_of(data, int(offsets[cursor]))
            elif records:
                yield self._batch(records, int(state[kernel.PAYLOAD_BYTES]))
            if stopped == kernel.END:
                return
            first = cursor
            if stopped == kernel.WATCHED_ROW:
                continue
            if stopped == kernel.FULL:
                if state[kernel.NEED] > len(self._payload):
                    self._grow(int(state[kernel.NEED]))
                continue
            start, end = int(offsets[cursor]), int(offsets[cursor + 1])
            if stopped != kernel.SPECIAL:
                self._refuse(stopped, data, start, end)
            first = yield from self._special(data, offsets, cursor, mode)

    def _batch(self, records: int, payload_bytes: int) -> LogBatch:
        position = self._position[:records].copy()
        batch = LogBatch(
            kind=self._kind[:records].copy(),
            schema_id=self._schema_id[:records].copy(),
            position=position,
            ordinal=self._ordinal[:records].copy(),
            xid=position,
            commit_ts=self._commit_ts[:records].copy(),
            payload_offsets=self._payload_offsets[: records + 1].copy(),
            payload=self._payload[:payload_bytes].copy(),
            resume=self.resume,
        )
        if len(self._payload) > BATCH_BYTES:
            self._payload = np.empty(BATCH_BYTES, dtype=np.uint8)
        return batch

    def _row_of(self, data: UInt8s, start: int) -> BinlogRowOf:
        """The one record that the kernel wrote of a watched table."""
        return BinlogRowOf(
            int.from_bytes(
                data[start + HEADER_BYTES : start + HEADER_BYTES + 6].tobytes(), "little"
            ),
            Kind(int(self._kind[0])),
            self._payload[: self._payload_offsets[1]].tobytes(),
            int(self._position[0]),
            int(self._ordinal[0]),
            int(self._commit_ts[0]),
        )

    def _grow(self, need: int) -> None:
        """Room for a row that is larger than a batch as a rule is."""
        if need > np.iinfo(np.int32).max:
            raise self._fault("a row is larger than the protocol allows")
        self._payload = np.empty(need, dtype=np.uint8)

    # -------------------------------------------------------------- single events

    def _special(
        self, data: UInt8s, offsets: Int64s, cursor: int, mode: int
    ) -> Generator[Scanned, None, int]:
        """Take the event at ``cursor``, which the kernel left; the index of the next."""
        state = self._state
        start, end = int(offsets[cursor]), int(offsets[cursor + 1])
        event = data[start:end].tobytes()
        header = parse_header(event)
        try:
            if header.type in COMPRESSED_ROWS and mode == kernel.WHOLE:
                return (yield from self._inflated(data, offsets, cursor))
            if header.type == EventType.FORMAT_DESCRIPTION:
                yield from self._format(event, header)
            elif header.type in _MADE_UP and mode == kernel.WHOLE:
                event = without_checksum(event)
                yield from self._made_up(event[HEADER_BYTES:], header)
            else:
                if state[kernel.CHECKSUM] and mode == kernel.WHOLE:
                    event = event[:-CHECKSUM_BYTES]
                again = yield from self._event(event[HEADER_BYTES:], header, mode)
                if again:
                    return cursor
        except (struct.error, IndexError, ValueError, KeyError, OverflowError) as error:
            raise self._fault(f"{_name(header.type)} event {_TORN}") from error
        if mode != kernel.INNER and header.type not in _PLACING:
            state[kernel.OFFSET] = state[kernel.EVENT_END]
        return cursor + 1

    def _event(self, body: bytes, header: Header, mode: int) -> Generator[Scanned, None, bool]:
        """Any other event; True if the kernel can take it now."""
        kind = header.type
        if kind == EventType.TABLE_MAP:
            seen = parse_table_map(body, self._event_start(), self._flavor)
            if not self._tables.knows(seen, body):
                self._tables.add(seen, body)
                yield seen
        elif kind in _GTIDS:
            return (yield from self._gtid(body, header))
        elif kind in (EventType.QUERY, EventType.EXECUTE_LOAD_QUERY, EventType.QUERY_COMPRESSED):
            query = parse_query(
                body,
                load=kind == EventType.EXECUTE_LOAD_QUERY,
                compressed=kind == EventType.QUERY_COMPRESSED,
            )
            yield from self._query(query, header)
        elif kind == EventType.XA_PREPARE:
            yield from self._xa_prepare(body)
        elif kind == EventType.XID:
            raise self._fault(f"XID event {_FAULTS[kernel.OUTSIDE]}")
        elif kind == EventType.TRANSACTION_PAYLOAD and mode == kernel.WHOLE:
            yield from self._payload_event(body)
        elif kind == EventType.PREVIOUS_GTIDS:
            yield GtidStateSeen(parse_previous_gtids(body))
        elif kind == EventType.GTID_LIST:
            if not header.artificial:
                yield GtidStateSeen(parse_gtid_list(body))
        elif kind == EventType.INCIDENT:
            raise GapError(
                f"binlog at {self._where()}: the server logged an incident: it lost changes. "
                "Start a new event log behind it, which dumps the tables again"
            )
        elif kind in _LOADING:
            if not self.in_transaction:
                self._open(header.timestamp * 1_000_000)
        elif not (kind in _PASSED or header.flags & IGNORABLE):
            raise self._fault(f"event of type {kind} is not known and may not be ignored")
        return False

    def _format(self, event: bytes, header: Header) -> Iterator[Scanned]:
        state = self._state
        told = parse_format(event[HEADER_BYTES:])
        # The checksum is of the file when closed: without the flag that it is in use.
        closed = event[:17] + bytes([event[17] & 0xFE]) + event[18:]
        if told.checksum and without_checksum(closed) is closed:
            raise self._fault(f"format description {_FAULTS[kernel.BAD_CHECKSUM]}")
        if told.binlog_version != 4:
            raise self._fault(f"binlog format {told.binlog_version} is not supported")
        if told.lengths[EventType.TABLE_MAP - 1 : EventType.TABLE_MAP] == b"\x06":
            raise self._fault("table ids of 4 bytes are not supported")
        started = told.created != 0
        if self.in_transaction:
            if not started:
                raise self._fault(f"format description {_FAULTS[kernel.NESTED]}")
            # The server ended in the midst of writing the group, which hence was never committed.
            yield from self._rolled_back()
            self._close()
        if started:
            self._tables.clear()  # table ids begin anew
        state[kernel.CHECKSUM] = told.checksum
        if not header.artificial:
            state[kernel.OFFSET] = state[kernel.EVENT_END]
        yield FormatSeen(told.server_version, bool(told.checksum), started)

    def _made_up(self, body: bytes, header: Header) -> Iterator[Scanned]:
        """Rotate and heartbeat events: they say where the stream is."""
        state = self._state
        if header.type == EventType.ROTATE:
            name, offset = parse_rotate(body)
            _, number = binlog_position.file_number(name)
            place = binlog_position.pack(number, offset)
            if self.in_transaction and not header.artificial:
                raise self._fault(f"ROTATE event {_FAULTS[kernel.NESTED]}")
            # Else the file ended with the server: the format description that follows says so.
            if self._placed and place < self.position:
                raise self._fault(f"ROTATE event {_FAULTS[kernel.OUT_OF_ORDER]}")
            self._placed = True
            state[kernel.FILE] = binlog_position.pack(number, 0)
            state[kernel.OFFSET] = offset
            yield RotateSeen(name, offset, header.artificial)
            return
        if self.in_transaction:
            return
        here = int(state[kernel.OFFSET])
        if header.type == EventType.HEARTBEAT_V2:
            name_of, exact = parse_heartbeat_v2(body)
            if name_of is not None and self._is_here(name_of) and exact is not None:
                state[kernel.OFFSET] = max(here, binlog_position.pack(0, exact))
        elif self._flavor is Flavor.MARIADB and not header.log_pos:
            # Beyond 4 GiB: the offset stands before the name (sql_repl.cc, send_heartbeat_event).
            fields = Fields(body)
            exact = fields.integer(8)
            if self._is_here(fields.rest().decode("utf-8")):
                state[kernel.OFFSET] = max(here, exact)
        elif self._is_here(body.decode("utf-8")):
            ahead = (header.log_pos - here) & 0xFFFFFFFF
            if header.log_pos and ahead < 1 << 31:
                state[kernel.OFFSET] = here + ahead

    def _is_here(self, name: str) -> bool:
        _, number = binlog_position.file_number(name)
        return binlog_position.pack(number, 0) == int(self._state[kernel.FILE])

    # -------------------------------------------------------------- groups

    def _gtid(self, body: bytes, header: Header) -> Generator[Scanned, None, bool]:
        """A GTID that the kernel does not take: of a source unknown, tagged, or of XA."""
        state = self._state
        if self.in_transaction:
            raise self._fault(f"GTID event {_FAULTS[kernel.NESTED]}")
        if header.type == EventType.MARIADB_GTID:
            gtid = parse_mariadb_gtid(body, header.server_id)
        elif header.type == EventType.GTID_TAGGED:
            gtid = parse_tagged_gtid(body)
        else:
            gtid = parse_gtid(body, anonymous=header.type == EventType.ANONYMOUS_GTID)
        assert gtid.source is not None  # the kernel takes anonymous ones
        number = self._source_number(gtid.source)
        if gtid.xid is None and header.type != EventType.GTID_TAGGED:
            return True
        self._open(gtid.commit_us or header.timestamp * 1_000_000)
        state[kernel.STANDALONE] = gtid.standalone
        state[kernel.BEGUN] = header.type == EventType.MARIADB_GTID and not gtid.standalone
        yield GtidsSeen(
            np.array([state[kernel.GROUP_START]], dtype=np.int64),
            np.array([gtid.number], dtype=np.int64),
            np.array([number], dtype=np.int32),
            self._sources,
        )
        if gtid.xid is not None and gtid.prepares:
            self._hold(gtid.xid)
        return False

    def _source_number(self, source: GtidSource) -> int:
        if source in self._sources:
            return self._sources.index(source)
        number = len(self._sources)
        self._sources = (*self._sources, source)
        if number == len(self._source_keys):
            longer = np.zeros((2 * number, 16), dtype=np.uint8)
            longer[:number] = self._source_keys
            self._source_keys = longer
        if isinstance(source, MariaDbSource):
            key = struct.pack("<II8x", source.domain, source.server_id)
        elif source.tag:  # never found by the kernel, which takes no tagged events
            key = bytes(16)
        else:
            key = source.uuid.bytes
        self._source_keys[number] = np.frombuffer(key, dtype=np.uint8)
        self._state[kernel.SOURCES] = number + 1
        return number

    def _open(self, commit_ts: int) -> None:
        """A group begins with the event at hand."""
        state = self._state
        state[kernel.IN_GROUP] = 1
        state[kernel.GROUP_START] = state[kernel.RECORD_POSITION] = self._event_start()
        state[kernel.COMMIT_TS] = commit_ts
        for slot in (kernel.NEXT_ORDINAL, kernel.BEGUN, kernel.STANDALONE, kernel.HELD):
            state[slot] = 0

    def _close(self) -> None:
        for slot in (kernel.IN_GROUP, kernel.BEGUN, kernel.STANDALONE, kernel.HELD):
            self._state[slot] = 0
        self._xid = b""

    def _query(self, query: Query, header: Header) -> Iterator[Scanned]:
        state = self._state
        sql = query.text()
        keyword, words = first_words(sql)
        if not self.in_transaction:
            self._open(header.timestamp * 1_000_000)
        if keyword == "XA":
            yield from self._xa(sql, words)
            return
        if keyword == "BEGIN" or words == ("START", "TRANSACTION"):
            if state[kernel.BEGUN] and state[kernel.NEXT_ORDINAL]:
                raise self._fault(f"BEGIN {_FAULTS[kernel.NESTED]}")
            state[kernel.BEGUN] = 1
            return
        if keyword == "COMMIT":
            self._require_not_held(keyword)
            self._close()
            return
        if keyword == "ROLLBACK":
            self._require_not_held(keyword)
            yield from self._rolled_back()
            if "TO" not in words[1:3]:
                self._close()
            return
        if keyword in ("SAVEPOINT", "RELEASE"):
            return
        begins = not state[kernel.BEGUN] and _BEGINS.search(sql) is not None
        if begins:  # CREATE TABLE … SELECT of MySQL 8.0.21 and later
            state[kernel.BEGUN] = 1
        ordinal = int(state[kernel.NEXT_ORDINAL])
        here = int(state[kernel.RECORD_POSITION]), ordinal
        self._skipped = here <= self._last()
        if keyword in ("TRUNCATE", "DELETE"):  # a DELETE of all rows is recorded as a truncate
            state[kernel.NEXT_ORDINAL] += 1
            if not self._skipped:
                state[kernel.LAST_POSITION], state[kernel.LAST_ORDINAL] = here
        alone = not state[kernel.BEGUN] and not state[kernel.HELD]
        end = int(state[kernel.FILE] | state[kernel.EVENT_END])
        begin = self._begin
        yield QuerySeen(
            database=query.database,
            sql=sql,
            position=here[0],
            ordinal=ordinal,
            end=end,
            commit_ts=int(state[kernel.COMMIT_TS]),
            keyword=keyword,
            changes_rows=changes_rows(words) or header.type == EventType.EXECUTE_LOAD_QUERY,
            alone=alone,
            # The stream begins before what is acknowledged, to see the last row's GTID again.
            durable=here <= (begin.position, begin.ordinal) or end <= begin.acknowledge,
            alter=query.status.alter,
            error_code=query.error_code,
            databases=query.status.databases,
            sql_mode=query.status.sql_mode,
            server_id=header.server_id,
            thread=query.thread,
            uses_temporary=header.uses_temporary,
        )
        if alone:
            self._close()

    def _rolled_back(self) -> Iterator[RolledBackSeen]:
        state = self._state
        tables = self._tables.touched(int(state[kernel.GROUP_START]))
        ordinal = int(state[kernel.NEXT_ORDINAL])
        if tables and ordinal:
            position = int(state[kernel.RECORD_POSITION])
            yield RolledBackSeen(position, ordinal, tables, position < self._begin.position)

    # -------------------------------------------------------------- XA

    def _hold(self, xid: bytes) -> None:
        """The group prepares an XA transaction: its rows wait for the decision."""
        state = self._state
        self._xid = xid
        state[kernel.BEGUN] = 1
        if self._as_of is None:
            state[kernel.HELD] = 1
        else:
            state[kernel.RECORD_POSITION] = self._as_of.position
            state[kernel.COMMIT_TS] = self._as_of.commit_ts

    def _xa(self, sql: str, words: tuple[str, ...]) -> Iterator[XaSeen]:
        verb = words[1] if len(words) > 1 else ""
        match = _XID.search(sql)
        xid = match.group().lower().replace("x'", "X'").replace(" ", "").encode() if match else b""
        if verb in ("START", "BEGIN"):
            if not xid:
                raise ValueError("xid")
            self._hold(xid)
        elif verb in ("COMMIT", "ROLLBACK"):
            if not xid:
                raise ValueError("xid")
            self._prepared.pop(xid, None)
            state = XaState.COMMITTED if verb == "COMMIT" else XaState.ROLLED_BACK
            yield self._xa_seen(xid, state)
            self._close()
        elif verb != "END":
            raise self._fault(f"statement XA {verb} is not expected")

    def _xa_prepare(self, body: bytes) -> Iterator[XaSeen]:
        if not self._xid:
            raise self._fault(f"XA_PREPARE event {_FAULTS[kernel.OUTSIDE]}")
        xid, one_phase = parse_xa_prepare(body)
        if xid != self._xid:
            raise self._fault("XA_PREPARE event does not end the XA transaction that was begun")
        if self._as_of is None:
            if not one_phase:
                self._prepared[xid] = int(self._state[kernel.GROUP_START])
            yield self._xa_seen(xid, XaState.ONE_PHASE if one_phase else XaState.PREPARED)
        self._close()

    def _xa_seen(self, xid: bytes, xa_state: XaState) -> XaSeen:
        state = self._state
        begin = int(state[kernel.GROUP_START])
        end = int(state[kernel.FILE] | state[kernel.EVENT_END])
        durable = begin < self._begin.position
        return XaSeen(xid, xa_state, begin, end, int(state[kernel.COMMIT_TS]), durable)

    def _require_not_held(self, what: str) -> None:
        if self._state[kernel.HELD]:
            raise self._fault(f"{what} stands in an XA transaction")

    # -------------------------------------------------------------- compressed events

    def _inflated(
        self, data: UInt8s, offsets: Int64s, cursor: int
    ) -> Generator[Scanned, None, int]:
        """Compressed rows events of MariaDB, with what stands among them, as plain ones."""
        checksum = bool(self._state[kernel.CHECKSUM])
        parts: list[bytes] = []
        at = [0]
        while cursor < len(offsets) - 1 and at[-1] < BATCH_BYTES:
            start, end = int(offsets[cursor]), int(offsets[cursor + 1])
            event = data[start:end].tobytes()
            if len(event) < HEADER_BYTES + CHECKSUM_BYTES or event[4] in _UNLIKE_OTHERS:
                break
            if checksum:
                stored = int.from_bytes(event[-CHECKSUM_BYTES:], "little")
                event = event[:-CHECKSUM_BYTES]
                if zlib.crc32(event) != stored:
                    break
            if int.from_bytes(event[9:13], "little") != end - start:
                break
            if event[4] in COMPRESSED_ROWS:
                event = inflated_rows(event)
            parts.append(event)
            at.append(at[-1] + len(event))
            cursor += 1
        if not parts:
            raise ValueError("length")
        joined = np.frombuffer(b"".join(parts), dtype=np.uint8)
        yield from self._scan(joined, np.array(at, dtype=np.int64), kernel.INFLATED)
        return cursor

    def _payload_event(self, body: bytes) -> Iterator[Scanned]:
        """The events of a compressed transaction; they bear its position."""
        state = self._state
        if not self.in_transaction:
            raise self._fault(f"TRANSACTION_PAYLOAD event {_FAULTS[kernel.OUTSIDE]}")
        payload = parse_transaction_payload(body)
        start, end = int(state[kernel.EVENT_START]), int(state[kernel.EVENT_END])
        state[kernel.OFFSET] = end
        inner = memoryview(body)[payload.start :]
        for piece in payload_slices(inner, payload.compressed, SLICE_BYTES):
            events = np.frombuffer(piece, dtype=np.uint8)
            offsets = np.empty(len(events) // HEADER_BYTES + 2, dtype=np.int64)
            count = split(readonly(events, np.uint8), offsets)
            if count < 0:
                raise ValueError("events")
            state[kernel.EVENT_START], state[kernel.EVENT_END] = start, end
            yield from self._scan(events, offsets[: count + 1], kernel.INNER)
        state[kernel.EVENT_START], state[kernel.EVENT_END] = start, end

    # -------------------------------------------------------------- state

    def _last(self) -> tuple[int, int]:
        return int(self._state[kernel.LAST_POSITION]), int(self._state[kernel.LAST_ORDINAL])

    def _event_start(self) -> int:
        return int(self._state[kernel.FILE] | self._state[kernel.EVENT_START])

    def _refuse(self, stopped: int, data: UInt8s, start: int, end: int) -> NoReturn:
        kind = int(data[start + 4]) if start + 4 < min(end, len(data)) else 0
        raise self._fault(f"{_name(kind)} event {_FAULTS[stopped]}")

    def _where(self) -> str:
        """Where the event at hand begins, as a file's number and the offset in it."""
        state = self._state
        at = binlog_position.text(int(state[kernel.FILE] | max(0, int(state[kernel.EVENT_START]))))
        if not self.in_transaction:
            return at
        group = binlog_position.text(int(state[kernel.GROUP_START]))
        return f"{at}, in the transaction at {group}, record {int(state[kernel.NEXT_ORDINAL])}"

    def _fault(self, what: str) -> DecodeError:
        return DecodeError(f"binlog: {what} (at {self._where()})")


def _name(kind: int) -> str:
    try:
        return EventType(kind).name
    except ValueError:
        return f"type {kind}"


def readonly(array: np.ndarray, dtype: type[np.generic]) -> np.ndarray:
    """The array as the one type that the kernels are compiled for: contiguous and read-only."""
    view = np.ascontiguousarray(array, dtype=dtype).view()
    view.flags.writeable = False
    return view
