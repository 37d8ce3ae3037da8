"""Reads a range of one table with Spark: planned by its segments, one row per key.

One task reads and folds each part (`tidelog.codecs.fold`, `tidelog.spark.datasource.executor`).
Spark folds the rows of several parts once more, by the same rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tidelog.eventlog.reader import SegmentRef
from tidelog.model.schema import NATIVE, TableSchema
from tidelog.spark.datasource.options import PlannedRefs
from tidelog.spark.datasource.source import tidelog_reader
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, CHANGE_VERSION
from tidelog.spark.transforms import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# One task folds this much of a table where rows are not cached.
PART_BYTES = 32 << 20


def read_planned(
    spark: SparkSession,
    log_path: str,
    generation: str,
    schema: TableSchema,
    refs: Sequence[SegmentRef],
    *,
    parts: int,
    shape: str = "changes",
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Returns the records of one table in ``refs``, in at most ``parts`` Spark partitions of
    neighbours.

    Args:
        spark: the session that reads.
        log_path: path of the event log.
        generation: generation of the log; reading another one is an error.
        schema: the schema that records are decoded to.
        refs: segments, in log order.
        parts: as above.
        shape: ``changes`` (the newest state of each key in each part) or ``events``.
        columns: columns of `changes`; the schema's if None.
    """
    names = schema.column_names if columns is None else columns
    native = {c.name: c.logical for c in schema.columns if c.logical.startswith(NATIVE)}
    reader = (
        tidelog_reader(spark)
        .option("path", log_path)
        .option("shape", shape)
        .option("table", str(schema.table))
        .option("schemaVersion", schema.schema_id)
        .option("logicals", json.dumps(native))
        .option("refs", PlannedRefs(generation, tuple(refs)).to_option())
        .option("partitions", max(1, parts))
        .option("partitionBytes", 1)
    )
    if shape == "changes" and not any("," in name for name in names):
        reader = reader.option("columns", ",".join(names))
    return reader.load()


@contextmanager
def read_newest(
    spark: SparkSession,
    log_path: str,
    generation: str,
    schema: TableSchema,
    refs: Sequence[SegmentRef],
    *,
    parts: int,
) -> Iterator[DataFrame]:
    """Yields one row per key of `read_planned` changes. Inside the block, the rows of several
    parts are cached.
    """
    source = read_planned(spark, log_path, generation, schema, refs, parts=parts)
    if parts < 2:
        yield source
        return
    cached = source.persist()
    try:
        complete = cached.where(f"{CHANGE_MISSING} IS NOT NULL").isEmpty()
        yield fold_parts(cached, schema, complete=complete)
    finally:
        cached.unpersist()


def fold_parts(parts: DataFrame, schema: TableSchema, *, complete: bool) -> DataFrame:
    """Returns one row per match key of rows in the shape `changes`, by the rules of
    `tidelog.spark.datasource.executor.merge_batches`. ``complete``: no row has missing columns.
    """
    keys = [quoted(name) for name in schema.match_key]
    if complete:
        rest = [f.col(quoted(name)) for name in parts.columns if name not in schema.match_key]
        found = parts.groupBy(*keys).agg(
            f.max_by(f.struct(*rest), CHANGE_VERSION).alias("_tidelog_n")
        )
        return found.select(*(_column_from(name, schema, "_tidelog_n") for name in parts.columns))
    version = f.col(CHANGE_VERSION)
    state = f.when(f.col(CHANGE_OP) == "u", version)
    aggregates = [
        f.max_by(CHANGE_OP, CHANGE_VERSION).alias("_tidelog_op"),
        f.max(version).alias("_tidelog_v"),
        f.max(f.when(f.col(CHANGE_OP) == "d", version)).alias("_tidelog_gone"),
    ]
    columns: list[Column] = []
    unknown: list[Column] = []
    for index, column in enumerate(schema.columns):
        if column.name in schema.match_key:
            columns.append(f.col(quoted(column.name)))
            continue
        number = f.lit(index).cast("smallint")
        is_absent = f.coalesce(f.array_contains(CHANGE_MISSING, number), f.lit(False))
        value = f.struct(f.col(quoted(column.name)).alias("value"), version.alias("at"))
        aggregates.append(f.max_by(value, f.when(~is_absent, state)).alias(f"_tidelog_c{index}"))
        # Values of a row before its delete are not its values now.
        at = f.col(f"_tidelog_c{index}.at")
        known = f.coalesce(at > f.coalesce("_tidelog_gone", f.lit(-1)), f.lit(False))
        columns.append(f.when(known, f.col(f"_tidelog_c{index}.value")).alias(column.name))
        unknown.append(f.when(~known, number))
    missing = f.lit(None)
    if unknown:
        numbers = f.array_compact(f.array(*unknown))
        missing = f.when((f.col("_tidelog_op") == "u") & (f.size(numbers) > 0), numbers)
    return (
        parts.groupBy(*keys)
        .agg(*aggregates)
        .select(
            f.col("_tidelog_op").alias(CHANGE_OP),
            f.col("_tidelog_v").alias(CHANGE_VERSION),
            *columns,
            missing.cast("array<smallint>").alias(CHANGE_MISSING),
        )
    )


def with_deletes_below(changes: DataFrame, version: int) -> DataFrame:
    """Returns ``changes`` with deletes in place of rows of a lower version; unchanged for version
    0.
    """
    if not version:
        return changes
    op = f"IF({CHANGE_VERSION} < {version}, 'd', {CHANGE_OP})"
    return changes.withColumn(CHANGE_OP, f.expr(op))


def _column_from(name: str, schema: TableSchema, struct: str) -> Column:
    if name in schema.match_key:
        return f.col(quoted(name))
    return f.col(f"{struct}.{quoted(name)}").alias(name)
