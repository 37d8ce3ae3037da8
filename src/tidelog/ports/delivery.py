"""What executors do for an output: write a task's rows, format messages, store rejections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.ports.log import SourceId
from tidelog.ports.output import TaskFence

C = TypeVar("C", contravariant=True)


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

    So connect in `open`. Derive from `tidelog.outputs.Writer`: then only `write` must be
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
class NamingOutputKind(Protocol[C]):
    """An `OutputKind` that reports to `tidelog check` which names its destinations can't have."""

    def refused_names(self, section: C, tables: Sequence[TargetTable]) -> Iterator[str]:
        """Yield why the output would leave out a table of ``tables``, and what to do.

        As far as it can be known before anything is written. Columns have only names. Raises
        OutputError if the destination must be asked and does not answer.
        """
        ...
