"""Finds rows of a copy that a `filter` step may add or remove because of a record with missing
columns.

Such a record can't be inserted, since it is not a whole row; and if a column that the condition
reads is missing, it does not say whether the row passes. Only the source has these rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tidelog.codecs.wire_formats import nan_key, wire_format
from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.model.schema import TableSchema
from tidelog.spark.changes import folding
from tidelog.spark.datasource.partitions import partition_refs
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
    """Yields the rows (shape `changes`, before ``steps``) of one table in ``refs`` that must be
    read again, each value of the key as for `tidelog.spark.key_frames.keys_of_frame`; None: no
    rows. Valid inside the block.
    """
    if not refs or not wire_format(schema).possibly_missing_columns(schema):
        yield None
        return
    session = exact_session(spark)
    parts = len(partition_refs(list(refs), partition_bytes=_PART_BYTES, partitions=None))
    read = (session, log_path, log.generation, schema, refs)
    with folding.read_newest(*read, parts=parts) as changes:
        incomplete = changes.where(f.col(CHANGE_MISSING).isNotNull() & (f.col(CHANGE_OP) == "u"))
        incomplete = incomplete.persist()
        try:
            yield None if incomplete.isEmpty() else _rows_to_check(incomplete, steps, schema)
        finally:
            incomplete.unpersist()


def _rows_to_check(
    incomplete: DataFrame, steps: Sequence[Step], schema: TableSchema
) -> DataFrame | None:
    found = []
    for number, step in enumerate(steps):
        if step.action != "filter":
            continue
        before = apply(incomplete, steps[:number], schema, keyed=True)
        before = in_session(before, exact_session(incomplete.sparkSession))
        key = [n for n in delivered_names(schema.match_key, steps[:number]) if n is not None]
        passes = may_pass(before, step.argument, key)
        if passes is not None:
            found.append(before.where(passes).select(CHANGE_VERSION))
    if not found:
        return None
    versions = reduce(lambda one, other: one.union(other), found).distinct()
    versions = in_session(versions, incomplete.sparkSession)
    rows = incomplete.join(versions, CHANGE_VERSION, "left_semi")
    for name in nan_key(schema):
        kind = rows.schema[name].dataType
        rows = rows.withColumn(name, with_nan(as_text(name, kind)))
    return rows
