"""The Protocols that adapters implement: few and small; a behaviour suite is the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from tidelog.model.records import Int32s, KeyEntries, LogBatch, Resume, Snapshot
from tidelog.model.schema import Column, TableName, TableSchema

# ---------------------------------------------------------------- source: the log


@dataclass(frozen=True, slots=True)
class WatermarkSeen:
    """A watermark stands in the log here. ``mark`` is the text that was written."""

    watermark: str
    position: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class SchemaSeen:
    """From here on the table's records have this schema (numbered by the schema store)."""

    schema: TableSchema
    previous: TableSchema | None


@dataclass(frozen=True, slots=True)
class IdleAt:
    """The source has nothing more up to this position, and no transaction is open in the stream.

    ``reached``: that position, where it is behind ``resume.acknowledge``: a prepared transaction
    may be needed again from where it began, and all the same the log goes on.
    """

    resume: Resume
    reached: int = 0

    @property
    def position(self) -> int:
        return max(self.reached, self.resume.acknowledge)


MAX_SIGNAL_BYTES = 1 << 20
"""Of a column of a signal; readers cut longer ones behind the next byte."""


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
    """Rows of the table changed here and the log does not say which: it is dumped again.

    ``reason`` is for the operator, without values. Comes before the records that follow the change
    in the log; the dump begins once transaction ``xid``, or one behind it, is visible.
    """

    table: TableName
    reason: str
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a table can't be captured or dumped as it is, without values.

    ``remedy``: the SQL that mends it, if it can be told. ``all_dumps``: it is a table of Tidelog's
    own, without which none can be dumped.
    """

    reason: str
    remedy: str | None = None
    all_dumps: bool = False


@dataclass(frozen=True, slots=True)
class Published:
    """What bringing the publication in step with the patterns came to.

    ``added``: tables that are published from now on. ``refused``: those that can't be.
    ``inserts_only``: those whose updates and deletes can't be.
    """

    added: Sequence[TableName] = ()
    refused: Mapping[TableName, Refusal] = field(default_factory=dict)
    inserts_only: Mapping[TableName, Refusal] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableRefused:
    """From here on records of the table are left out, until `RowsUnlogged` says that they come
    again. All other tables' records go on.
    """

    table: TableName
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class RelationNamed:
    """Rows that follow, in transaction ``xid``, are of the source's relation of this number, which
    bears this table's name then. ``captured``: they are recorded. Comes before such rows.
    """

    relation_id: int
    table: TableName
    captured: bool
    xid: int


@dataclass(frozen=True, slots=True)
class CatalogueChanged:
    """The source says that its catalogue changed here: a hint to look, which anyone may give."""


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
    """Which log this is. All but ``timeline`` must never change under one event log."""

    kind: str
    system: str
    database: str
    timeline: int = 0

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class LastTransaction:
    """The newest transaction that an event log has records of.

    Attributes:
        position, xid, commit_ts: as its records'.
    """

    position: int
    xid: int
    commit_ts: int


class LogReader(Protocol):
    """Reads one source's transaction log in commit order. Used by one thread.

    `identify` and `belongs_to` come before `start`, or `start_over` in its place.
    """

    def identify(self) -> SourceId:
        """Which source this is; connects if need be. Raises SourceChangedError if it is not the
        expected one.
        """
        ...

    def belongs_to(
        self, generation: str, last: Callable[[], LastTransaction | None] = lambda: None
    ) -> None:
        """Which event log it reads for: what another one needs in the source is not taken.
        ``last``: the newest transaction that it holds, to be found again in the source.
        """
        ...

    def start(self, resume: Resume | None) -> Resume:
        """Connect and stream from after ``resume`` (None: a new log, create what is needed).

        Returns where the stream starts. Raises GapError or SourceChangedError if records after
        ``resume`` can't be had any more.
        """
        ...

    def poll(self, timeout_s: float) -> Iterator[LogEvent]:
        """What has arrived, in log order, waiting at most ``timeout_s``. Bounded in size.

        Raises ConnectionLostError; then `start` may be called again.
        """
        ...

    def start_over(self) -> Resume:
        """In place of `start`, after its GapError and with the user's consent: stream from where
        the source's log can be read from now. What lies before is given up. Raises as `start`.
        """
        ...

    def keepalive(self) -> None:
        """Tell the source that this reader lives, while nothing is polled for long. By the thread
        that polls; nothing to do where the source asks for no word.
        """
        ...

    def acknowledge(self, position: int) -> None:
        """Everything before ``position`` is durable here; the source may forget it."""
        ...

    def close(self) -> None: ...


class SchemaRegistry(Protocol):
    """Numbers schemas. Thread-safe, durable before it returns."""

    def register(self, schema: TableSchema) -> TableSchema:
        """The stored version of this shape, a new one if none has its fingerprint for the table."""
        ...

    def get(self, schema_id: int) -> TableSchema: ...

    def versions(self, table: TableName) -> list[TableSchema]:
        """All versions of the table, oldest first."""
        ...

    def latest(self, table: TableName) -> TableSchema | None: ...


# ---------------------------------------------------------------- source: chunks


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """One SELECT. Either a range ``after < key`` limited to ``limit_rows``, or ``keys``.

    Bounds are texts of the columns of `TableSchema.match_key`, the key that records are known by;
    where ``key_columns`` names the columns they were taken of and the table's match key is another
    by now, the read raises ChunkVoidError. ``keys`` are of ``key_columns``, in that order; None: of
    `TableSchema.key`.

    ``limit_bytes``: the rows returned take about as much, or are one; 0: any number. Rows that turn
    out to be larger end a range early, as ``limit_rows`` does, or leave the last keys unread.

    ``spread_s``: the source is to be loaded lightly: a reader that can does the work of a range in
    slices, and rests between them so that all takes about so long. One that can't reads as ever.

    ``where_names``: the columns, as ``where`` writes them, where it was given by someone who may
    have fewer rights than capture: no code but the database's own may run for it. None: capture's
    operator gave it.
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
    """What a chunk's SELECT returned, in key order, in the log's own wire format.

    ``rows`` has kind DUMP_ROW (and ABSENT for requested keys that the table lacks), position and
    xid 0; ``last_key`` is the greatest key read, ``exhausted`` true if no row follows it.
    ``emit_at``: with a strategy that writes no watermarks, the position in the source's log that
    all transactions visible in ``snapshot`` were committed before: the rows follow the log up to
    there.
    None: they wait for the high watermark. ``rested_s``: of the read, to spread it. ``keys_read``:
    how many of the requested keys, from the first on; None: all.
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
    """Reads chunks between watermarks over connections of its own. Used by one thread at a time.

    The order is fixed: write low; begin, lock against DDL, snapshot, read; hand the rows over;
    write high *while the lock is still held* (so no DDL stands between snapshot and high); end.
    A strategy that writes no watermarks returns rows with ``emit_at`` instead.
    """

    def write_watermark(self, watermark: str) -> None:
        """Write ``mark`` (a text unique for ever) into the source's log; returns once committed.
        Does nothing with a strategy that writes no watermarks.
        """
        ...

    def read(self, request: ChunkRequest) -> ChunkRows:
        """Read under a fresh snapshot. The DDL lock is held until `release`. Raises ChunkError."""
        ...

    def release(self) -> None:
        """End the reading transaction. Must be called after every `read`, also after an error."""
        ...

    def boundaries(self, request: ChunkRequest, count: int) -> list[tuple[str | None, ...]]:
        """The keys of every ``limit_rows``-th row of the range, the first ``count`` of them, read
        from the key's index alone; fewer if the range ends before. For planning: no window is
        needed, and no lock outlasts the call.
        """
        ...

    def current_snapshot(self) -> Snapshot:
        """A snapshot of now, for forgetting transactions that are visible."""
        ...

    def close(self) -> None:
        """For good. From another thread it ends what is being read, which raises; the thread that
        reads then closes it as well.
        """
        ...


class BlockingReader(Protocol):
    """Reads whole tables under one snapshot that stands exactly at a position of the log.

    Used by one thread. Order: `begin`; any number of `read` (ranges only); `close`, always.
    """

    def begin(self, timeout_s: float) -> int:
        """Take the snapshot; the position: what committed before it is visible, nothing else.

        Raises ChunkError if there is none within ``timeout_s`` (transactions that stay open).
        """
        ...

    def read(self, request: ChunkRequest) -> ChunkRows:
        """As `ChunkReader.read`, always under the one snapshot; ``emit_at`` is its position."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Digest:
    """Of a set of rows: how many, and the sum of 60 bits of each row's MD5."""

    rows: int
    total: int


