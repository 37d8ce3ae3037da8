"""The base class of writers on executors: your own output implements one to four methods."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from tidelog.ports import Rejection, TargetTable, WriteTask


class Writer:
    """`tidelog.ports.TaskWriter` with defaults for all methods but `write`.

    ``rows`` with *keyed* delivery: ``_tidelog_op`` (u: the key has this state, d: it is deleted),
    ``_tidelog_version``, the table's columns (a delete has only those of the key), and
    ``_tidelog_missing``, list<string>: names of columns that the log does not have (null: none). A
    row with missing columns may only update the other columns of an existing row; it must never be
    inserted.

    With *ordered* delivery: `tidelog.spark.formats.shapes.events` with ``_tidelog_missing`` as
    above; or, with a formatter, the messages of `tidelog.ports.Formatter`.
    """

    def open(self, task: WriteTask) -> None:
        """Connect to the destination. Here: nothing."""

    def write(self, table: TargetTable, rows: pa.RecordBatch) -> Iterable[Rejection] | None:
        raise NotImplementedError

    def commit(self) -> Iterable[Rejection] | None:
        """Finish what `write` left to do. Here: nothing."""

    def close(self) -> None:
        """Release what `open` opened. Here: nothing."""


def is_retry() -> bool:
    """Is this a retry or a duplicate of a task by Spark?"""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0
