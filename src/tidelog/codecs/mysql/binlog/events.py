"""Single events of a binlog, sans-IO: headers, formats, GTIDs, table maps, queries, payloads.

Formats: MySQL source documentation, "Binary Log Events" and the ``mysql::binlog::event`` classes
(Format_description_event, Gtid_event, Table_map_event, Transaction_payload_event …); tagged GTIDs:
"mysql::serialization" there; MariaDB Server documentation, "Replication Protocol" (GTID_EVENT,
QUERY_COMPRESSED_EVENT, ROWS_EVENT …). Integers are little-endian.

The parsers take an event's body: what stands between the header and the checksum. They raise
struct.error, IndexError or ValueError on malformed bytes; the scanner turns those into DecodeError.
"""

from __future__ import annotations

import contextlib
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID

import pyarrow as pa

from tidelog.codecs.mysql.binlog.items import Alter, BinlogServer, MariaDbSource
from tidelog.codecs.mysql.charsets import charset_of
from tidelog.codecs.mysql.texts.charset_texts import UTF8, decoded

HEADER_BYTES = 19
CHECKSUM_BYTES = 4
MAX_EVENT_BYTES = 1 << 30
"""Events are at most as long as ``max_allowed_packet`` may be; longer ones are no events."""

IGNORABLE = 0x80  # LOG_EVENT_IGNORABLE_F
ARTIFICIAL = 0x20  # LOG_EVENT_ARTIFICIAL_F
THREAD_SPECIFIC = 0x04  # LOG_EVENT_THREAD_SPECIFIC_F


class EventType(IntEnum):
    """Type codes; those from 160 up are MariaDB's."""

    STOP = 3
    QUERY = 2
    ROTATE = 4
    INTVAR = 5
    APPEND_BLOCK = 9
    DELETE_FILE = 11
    RAND = 13
    USER_VAR = 14
    FORMAT_DESCRIPTION = 15
    XID = 16
    BEGIN_LOAD_QUERY = 17
    EXECUTE_LOAD_QUERY = 18
    TABLE_MAP = 19
    WRITE_ROWS_V1 = 23
    UPDATE_ROWS_V1 = 24
    DELETE_ROWS_V1 = 25
    INCIDENT = 26
    HEARTBEAT = 27
    IGNORABLE = 28
    ROWS_QUERY = 29
    WRITE_ROWS = 30
    UPDATE_ROWS = 31
    DELETE_ROWS = 32
    GTID = 33
    ANONYMOUS_GTID = 34
    PREVIOUS_GTIDS = 35
    TRANSACTION_CONTEXT = 36
    VIEW_CHANGE = 37
    XA_PREPARE = 38
    PARTIAL_UPDATE_ROWS = 39
    TRANSACTION_PAYLOAD = 40
    HEARTBEAT_V2 = 41
    GTID_TAGGED = 42
    ANNOTATE_ROWS = 160
    BINLOG_CHECKPOINT = 161
    MARIADB_GTID = 162
    GTID_LIST = 163
    START_ENCRYPTION = 164
    QUERY_COMPRESSED = 165
    WRITE_ROWS_COMPRESSED_V1 = 166
    UPDATE_ROWS_COMPRESSED_V1 = 167
    DELETE_ROWS_COMPRESSED_V1 = 168


COMPRESSED_ROWS = {
    EventType.WRITE_ROWS_COMPRESSED_V1: EventType.WRITE_ROWS_V1,
    EventType.UPDATE_ROWS_COMPRESSED_V1: EventType.UPDATE_ROWS_V1,
    EventType.DELETE_ROWS_COMPRESSED_V1: EventType.DELETE_ROWS_V1,
}
"""MariaDB's compressed rows events, and what they are once inflated."""


@dataclass(frozen=True, slots=True)
class Header:
    """The 19 bytes before each event. ``log_pos``: where it ends in its file, the low 32 bits; 0 in
    events that the server made up for us.
    """

    timestamp: int
    type: int
    server_id: int
    length: int
    log_pos: int
    flags: int

    @property
    def artificial(self) -> bool:
        return self.log_pos == 0 or bool(self.flags & ARTIFICIAL)

    @property
    def uses_temporary(self) -> bool:
        """A statement's: did it use a temporary table?"""
        return bool(self.flags & THREAD_SPECIFIC)