class DigestReader(Protocol):
    """Sums rows up inside the source, so that they need not travel. Used by one thread.

    Of each row the first 15 hexadecimal digits of the MD5 of one text are taken as a number. The
    text is UTF-8, the columns' texts one behind the other, each followed by a comma; ``~`` stands
    for NULL. By the column's logical type the text is

    * ``bool``: ``true``, ``false``; integers and decimals: digits, with all of the scale's
    * ``float32``, ``float64``: the IEEE 754 bits as a signed integer, of NaN the canonical ones
    * ``date``: days, ``timestamp`` and ``timestamptz``: microseconds since 1970
    * ``binary``, ``bytes``: lower-case hexadecimal digits
    * ``text``: its length in bytes, a colon, itself

    of the value that the column decodes to: a cell that decodes to NULL counts as NULL.
    """

    def why_not(self, schema: TableSchema, columns: Sequence[str]) -> str | None:
        """Why the source can't write these columns so; None: it can."""
        ...

    def boundaries(self, request: ChunkRequest, count: int) -> list[tuple[str | None, ...]]:
        """As `ChunkReader.boundaries`."""
        ...

    def digest(self, request: ChunkRequest, schema: TableSchema, columns: Sequence[str]) -> Digest:
        """Of a range's rows, by one SELECT under a snapshot of its own. Raises ChunkError."""
        ...

    def snapshot(self) -> Snapshot:
        """What every SELECT that begins from now on can see, at least. Raises ChunkError."""
        ...

    def position(self) -> int:
        """A place in the source's log that all which a SELECT could see by now lies before."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SourceLoad:
    """How hard the source has it now; None where it can't be known.

    ``lag_bytes``: of its log that a reader has not come to. ``commits``: transactions that the
    source has committed, on a counter that only grows.
    """

    lag_bytes: int
    replica_lag_s: float | None = None
    commits: int | None = None


@dataclass(frozen=True, slots=True)
class TableShape:
    """What the catalogue says of a table now, to notice what changes rows without row events.

    ``storage``: how the table is stored, for `Catalogue.rows_may_differ` alone; without spaces.
    """

    schema: TableSchema
    storage: str
    estimated_rows: int
    estimated_bytes: int


class Catalogue(Protocol):
    """What tables there are. Thread-safe; takes no locks that writers wait for."""

    def tables(self, patterns: Sequence[str]) -> list[TableName]:
        """Tables that match, e.g. ``public.*``; sorted. Excludes system and Tidelog's own."""
        ...

    def shape(self, table: TableName) -> TableShape | None:
        """None if there is no such table (any more). Raises TableRefusedError if it can't be
        captured or dumped as it is.
        """
        ...

    def check_condition(self, table: TableName, condition: str) -> None:
        """Raises ChunkRefusedError if the server can't understand the dump's condition, e.g. does
        not know a column of it. Reads no row; nothing is raised where it can't be told.
        """
        ...

    def stamp(self) -> str | None:
        """A text that stays equal only while nothing changes that `shape` of any table shows, or
        that decides whether it is published. Much cheaper than `versions`; None: not to be had.
        """
        ...

    def versions(self, patterns: Sequence[str]) -> dict[TableName, str]:
        """What `tables` gives, each with a text that stays equal only while its `shape` does, but
        for estimates: all of them at the cost of a few queries.
        """
        ...

    def rows_may_differ(self, before: str, after: str) -> bool:
        """May rows have changed without row events between two `TableShape.storage`s of a table?
        True e.g. if it was rewritten, or a partition was truncated, attached or detached.
        """
        ...

    def position(self) -> int:
        """The end of the source's log: all that is committed by now lies before it."""
        ...

    def load(self, reached: int) -> SourceLoad:
        """How far the log's end is from position ``reached``, how far behind its replicas are (the
        furthest).
        """
        ...

    def close(self) -> None: ...


