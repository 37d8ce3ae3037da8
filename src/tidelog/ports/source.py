"""A source: its log, its catalogue, reads of its rows, and what a start of capture dumps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidelog.model.records import Int32s, KeyEntries, LogBatch, Resume, Snapshot
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports.state import StateStore

# The catalogue: the tables, their schemas, and the source's load.


@dataclass(frozen=True, slots=True)
class Retention:
    """How long the source keeps the part of its log that the reader still needs.

    Attributes:
        retained_bytes: the log that it keeps for the reader now; None: not known.
        spare_bytes: the log that may still be written until it removes what the reader needs; None:
            it never does so by size, or it is not known.
        kept_s: the age at which it removes log, whoever needs it; None: it does not do so by age.
    """

    retained_bytes: int | None = None
    spare_bytes: int | None = None
    kept_s: float | None = None


@dataclass(frozen=True, slots=True)
class SourceLoad:
    """The source's load now; None where it is not known.

    Attributes:
        lag_bytes: the bytes of its log that the reader has not read yet.
        replica_lag_s: the seconds that the slowest replica is behind.
        commits: a counter of committed transactions.
        end: the position of the log's end.
        reached: the reader's position in the server's form, e.g. ``0/208C0C0``.
        retention: the retention of the log.
    """

    lag_bytes: int
    end: int
    reached: str
    retention: Retention
    replica_lag_s: float | None = None
    commits: int | None = None


@dataclass(frozen=True, slots=True)
class TableShape:
    """The catalogue's description of a table, to notice changes of rows without row events.

    ``storage``: how the table is stored, without spaces; only for `Catalogue.rows_may_differ`.
    ``key_spelling``: how the texts of its keys are formed, if unusual. If it changes after a dump
    began, the bounds that the dump has read mean other rows.
    """

    schema: TableSchema
    storage: str
    estimated_rows: int
    estimated_bytes: int
    key_spelling: str = ""


class Catalogue(Protocol):
    """The tables of the source. Thread-safe; takes no lock that a writer waits for."""

    def tables(self, patterns: Sequence[str]) -> list[TableName]:
        """Return the matching tables, e.g. of ``public.*``, sorted; no system tables, no metadata
        tables.
        """
        ...

    def shape(self, table: TableName) -> TableShape | None:
        """Return the table as it is now; None if there is none.

        Raises UnsupportedTableError if the table can't be captured or dumped as it is.
        """
        ...

    def shapes(
        self, tables: Sequence[TableName]
    ) -> dict[TableName, TableShape | UnsupportedReason]:
        """Return the `shape` of those of the tables that exist, or why it would raise."""
        ...

    def columns(self, tables: Sequence[TableName]) -> dict[TableName, tuple[str, ...]]:
        """Return the names of all columns of those of the tables that exist, also excluded ones.

        A few queries for all tables.
        """
        ...

    def names(self, relation_ids: Sequence[int]) -> dict[int, TableName]:
        """Return the names of those of the numbered tables that exist, captured or not. Empty if
        the source does not number tables.
        """
        ...

    def partitioned(self, table: TableName) -> TableName | None:
        """Return the table of which ``table`` is a partition; None: it is none with a name."""
        ...

    def unseen(
        self, tables: Sequence[TableName], patterns: Sequence[str], state: StateStore
    ) -> dict[TableName, str]:
        """Return those of the tables, which are not listed, that the account may not see, with the
        GRANT that lets it. Empty if the source lists all tables.

        Args:
            tables: tables that were captured.
            patterns: what is captured now; other tables are not missed.
            state: capture's store, in which the log reader notes what was dropped.
        """
        ...

    def estimated_rows(self, tables: Sequence[TableName]) -> dict[TableName, int]:
        """Return the rows by the source's statistics, for those of the tables that it has.

        Cheap: reads no table.
        """
        ...

    def check_condition(self, table: TableName, condition: str) -> None:
        """Raise ChunkRefusedError if the server refuses the dump's condition.

        For example, because of an unknown column. Reads no row. Raises nothing if the condition
        can't be checked.
        """
        ...

    def stamp(self) -> str | None:
        """Return a text that changes with the `shape` of any table, or whether it is published.

        Much cheaper than `versions`. None: the source has no such text.
        """
        ...

    def versions(self, patterns: Sequence[str]) -> dict[TableName, str]:
        """Return the `tables`, each with a text that changes with its `shape` (without estimates).

        A few queries for all tables.
        """
        ...

    def rows_may_differ(self, before: str, after: str) -> bool:
        """Return whether rows may have changed without row events between two `TableShape.storage`.

        True e.g. if the table was rewritten, or a partition was truncated, attached or detached.
        """
        ...

    def position(self) -> int:
        """Return the end of the source's log: all transactions committed by now are before it."""
        ...

    def load(self, reached: int) -> SourceLoad:
        """Return the source's load. ``reached``: the position up to which its log has been read."""
        ...

    def close(self) -> None: ...


