"""The source's log: its events in commit order, schemas and keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidelog.model.records import Int32s, KeyEntries, LogBatch, Resume
from tidelog.model.schema import TableName, TableSchema


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
    """

    table: TableName
    reason: str
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a table can't be captured or dumped as it is, without values.

    ``remedy``: the SQL that fixes it, if it is known. ``all_dumps``: the table is a metadata table,
    and no table can be dumped without it.
    """

    reason: str
    remedy: str | None = None
    all_dumps: bool = False


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
    refused: Mapping[TableName, Refusal] = field(default_factory=dict)
    inserts_only: Mapping[TableName, Refusal] = field(default_factory=dict)
    left_out_columns: Mapping[TableName, LeftOutColumns] = field(default_factory=dict)
    holds_new_tables: bool = False


@dataclass(frozen=True, slots=True)
class TableRefused:
    """The table's records are left out from here on, until `RowsUnlogged` reports their return.

    The records of all other tables follow as usual.
    """

    table: TableName
    refusal: Refusal


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
class CatalogueChanged:
    """The source reports that its catalogue changed. Only a hint: any role can write it."""


LogEvent = (
    LogBatch
    | WatermarkSeen
    | SchemaSeen
    | SignalSeen
    | RowsUnlogged
    | RelationNamed
    | CatalogueChanged
    | TableRefused
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


class KeyExtractor(Protocol):
    """Decodes keys of one wire format, vectorised, without decoding rows.

    Attributes:
        full_rows_fill_gaps: whether a full old row has the columns that the new one lacks.
    """

    @property
    def full_rows_fill_gaps(self) -> bool: ...

    def keys(self, batch: LogBatch, records: Any, schema: TableSchema) -> KeyEntries:
        """Return the keys of the records of ``batch`` at int32 indices ``records`` (all of
        ``schema``).
        """
        ...

    def moved(self, batch: LogBatch) -> Int32s:
        """Return the records of ``batch`` that change a key.

        Their new row may lack columns that no earlier record of its key has. They are few.
        """
        ...

    def texts(self, key: bytes, schema: TableSchema) -> tuple[str | None, ...]:
        """Return an encoded match key of ``schema`` as texts, as in `ChunkRequest.keys`."""
        ...

    def encode(self, texts: Sequence[str | None]) -> bytes: ...