class KeyExtractor(Protocol):
    """Decodes keys of one wire format, vectorised, without decoding rows."""

    def keys(self, batch: LogBatch, records: Any, schema: TableSchema) -> KeyEntries:
        """Keys of the records of ``batch`` at int32 indices ``records`` (all of ``schema``)."""
        ...

    def moved(self, batch: LogBatch) -> Int32s:
        """Records of ``batch`` whose new state may lack columns that no record before tells, as
        that of a changed key; few.
        """
        ...

    def texts(self, key: bytes, schema: TableSchema) -> tuple[str | None, ...]:
        """An encoded match key of ``schema`` as texts that chunks are asked for by."""
        ...

    def encode(self, texts: Sequence[str | None]) -> bytes: ...


# ---------------------------------------------------------------- state and election


@dataclass(frozen=True, slots=True)
class Document:
    """A small JSON document and its version (from 1 up; 0 means absent)."""

    value: Any
    version: int


class StateStore(Protocol):
    """Compare-and-set on small JSON documents. Thread-safe; durable before it returns."""

    def get(self, key: str) -> Document | None: ...

    def put(self, key: str, value: Any, expected_version: int | None) -> int:
        """Store; the new version. ``expected_version`` 0: only if absent; None: whatever is there.

        Raises StateConflictError if the version differs.
        """
        ...

    def delete(self, key: str) -> None: ...

    def keys(self, prefix: str) -> list[str]:
        """Sorted keys that start with ``prefix``."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Lease:
    """Leadership. ``epoch`` grows with every new leader; ``deadline`` is on time.monotonic()."""

    holder: str
    epoch: int
    deadline: float


class Election(Protocol):
    """One leader at a time, with a time limit and a fencing token. Thread-safe."""

    def acquire(self) -> Lease | None:
        """Try once: a lease, or None while another holds it."""
        ...

    def renew(self, lease: Lease) -> Lease:
        """Raises LeaseLostError if the lease is not ours any more."""
        ...

    def release(self, lease: Lease) -> None: ...

    def leader(self) -> str | None: ...

    def close(self) -> None: ...


class StateBackend(Protocol):
    """What a scheme of ``state.url`` stands for: a state store, and elections beside it."""

    def checked(self, url: str, base: Path) -> str:
        """The URL as it is used from now on, relative paths below ``base``. Raises ValueError that
        says what is expected. Connects to nothing.
        """
        ...

    def path(self, url: str) -> Path | None:
        """The file or directory on this host that holds it, for `check`; None: it is elsewhere."""
        ...

    def exists(self, url: str) -> bool:
        """Is there a store already? Creates none."""
        ...

    def store(self, url: str) -> StateStore:
        """One more handle on the store, created if need be. Raises StateError."""
        ...

    def election(
        self, url: str, name: str, holder: str, ttl_s: float, *, first_epoch: int = 1
    ) -> Election:
        """An election of ``name``, whose epochs are ``first_epoch`` or above. Raises StateError."""
        ...


# ---------------------------------------------------------------- outputs


@dataclass(frozen=True, slots=True)
class DumpCompleted:
    """A CONTROL record: a table's full dump is complete.

    Replaying from ``first_offset`` gives the table. With ``delete_absent``, rows that an
    output holds of it with a version below ``first_offset`` are gone from the source. An output
    that has brought over everything below ``finalized_until``, the offset after the record's own,
    holds the table completely.
    """

    dump_id: str
    table: str
    first_offset: int
    delete_absent: bool
    finalized_until: int = 0


@dataclass(frozen=True, slots=True)
class TableRange:
    """What a batch holds of one table: its records' schema versions, rows and payload bytes (both
    may count somewhat more than the range, for planning only).
    """

    table: TableName
    schema_ids: frozenset[int]
    rows: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class OutputBatch:
    """Offsets ``[start, end)`` of the event log of ``generation``, for outputs to bring over."""

    generation: str
    start: int
    end: int
    tables: tuple[TableRange, ...]
    completed: tuple[DumpCompleted, ...] = ()


class Output(Protocol):
    """A destination. Batches come in order, but a batch, or the end of one together with what
    follows it, may come again after a failure or from a new checkpoint: an output derives from the
    destination itself what it has (`committed`), and must never replace newer state by older.

    One batch at a time; `write` may use threads of its own.
    """

    name: str

    def prepare(self, generation: str) -> None:
        """Check the destination before the first batch. Raises OutputError if it was filled from
        another generation of the log, or isn't ours.
        """
        ...

    def write(self, batch: OutputBatch) -> None:
        """Bring the batch over; durable upon return. Raises OutputError; then it may come again."""
        ...

    def committed(self, table: TableName) -> int | None:
        """The offset below which everything of the table is in the destination; None: nothing."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class OutputContext:
    """What an output is made with, beside its section.

    Attributes:
        spark: the pipeline's SparkSession.
        log_path: of the event log.
        open_state: a new handle on the state store, which the output closes.
        deliver: an output of what `TaskWriter` the function makes (on the driver, pickled to each
            task), with all that a section derived from `tidelog.ExecutorSection` says; arguments:
            the section, the function, ``keyed`` (the newest state of keys; else every change),
            ``order`` and ``message_format`` (a formatter's name, or ``rows``).
    """

    spark: Any
    log_path: str
    open_state: Callable[[], StateStore]
    deliver: Callable[..., Output]