# Reads of rows by SELECT: chunks between watermarks, whole tables, digests.


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """One SELECT: either a range ``after < key`` limited to ``limit_rows``, or ``keys``.

    Bounds are texts of the columns of `TableSchema.match_key`. ``key_columns`` names the columns of
    the bounds: if the table's match key has changed, the read raises ChunkVoidError. ``keys`` are
    of ``key_columns``, in that order; None: of `TableSchema.key`.

    ``limit_bytes``: the rows returned take about this much, but are at least one; 0: no limit.
    Larger rows end a range early, as ``limit_rows`` does, or leave the last keys unread.

    ``spread_s``: load the source lightly. A reader that can do so reads the range in slices and
    rests between them, so that the range takes about this many seconds.

    ``where_names``: the columns in ``where``, if its author may have fewer rights than capture;
    then only the database's own code may run for it. None: ``where`` comes from capture's operator.
    """

    table: TableName
    after: tuple[str | None, ...] | None = None
    upto: tuple[str | None, ...] | None = None
    limit_rows: int = 10_000
    keys: tuple[tuple[str | None, ...], ...] | None = None
    where: str | None = None
    where_names: tuple[str, ...] | None = None
    key_columns: tuple[str, ...] | None = None
    spread_s: float = 0.0
    limit_bytes: int = 0


@dataclass(slots=True)
class ChunkRows:
    """The result of a chunk's SELECT, in key order, in the log's own wire format.

    ``rows`` has kind DUMP_ROW (and ABSENT for requested keys that are not in the table), position
    and xid 0; ``last_key`` is the greatest key read, ``exhausted`` is true if no row follows it.

    ``emit_at``: with a strategy without watermarks, a position of the source's log at or after
    every transaction that is visible in ``snapshot``; the rows are emitted there. None: they are
    emitted at the high watermark. ``rested_s``: the seconds of rests during the read.
    ``keys_read``: how many of the requested keys were read, from the first on; None: all.
    """

    schema: TableSchema
    rows: LogBatch
    snapshot: Snapshot
    last_key: tuple[str | None, ...] | None
    exhausted: bool
    emit_at: int | None = None
    rested_s: float = 0.0
    keys_read: int | None = None


class ChunkReader(Protocol):
    """Reads chunks between watermarks over its own connections. Used by one thread at a time.

    The order is fixed: write low; begin, lock against DDL, snapshot, read; return the rows; write
    high *while the lock is still held* (so that no DDL is between snapshot and high); end. A
    strategy without watermarks returns rows with ``emit_at`` instead.
    """

    def write_watermark(self, watermark: str) -> None:
        """Write ``watermark`` (a text that is never used again) into the source's log.

        Returns once it is committed. Does nothing with a strategy without watermarks.
        """
        ...

    def read(self, request: ChunkRequest) -> ChunkRows:
        """Read under a new snapshot. The DDL lock is held until `release`. Raises ChunkError."""
        ...

    def release(self) -> None:
        """End the reading transaction. Must be called after every `read`, also after an error."""
        ...

    def boundaries(self, request: ChunkRequest, count: int) -> list[tuple[str | None, ...]]:
        """Return the key of every ``limit_rows``-th row of the range, at most ``count`` keys.

        Reads the key's index alone. For planning: it needs no window and keeps no lock.
        """
        ...

    def current_snapshot(self) -> Snapshot:
        """Return a snapshot of now. Transactions that it sees need not be remembered any longer."""
        ...

    def close(self) -> None:
        """Close for good; from another thread, it ends a read, which then raises.

        The reading thread closes the reader as well.
        """
        ...


