"""Scans the binlog stream of MySQL and MariaDB into records of the event log, sans-IO.

`BinlogScanner` takes whole binlog events and yields `LogBatch`es of rows, with other items in order
between them. Rows stay wire bytes in the event log's form; nothing here decodes a value. Formats:
`tidelog.codecs.mysql.binlog.events`.

**Groups.** A transaction is a group of events: from a GTID event (or, without GTIDs, from the first
event) to an XID event, a COMMIT, a ROLLBACK, or its only statement. Its beginning is the position
and the transaction id of its records.

**Ordinals.** Every row on the wire, TRUNCATE and DELETE counts as one within its transaction, from
0, before any filter: ``(position, ordinal)`` names the same record after a restart with other
filters. For tables with unknown types each event counts as one.

**XA.** The rows of a group that prepares are not yielded (they may still be rolled back); a scanner
with ``as_of`` yields them once they are committed.

**Compression.** Events within a transaction payload have the payload's position in the file.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Generator, Iterator, Mapping

import numpy as np

from tidelog.codecs.mysql.binlog import kernels as kernel
from tidelog.codecs.mysql.binlog.events import (
    CHECKSUM_BYTES,
    COMPRESSED_ROWS,
    HEADER_BYTES,
    IGNORABLE,
    EventType,
    Header,
    parse_gtid_list,
    parse_header,
    parse_previous_gtids,
    parse_query,
    parse_transaction_payload,
    payload_slices,
    without_checksum,
)
from tidelog.codecs.mysql.binlog.groups import FileEvents, Groups, XaGroups, plain_events
from tidelog.codecs.mysql.binlog.items import (
    GtidStateSeen,
    RowsNoticed,
    RowsOfPreparedTransaction,
    Scanned,
)
from tidelog.codecs.mysql.binlog.kernels import split_events
from tidelog.codecs.mysql.binlog.scan_kernel import scan
from tidelog.codecs.mysql.binlog.scan_state import FAULTS, TORN, ScannedRecords, ScanState, name_of
from tidelog.codecs.mysql.binlog.table_map import parse_table_map
from tidelog.codecs.mysql.binlog.tables import ScannedTables
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.errors import GapError
from tidelog.model.records import Int64s, LogBatch, RecordKind, Resume, UInt8s, readonly

START = Resume(acknowledge=0, position=0, ordinal=-1)
"""Resume position of a log without records."""

SLICE_BYTES = 4 << 20
"""Most bytes of a compressed transaction that are decompressed at a time."""

_POSITION_EVENTS = frozenset({EventType.ROTATE, EventType.HEARTBEAT, EventType.HEARTBEAT_V2})
_SET_OFFSET = _POSITION_EVENTS | {EventType.FORMAT_DESCRIPTION}
_GTIDS = frozenset({EventType.GTID, EventType.GTID_TAGGED, EventType.MARIADB_GTID})
_LOADING = frozenset({EventType.BEGIN_LOAD_QUERY, EventType.APPEND_BLOCK, EventType.DELETE_FILE})
_SKIPPED = frozenset({EventType.IGNORABLE, EventType.START_ENCRYPTION})


class BinlogScanner:
    """Scans one stream. Not thread-safe; must not be used after an error.

    Args:
        flavor: the server that writes the log.
        resume: records up to its ``(position, ordinal)`` are skipped; None: none are.
        checksum: whether events end in a CRC32 until a format description says otherwise.
        file_number: the number, as in positions, of the file in which the stream begins.
        offset: the offset in that file, where the stream begins: a group boundary.
        as_of: if set, yield the rows of prepared XA groups, as rows of the group that committed
            them.
        server_version: the version of the server that wrote the file, until a format description
            has it.
        shift: the difference between file numbers in positions and in names.
    """

    def __init__(
        self,
        flavor: Flavor,
        resume: Resume | None = None,
        *,
        checksum: bool,
        file_number: int,
        offset: int,
        as_of: RowsOfPreparedTransaction | None = None,
        server_version: tuple[int, ...] = (),
        shift: int = 0,
    ) -> None:
        begin = resume or START
        self._flavor = flavor
        self._begin = begin
        self._as_of = as_of
        self._state = ScanState(begin, checksum, file_number, offset, server_version)
        self._tables = ScannedTables()
        self._xa = XaGroups(self._state, begin.position, as_of)
        self._groups = Groups(self._state, begin, self._tables, self._xa)
        self._files = FileEvents(self._state, flavor, self._tables, self._groups, shift)
        self._records = ScannedRecords()
        # Compiles or loads the kernel now and not in the middle of the stream.
        for _ in self.feed(np.empty(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)):
            pass

    # -------------------------------------------------------------- state

    @property
    def resume(self) -> Resume:
        """The resume position for a restart once everything yielded so far is durable."""
        safe = (
            int(self._state.slots[kernel.GROUP_START])
            if self._state.in_transaction
            else self._state.position
        )
        oldest = self.oldest_prepared
        if oldest is not None:
            safe = min(safe, oldest)
        if self._as_of is not None:
            safe = 0
        return Resume(
            acknowledge=max(self._begin.acknowledge, safe),
            position=int(self._state.slots[kernel.LAST_POSITION]),
            ordinal=int(self._state.slots[kernel.LAST_ORDINAL]),
        )

    @property
    def checksum(self) -> bool:
        """True if events end in a CRC32 now."""
        return bool(self._state.slots[kernel.CHECKSUM])

    @property
    def oldest_prepared(self) -> int | None:
        """The beginning of the oldest XA transaction that is prepared and neither committed nor
        rolled back; None: there is none.
        """
        return self._xa.oldest_prepared

    @property
    def in_transaction(self) -> bool:
        """True if a group of events is open."""
        return self._state.in_transaction

    @property
    def position(self) -> int:
        """The packed end of the scanned events."""
        return self._state.position

    # -------------------------------------------------------------- results

    def bind(
        self,
        table_id: int,
        schema_id: int,
        *,
        watch: bool = False,
        old_digits: Mapping[int, int] | None = None,
        left_out: Collection[int] = (),
    ) -> None:
        """Set how a table's rows are processed: their schema version, or 0 to drop them.

        Call it for each `TableMapSeen` before the next item is taken.

        Args:
            table_id: the table's id.
            schema_id: the schema version's number.
            watch: yield each row as a `WatchedBinlogRow` instead.
            old_digits: by index, columns in MariaDB's old temporal format (`types.old_digits`).
            left_out: indexes of the columns that are left out of records.
        """
        schema = kernel.WATCHED if watch else schema_id
        self._tables.bind(table_id, schema, old_digits or {}, left_out)

    def notice(self, table_id: int, *, deletes: bool, columns: Collection[int]) -> None:
        """Report (`RowsNoticed`) deleted rows, and updates that change one of ``columns``, by
        index.

        Call it together with `bind`; the rows may still be dropped. It costs no more than the
        comparison of these columns, until something is noticed.
        """
        self._tables.notice(table_id, deletes=deletes, columns=columns)

    @property
    def tables(self) -> int:
        """The number of table maps kept. A table gets a new id whenever it is opened."""
        return len(self._tables)

    def forget_tables(self) -> None:
        """Yield `TableMapSeen` again for every table, e.g. after DDL. Call it only between
        transactions or at a `QuerySeen`, not while rows may follow a table map.
        """
        self._tables.clear()

    def truncate(self, schema_id: int) -> LogBatch | None:
        """The record of a TRUNCATE; call it while its `QuerySeen` is the last item taken. None if
        it is durable.
        """
        state = self._state.slots
        position, ordinal = int(state[kernel.RECORD_POSITION]), int(state[kernel.NEXT_ORDINAL]) - 1
        if (position, ordinal) != self._state.last or self._groups.skipped:
            return None
        return LogBatch.of_transaction(
            RecordKind.TRUNCATE,
            [(schema_id, ordinal, struct.pack("!ciBI", b"T", 1, 0, 0))],
            position=position,
            xid=position,
            commit_ts=int(state[kernel.COMMIT_TS]),
            resume=self.resume,
        )

    def skip_to(self, position: int, ordinal: int) -> None:
        """Skip records up to this one: read elsewhere (those of a committed XA transaction)."""
        if (position, ordinal) > self._state.last:
            self._state.slots[kernel.LAST_POSITION] = position
            self._state.slots[kernel.LAST_ORDINAL] = ordinal

    def feed(self, data: UInt8s, offsets: Int64s) -> Iterator[Scanned]:
        """Scan whole events back to back (19-byte header … checksum); take all items before the
        next call.

        ``offsets`` int64[n + 1]: event ``i`` is ``data[offsets[i]:offsets[i + 1]]``.

        Raises:
            DecodeError: the stream is not a binlog; what precedes the fault is yielded first.
            GapError: the server logged an incident: it lost events.
        """
        yield from self._scan(data, offsets, kernel.WHOLE)

    # -------------------------------------------------------------- batches

    def _scan(self, data: UInt8s, offsets: Int64s, mode: int) -> Iterator[Scanned]:
        data = readonly(data, np.uint8)
        offsets = readonly(offsets, np.int64)
        if len(offsets) == 0 or offsets[0] < 0 or not offsets[0] <= offsets[-1] <= len(data):
            raise self._state.fault("event offsets do not fit the data")
        state = self._state.slots
        first = 0
        while True:
            state[kernel.MODE] = mode
            tables, out = self._tables, self._records
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
                self._groups.sources.keys,
                state,
                out.kind,
                out.schema_id,
                out.position,
                out.ordinal,
                out.commit_ts,
                out.payload_offsets,
                out.payload,
                out.gtid_position,
                out.gtid_number,
                out.gtid_source,
            )
            cursor = int(state[kernel.CURSOR])
            records = int(state[kernel.RECORDS])
            gtids = int(state[kernel.GTIDS])
            if gtids:
                yield self._records.gtids(gtids, self._groups.sources.all)
            for seen, what in self._tables.take_noticed():
                yield RowsNoticed(
                    seen.database,
                    seen.table,
                    bool(what & kernel.DELETED),
                    bool(what & kernel.REKEYED),
                    int(state[kernel.LAST_POSITION]),
                )
            if stopped == kernel.WATCHED_ROW:
                yield out.row_of(data, int(offsets[cursor]))
            elif records:
                yield out.batch(records, int(state[kernel.PAYLOAD_BYTES]), self.resume)
            if stopped == kernel.END:
                return
            first = cursor
            if stopped == kernel.WATCHED_ROW:
                continue
            if stopped == kernel.FULL:
                need = int(state[kernel.NEED])
                if need > np.iinfo(np.int32).max:
                    raise self._state.fault("a row is larger than the protocol allows")
                if need > len(out.payload):
                    out.grow(need)
                continue
            start, end = int(offsets[cursor]), int(offsets[cursor + 1])
            if stopped != kernel.SPECIAL:
                kind = int(data[start + 4]) if start + 4 < min(end, len(data)) else 0
                raise self._state.stop_error(stopped, kind)
            first = yield from self._special(data, offsets, cursor, mode)

    # -------------------------------------------------------------- single events

    def _special(
        self, data: UInt8s, offsets: Int64s, cursor: int, mode: int
    ) -> Generator[Scanned, None, int]:
        """Process the event at ``cursor``, which the kernel did not; returns the next index."""
        state = self._state.slots
        start, end = int(offsets[cursor]), int(offsets[cursor + 1])
        event = data[start:end].tobytes()
        header = parse_header(event)
        try:
            if header.type in COMPRESSED_ROWS and mode == kernel.WHOLE:
                return (yield from self._inflated(data, offsets, cursor))
            if header.type == EventType.FORMAT_DESCRIPTION:
                yield from self._files.format(event, header)
            elif header.type in _POSITION_EVENTS and mode == kernel.WHOLE:
                event = without_checksum(event)
                yield from self._files.position_event(event[HEADER_BYTES:], header)
            else:
                if state[kernel.CHECKSUM] and mode == kernel.WHOLE:
                    event = event[:-CHECKSUM_BYTES]
                again = yield from self._event(event[HEADER_BYTES:], header, mode)
                if again:
                    return cursor
        except (struct.error, IndexError, ValueError, KeyError, OverflowError) as error:
            raise self._state.fault(f"{name_of(header.type)} event {TORN}") from error
        if mode != kernel.INNER and header.type not in _SET_OFFSET:
            state[kernel.OFFSET] = state[kernel.EVENT_END]
        return cursor + 1

    def _event(self, body: bytes, header: Header, mode: int) -> Generator[Scanned, None, bool]:
        """Process any other event; True if the kernel can process it now."""
        kind = header.type
        if kind == EventType.TABLE_MAP:
            seen = parse_table_map(
                body, self._state.event_start, self._flavor, self._state.server_version
            )
            if not self._tables.refresh_known(seen, body):
                self._tables.add(seen, body)
                yield seen
        elif kind in _GTIDS:
            return (yield from self._groups.gtid(body, header))
        elif kind in (EventType.QUERY, EventType.EXECUTE_LOAD_QUERY, EventType.QUERY_COMPRESSED):
            query = parse_query(
                body,
                load=kind == EventType.EXECUTE_LOAD_QUERY,
                compressed=kind == EventType.QUERY_COMPRESSED,
            )
            yield from self._groups.query(query, header)
        elif kind == EventType.XA_PREPARE:
            yield from self._xa.prepare(body)
        elif kind == EventType.XID:
            raise self._state.fault(f"XID event {FAULTS[kernel.OUTSIDE]}")
        elif kind == EventType.TRANSACTION_PAYLOAD and mode == kernel.WHOLE:
            yield from self._payload_event(body)
        elif kind == EventType.PREVIOUS_GTIDS:
            yield GtidStateSeen(parse_previous_gtids(body))
        elif kind == EventType.GTID_LIST:
            if not header.artificial:
                yield GtidStateSeen(parse_gtid_list(body))
        elif kind == EventType.INCIDENT:
            raise GapError(
                f"binlog at {self._state.where()}: the server logged an incident: it lost changes. "
                "`tidelog reset CONFIG` has the tables dumped again"
            )
        elif kind in _LOADING:
            if not self._state.in_transaction:
                self._state.open(header.timestamp * 1_000_000)
        elif not (kind in _SKIPPED or header.flags & IGNORABLE):
            raise self._state.fault(f"event of type {kind} is unknown and must not be ignored")
        return False

    # -------------------------------------------------------------- compressed events

    def _inflated(
        self, data: UInt8s, offsets: Int64s, cursor: int
    ) -> Generator[Scanned, None, int]:
        """Scan MariaDB's compressed rows events, and the events between them, as plain ones."""
        checksum = bool(self._state.slots[kernel.CHECKSUM])
        joined, at = plain_events(data, offsets, cursor, checksum)
        yield from self._scan(joined, at, kernel.INFLATED)
        return cursor + len(at) - 1

    def _payload_event(self, body: bytes) -> Iterator[Scanned]:
        """Scan the events of a compressed transaction; they have its position."""
        state = self._state.slots
        if not self._state.in_transaction:
            raise self._state.fault(f"TRANSACTION_PAYLOAD event {FAULTS[kernel.OUTSIDE]}")
        payload = parse_transaction_payload(body)
        start, end = int(state[kernel.EVENT_START]), int(state[kernel.EVENT_END])
        state[kernel.OFFSET] = end
        inner = memoryview(body)[payload.start :]
        for piece in payload_slices(inner, payload.compressed, SLICE_BYTES):
            events = np.frombuffer(piece, dtype=np.uint8)
            offsets = np.empty(len(events) // HEADER_BYTES + 2, dtype=np.int64)
            count = split_events(readonly(events, np.uint8), offsets)
            if count < 0:
                raise ValueError("events")
            state[kernel.EVENT_START], state[kernel.EVENT_END] = start, end
            yield from self._scan(events, offsets[: count + 1], kernel.INNER)
        state[kernel.EVENT_START], state[kernel.EVENT_END] = start, end