S = TypeVar("S")


class OutputKind(Protocol[S]):
    """A kind of output: what its section looks like, and what it makes."""

    @property
    def section(self) -> type[S]:
        """The model of its section, derived from `tidelog.OutputSection`; its field ``kind`` is a
        Literal of the kind's name.
        """
        ...

    def open(self, section: S, context: OutputContext) -> Output:
        """The output of a section. Raises ConfigError, OutputError."""
        ...

    def place(self, section: S) -> object:
        """What JSON can hold and is alike for two sections exactly if they write to one place. Two
        outputs must not. Without secrets.
        """
        ...

    def hosts(self, section: S) -> Sequence[str]:
        """The hosts that lead to the place, if several may be named: two sections meet there if
        they share one. Empty: `place` says it all.
        """
        ...


# ---------------------------------------------------------------- outputs: what executors do


@dataclass(frozen=True)
class TargetTable:
    """A table as an output sees it, after the output's transforms. Picklable.

    ``name`` is the destination's name (routed; by default that of ``source``), ``columns`` the
    delivered columns with their Arrow types, ``key`` those of them that rows are known by (renamed
    as configured). ``schema`` is the source's version of the table, ``origin`` the source itself.
    ``unchanged``: by delivered column, the source's, where the transforms left values as they are.
    ``schema_ids``: with a `SchemaFormatter`, of the messages' keys and values.
    """

    source: TableName
    name: str
    schema: TableSchema
    columns: pa.Schema
    key: tuple[str, ...]
    origin: SourceId
    unchanged: Mapping[str, Column] = field(default_factory=dict)
    schema_ids: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class WriteTask:
    """What one executor task brings over: a part of ``[start, end)``; number ``number`` of those
    that write it at once.

    ``deleted_below``: by source table (its text), rows that the destination holds of it with a
    lower version are gone from the source (a truncate; a full dump that is complete). Only with
    *keyed* delivery, and alike in all tasks; outputs that do it on the driver leave it alone.
    """

    output: str
    generation: str
    start: int
    end: int
    number: int
    deleted_below: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rejection:
    """A record that the destination will never take. ``reason`` holds no cell values."""

    table: str
    version: int
    reason: str


