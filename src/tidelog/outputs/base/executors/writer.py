"""The base of what writes on executors: your own output implements one to four methods."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from tidelog.ports import Rejection, TargetTable, WriteTask


class Writer:
    """`tidelog.ports.TaskWriter` with defaults for all but `write`.

    ``rows`` with *keyed* delivery: ``_tidelog_op`` (u: the key has this state, d: it is gone),
    ``_tidelog_version``, the table's columns (of a delete only the key's are told), and
    ``_tidelog_missing``, list<string>: names of columns that the log does not tell (null: none):
    such a row may only update the others of a row that is there, never be inserted.

    With *ordered* delivery: `tidelog.spark.formats.shapes.events` with ``_tidelog_missing`` as
    above; or, with a formatter, the messages of `tidelog.ports.Formatter`.
    """

    def open(self, task: WriteTask) -> None:
        """Nothing to connect to."""

    def write(self, table: TargetTable, rows: pa.RecordBatch) -> Iterable[Rejection] | None:
        raise NotImplementedError

    def commit(self) -> Iterable[Rejection] | None:
        """`write` left nothing to be done."""

    def close(self) -> None:
        """Nothing was opened."""


def tried_before() -> bool:
    """Is this a retry or a duplicate of a task by Spark?"""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0
