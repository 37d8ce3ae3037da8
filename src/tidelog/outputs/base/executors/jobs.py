"""Spark jobs of outputs that write from executors. The driver receives counts, never rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StructField, StructType

from tidelog.eventlog.reader import SegmentRef
from tidelog.outputs.base.executors import tasks
from tidelog.outputs.base.executors.tasks import Item, Work, WriteCounts
from tidelog.ports import TargetTable
from tidelog.spark import transforms
from tidelog.spark.arrow_frames import map_in_arrow
from tidelog.spark.changes import folding
from tidelog.spark.executor_jobs import run_on_executors
from tidelog.spark.formats.shapes import CHANGE_VERSION
from tidelog.spark.transforms import Step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COUNTS = StructType([StructField("rows", LongType()), StructField("rejected", LongType())])


def run_direct(
    spark: SparkSession, work: Work, groups: Sequence[Sequence[Item]]
) -> list[WriteCounts]:
    """Run one task for each group of items: it reads, decodes and writes them in one process."""
    numbered = [(number, tuple(items)) for number, items in enumerate(groups)]
    return run_on_executors(spark, lambda each: tasks.run_items(work, *each), numbered)


def run_messages(spark: SparkSession, work: Work, item: Item) -> list[WriteCounts]:
    """Run one task that writes the source's logical messages, in the log's order."""
    return run_on_executors(spark, lambda each: tasks.run_messages(work, 0, [each]), [item])


def run_in_order(
    spark: SparkSession, work: Work, tables: Sequence[TargetTable], refs: Sequence[SegmentRef]
) -> list[WriteCounts]:
    """Run one task that writes everything, in the log's order."""
    everything = [(tuple(tables), tuple(refs))]
    return run_on_executors(spark, lambda each: tasks.run_in_order(work, *each), everything)


def run_frame(
    spark: SparkSession,
    work: Work,
    table: TargetTable,
    steps: Sequence[Step],
    parts: Sequence[Sequence[SegmentRef]],
    *,
    tasks_at_once: int,
    ordered_by_key: bool,
) -> list[WriteCounts]:
    """Write a table through a DataFrame: read in ``parts``, shuffled by key if there are several
    parts, transformed.

    ``ordered_by_key``: rows have the shape `events`, and one task writes a key's changes in order.
    """
    refs = tuple(ref for part in parts for ref in part)
    read = (spark, work.log_path, work.task.generation, table.schema, refs)
    keyed = work.shape == "changes"
    below = work.task.deleted_below.get(str(table.source), 0)
    with contextlib.ExitStack() as stack:
        if keyed:
            source = stack.enter_context(folding.read_newest(*read, parts=len(parts)))
            source = folding.with_deletes_below(source, below)
        else:
            source = folding.read_planned(*read, parts=len(parts), shape=work.shape)
        if ordered_by_key and len(parts) > 1:
            keys = [f.col(transforms.quoted(name)) for name in table.schema.match_key]
            source = source.repartition(tasks_at_once, *keys).sortWithinPartitions(
                f.col(CHANGE_VERSION)
            )
        if steps:
            source = transforms.apply(source, steps, table.schema, keyed=keyed)
        rows = map_in_arrow(source, _Write(work, table), _COUNTS).collect()
        return [WriteCounts(row["rows"], row["rejected"]) for row in rows]


class _Write:
    """The last step on executors: writes the rows of a partition and returns their counts."""

    def __init__(self, work: Work, table: TargetTable) -> None:
        self._work = work
        self._table = table

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        number = context.partitionId() if context is not None else 0
        prepared = (tasks.prepare_rows(b, self._table, {}) for b in batches if b.num_rows)
        done = tasks.run_rows(self._work, number, self._table, prepared)
        yield pa.RecordBatch.from_pydict(
            {"rows": [done.rows], "rejected": [done.rejected]},
            pa.schema([("rows", pa.int64()), ("rejected", pa.int64())]),
        )
