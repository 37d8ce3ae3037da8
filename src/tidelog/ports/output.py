"""A destination: batches of the event log, kinds of outputs, and what executors do for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.ports.source import SourceId
from tidelog.ports.state import StateStore


@dataclass(frozen=True, slots=True)
class DumpCompleted:
    """A CONTROL record: a table's full dump is complete.

    A replay from ``first_offset`` gives the table. With ``delete_absent``, an output's rows of a
    version below ``first_offset`` are not in the source any more. An output that has written
    everything below ``finalized_until`` (the offset after this record) has the whole table.

    ``rows_ordinal`` is the ordinal of the dump's rows if the table has no key: they and the changes
    from ``first_offset`` on are the table. None: it has a key, or only some rows were dumped.
    """

    dump_id: str
    table: str
    first_offset: int
    delete_absent: bool
    finalized_until: int = 0
    rows_ordinal: int | None = None

    @property
    def whole(self) -> bool:
        """Was the whole table dumped?"""
        return self.delete_absent or self.rows_ordinal is not None


@dataclass(frozen=True, slots=True)
class TableRange:
    """One table's part of a batch: schema versions, rows and payload bytes of its records.

    Rows and bytes are for planning; they may be somewhat too large.
    """

    table: TableName
    schema_ids: frozenset[int]
    rows: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class OutputBatch:
    """Offsets ``[start, end)`` of the event log of ``generation``, for outputs to write.

    ``started``: tables of which a whole dump begins here. ``resume``: an output before this offset
    resumes there: retention removed the records between, and whole dumps replace them.
    """

    generation: str
    start: int
    end: int
    tables: tuple[TableRange, ...]
    completed: tuple[DumpCompleted, ...] = ()
    resume: int = 0
    started: tuple[str, ...] = ()


class Output(Protocol):
    """A destination. Batches come in order, one at a time.

    After a failure or with a new checkpoint a batch, or the end of one with what follows, comes
    again. So an output reads from the destination what it has (`committed`) and never replaces a
    newer row by an older one. `write` may use its own threads.
    """

    name: str

    def prepare(self, generation: str) -> None:
        """Check the destination before the first batch.

        Raises OutputError if it was filled from another generation of the log, or by another
        program.
        """
        ...

    def write(self, batch: OutputBatch) -> None:
        """Write the batch; durable upon return. Raises OutputError; the batch may come again."""
        ...

    def committed(self, table: TableName) -> int | None:
        """Return the offset below which the destination has all of the table; None: nothing."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class RejectingOutput(Output, Protocol):
    """An output that continues when its destination rejects records."""

    def rejected(self) -> int:
        """Return the number of records in its dead letters, ever, of completed batches.

        After a failure some may not be counted; a batch that comes again by itself is not counted
        twice.
        """
        ...

    def left_out_tables(self) -> Mapping[str, str]:
        """Return why tables are left out, or miss rows since, and what to do."""
        ...

    def keyless_tables(self) -> Mapping[str, str]:
        """Return what is done with tables that have no key, where rows are kept by key.

        By choice of the user or by default: no error. With the line that gives a key.
        """
        ...

    def take_again(self, ask: Callable[[Sequence[str]], None]) -> None:
        """Accept the tables that were left out and can be delivered now.

        ``ask`` requests dumps of them. Called after `Output.prepare` and, while tables are left
        out, about once a minute before a batch.
        """
        ...


@runtime_checkable
class CopyingOutput(Output, Protocol):
    """An output that keeps copies of tables, which somebody may drop."""

    def replace_dropped(
        self, tables: Collection[str], ask: Callable[[Sequence[str]], None]
    ) -> None:
        """Create the copies again that were dropped, of ``tables``, which had rows before.

        ``ask`` requests dumps of them first: the rows that they had do not come again. Called after
        `Output.prepare`.
        """
        ...


@runtime_checkable
class KeyedOutput(Output, Protocol):
    """An output that can keep rows by their key."""

    @property
    def keyed(self) -> bool:
        """Whether it does."""
        ...


@runtime_checkable
class ReshapingOutput(Output, Protocol):
    """An output whose tables have other columns than the source's."""

    def table_of(self, schema: TableSchema) -> TargetTable:
        """Return the table that it writes the source's table to."""
        ...


@runtime_checkable
class BoundedOutput(Output, Protocol):
    """An output whose tasks can't take as large batches as the loop would give it."""

    def end_of_batch(self, start: int, end: int) -> int:
        """Return the end of a batch of ``[start, end)``: one segment, or as many as are cheap."""
        ...


@runtime_checkable
class MaintainedOutput(Output, Protocol):
    """An output that maintains its destination beside the batches."""

    def finish(self, stop: threading.Event) -> None:
        """Do the maintenance that is due, after the last batch of ``tidelog pipeline --once``.

        Ends early once ``stop`` is set. Errors are logged.
        """
        ...