def parse_header(event: bytes) -> Header:
    """The header of an event."""
    return Header(*struct.unpack_from("<IBIIIH", event))


class Fields:
    """A cursor over an event's body; reading past its end raises IndexError."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self.data = data
        self.at = at
        self.end = len(data) if end is None else end

    def left(self) -> int:
        return self.end - self.at

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        after = self.at + count
        if count < 0 or after > self.end:
            raise IndexError("past the end")
        taken = self.data[self.at : after]
        self.at = after
        return taken

    def integer(self, width: int) -> int:
        """An unsigned integer of ``width`` bytes."""
        return int.from_bytes(self.take(width), "little")

    def packed(self) -> int:
        """A length-encoded integer."""
        first = self.integer(1)
        if first < 251:
            return first
        widths = {252: 2, 253: 3, 254: 8}
        if first not in widths:
            raise ValueError("no length-encoded integer")
        return self.integer(widths[first])

    def rest(self) -> bytes:
        return self.take(self.left())


# ------------------------------------------------------------------ files


@dataclass(frozen=True, slots=True)
class FormatDescription:
    """Format_description_event: how the events that follow look.

    ``created``: seconds, not 0 only if the server started with this file. ``lengths``: the
    post-header length of each event type from 1 on. ``checksum``: 0 none, 1 CRC32.
    """

    binlog_version: int
    server_version: str
    created: int
    lengths: bytes
    checksum: int


def parse_format(body_and_checksum: bytes) -> FormatDescription:
    """A format description with the 4 bytes of its checksum, which it always has since 5.6.1."""
    fields = Fields(body_and_checksum)
    version = fields.integer(2)
    server = fields.take(50).rstrip(b"\0").decode("ascii", "replace")
    created = fields.integer(4)
    if fields.integer(1) != HEADER_BYTES:
        raise ValueError("header length")
    lengths = fields.take(fields.left() - 1 - CHECKSUM_BYTES)
    checksum = fields.integer(1)
    if checksum not in (0, 1):
        raise ValueError("checksum algorithm")
    return FormatDescription(version, server, created, lengths, checksum)


def parse_rotate(body: bytes) -> tuple[str, int]:
    """(name, offset) of the file that the log goes on in."""
    fields = Fields(body)
    offset = fields.integer(8)
    return fields.rest().decode("utf-8"), offset


def without_checksum(event: bytes) -> bytes:
    """An event that may or may not end in a CRC32, without it.

    Whether the made-up rotate before a file's format description has one depends on the file
    before; the bytes themselves tell.
    """
    body = event[:-CHECKSUM_BYTES]
    if len(body) < HEADER_BYTES:
        return event
    return body if zlib.crc32(body) == int.from_bytes(event[-4:], "little") else event


def parse_heartbeat_v2(body: bytes) -> tuple[str | None, int | None]:
    """(file name, offset) where they are given: type, length and value fields up to a 0."""
    fields = Fields(body)
    name = offset = None
    while fields.left():
        kind = fields.packed()
        if kind == 0:
            break
        value = fields.take(fields.packed())
        if kind == 1:
            name = value.decode("utf-8")
        elif kind == 2:
            offset = Fields(value).packed()
    return name, offset


def parse_previous_gtids(body: bytes) -> str:
    """The GTID set of Previous_gtids_event as MySQL writes it.

    The first 8 bytes hold the number of entries and, in the highest byte, the format: 1 if entries
    have tags (8.3 and later); then the format stands in the lowest byte as well.
    """
    fields = Fields(body)
    head = fields.integer(8)
    tagged = head >> 56 == 1
    if head >> 56 > 1:
        raise ValueError("format")
    count = head >> 8 & (1 << 48) - 1 if tagged else head
    if count > len(body):
        raise ValueError("entries")
    sets: dict[UUID, list[str]] = {}
    for _ in range(count):
        uuid = UUID(bytes=fields.take(16))
        tag = _short_text(fields) if tagged else ""
        intervals = fields.integer(8)
        if intervals > fields.left() // 16:
            raise ValueError("intervals")
        parts = sets.setdefault(uuid, [])
        if tag:
            parts.append(tag)
        for _ in range(intervals):
            first, after = fields.integer(8), fields.integer(8)
            parts.append(str(first) if after == first + 1 else f"{first}-{after - 1}")
    return ",".join(":".join([str(uuid), *parts]) for uuid, parts in sets.items())


def parse_gtid_list(body: bytes) -> str:
    """MariaDB's Gtid_list_event: the last GTID of each domain and server, comma-separated."""
    fields = Fields(body)
    count = fields.integer(4) & (1 << 28) - 1
    if count > fields.left() // 16:
        raise ValueError("entries")
    return ",".join(
        f"{fields.integer(4)}-{fields.integer(4)}-{fields.integer(8)}" for _ in range(count)
    )