class BlockingReader(Protocol):
    """Reads whole tables under one snapshot, taken exactly at a position of the log.

    Used by one thread. Order: `begin`; any number of `read` (ranges only); `close`, always. A table
    without a key is read from its first row on: each request's ``after`` is the `last_key` of the
    read before.
    """

    def begin(self, timeout_s: float) -> int:
        """Take the snapshot; return its position: exactly the commits before it are visible.

        Raises ChunkError if open transactions prevent it for ``timeout_s`` seconds.
        """
        ...

    def read(self, request: ChunkRequest) -> ChunkRows:
        """As `ChunkReader.read`, always under the one snapshot; ``emit_at`` is its position."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Digest:
    """The digest of a set of rows: their number, and the sum of 60 bits of each row's SHA-256."""

    rows: int
    total: int


@dataclass(frozen=True, slots=True)
class RowsEstimate:
    """The estimated ``rows`` of a table; ``basis`` names the source of the estimate."""

    rows: int
    basis: str


class DigestReader(Protocol):
    """Computes digests of rows inside the source, so that no row travels. Used by one thread.

    A row's number is the first 15 hexadecimal digits of the SHA-256 of its text in UTF-8: the texts
    of its columns in order, each followed by a comma; ``~`` for NULL. The text of a column depends
    on its logical type:

    * ``bool``: ``true``, ``false``; integers and decimals: digits, with all of the scale's
    * ``float32``, ``float64``: the IEEE 754 bits as a signed integer, of NaN the canonical ones
    * ``date``: days, ``timestamp`` and ``timestamptz``: microseconds since 1970
    * ``binary``, ``bytes``: lower-case hexadecimal digits
    * ``text``: its length in bytes, a colon, itself

    It is the text of the value that the column decodes to: what decodes to NULL is NULL.
    """

    def why_not(self, schema: TableSchema, columns: Sequence[str]) -> str | None:
        """Return why the source can't compute the text of these columns; None: it can."""
        ...

    def boundaries(self, request: ChunkRequest, count: int) -> list[tuple[str | None, ...]]:
        """As `ChunkReader.boundaries`."""
        ...

    def digest(self, request: ChunkRequest, schema: TableSchema, columns: Sequence[str]) -> Digest:
        """Return the digest of a range's rows, by one SELECT under its own snapshot.

        Raises ChunkError.
        """
        ...

    def snapshot(self) -> Snapshot:
        """Return a snapshot that every later SELECT sees at least. Raises ChunkError."""
        ...

    def position(self) -> int:
        """Return a source position at or after every transaction that a SELECT could see now."""
        ...

    def close(self) -> None: ...


# The log: its events in commit order, schemas and keys.


@dataclass(frozen=True, slots=True)
class WatermarkSeen:
    """A watermark at this position of the log. ``watermark`` is the text that was written."""

    watermark: str
    position: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class SchemaSeen:
    """The table's next records have this schema (numbered by the schema store)."""

    schema: TableSchema
    previous: TableSchema | None


@dataclass(frozen=True, slots=True)
class IdleAt:
    """The source has nothing more up to this position, and no transaction is open in the stream.

    ``reached``: that position, if it is later than ``resume.acknowledge``. They differ while a
    prepared transaction is open: after a restart it is read again from its begin.
    """

    resume: Resume
    reached: int = 0

    @property
    def position(self) -> int:
        return max(self.reached, self.resume.acknowledge)


MAX_SIGNAL_BYTES = 1 << 20
"""The longest column of a signal, in bytes; one byte more is read to find longer ones."""


@dataclass(frozen=True, slots=True)
class SignalSeen:
    """A row was inserted into the source's signal table: its columns ``id``, ``type``, ``data``."""

    signal_id: str
    type: str
    data: str | None
    position: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class RowsUnlogged:
    """Rows of the table changed, and the log does not say which: the table is dumped again.

    ``reason`` is for the operator, without values. The event comes before the records that follow
    the change in the log. The dump begins once transaction ``xid``, or a later one, is visible.
    ``remedy``: what prevents such changes, if the operator is to act; status shows it.
    """

    table: TableName
    reason: str
    xid: int | None = None
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class UnsupportedReason:
    """Why a table can't be captured or dumped as it is, without values.

    ``remedy``: the SQL that fixes it, if it is known. ``all_dumps``: the table is a metadata table,
    and no table can be dumped without it. ``only_dumps``: its changes are captured all the same.
    """

    reason: str
    remedy: str | None = None
    all_dumps: bool = False
    only_dumps: bool = False


