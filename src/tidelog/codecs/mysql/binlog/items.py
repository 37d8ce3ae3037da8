"""Positions in a binlog, and the items that `BinlogScanner` yields besides batches of rows.

Items are values, without parsing. *Durable* items are before the scanner's resume position: they
were processed before a restart and come again because the stream begins earlier.

A position is one int64: the file's number, then the offset in it. Files are named ``base.000123``
with growing numbers; a transaction never spans two files. 39 bits hold an offset of 512 GiB (a
transaction may make a file larger than ``max_binlog_size``), 24 bits 16.7 million files.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from tidelog.model.records import Int32s, Int64s, LogBatch, RecordKind


@dataclass(frozen=True, slots=True)
class TableMapMetadata:
    """A table map's optional metadata; None for parts that the server did not send.

    Attributes:
        unsigned: one entry per column, False for columns that are no numbers.
        collations: one entry per column: the collation id of character columns and, with FULL
            metadata, of enum and set columns; None for others.
        names: the columns' names.
        labels: one entry per column: an enum's or set's labels, in bytes of its collation's
            character set.
        geometry_types: one entry per column: the type of a geometry.
        dimensions: one entry per column: the dimensions of a vector.
        primary_key: (column index, prefix length in characters or 0) pairs.
        visible: one entry per column.
    """

    unsigned: tuple[bool, ...] | None = None
    collations: tuple[int | None, ...] | None = None
    names: tuple[str, ...] | None = None
    labels: tuple[tuple[bytes, ...] | None, ...] | None = None
    geometry_types: tuple[int | None, ...] | None = None
    dimensions: tuple[int | None, ...] | None = None
    primary_key: tuple[tuple[int, int], ...] | None = None
    visible: tuple[bool, ...] | None = None


@dataclass(frozen=True, slots=True)
class TableMapSeen:
    """Rows of a table follow whose id is not bound, or whose columns have changed.

    Attributes:
        types: one binlog type code per column, as on the wire.
        metas: uint16 per column (STRING, NEWDECIMAL: the two bytes big-endian; others little-endian
            or one byte).
        nullable: a bitmap; bit ``i % 8`` of byte ``i // 8`` is set if column ``i`` may be NULL.
    """

    table_id: int
    database: str
    table: str
    types: bytes
    metas: tuple[int, ...]
    nullable: bytes
    metadata: TableMapMetadata
    position: int
    """The beginning of the table map event; its transaction may begin earlier."""
    unknown: int | None = None
    """The first unknown type code. Then ``metas`` are 0, there is no ``metadata``, and the rows
    can't be split: the table may only be bound to 0.
    """
    malformed: str | None = None
    """The unreadable part of the map, in words; then there is no ``metadata``. The table may only
    be bound to 0, or watched if its rows can be split.
    """
    has_readable_rows: bool = True
    """True if its rows can be split."""


@dataclass(frozen=True, slots=True)
class WatchedBinlogRow:
    """One row of a watched table, in the payload form of the event log."""

    table_id: int
    kind: RecordKind
    payload: bytes
    position: int
    ordinal: int
    commit_ts: int


@dataclass(frozen=True, slots=True)
class RowsNoticed:
    """Rows of a table changed as requested by `BinlogScanner.notice`, in transactions at or before
    ``position``; the next batch may contain them.
    """

    database: str
    table: str
    deleted: bool
    rekeyed: bool
    position: int


class Alter(Enum):
    """The phase of a statement of MariaDB's two-phase ALTER (``binlog_alter_two_phase``)."""

    START = "start"
    COMMIT = "commit"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class QuerySeen:
    """A statement other than BEGIN, COMMIT, ROLLBACK, SAVEPOINT or XA.

    Attributes:
        position: the beginning of its transaction.
        ordinal: the ordinal of the transaction's next record: a TRUNCATE's own (it counts as one).
        end: the packed position after it.
    """

    database: str
    sql: str
    position: int
    ordinal: int
    end: int
    commit_ts: int
    keyword: str
    """The statement's first word in upper case, without comments, e.g. ``ALTER``."""
    changes_rows: bool
    """True if it may change rows without row events: INSERT, UPDATE, DELETE, REPLACE, LOAD DATA …
    """
    alone: bool
    """True if it is the whole transaction (as all DDL except CREATE … SELECT)."""
    durable: bool
    alter: Alter | None = None
    error_code: int = 0
    databases: tuple[str, ...] | None = None
    """The databases of all tables that it used, including those in triggers, views and functions
    (MySQL).

    (): the server does not list them. None: no information: MariaDB, or a statement that no session
    ran.
    """
    sql_mode: int = 0
    """The session's sql_mode as bits; 0 if unknown."""
    server_id: int = 0
    thread: int = 0
    """The session's ``pseudo_thread_id`` on the server of that id."""
    uses_temporary: bool = False
    """True if it used a temporary table (``LOG_EVENT_THREAD_SPECIFIC_F``)."""