# ------------------------------------------------------------------ GTIDs


@dataclass(frozen=True, slots=True)
class Gtid:
    """A GTID event. ``source`` None: an anonymous one. ``commit_us``: microseconds since 1970 of
    the commit on the server that wrote this log, 0 if it does not say.

    Of MariaDB: ``standalone``: no COMMIT follows; ``xid``: of the XA transaction that the group
    prepares (``prepares``) or decides.
    """

    source: BinlogServer | MariaDbSource | None
    number: int
    commit_us: int = 0
    standalone: bool = False
    xid: bytes | None = None
    prepares: bool = False


def parse_gtid(body: bytes, *, anonymous: bool) -> Gtid:
    """Gtid_event and Anonymous_gtid_event: flags, uuid, number; since 5.7.6 logical clock, since
    8.0.1 commit timestamps of 7 bytes.
    """
    fields = Fields(body)
    fields.take(1)
    uuid = UUID(bytes=fields.take(16))
    number = fields.integer(8)
    commit_us = 0
    if fields.left() >= 17 + 7 and fields.integer(1) == 2:
        fields.take(16)
        commit_us = fields.integer(7) & (1 << 55) - 1
    return Gtid(None if anonymous else BinlogServer(uuid), number, commit_us)


_TAGGED_FIELDS = (
    "flags",
    "uuid",
    "gno",
    "tag",
    "last_committed",
    "sequence_number",
    "immediate_commit_timestamp",
)


def parse_tagged_gtid(body: bytes) -> Gtid:
    """Gtid_tagged_log_event (8.3 and later), in the format of ``mysql::serialization``: version,
    size and last field that may not be ignored, then each field after its number. Integers of
    variable length have their length in the first byte's trailing ones.
    """
    fields = Fields(body)
    version = _variable(fields)
    if version != 1 and version != 0:
        raise ValueError("serialization version")
    _variable(fields)
    _variable(fields)
    uuid, gno, tag, commit_us = b"", 0, "", 0
    for field_id in range(len(_TAGGED_FIELDS)):
        if not fields.left():
            break
        before = fields.at
        if _variable(fields) != field_id:
            fields.at = before
            continue
        name = _TAGGED_FIELDS[field_id]
        if name == "flags":
            _variable(fields)
        elif name == "uuid":
            uuid = bytes(_variable(fields) for _ in range(16))
        elif name == "tag":
            tag = _short_text(fields)
        elif name == "immediate_commit_timestamp":
            commit_us = _variable(fields)
        elif name == "gno":
            gno = _signed(fields)
        else:
            _signed(fields)
    if len(uuid) != 16 or gno <= 0:
        raise ValueError("GTID")
    return Gtid(BinlogServer(UUID(bytes=uuid), tag), gno, commit_us)


_STANDALONE, _GROUP_COMMIT, _PREPARED_XA, _COMPLETED_XA = 1, 2, 64, 128


def parse_mariadb_gtid(body: bytes, server_id: int) -> Gtid:
    """MariaDB's Gtid_log_event; the server's id stands in the event's header."""
    fields = Fields(body)
    number = fields.integer(8)
    domain = fields.integer(4)
    flags = fields.integer(1)
    xid = None
    if flags & _GROUP_COMMIT:
        fields.take(8)
    if flags & (_PREPARED_XA | _COMPLETED_XA):
        format_id = int.from_bytes(fields.take(4), "little", signed=True)
        lengths = fields.integer(1), fields.integer(1)
        xid = xid_text(format_id, fields.take(lengths[0]), fields.take(lengths[1]))
    return Gtid(
        MariaDbSource(domain, server_id),
        number,
        standalone=bool(flags & _STANDALONE),
        xid=xid,
        prepares=bool(flags & _PREPARED_XA),
    )