@dataclass(frozen=True, slots=True)
class LeftOutColumns:
    """Columns of a captured table that neither the log's records nor those of dumps have.

    ``reason``: why, without values. ``remedy``: how to get their values; SQL, or a sentence.
    """

    columns: tuple[str, ...]
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Published:
    """The result of publishing the tables that the patterns match.

    ``added``: tables that are published from now on. ``refused``: tables that can't be published.
    ``inserts_only``: tables whose updates and deletes can't be published. ``left_out_columns``: of
    tables that are captured without some columns. ``holds_new_tables``: the log has all rows of a
    table from its creation on, or reports by `RowsUnlogged` that it does not.
    """

    added: Sequence[TableName] = ()
    refused: Mapping[TableName, UnsupportedReason] = field(default_factory=dict)
    inserts_only: Mapping[TableName, UnsupportedReason] = field(default_factory=dict)
    left_out_columns: Mapping[TableName, LeftOutColumns] = field(default_factory=dict)
    holds_new_tables: bool = False


@dataclass(frozen=True, slots=True)
class UnsupportedTableSeen:
    """The table's records are left out from here on, until `RowsUnlogged` reports their return.

    The records of all other tables follow as usual.
    """

    table: TableName
    why: UnsupportedReason


@dataclass(frozen=True, slots=True)
class RelationNamed:
    """In transaction ``xid`` the source's relation of this number has this table's name.

    Comes before the relation's rows. ``captured``: they are recorded.
    """

    relation_id: int
    table: TableName
    captured: bool
    xid: int


@dataclass(frozen=True, slots=True)
class TableRenamed:
    """From here on, no table has the captured name ``table``: its rows go under the name ``now``.

    ``captured``: they are recorded. ``now`` is None once a table has the name ``table`` again.
    """

    table: TableName
    now: TableName | None
    captured: bool = False


@dataclass(frozen=True, slots=True)
class CatalogueChanged:
    """The source reports that its catalogue changed. Only a hint: any role can write it."""


LogEvent = (
    LogBatch
    | WatermarkSeen
    | SchemaSeen
    | SignalSeen
    | RowsUnlogged
    | RelationNamed
    | TableRenamed
    | CatalogueChanged
    | UnsupportedTableSeen
    | IdleAt
)


@dataclass(frozen=True, slots=True)
class SourceId:
    """The identity of a log. ``kind``, ``system`` and ``database`` never change in one event log.

    Attributes:
        kind: the kind of source.
        system: the server, or the event log's first one if a replica was promoted since (MySQL,
            MariaDB).
        database: the database, if a log is of one.
        timeline: PostgreSQL: the server's timeline. MySQL, MariaDB: added to the number of a binlog
            file, so that positions grow over a promotion.
        server: the server of this log, if it is not ``system``.
    """

    kind: str
    system: str
    database: str
    timeline: int = 0
    server: str = ""

    @property
    def member(self) -> str:
        """The server of this log."""
        return self.server or self.system

    def to_json(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__slots__}
        if not self.server:
            del fields["server"]  # earlier versions read such logs, too
        return fields


@dataclass(frozen=True, slots=True)
class LastTransaction:
    """The newest transaction in an event log.

    Attributes:
        position, xid, commit_ts: those of its records.
    """

    position: int
    xid: int
    commit_ts: int