@dataclass(frozen=True, slots=True)
class GtidsSeen:
    """``n`` transactions that begin here, in log order; they precede their rows.

    Attributes:
        position: int64[n].
        number: int64[n], MySQL's gno, MariaDB's sequence number.
        source: int32[n], an index into ``sources``.
        sources: all sources so far; only grows over a scanner's life.
    """

    position: Int64s
    number: Int64s
    source: Int32s
    sources: tuple[GtidSource, ...]

    def __len__(self) -> int:
        return len(self.position)

    def text(self, index: int) -> str:
        """The GTID as the server writes it: ``uuid[:tag]:number`` or ``domain-server-number``."""
        return self.sources[int(self.source[index])].text(int(self.number[index]))


@dataclass(frozen=True, slots=True)
class BinlogServer:
    """The source of MySQL transaction numbers: a server's uuid and, from 8.4 on, possibly a tag."""

    uuid: UUID
    tag: str = ""

    def text(self, number: int) -> str:
        return f"{self.uuid}:{self.tag}:{number}" if self.tag else f"{self.uuid}:{number}"


@dataclass(frozen=True, slots=True)
class MariaDbSource:
    """The source of MariaDB transaction numbers: a domain, and the server of the commit."""

    domain: int
    server_id: int

    def text(self, number: int) -> str:
        return f"{self.domain}-{self.server_id}-{number}"


GtidSource = BinlogServer | MariaDbSource


class XaState(Enum):
    """The state of an XA transaction after a group of the log."""

    PREPARED = "prepared"
    COMMITTED = "committed"  # it was prepared in an earlier group
    ROLLED_BACK = "rolled_back"
    ONE_PHASE = "one_phase"  # prepared and committed by this group


@dataclass(frozen=True, slots=True)
class XaSeen:
    """The group ``[begin, end)`` prepared, committed or rolled back an XA transaction.

    The rows of a prepared (or ONE_PHASE) group are not yielded: scan ``[begin, end)`` again with
    ``as_of`` (the committing group's ``begin`` and ``commit_ts``) once it is committed.
    ``xid``: ``X'<gtrid>',X'<bqual>',<format id>`` with lower-case hex, ASCII.
    """

    xid: bytes
    state: XaState
    begin: int
    end: int
    commit_ts: int
    durable: bool


@dataclass(frozen=True, slots=True)
class RotateSeen:
    """The log continues in file ``name`` at ``offset``. ``artificial``: the server made the event
    up to name the file that it sends; real ones are at a file's end, and an artificial one follows.
    """

    name: str
    offset: int
    artificial: bool


@dataclass(frozen=True, slots=True)
class FormatSeen:
    """A file begins (or the server describes what it sends): the version of its writer, and whether
    events have checksums. ``server_start``: the file is the first after a start of the server.
    """

    server_version: str
    checksum: bool
    server_start: bool


@dataclass(frozen=True, slots=True)
class GtidStateSeen:
    """The transactions committed before this file: a MySQL GTID set (Previous_gtids) or MariaDB's
    last GTID of each domain and server (Gtid_list), as the server writes it.
    """

    text: str


@dataclass(frozen=True, slots=True)
class RolledBackSeen:
    """Rows of the transaction at ``position`` below ``ordinal`` may have been rolled back.

    If tables without transactions took part, the server logs ROLLBACK, or ROLLBACK TO a savepoint,
    instead of discarding the rows: the rows of these tables stay, those of ``tables`` that have
    transactions don't. The rows were yielded already: the tables need a dump. ``tables``:
    (database, table).
    """

    position: int
    ordinal: int
    tables: tuple[tuple[str, str], ...]
    durable: bool


@dataclass(frozen=True, slots=True)
class RowsOfPreparedTransaction:
    """Yield the rows of a prepared XA group as rows of the group that committed it."""

    position: int
    commit_ts: int


Scanned = (
    LogBatch
    | TableMapSeen
    | WatchedBinlogRow
    | RowsNoticed
    | QuerySeen
    | GtidsSeen
    | XaSeen
    | RotateSeen
    | FormatSeen
    | GtidStateSeen
    | RolledBackSeen
)


# Positions.

OFFSET_BITS = 39
_OFFSET_MASK = (1 << OFFSET_BITS) - 1


def pack_position(file_number: int, offset: int) -> int:
    """The position of ``offset`` in file ``file_number``; ValueError if it is out of range."""
    if not 0 <= offset <= _OFFSET_MASK or not 0 <= file_number < 1 << (63 - OFFSET_BITS):
        raise ValueError(f"no position of a binlog: file {file_number}, offset {offset}")
    return file_number << OFFSET_BITS | offset


def unpack_position(position: int) -> tuple[int, int]:
    """(file number, offset)."""
    return position >> OFFSET_BITS, position & _OFFSET_MASK


def position_text(position: int) -> str:
    """The position for messages: ``000123:4567``."""
    number, offset = unpack_position(position)
    return f"{number:06}:{offset}"


def parse_file_name(name: str) -> tuple[str, int]:
    """(base, number) of a file name such as ``binlog.000123``; raises ValueError if it has none."""
    base, dot, suffix = name.rpartition(".")
    if not dot or not suffix.isdigit():
        raise ValueError(f"{name!r} is not the name of a binlog file")
    return base, int(suffix)
