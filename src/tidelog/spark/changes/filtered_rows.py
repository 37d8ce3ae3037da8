"""Rows of a copy that a step `filter` may let in, or out, by a record that lacks columns of theirs.

Such a record is no whole row, so it can't be inserted; and where it lacks one of the columns that
the condition reads, it does not say whether the row passes. Only the source knows these rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tidelog.codecs.missing_columns import possibly_missing_columns
from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.model.schema import TableSchema
from tidelog.spark.changes import folding
from tidelog.spark.datasource.partitions import partitioned
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, CHANGE_VERSION
from tidelog.spark.key_frames import as_text, with_nan
from tidelog.spark.sessions.session import exact_session, in_session
from tidelog.spark.step_actions import may_pass
from tidelog.spark.transforms import Step, apply, delivered_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PART_BYTES = 512 << 20


@contextmanager
def rows_to_read_again(
    spark: SparkSession,
    log: EventLog,
    log_path: str,
    schema: TableSchema,
    refs: Sequence[SegmentRef],
    steps: Sequence[Step],
) -> Iterator[DataFrame | None]:
    """The rows (shape `changes`, before ``steps``) of one table in ``refs`` that must be read
    again, each value of the key as `tidelog.spark.key_frames.keys_of_frame` takes it; None: there
    are none. Valid within the block.
    """
    if not refs or not possibly_missing_columns(schema):
        yield None
        return
    session = exact_session(spark)
    parts = len(partitioned(list(refs), partition_bytes=_PART_BYTES, partitions=None))
    read = (session, log_path, log.generation, schema, refs)
    with folding.newest(*read, parts=parts) as changes:
        lacking = changes.where(f.col(CHANGE_MISSING).isNotNull() & (f.col(CHANGE_OP) == "u"))
        lacking = lacking.persist()
        try:
            yield None if lacking.isEmpty() else _unsettled(lacking, steps, schema)
        finally:
            lacking.unpersist()


def _unsettled(lacking: DataFrame, steps: Sequence[Step], schema: TableSchema) -> DataFrame | None:
    found = []
    for number, step in enumerate(steps):
        if step.action != "filter":
            continue
        before = apply(lacking, steps[:number], schema, keyed=True)
        before = in_session(before, exact_session(lacking.sparkSession))
        key = [n for n in delivered_names(schema.match_key, steps[:number]) if n is not None]
        passes = may_pass(before, step.argument, key)
        if passes is not None:
            found.append(before.where(passes).select(CHANGE_VERSION))
    if not found:
        return None
    versions = reduce(lambda one, other: one.union(other), found).distinct()
    rows = lacking.join(in_session(versions, lacking.sparkSession), CHANGE_VERSION, "left_semi")
    for name in schema.nan_key:
        kind = rows.schema[name].dataType
        rows = rows.withColumn(name, with_nan(as_text(name, kind)))
    return rows