class TaskWriter(Protocol):
    """Writes one task's rows; runs on executors. Built on the driver and pickled to each task, so
    connections are made in `open`. Derive from `tidelog.outputs.Writer`, which leaves `write` alone
    to be implemented.

    *A task may run twice, also at the same time (a retry, a speculative duplicate), and a batch may
    come again*: what is written must be idempotent by key and version, and an older version must
    never replace a newer one, nor follow its delete.

    An OutputError (or any other exception) fails the task: the whole batch is tried again, with
    back-off. Records that can never be written are returned as `Rejection`.
    """

    def open(self, task: WriteTask) -> None:
        """Connect."""
        ...

    def write(self, table: TargetTable, rows: pa.RecordBatch) -> Iterable[Rejection] | None:
        """Write (or begin to) some rows of a table, of the shape that the delivery says."""
        ...

    def commit(self) -> Iterable[Rejection] | None:
        """All that was written must be durable upon return."""
        ...

    def close(self) -> None:
        """Always called, also after an error; then `commit` was not."""
        ...


class Formatter(Protocol):
    """Turns change events into messages, column-wise. Picklable; runs on executors."""

    def format(self, table: TargetTable, events: pa.RecordBatch) -> pa.RecordBatch:
        """``events`` (shape `tidelog.spark.formats.shapes.events`) as messages, in their order:
        ``key`` and ``value`` binary (null: none), ``headers`` map<string, string> (null: none),
        ``topic`` string, ``version`` int64. An event may become several messages, or none.
        """
        ...


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """What a format is made with.

    Attributes:
        topic: of each message; ``{table}`` stands for the destination's name of the table,
            ``{namespace}`` and ``{name}`` for the source's.
        tombstones: after a delete, a message with its key and no value (log compaction).
        handling: of format ``debezium`` alone.
    """

    topic: str = "{table}"
    tombstones: bool = True
    handling: Any = None


class FormatterKind(Protocol):
    """Makes the formatters of one name."""

    def __call__(self, options: FormatOptions) -> Formatter: ...


@dataclass(frozen=True, slots=True)
class MessageSchemas:
    """Schemas of a table's messages, as JSON texts. ``key``: None for a table without a key."""

    key: str | None
    value: str


@runtime_checkable
class SchemaFormatter(Formatter, Protocol):
    """A formatter whose messages name the schemas that they are read with, by
    `TargetTable.schema_ids`; the driver has had these numbered before.
    """

    def schemas(self, table: TargetTable) -> MessageSchemas:
        """The same text whenever the messages are the same. Raises ConfigError for a column that
        can't be told.
        """
        ...


class DeadLetters(Protocol):
    """Keeps what destinations reject. Picklable; used by executors."""

    def put(self, task: WriteTask, rejections: Sequence[Rejection]) -> None:
        """Durable upon return. The same task may come again with the same rejections."""
        ...