def _variable(fields: Fields) -> int:
    """An unsigned integer of 1 to 9 bytes: as many trailing ones as bytes follow the first."""
    first = fields.integer(1)
    more = (~first & first + 1).bit_length() - 1
    if more == 8:
        return fields.integer(8)
    return (fields.integer(more) << 8 | first) >> more + 1


def _signed(fields: Fields) -> int:
    """A signed one: the sign in the lowest bit."""
    value = _variable(fields)
    return -(value >> 1) - 1 if value & 1 else value >> 1


def _short_text(fields: Fields) -> str:
    return fields.take(_variable(fields)).decode("ascii")


# ------------------------------------------------------------------ statements


# What the servers write as SHOW CREATE TABLE does, of CREATE TABLE … SELECT and … LIKE.
_WRITTEN_BY_SERVER = re.compile(rb"CREATE (?:OR REPLACE )?TABLE (?:IF NOT EXISTS )?`[^\n]*\(\n  `")


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """What is of use of a query's status variables. ``sql_mode``: of the session, 0 if not known;
    ``collation``: of the client, None if not known.
    """

    sql_mode: int = 0
    collation: int | None = None
    databases: tuple[str, ...] | None = None
    alter: Alter | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """A Query_event. ``thread``: the session's ``pseudo_thread_id``."""

    database: str
    sql: bytes
    error_code: int
    status: QueryStatus
    thread: int = 0

    def text(self) -> str:
        """The statement, which is in the client's character set but where the server wrote it."""
        charset = charset_of(self.status.collation or 0)
        if charset not in UTF8 and _WRITTEN_BY_SERVER.match(self.sql):
            with contextlib.suppress(UnicodeDecodeError):
                return self.sql.decode("utf-8")
        return decoded(self.sql, charset)


_MAX_DATABASES = 254  # Q_UPDATED_DB_NAMES: more than the server lists


def parse_query(body: bytes, *, load: bool = False, compressed: bool = False) -> Query:
    """Query_event; ``load``: Execute_load_query_event, which has 13 bytes more;
    ``compressed``: MariaDB's Query_compressed_event.
    """
    fields = Fields(body)
    thread = fields.integer(4)
    fields.take(4)  # seconds
    database_length = fields.integer(1)
    error_code = fields.integer(2)
    status_length = fields.integer(2)
    if load:
        fields.take(13)  # file, where its name stands, duplicates
    status = fields.take(status_length)
    database = fields.take(database_length).decode("utf-8", "replace")
    if fields.integer(1) != 0:
        raise ValueError("database name")
    sql = fields.rest()
    if compressed:
        sql = inflate(sql)
    return Query(database, sql, error_code, _status(status), thread)


_STATUS_BYTES = {0: 4, 3: 4, 4: 6, 7: 2, 8: 2, 9: 8, 10: 4, 13: 3, 16: 1, 17: 8}
_STATUS_BYTES |= {18: 2, 19: 1, 20: 1, 128: 3, 129: 8}


def _status(status: bytes) -> QueryStatus:
    """A query's status variables, up to the first that is not known."""
    fields = Fields(status)
    sql_mode = 0
    collation: int | None = None
    databases: tuple[str, ...] | None = None
    alter: Alter | None = None
    try:
        while fields.left():
            code = fields.integer(1)
            if code == 1:  # Q_SQL_MODE_CODE
                sql_mode = fields.integer(8)
            elif code == 4:  # Q_CHARSET_CODE
                collation = fields.integer(2)
                fields.take(4)
            elif code in _STATUS_BYTES:
                fields.take(_STATUS_BYTES[code])
            elif code == 2:  # Q_CATALOG_CODE, with a final 0
                fields.take(fields.integer(1) + 1)
            elif code in (5, 6):  # Q_TIME_ZONE_CODE, Q_CATALOG_NZ_CODE
                fields.take(fields.integer(1))
            elif code == 11:  # Q_INVOKER
                fields.take(fields.integer(1))
                fields.take(fields.integer(1))
            elif code == 12:  # Q_UPDATED_DB_NAMES
                count = fields.integer(1)
                if count < _MAX_DATABASES:
                    databases = tuple(_zero_ended(fields) for _ in range(count))
            elif code == 130:  # Q_GTID_FLAGS3 of MariaDB
                flags = fields.integer(1)
                if flags & 2:
                    alter = Alter.START
                elif flags & 12:
                    alter = Alter.COMMIT if flags & 4 else Alter.ROLLBACK
                    fields.take(8)
            else:
                break
    except IndexError:
        pass
    return QueryStatus(sql_mode, collation, databases, alter)


