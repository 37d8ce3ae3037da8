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

**Table maps** (MySQL source documentation, ``Table_map_event``). Unreadable bytes after the types
of the columns are a fault of this one table, not of the stream: newer servers may write something
unknown here.

**Compression.** Events within a transaction payload have the payload's position in the file.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from tidelog.codecs.mysql import types as column_types
from tidelog.codecs.mysql.binlog import kernels as kernel
from tidelog.codecs.mysql.binlog.events import (
    CHECKSUM_BYTES,
    COMPRESSED_ROWS,
    HEADER_BYTES,
    IGNORABLE,
    EventType,
    Fields,
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
    TableMapMetadata,
    TableMapSeen,
)
from tidelog.codecs.mysql.binlog.kernels import split_events
from tidelog.codecs.mysql.binlog.scan_kernel import scan
from tidelog.codecs.mysql.binlog.scan_state import FAULTS, TORN, ScannedRecords, ScanState, name_of
from tidelog.codecs.mysql.binlog.tables import ScannedTables
from tidelog.codecs.mysql.charsets import BINARY_COLLATION
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.types import KNOWN_TYPES, value_lengths
from tidelog.errors import GapError
from tidelog.model.records import Int64s, LogBatch, RecordKind, Resume, UInt8s, readonly

MAX_COLUMNS = 4096

_BIT, _VECTOR, _NEWDECIMAL, _ENUM, _SET, _STRING, _GEOMETRY = 16, 242, 246, 247, 248, 254, 255
_METAS = {4: 1, 5: 1, 17: 1, 18: 1, 19: 1, 252: 1, 245: 1, 255: 1, _VECTOR: 1, 140: 1}
_METAS |= {15: 2, 253: 2, 141: 2, _BIT: 2, _NEWDECIMAL: 2, _STRING: 2, _ENUM: 2, _SET: 2}
_BIG_ENDIAN = frozenset({_STRING, _NEWDECIMAL, _ENUM, _SET})
_FIELDS = {
    1: "signs", 2: "character sets", 3: "character sets", 4: "column names", 5: "members of sets",
    6: "members of enums", 7: "types of geometries", 8: "primary key", 9: "primary key",
    10: "character sets of enums and sets", 11: "character sets of enums and sets",
    12: "visible columns", 13: "dimensions of vectors",
}  # fmt: skip
"""The fields of the optional metadata, by type (``Optional_metadata_field_type``)."""
_UNREADABLE = (ValueError, IndexError, OverflowError)

YEAR_WITHOUT_SIGN: Final = (8, 0, 16)
YEAR_WITH_SIGN: Final = (8, 0, 29)
"""MySQL before the first version has no bit of SIGNEDNESS for a YEAR (seen on 8.0.12 and 8.0.15),
from the second version on it has one
(https://github.com/osheroff/mysql-binlog-connector-java/issues/108; seen on 9.7.4). It is unknown
which version in between changed that.
"""


class MalformedFieldError(ValueError):
    """A field of the optional metadata does not fit this table; the argument is its name."""


