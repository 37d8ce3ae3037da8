"""Parsers of single binlog events, sans-IO: headers, files, GTIDs, statements, XA.

MariaDB compresses single events (zlib), MySQL whole transactions (zstd).
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
from tidelog.codecs.mysql.cell_text.charset_texts import UTF8, decode_text
from tidelog.codecs.mysql.charsets import charset_of

# An event's body, and its packed integers.


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


def packed_unsigned(fields: Fields) -> int:
    """An unsigned integer of 1 to 9 bytes: the trailing ones of the first byte count the following
    bytes.
    """
    first = fields.integer(1)
    more = (~first & first + 1).bit_length() - 1
    if more == 8:
        return fields.integer(8)
    return (fields.integer(more) << 8 | first) >> more + 1


def packed_signed(fields: Fields) -> int:
    """A signed integer of 1 to 9 bytes: the sign is in the lowest bit."""
    value = packed_unsigned(fields)
    return -(value >> 1) - 1 if value & 1 else value >> 1


def short_text(fields: Fields) -> str:
    """An ASCII text that follows its length."""
    return fields.take(packed_unsigned(fields)).decode("ascii")


# An event's frame: its type, the header before its body, the checksum after it.

HEADER_BYTES = 19
CHECKSUM_BYTES = 4
MAX_EVENT_BYTES = 1 << 30
"""The largest allowed ``max_allowed_packet``; an event can't be longer."""

IGNORABLE = 0x80  # LOG_EVENT_IGNORABLE_F
ARTIFICIAL = 0x20  # LOG_EVENT_ARTIFICIAL_F
THREAD_SPECIFIC = 0x04  # LOG_EVENT_THREAD_SPECIFIC_F


class EventType(IntEnum):
    """Type codes of events; those from 160 up are MariaDB's."""

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


@dataclass(frozen=True, slots=True)
class Header:
    """The 19 bytes before each event. ``log_pos``: the low 32 bits of the event's end in its file;
    0 in events that the server made up.
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
        """True for a statement that used a temporary table."""
        return bool(self.flags & THREAD_SPECIFIC)


def parse_header(event: bytes) -> Header:
    """Parse the header of an event."""
    return Header(*struct.unpack_from("<IBIIIH", event))


def without_checksum(event: bytes) -> bytes:
    """An event without its CRC32, if it ends with one.

    Whether the artificial rotate event before a file's format description has one depends on the
    previous file; only the bytes themselves show it.
    """
    body = event[:-CHECKSUM_BYTES]
    if len(body) < HEADER_BYTES:
        return event
    return body if zlib.crc32(body) == int.from_bytes(event[-4:], "little") else event


# Compressed events and transactions.

COMPRESSED_ROWS = {
    EventType.WRITE_ROWS_COMPRESSED_V1: EventType.WRITE_ROWS_V1,
    EventType.UPDATE_ROWS_COMPRESSED_V1: EventType.UPDATE_ROWS_V1,
    EventType.DELETE_ROWS_COMPRESSED_V1: EventType.DELETE_ROWS_V1,
}
"""MariaDB's compressed rows events, and their types once decompressed."""


def inflate_mariadb(packed: bytes) -> bytes:
    """Decompress MariaDB's format: a byte (0x80 | length of the next), big-endian length, zlib."""
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