@runtime_checkable
class RegisteringOutput(Output, Protocol):
    """An output that registers its tables in a catalog, beside the batches."""

    def unregistered_tables(self) -> Mapping[str, str]:
        """Return why tables are not in the catalog, and what to do. From any thread."""
        ...


class TaskFence(Protocol):
    """Checks the lease before each step of a task. Picklable."""

    def check(self) -> None:
        """Raise LeaseLostError if the lease of the task has ended, as far as its host can know."""
        ...


def _no_check() -> None:
    """Check nothing: there is no lease."""


@dataclass(frozen=True)
class WriteLease:
    """The lease under which a pipeline writes; by default there is none.

    Attributes:
        epoch: grows with every new leader of the pipeline; a destination compares it. 0: no lease.
        check: raises LeaseLostError if the lease may have ended.
        tasks: the same for tasks.
    """

    epoch: int = 0
    check: Callable[[], None] = _no_check
    tasks: TaskFence | None = None


@runtime_checkable
class LedOutput(Output, Protocol):
    """An output that writes only under its pipeline's lease."""

    def set_lease(self, lease: WriteLease) -> None:
        """Set the lease; called before `prepare`. Once it has ended nothing may be written."""
        ...


@dataclass(frozen=True)
class OutputContext:
    """What an output is created with, besides its section.

    Attributes:
        spark: the pipeline's SparkSession.
        log_path: the path of the event log.
        open_state: returns a new handle on the state store, which the output closes.
        deliver: returns an output for the `TaskWriter` that a function creates (on the driver,
            pickled to each task), with all options of a section derived from
            `tidelog.ext.ExecutorSection`; arguments: the section, the function, ``keyed`` (the
            newest state of keys; else every change), ``order`` and ``message_format`` (a
            formatter's name, or ``rows``).
    """

    spark: Any
    log_path: str
    open_state: Callable[[], StateStore]
    deliver: Callable[..., Output]


@dataclass(frozen=True)
class OutputLocation:
    """Where an output writes, to compare it with others. Stored as digests; no secrets.

    Attributes:
        identity: a JSON value, equal for two sections exactly if they write to one location.
        hosts: the hosts of the location, if several may be named: one in common is enough.
        qualifier: a JSON value that belongs to ``identity`` when two outputs are compared, but may
            change between runs while the location stays the same.
        further: JSON values of what it writes to besides, whichever tables it takes. Two outputs
            must not share one, whatever else they write.
    """

    identity: object
    hosts: tuple[str, ...] = ()
    qualifier: object = None
    further: tuple[object, ...] = ()


S = TypeVar("S")
C = TypeVar("C", contravariant=True)


class OutputKind(Protocol[S]):
    """A kind of output: the model of its section, and its outputs."""

    @property
    def section(self) -> type[S]:
        """The model of its section, derived from `tidelog.ext.OutputSection`.

        Its field ``kind`` is a Literal of the kind's name.
        """
        ...

    def open(self, section: S, context: OutputContext) -> Output:
        """Open the output of a section. Raises ConfigError, OutputError."""
        ...

    def location(self, section: S) -> OutputLocation:
        """Return the place of an output of this section; two outputs must not share one."""
        ...


@runtime_checkable
class ProbedOutputKind(Protocol[C]):
    """An `OutputKind` whose destinations `tidelog check` can probe, without Spark."""

    def probe(self, section: C) -> str | None:
        """Describe what answers there, in a few words; None: that can't be known from here.

        Writes nothing, and takes seconds at most. Raises OutputError that says what to do.
        """
        ...


@dataclass(frozen=True)
class LogExtent:
    """The end of an event log, to check without Spark whether a destination has all of it.

    Attributes:
        path: the path of the event log; this process can open it.
        generation: the generation of the event log.
        end: the offset of the next record.
        state: the pipeline's state store; the caller closes it.
    """

    path: str
    generation: str
    end: int
    state: StateStore


@runtime_checkable
class IdleOutputKind(Protocol[C]):
    """An `OutputKind` that knows without Spark, within seconds, that there is nothing to do.

    Then `tidelog pipeline --once` ends without starting Spark.
    """

    def is_idle(self, section: C, log: LogExtent) -> bool:
        """Return whether the destination has all records before ``log.end`` and none beyond it.

        And whether `Output.prepare` would accept it, with nothing to finish. The same settings and
        tables were checked before. False: no, or that can't be known. Writes nothing there. Raises
        OutputError if the destination does not answer.
        """
        ...


# What executors do: write a task's rows, format messages, store rejections.