def _zero_ended(fields: Fields) -> str:
    end = fields.data.index(b"\0", fields.at, fields.end)
    return fields.take(end + 1 - fields.at)[:-1].decode("utf-8", "replace")


def inflate(packed: bytes) -> bytes:
    """What MariaDB compressed: a byte (0x80 | length of the next), the length big-endian, zlib."""
    if not packed or packed[0] & 0x70:
        raise ValueError("compression algorithm")
    width = packed[0] & 0x07
    length = int.from_bytes(packed[1 : 1 + width], "big")
    if not 1 <= width <= 4 or length > MAX_EVENT_BYTES:
        raise ValueError("compressed length")
    decompressor = zlib.decompressobj()
    try:
        data = decompressor.decompress(packed[1 + width :], length + 1)
    except zlib.error as error:
        raise ValueError("compressed data") from error
    if len(data) != length or not decompressor.eof:
        raise ValueError("compressed length")
    return data


# ------------------------------------------------------------------ XA


def xid_text(format_id: int, gtrid: bytes, bqual: bytes) -> bytes:
    """An XA transaction's id as the statements of the log spell it."""
    return f"X'{gtrid.hex()}',X'{bqual.hex()}',{format_id}".encode()


def parse_xa_prepare(body: bytes) -> tuple[bytes, bool]:
    """(xid, committed in one phase) of an XA_prepare_event."""
    one_phase, format_id, gtrid, bqual = struct.unpack_from("<Biii", body)
    fields = Fields(body, 13)
    return xid_text(format_id, fields.take(gtrid), fields.take(bqual)), bool(one_phase)


# ------------------------------------------------------------------ compressed transactions


@dataclass(frozen=True, slots=True)
class TransactionPayload:
    """Where the compressed events of a Transaction_payload_event lie in its body."""

    start: int
    size: int
    compressed: bool
    uncompressed_size: int | None


def parse_transaction_payload(body: bytes) -> TransactionPayload:
    """Type, length and value fields up to a 0, then the payload. Types: 1 payload size, 2 its
    compression (0 zstd, 255 none), 3 size without compression.
    """
    fields = Fields(body)
    size: int | None = None
    algorithm = 255
    uncompressed: int | None = None
    while (kind := fields.packed()) != 0:
        value = Fields(fields.take(fields.packed()))
        if kind == 1:
            size = value.packed()
        elif kind == 2:
            algorithm = value.packed()
        elif kind == 3:
            uncompressed = value.packed()
    if algorithm not in (0, 255):
        raise ValueError("compression algorithm")
    if size is None or size != fields.left():
        raise ValueError("payload size")
    return TransactionPayload(fields.at, size, algorithm == 0, uncompressed)


def payload_slices(payload: bytes | memoryview, compressed: bool, size: int) -> Iterator[bytes]:
    """A transaction payload's whole events, back to back, in slices of about ``size`` bytes.

    Only one slice is held, or one event if that is larger. ValueError: not what it says.
    """
    source: pa.NativeFile = pa.BufferReader(pa.py_buffer(payload))
    if compressed:
        source = pa.CompressedInputStream(source, "zstd")
    rest = bytearray()
    needed = HEADER_BYTES
    try:
        while data := source.read(size):
            rest += data
            if len(rest) < needed:
                continue
            whole, needed = _whole_events(rest)
            if whole:
                yield bytes(memoryview(rest)[:whole])
                rest = rest[whole:]
    except OSError as error:
        raise ValueError("compressed payload") from error
    if rest:
        raise ValueError("torn payload")


def _whole_events(data: bytearray) -> tuple[int, int]:
    """(bytes of the whole events at the start of ``data``, bytes that the next event needs)."""
    at = 0
    while at + HEADER_BYTES <= len(data):
        (length,) = struct.unpack_from("<I", data, at + 9)
        if not HEADER_BYTES <= length <= MAX_EVENT_BYTES:
            raise ValueError("event length")
        if at + length > len(data):
            return at, length
        at += length
    return at, HEADER_BYTES