def inflated_rows(event: bytes) -> bytes:
    """Decompress a MariaDB rows event without checksum; its header keeps the old length."""
    fields = Fields(event, HEADER_BYTES + 8)
    columns = fields.packed()
    updates = event[4] == EventType.UPDATE_ROWS_COMPRESSED_V1
    fields.take((columns + 7) // 8 * (2 if updates else 1))
    kind = bytes([COMPRESSED_ROWS[EventType(event[4])]])
    return b"".join([event[:4], kind, event[5 : fields.at], inflate_mariadb(event[fields.at :])])


@dataclass(frozen=True, slots=True)
class TransactionPayload:
    """The position of the compressed events in a Transaction_payload_event's body."""

    start: int
    size: int
    compressed: bool
    uncompressed_size: int | None


def parse_transaction_payload(body: bytes) -> TransactionPayload:
    """Parse type, length and value fields up to a 0; the payload follows. Types: 1 payload size, 2
    its compression (0 zstd, 255 none), 3 size without compression.
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

    Only one slice, or one larger event, is in memory at a time. Raises ValueError for a malformed
    payload.
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


# Events about log files: their format, the next file, and the stream's position.


@dataclass(frozen=True, slots=True)
class FormatDescription:
    """Format_description_event: the format of the following events.

    Attributes:
        created: seconds; not 0 only if the server started with this file.
        lengths: the post-header length of each event type from 1 on.
        checksum: 0 none, 1 CRC32.
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
    """(name, offset) of the file in which the log continues."""
    fields = Fields(body)
    offset = fields.integer(8)
    return fields.rest().decode("utf-8"), offset


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


# Events with a statement, and the statement's kind.

# The servers write these in the form of SHOW CREATE TABLE, for CREATE TABLE … SELECT and … LIKE.
_WRITTEN_BY_SERVER = re.compile(rb"CREATE (?:OR REPLACE )?TABLE (?:IF NOT EXISTS )?`[^\n]*\(\n  `")


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """A query's status variables, as far as they are used.

    Attributes:
        sql_mode: the session's sql_mode, 0 if unknown.
        collation: the client's collation, None if unknown.
        databases: the databases that the statement used.
        alter: the phase of MariaDB's ALTER.
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
        """The statement, in the client's character set unless the server wrote it."""
        charset = charset_of(self.status.collation or 0)
        if charset not in UTF8 and _WRITTEN_BY_SERVER.match(self.sql):
            with contextlib.suppress(UnicodeDecodeError):
                return self.sql.decode("utf-8")
        return decode_text(self.sql, charset)


_MAX_DATABASES = 254  # Q_UPDATED_DB_NAMES: more databases than the server lists


def parse_query(body: bytes, *, load: bool = False, compressed: bool = False) -> Query:
    """Parse a Query_event.

    Args:
        body: the event's body.
        load: True for an Execute_load_query_event, which has 13 bytes more.
        compressed: True for MariaDB's Query_compressed_event.
    """
    fields = Fields(body)
    thread = fields.integer(4)
    fields.take(4)  # seconds
    database_length = fields.integer(1)
    error_code = fields.integer(2)
    status_length = fields.integer(2)
    if load:
        fields.take(13)  # file, position of its name, duplicates
    status = fields.take(status_length)
    database = fields.take(database_length).decode("utf-8", "replace")
    if fields.integer(1) != 0:
        raise ValueError("database name")
    sql = fields.rest()
    if compressed:
        sql = inflate_mariadb(sql)
    return Query(database, sql, error_code, _status(status), thread)


_STATUS_BYTES = {0: 4, 3: 4, 4: 6, 7: 2, 8: 2, 9: 8, 10: 4, 13: 3, 16: 1, 17: 8}
_STATUS_BYTES |= {18: 2, 19: 1, 20: 1, 128: 3, 129: 8}


def _status(status: bytes) -> QueryStatus:
    """A query's status variables, up to the first unknown one."""
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
                listed = count if count < _MAX_DATABASES else 0
                databases = tuple(_zero_ended(fields) for _ in range(listed))
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


_CHANGING = frozenset(
    {"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "CALL", "SELECT", "DO", "VALUES"}
)
_LEADING = re.compile(
    r"(?:\s|\(|/\*M?!\d*|/\*(?!M?!).*?\*/|(?:--(?=[\s\x00-\x1f\x7f]|$)|#)[^\n]*(?:\n|$))*",
    re.DOTALL,
)
# MariaDB: settings for a single statement.
_SETTINGS = re.compile(
    r"""SET\s+STATEMENT\b(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^'"])*?\bFOR\b""",
    re.DOTALL | re.IGNORECASE,
)
_WORD = re.compile(r"\w+|[^\w\s]")


def first_words(sql: str) -> tuple[str, tuple[str, ...]]:
    """(the first word, the first four words) of a statement in upper case, after comments, brackets
    and settings. The content of a comment for some versions (``/*!``) counts.
    """
    at = _end(_LEADING, sql, 0)
    after = _end(_SETTINGS, sql, at)
    if after > at:
        at = _end(_LEADING, sql, after)
    rest = sql[at : at + 200]
    words = tuple(word.upper() for word in _WORD.findall(rest)[:4])
    return (words[0] if words else ""), words


def _end(pattern: re.Pattern[str], sql: str, at: int) -> int:
    found = pattern.match(sql, at)
    return found.end() if found else at


def changes_rows(words: tuple[str, ...]) -> bool:
    """Return True if a statement with these first words may change rows, also under ANALYZE."""
    if words[:1] == ("ANALYZE",):
        return not {"TABLE", "TABLES"} & set(words[1:3])
    return words[:1] != () and words[0] in _CHANGING


# XA transactions: their ids, and the event that ends the first phase.


def xid_text(format_id: int, gtrid: bytes, bqual: bytes) -> bytes:
    """An XA transaction's id as the log's statements spell it."""
    return f"X'{gtrid.hex()}',X'{bqual.hex()}',{format_id}".encode()


def parse_xa_prepare(body: bytes) -> tuple[bytes, bool]:
    """(xid, committed in one phase) of an XA_prepare_event."""
    one_phase, format_id, gtrid, bqual = struct.unpack_from("<Biii", body)
    fields = Fields(body, 13)
    return xid_text(format_id, fields.take(gtrid), fields.take(bqual)), bool(one_phase)


# GTID events of single transactions, and the GTID sets at a file's beginning.


def parse_previous_gtids(body: bytes) -> str:
    """The GTID set of Previous_gtids_event as MySQL writes it.

    The first 8 bytes hold the number of entries and, in the highest byte, the format: 1 if entries
    have tags (8.3 and later); then the lowest byte holds the format too.
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
        tag = short_text(fields) if tagged else ""
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


@dataclass(frozen=True, slots=True)
class Gtid:
    """A GTID event.

    Attributes:
        source: the server that numbered it; None: an anonymous GTID.
        number: the transaction's number.
        commit_us: microseconds since 1970 of the commit on the server that wrote this log; 0:
            unknown.
        standalone: MariaDB: True if no COMMIT follows.
        xid: MariaDB: the XA transaction that the group prepares, commits or rolls back.
        prepares: MariaDB: True if the group prepares it.
    """

    source: BinlogServer | MariaDbSource | None
    number: int
    commit_us: int = 0
    standalone: bool = False
    xid: bytes | None = None
    prepares: bool = False


def parse_gtid(body: bytes, *, anonymous: bool) -> Gtid:
    """Gtid_event and Anonymous_gtid_event: flags, uuid, number; since 5.7.6 a logical clock, since
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
    """Gtid_tagged_log_event (8.3 and later), in the format of ``mysql::serialization``.

    It has a version, a size, the last field that may not be ignored, then each field after its
    number. Variable-length integers have their length in the first byte's trailing ones.
    """
    fields = Fields(body)
    version = packed_unsigned(fields)
    if version != 1 and version != 0:
        raise ValueError("serialization version")
    packed_unsigned(fields)
    packed_unsigned(fields)
    uuid, gno, tag, commit_us = b"", 0, "", 0
    for field_id in range(len(_TAGGED_FIELDS)):
        if not fields.left():
            break
        before = fields.at
        if packed_unsigned(fields) != field_id:
            fields.at = before
            continue
        name = _TAGGED_FIELDS[field_id]
        if name == "flags":
            packed_unsigned(fields)
        elif name == "uuid":
            uuid = bytes(packed_unsigned(fields) for _ in range(16))
        elif name == "tag":
            tag = short_text(fields)
        elif name == "immediate_commit_timestamp":
            commit_us = packed_unsigned(fields)
        elif name == "gno":
            gno = packed_signed(fields)
        else:
            packed_signed(fields)
    if len(uuid) != 16 or gno <= 0:
        raise ValueError("GTID")
    return Gtid(BinlogServer(UUID(bytes=uuid), tag), gno, commit_us)


_STANDALONE, _GROUP_COMMIT, _PREPARED_XA, _COMPLETED_XA = 1, 2, 64, 128


def parse_mariadb_gtid(body: bytes, server_id: int) -> Gtid:
    """MariaDB's Gtid_log_event; the server's id is in the event's header."""
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