class LogReader(Protocol):
    """Reads one source's transaction log in commit order. Used by one thread.

    `identify` and `belongs_to` come before `start`, or `start_over` in its place.
    """

    def identify(self) -> SourceId:
        """Return the identity of the source. Connects if needed.

        Raises SourceChangedError if it is not the expected one.
        """
        ...

    def belongs_to(
        self, generation: str, last: Callable[[], LastTransaction | None] = lambda: None
    ) -> None:
        """Set the event log that this reader fills, so that it never uses another log's slot.

        ``last``: the newest transaction in that event log; the source must still have it.
        """
        ...

    def start(self, resume: Resume | None) -> Resume:
        """Connect and stream from after ``resume`` (None: a new log, create what is needed).

        Returns the start of the stream. Raises GapError or SourceChangedError if the source has
        lost records after ``resume``.
        """
        ...

    def poll(self, timeout_s: float) -> Iterator[LogEvent]:
        """Yield the events that have arrived, in log order. Waits at most ``timeout_s`` seconds.

        Bounded in size. Raises ConnectionLostError; then `start` may be called again.
        """
        ...

    def start_over(self, missed: Resume) -> Resume:
        """Stream from the first position that the source still has; changes after ``missed`` are
        lost.

        Replaces `start`, after its GapError and with the user's consent. Raises as `start`.
        """
        ...

    def keepalive(self) -> None:
        """Tell the source that this reader is alive while `poll` is not called for long.

        Called by the thread that polls. Does nothing if the source needs no such message.
        """
        ...

    def acknowledge(self, position: int) -> None:
        """Acknowledge that all before ``position`` is durable, so that the source may delete it."""
        ...

    def close(self) -> None: ...


class SchemaRegistry(Protocol):
    """Numbers schemas. Thread-safe, durable before it returns."""

    def register(self, schema: TableSchema) -> TableSchema:
        """Return the stored version with this fingerprint, or a new one."""
        ...

    def get(self, schema_id: int) -> TableSchema: ...

    def versions(self, table: TableName) -> list[TableSchema]:
        """Return all versions of the table, the oldest first."""
        ...

    def latest(self, table: TableName) -> TableSchema | None: ...


class NullRegistry:
    """`SchemaRegistry` for the readers of one process: its numbers mean nothing
    outside it. Thread-safe.
    """

    def __init__(self) -> None:
        self._schemas: list[TableSchema] = []
        self._lock = threading.Lock()

    def register(self, schema: TableSchema) -> TableSchema:
        with self._lock:
            for known in self._schemas:
                if known.fingerprint == schema.fingerprint:
                    return known
            self._schemas.append(schema.numbered(len(self._schemas) + 1))
            return self._schemas[-1]

    def get(self, schema_id: int) -> TableSchema:
        return self._schemas[schema_id - 1]

    def versions(self, table: TableName) -> list[TableSchema]:
        return [schema for schema in self._schemas if schema.table == table]

    def latest(self, table: TableName) -> TableSchema | None:
        found = self.versions(table)
        return found[-1] if found else None


class KeyExtractor(Protocol):
    """Decodes keys of one wire format, vectorised, without decoding rows.

    Attributes:
        full_rows_fill_gaps: whether a full old row has the columns that the new one lacks.
    """

    @property
    def full_rows_fill_gaps(self) -> bool: ...

    def keys(self, batch: LogBatch, records: Int32s, schema: TableSchema) -> KeyEntries:
        """Return the keys of the records of ``batch`` at the indices ``records`` (all of
        ``schema``).
        """
        ...

    def key_changes(self, batch: LogBatch) -> Int32s:
        """Return the records of ``batch`` that change a key.

        Their new row may lack columns that no earlier record of its key has. They are few.
        """
        ...

    def texts(self, key: bytes, schema: TableSchema) -> tuple[str | None, ...]:
        """Return an encoded match key of ``schema`` as texts, as in `ChunkRequest.keys`."""
        ...

    def encode(self, texts: Sequence[str | None]) -> bytes: ...


# What a start of capture dumps.


class Snapshotter:
    """For ``source.snapshot: custom``: derive from it and override what differs.

    The answers here are those of ``initial``. It is created without arguments, and called whenever
    a capture begins to lead: at a start, and after a lost connection or lease.
    """

    def should_snapshot(self, begun: bool, unfinished: bool) -> bool:
        """Return whether to dump every captured table now.

        Args:
            begun: whether a dump of all tables was requested at some start in this event log's
                life.
            unfinished: whether a dump of a start is not done. It resumes; with True all tables are
                dumped again instead, if this is another start.
        """
        return not begun

    def should_stream(self) -> bool:
        """Return whether to read the log; False: capture ends when all dumps are done."""
        return True

    def should_snapshot_on_gap(self) -> bool:
        """Return whether to resume after a gap in the source's log, and dump every table.

        False: capture stops, with a `tidelog.errors.GapError`.
        """
        return False

    def should_snapshot_new_tables(self) -> bool:
        """Return whether to dump later tables; False: only if the log may lack their first rows."""
        return True
