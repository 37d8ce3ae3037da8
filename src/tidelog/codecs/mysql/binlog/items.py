"""What `tidelog.codecs.mysql.binlog.scanner.BinlogScanner` yields besides batches of rows: values,
no parsing.

Positions are packed (`tidelog.codecs.mysql.binlog.position`). *Durable* items lie before the place
that the scanner was told to resume after: they were dealt with before a restart and come again
because the stream begins earlier.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from tidelog.model.records import Int32s, Int64s, Kind, LogBatch


@dataclass(frozen=True, slots=True)
class TableMapMetadata:
    """A table map's optional metadata; what the server did not send is None.

    ``unsigned`` has one entry a column (False where the column is no number); ``collations`` one a
    column: the collation id of character columns and, with FULL metadata, of enum and set columns;
    None elsewhere. ``labels`` one a column: an enum's or set's labels, in bytes of its collation's
    character set. ``dimensions`` one a column: those of a vector. ``primary_key`` holds (column
    index, prefix length in characters or 0).
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
    """A table's rows follow, and its id is not bound, or the table looks otherwise now.

    ``types``: a binlog type code a column as on the wire; ``metas``: uint16 a column (STRING,
    NEWDECIMAL: the two bytes big-endian; others little-endian or one byte); ``nullable``: a bitmap,
    bit ``i % 8`` of byte ``i // 8`` set if column ``i`` may be NULL.
    """

    table_id: int
    database: str
    table: str
    types: bytes
    metas: tuple[int, ...]
    nullable: bytes
    metadata: TableMapMetadata
    position: int
    """Where the table map event begins; its transaction may begin before."""
    unknown: int | None = None
    """The first type code that is not known. Then ``metas`` are 0, there is no ``metadata``, and
    the rows can't be taken apart: the table may be bound to 0 alone.
    """
    malformed: str | None = None
    """What of the map can't be read, in words; then there is no ``metadata``. The table may be
    bound to 0 alone, or watched if its rows can be taken apart.
    """
    has_readable_rows: bool = True
    """Can its rows be taken apart?"""


@dataclass(frozen=True, slots=True)
class BinlogRowOf:
    """One row of a watched table, in the payload form of the event log."""

    table_id: int
    kind: Kind
    payload: bytes
    position: int
    ordinal: int
    commit_ts: int


@dataclass(frozen=True, slots=True)
class RowsNoticed:
    """Rows of a noticed table were changed, as it was asked for, by transactions at or before
    ``position``; the batch that follows may hold them.
    """

    database: str
    table: str
    deleted: bool
    rekeyed: bool
    position: int


class Alter(Enum):
    """MariaDB's ALTER in two phases (``binlog_alter_two_phase``): which one a statement is."""

    START = "start"
    COMMIT = "commit"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class QuerySeen:
    """A statement that is none of BEGIN, COMMIT, ROLLBACK, SAVEPOINT or XA.

    ``position`` is where its transaction begins; ``ordinal`` the ordinal that the next record of
    the transaction has: a TRUNCATE's own (it counts one). ``end``: the packed position behind it.
    """

    database: str
    sql: str
    position: int
    ordinal: int
    end: int
    commit_ts: int
    keyword: str
    """The statement's first word in upper case, comments skipped, e.g. ``ALTER``."""
    changes_rows: bool
    """Rows may change by it without row events: INSERT, UPDATE, DELETE, REPLACE, LOAD DATA …"""
    alone: bool
    """It is the whole transaction (all DDL but CREATE … SELECT is)."""
    durable: bool
    alter: Alter | None = None
    error_code: int = 0
    databases: tuple[str, ...] | None = None
    """The databases of all tables that it used, by triggers, views and functions as well (MySQL).

    (): the server does not say which. None: it says nothing: MariaDB, or of no statement that a
    session ran.
    """
    sql_mode: int = 0
    """The session's, as bits; 0 if not known."""
    server_id: int = 0
    thread: int = 0
    """The session's ``pseudo_thread_id`` on the server of that id."""
    uses_temporary: bool = False
    """A temporary table was used (``LOG_EVENT_THREAD_SPECIFIC_F``)."""


@dataclass(frozen=True, slots=True)
class GtidsSeen:
    """Transactions that begin here, ``n`` of them, in log order: they precede their rows.

    ``position``: int64[n]; ``number``: int64[n], MySQL's gno, MariaDB's sequence number;
    ``source``: int32[n], an index into ``sources``, which only grows over a scanner's life.
    """

    position: Int64s
    number: Int64s
    source: Int32s
    sources: tuple[GtidSource, ...]

    def __len__(self) -> int:
        return len(self.position)

    def text(self, index: int) -> str:
        """As the server writes it: ``uuid[:tag]:number`` or ``domain-server-number``."""
        return self.sources[int(self.source[index])].text(int(self.number[index]))


@dataclass(frozen=True, slots=True)
class BinlogServer:
    """Who numbers MySQL transactions: a server's uuid and, from 8.4 on, maybe a tag."""

    uuid: UUID
    tag: str = ""

    def text(self, number: int) -> str:
        return f"{self.uuid}:{self.tag}:{number}" if self.tag else f"{self.uuid}:{number}"


@dataclass(frozen=True, slots=True)
class MariaDbSource:
    """Who numbers MariaDB transactions: a domain, and the server it was committed on."""

    domain: int
    server_id: int

    def text(self, number: int) -> str:
        return f"{self.domain}-{self.server_id}-{number}"


GtidSource = BinlogServer | MariaDbSource


class XaState(Enum):
    """What became of an XA transaction in a group of the log."""

    PREPARED = "prepared"
    COMMITTED = "committed"  # one that was prepared in a group before
    ROLLED_BACK = "rolled_back"
    ONE_PHASE = "one_phase"  # prepared and committed by this very group


@dataclass(frozen=True, slots=True)
class XaSeen:
    """An XA transaction was prepared or decided by the group ``[begin, end)``.

    The rows of a prepared (or ONE_PHASE) group are not yielded: scan ``[begin, end)`` again with
    ``as_of`` (the deciding group's ``begin`` and ``commit_ts``) once it is committed.
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
    """The log goes on in file ``name`` at ``offset``. ``artificial``: the server made it up to say
    which file it sends; real ones stand at a file's end, and an artificial one follows.
    """

    name: str
    offset: int
    artificial: bool


@dataclass(frozen=True, slots=True)
class FormatSeen:
    """A file begins (or the server says what it sends): who wrote it, and with checksums or not.

    ``server_start``: the file is the first after a start of the server.
    """

    server_version: str
    checksum: bool
    server_start: bool


@dataclass(frozen=True, slots=True)
class GtidStateSeen:
    """What had been committed before this file: a MySQL GTID set (Previous_gtids) or MariaDB's last
    GTID of each domain and server (Gtid_list), as the server writes it.
    """

    text: str


@dataclass(frozen=True, slots=True)
class RolledBackSeen:
    """Rows of the transaction at ``position`` below ``ordinal`` may have been rolled back.

    The server logs ROLLBACK, or ROLLBACK TO a savepoint, instead of forgetting the rows if tables
    without transactions took part: their rows stay, those of ``tables`` that have transactions
    don't. The rows were yielded already: the tables need a dump. ``tables``: (database, table).
    """

    position: int
    ordinal: int
    tables: tuple[tuple[str, str], ...]
    durable: bool


@dataclass(frozen=True, slots=True)
class RowsOfPreparedTransaction:
    """Give the rows of a prepared XA group as of the group that committed it."""

    position: int
    commit_ts: int


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