@dataclass(frozen=True)
class TargetTable:
    """A table as an output sees it, after the output's transforms. Picklable.

    Attributes:
        source, schema, origin: the table in the source, its schema, the source itself.
        name: the destination's name of the table, after routes.
        columns: the delivered columns with their Arrow types.
        key: the delivered columns of the key, under their new names.
        unchanged: the source's column by delivered column, if no transform changes its values.
        schema_ids: with a `SchemaFormatter`, the numbers of the key's and the value's schema.
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
    """The part of offsets ``[start, end)`` that one executor task writes. ``number``: the task's.

    ``deleted_below``: a version by source table (as text); the destination's rows of a lower
    version are not in the source any more (after a truncate or a complete dump). Only with *keyed*
    delivery, and equal in all tasks. Outputs that delete on the driver ignore it. ``epoch``: of the
    pipeline's lease (0: there is none): a destination that can compare it refuses lesser ones.
    ``fence``: of that lease, see `check_lease`.
    """

    output: str
    generation: str
    start: int
    end: int
    number: int
    deleted_below: Mapping[str, int] = field(default_factory=dict)
    epoch: int = 0
    fence: TaskFence | None = field(default=None, compare=False, repr=False)

    def check_lease(self) -> None:
        """Raise LeaseLostError once another process may lead the pipeline.

        Called before `open`, each `write` and `commit`, and before each of several requests in one
        of them. From any thread.
        """
        if self.fence is not None:
            self.fence.check()


@dataclass(frozen=True, slots=True)
class Rejection:
    """A record that the destination will never accept. ``reason`` has no cell values."""

    table: str
    version: int
    reason: str


class TaskWriter(Protocol):
    """Writes one task's rows; runs on executors. Created on the driver and pickled to each task.

    So connect in `open`. Derive from `tidelog.ext.Writer`: then only `write` must be
    implemented.

    *A task may run twice, also at the same time (a retry, a speculative duplicate), and a batch may
    come again*: writes must be idempotent by key and version, and an older version must never
    replace a newer one or bring back a deleted row.

    An OutputError (or any other exception) fails the task: the whole batch is retried, with
    back-off. Records that can never be written are returned as `Rejection`.
    """

    def open(self, task: WriteTask) -> None:
        """Connect."""
        ...

    def write(self, table: TargetTable, rows: pa.RecordBatch) -> Iterable[Rejection] | None:
        """Write some rows of a table, or start to. Their columns depend on the delivery."""
        ...

    def commit(self) -> Iterable[Rejection] | None:
        """Make everything written durable."""
        ...

    def close(self) -> None:
        """Close. Always called, also after an error; then `commit` was not."""
        ...


class Formatter(Protocol):
    """Formats change events as messages, column-wise. Picklable; runs on executors."""

    def format(self, table: TargetTable, events: pa.RecordBatch) -> pa.RecordBatch:
        """Return ``events`` (shape `tidelog.spark.formats.shapes.events`) as messages, in their
        order.

        Columns: ``key`` and ``value`` binary (null: none), ``headers`` map<string, string> (null:
        none), ``topic`` string, ``version`` int64. An event may become several messages, or none.
        """
        ...


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """The options of a format.

    Attributes:
        topic: the topic of each message; ``{table}`` stands for the destination's name of the
            table, ``{namespace}`` and ``{name}`` for the source's.
        tombstones: whether a delete is followed by a message with its key and no value (log
            compaction).
        handling: only for the format ``debezium``.
    """

    topic: str = "{table}"
    tombstones: bool = True
    handling: Any = None


class FormatterKind(Protocol):
    """Creates the formatters of one name."""

    def __call__(self, options: FormatOptions) -> Formatter: ...


@dataclass(frozen=True, slots=True)
class MessageSchemas:
    """The schemas of a table's messages, as JSON texts. ``key``: None for a table without a key."""

    key: str | None
    value: str


@runtime_checkable
class SchemaFormatter(Formatter, Protocol):
    """A formatter whose messages name their schemas by `TargetTable.schema_ids`.

    The driver has read the ids from the schema registry before.
    """

    def schemas(self, table: TargetTable) -> MessageSchemas:
        """Return the schemas; always the same text for the same messages.

        Raises ConfigError for a column that has none.
        """
        ...


class DeadLetters(Protocol):
    """Stores the records that destinations reject. Picklable; used by executors."""

    def put(self, task: WriteTask, rejections: Sequence[Rejection]) -> None:
        """Store rejections, durably. The same task may come again with the same rejections."""
        ...


@runtime_checkable
class GrantingOutputKind(Protocol[C]):
    """An `OutputKind` that reports to `tidelog check --sql` which rights its role lacks."""

    def missing_grants(self, section: C, tables: Sequence[TargetTable]) -> list[tuple[str, str]]:
        """Return the SQL that lets the role create or write the output's tables, for those of
        ``tables``; each statement after who may run it ("the owner of the database").

        Raises OutputError if the destination does not answer.
        """
        ...


@runtime_checkable
class NamingOutputKind(Protocol[C]):
    """An `OutputKind` that reports to `tidelog check` which names its destinations can't have."""

    def refused_names(self, section: C, tables: Sequence[TargetTable]) -> Iterator[str]:
        """Yield why the output would leave out a table of ``tables``, and what to do.

        As far as it can be known before anything is written. Columns have only names. Raises
        OutputError if the destination must be asked and does not answer.
        """
        ...