def parse_table_map(
    body: bytes, position: int, flavor: Flavor, version: tuple[int, ...]
) -> TableMapSeen:
    """Parse a Table_map_event's body. ``version``: of the server that wrote the file."""
    fields = Fields(body)
    table_id = fields.integer(6)
    fields.take(2)
    database = _name(fields)
    table = _name(fields)
    columns = fields.packed()
    if columns > MAX_COLUMNS:
        raise ValueError("columns")
    types = fields.take(columns)
    none = (0,) * columns
    seen = TableMapSeen(table_id, database, table, types, none, b"", TableMapMetadata(), position)
    unread = replace(seen, has_readable_rows=False)
    try:
        packed = Fields(fields.take(fields.packed()))
        nullable = fields.take((columns + 7) // 8)
    except _UNREADABLE:
        return replace(unread, malformed="what its columns are")
    unknown = next((code for code in types if code not in KNOWN_TYPES), None)
    if unknown is not None:  # then the length of its metadata is unknown too
        return replace(unread, nullable=nullable, unknown=unknown)
    try:
        metas = _metas(types, packed)
    except _UNREADABLE:
        return replace(unread, nullable=nullable, malformed="the metadata of its columns")
    seen = replace(seen, metas=metas, nullable=nullable)
    try:
        return replace(seen, metadata=_metadata(types, metas, fields, flavor, version))
    except _UNREADABLE as error:
        what = error.args[0] if isinstance(error, MalformedFieldError) else "where fields begin"
        return replace(seen, malformed=f"the optional metadata ({what})")


def _name(fields: Fields) -> str:
    name = fields.take(fields.integer(1)).decode("utf-8")
    if fields.integer(1) != 0:
        raise ValueError("name")
    return name


def _metas(types: bytes, fields: Fields) -> tuple[int, ...]:
    metas = tuple(
        int.from_bytes(fields.take(_METAS.get(code, 0)), "big" if code in _BIG_ENDIAN else "little")
        for code in types
    )
    if fields.left():
        raise ValueError("metadata")
    for code, meta in zip(types, metas, strict=True):
        value_lengths(code, meta)  # raises ValueError for metadata that the type can't have
    return metas


def _metadata(
    types: bytes,
    metas: tuple[int, ...],
    fields: Fields,
    flavor: Flavor,
    version: tuple[int, ...],
) -> TableMapMetadata:
    """The optional metadata: type, length and value fields (``binlog_row_metadata``).

    It has no names, as with MINIMAL, if the signs can't be assigned to columns: then the catalogue
    must describe the table. Unknown fields are skipped.
    """
    read = _OptionalMetadata(types, metas, _with_sign(flavor, version), flavor)
    while fields.left():
        kind = fields.integer(1)
        value = Fields(fields.take(fields.packed()))
        if kind not in _FIELDS:
            continue
        try:
            read.take(kind, value)
            if value.left():
                raise ValueError("bytes are left")
        except _UNREADABLE as error:
            raise MalformedFieldError(_FIELDS[kind]) from error
    return read.metadata()


class _OptionalMetadata:
    """Reads the fields of the optional metadata one after the other. They are lists and bitmaps
    without column numbers: each covers the columns of some types.
    """

    def __init__(
        self,
        types: bytes,
        metas: tuple[int, ...],
        with_sign: tuple[frozenset[int], ...],
        flavor: Flavor,
    ) -> None:
        self._count = len(types)
        self._real = [
            metas[i] >> 8 if code == _STRING and metas[i] >> 8 in (_ENUM, _SET) else code
            for i, code in enumerate(types)
        ]
        self._with_sign = with_sign
        self._texts = self._of(*column_types.CHARSETS[flavor])
        self._labelled = self._of(_ENUM, _SET)
        self._signs_known = True
        self._unsigned: tuple[bool, ...] | None = None
        self._names: tuple[str, ...] | None = None
        self._visible: tuple[bool, ...] | None = None
        self._key: tuple[tuple[int, int], ...] | None = None
        self._collations: dict[int, int] = {}
        self._labels: dict[int, tuple[bytes, ...]] = {}
        self._geometries: dict[int, int] = {}
        self._dimensions: dict[int, int] = {}

    def take(self, kind: int, value: Fields) -> None:
        """Read one field. Raises ValueError or IndexError if it does not fit this table."""
        if kind == 1:
            self._unsigned = _signs(value.rest(), self._real, self._with_sign)
            self._signs_known = self._unsigned is not None
        elif kind == 2:
            collations = _default_collations(value, self._texts)
            if any(collations[i] != BINARY_COLLATION for i in self._of(_VECTOR) if i in collations):
                raise ValueError("text in a vector: other columns are counted")
            self._collations |= collations
        elif kind == 10:
            self._collations |= _default_collations(value, self._labelled)
        elif kind in (3, 11):
            columns = self._texts if kind == 3 else self._labelled
            self._collations |= dict(zip(columns, _integers(value), strict=True))
        elif kind == 4:
            self._names = tuple(
                value.take(value.packed()).decode("utf-8") for _ in range(self._count)
            )
        elif kind in (5, 6):
            for i in self._of(_SET if kind == 5 else _ENUM):
                labels = range(_bounded(value.packed()))
                self._labels[i] = tuple(value.take(value.packed()) for _ in labels)
        elif kind == 7:
            self._geometries = dict(zip(self._of(_GEOMETRY), _integers(value), strict=True))
        elif kind in (8, 9):
            flat = _integers(value)
            lengths = flat[1::2] if kind == 9 else [0] * len(flat)
            columns = flat[::2] if kind == 9 else flat
            if any(column >= self._count for column in columns):
                raise ValueError("no such column")
            self._key = tuple(zip(columns, lengths, strict=True))
        elif kind == 12:
            bits = value.take((self._count + 7) // 8)
            self._visible = _flags(bits, list(range(self._count)), self._count)
        elif kind == 13:
            self._dimensions = dict(zip(self._of(_VECTOR), _integers(value), strict=True))

    def metadata(self) -> TableMapMetadata:
        """The metadata read so far."""
        every = range(self._count)
        collations, labels = self._collations, self._labels
        geometries, dimensions = self._geometries, self._dimensions
        return TableMapMetadata(
            unsigned=self._unsigned,
            collations=tuple(collations.get(i) for i in every) if collations else None,
            names=self._names if self._signs_known else None,
            labels=tuple(labels.get(i) for i in every) if labels else None,
            geometry_types=tuple(geometries.get(i) for i in every) if geometries else None,
            dimensions=tuple(dimensions.get(i) for i in every) if dimensions else None,
            primary_key=self._key,
            visible=self._visible,
        )

    def _of(self, *codes: int) -> list[int]:
        """The indexes of the columns of these types."""
        return [i for i, code in enumerate(self._real) if code in codes]


def _with_sign(flavor: Flavor, version: tuple[int, ...]) -> tuple[frozenset[int], ...]:
    """The types that have a bit in the table map's SIGNEDNESS: two sets if it may be either.

    Args:
        flavor: the server that writes the log. MariaDB's YEAR has a bit, and counts as unsigned.
        version: the version of the server that wrote the binlog's file; empty if unknown.
    """
    without_year = column_types.NUMERIC
    with_year = column_types.NUMERIC | {column_types.YEAR}
    if flavor is Flavor.MARIADB or version >= YEAR_WITH_SIGN:
        return (with_year,)
    if len(version) >= len(YEAR_WITHOUT_SIGN) and version < YEAR_WITHOUT_SIGN:
        return (without_year,)
    return without_year, with_year


def _signs(
    bits: bytes, types: list[int], with_sign: tuple[frozenset[int], ...]
) -> tuple[bool, ...] | None:
    """Which columns are unsigned; None if that depends on which of the sets is right."""
    found = set()
    for signed in with_sign:
        numeric = [i for i, code in enumerate(types) if code in signed]
        if len(bits) != (len(numeric) + 7) // 8:
            continue
        flags = _flags(bits, numeric, len(types))
        found.add(tuple(f and c in column_types.NUMERIC for f, c in zip(flags, types, strict=True)))
    if not found:
        raise ValueError("signs")
    return found.pop() if len(found) == 1 else None


def _flags(bits: bytes, columns: list[int], count: int) -> tuple[bool, ...]:
    """One bit for each of ``columns``, the first in the highest bit; False for the others."""
    flags = [False] * count
    for i, column in enumerate(columns):
        flags[column] = bool(bits[i // 8] >> 7 - i % 8 & 1)
    return tuple(flags)


def _integers(fields: Fields) -> list[int]:
    integers = []
    while fields.left():
        integers.append(fields.packed())
    return integers


def _default_collations(fields: Fields, columns: list[int]) -> dict[int, int]:
    """The most frequent collation, then (index among ``columns``, collation) of the others."""
    default = fields.packed()
    collations = dict.fromkeys(columns, default)
    while fields.left():
        index = fields.packed()
        collations[columns[index]] = fields.packed()
    return collations


def _bounded(count: int) -> int:
    if count > 0xFFFF:
        raise ValueError("labels")
    return count


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
