"""Finds keys and rows by the event log: changed recently, or not to be judged by a filter.

One comparison of rows that changed recently proves nothing. A record with missing columns can't be
inserted, since it is not a whole row; and if a column that the condition of a `filter` step reads
is missing, it does not say whether the row passes. Only the source has these rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
from pyspark.sql import functions as f
from pyspark.sql import types as t

from tidelog.codecs.wire_formats import nan_key, wire_format
from tidelog.errors import OffsetGoneError, UsageError
from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.model.records import RecordKind, Snapshot, in_ranges, overlap
from tidelog.model.schema import TableName, TableSchema, backticked
from tidelog.spark import folding
from tidelog.spark.datasource import partitions as planning
from tidelog.spark.datasource.partitions import partition_refs
from tidelog.spark.folding import PART_BYTES, read_planned
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, CHANGE_VERSION
from tidelog.spark.session import exact_session, in_session
from tidelog.spark.step_actions import may_pass
from tidelog.spark.transforms import Step, apply, delivered_names

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


# The keys in a DataFrame: executors convert them and drop duplicates, the driver gets Arrow.

SLICE_KEYS = 250_000

# Spark's types of keys, and how a column {c} of one becomes a text that the source's input
# functions read. A timestamp's text in Spark is in the session's time zone: ours is counted from
# 1970 without one, so that it is UTC in any session.
_AS_IT_IS = "{c}"
_CAST = "CAST({c} AS STRING)"
_TEXTS: dict[type[t.DataType], str] = {
    t.StringType: _AS_IT_IS,
    t.CharType: _AS_IT_IS,
    t.VarcharType: _AS_IT_IS,
    t.ByteType: _CAST,
    t.ShortType: _CAST,
    t.IntegerType: _CAST,
    t.LongType: _CAST,
    t.DecimalType: _CAST,
    # -0.0 and 0.0 are one key, with one text.
    t.FloatType: "CAST({c} + CAST(0 AS FLOAT) AS STRING)",
    t.DoubleType: "CAST({c} + CAST(0 AS DOUBLE) AS STRING)",
    t.DateType: _CAST,
    t.TimestampNTZType: _CAST,
    t.BooleanType: "IF({c}, 't', 'f')",
    t.BinaryType: "concat('\\\\x', hex({c}))",
    t.TimestampType: "concat(CAST(TIMESTAMP_NTZ'1970-01-01 00:00:00' + make_dt_interval(0, 0, 0, "
    "CAST(CAST(unix_micros({c}) AS DECIMAL(20, 0)) / 1000000 AS DECIMAL(18, 6))) AS STRING), "
    "'+00')",
}
if hasattr(t, "TimeType"):  # since Spark 4.1
    _TEXTS[t.TimeType] = _CAST


def keys_of_frame(
    df: DataFrame, columns: Sequence[str], *, slice_keys: int = SLICE_KEYS
) -> Iterator[tuple[str, ...]]:
    """Yield the distinct keys in ``df``, as texts, in no order.

    Executors convert values to texts, drop duplicates with a shuffle and keep the rest, in memory
    or on disk, until everything is read. The driver reads slices of about ``slice_keys`` keys as
    Arrow: it holds one at a time, whatever the number of keys.

    Args:
        df: any batch DataFrame; computed once.
        columns: columns of the key, in its order.
        slice_keys: keys that the driver may hold.

    Raises:
        UsageError: a column is missing, or there twice, or of a type that no key has; or rows have
            NULL in one (with their number, before the first key is yielded).
    """
    texts = [_text(df, name, columns) for name in columns]
    names = [f"k{place}" for place in range(len(columns))]
    chosen = df.select(*(text.alias(name) for text, name in zip(texts, names, strict=True)))
    # Not persisted: Spark would compute it again after a write to a table that it reads.
    distinct = chosen.groupBy(*names).count().localCheckpoint()
    null = f.greatest(f.lit(False), *(f.col(name).isNull() for name in names))
    [totals] = distinct.agg(
        f.count(f.lit(1)).alias("keys"), f.sum(f.when(null, f.col("count"))).alias("nulls")
    ).collect()
    if totals["nulls"]:
        raise UsageError(
            f"{totals['nulls']} rows have NULL in the key ({', '.join(columns)}), and a key "
            "never has: leave them out, e.g. with DataFrame.dropna"
        )
    slices = -(-totals["keys"] // slice_keys)
    # Not the hash of the shuffle before, or each slice would be in a few partitions.
    place = f.pmod(f.xxhash64(*names), f.lit(max(1, slices)))
    for number in range(slices):
        taken = distinct.where(place == number).select(*names).toArrow()
        for batch in taken.to_batches(max_chunksize=10_000):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _text(df: DataFrame, name: str, columns: Sequence[str]) -> Column:
    """Return the column ``name`` as text."""
    if df.isStreaming:
        raise UsageError("a streaming DataFrame has no end: repair inside foreachBatch")
    found = [field.dataType for field in df.schema.fields if field.name == name]
    if len(found) != 1:
        how = "has more than one column" if found else "has no column"
        raise UsageError(f"the DataFrame {how} {name}; the key is ({', '.join(columns)})")
    return as_text(name, found[0])


def with_nan(text: Column) -> Column:
    """Return the text of a column of `nan_key`, where null is ``NaN``."""
    return f.coalesce(text, f.lit("NaN"))


def as_text(name: str, kind: t.DataType) -> Column:
    """Return the column ``name`` of type ``kind`` as a text that the source's input functions
    read.

    Raises:
        UsageError: no key has a column of this type.
    """
    expression = _TEXTS.get(type(kind))
    if expression is None:
        spelled = kind.simpleString()
        raise UsageError(f"column {name}: values of type {spelled} can't be part of a key")
    return f.expr(expression.format(c=backticked(name)))


# Keys that changed recently.


def first_unseen(log: EventLog, table: TableName, snapshot: Snapshot, end: int) -> int:
    """Return the offset of the table's first record below ``end`` whose transaction ``snapshot``
    does not see; ``end`` if there is none.
    """
    for meta in log.chain().between(log.head_offset, end):
        if meta.min_xid is None or meta.max_xid is None or str(table) not in meta.rows_by_table:
            continue
        unseen = snapshot.invisible_ranges(meta.max_xid)
        if not overlap(unseen, meta.min_xid, meta.max_xid):
            continue
        with suppress(OffsetGoneError):  # retention removed it
            for ref in log.segments(meta.first, min(meta.next, end)):
                for batch in log.batches(ref, ("offset", "xid"), tables=(str(table),)):
                    offset, xid = (column.to_numpy() for column in batch.columns)
                    found = np.flatnonzero(in_ranges(unseen, xid))
                    if len(found):
                        return int(offset[found[0]])
    return end


def changed_keys(
    spark: SparkSession,
    path: str,
    log: EventLog,
    table: TableName,
    key: Sequence[str],
    start: int,
    end: int,
) -> DataFrame | bool:
    """Return the keys that records of ``[start, end)`` change, each once: texts of the columns
    ``key`` in ``k0``, ``k1`` … and ``changed``, which is true. False: no keys. True: all keys,
    because the table was truncated, or now has another key.
    """
    start = max(start, log.head_offset)
    if start >= end:
        return False
    refs = [ref for ref in log.segments(start, end, tables=(str(table),)) if ref.rows]
    kinds = _kinds(log, refs, table)
    if RecordKind.TRUNCATE in kinds:
        return True
    schema = planning.schema_at(log, table, start, end)
    if not kinds or schema is None:
        return False
    if schema.match_key != tuple(key):
        return True
    parts = planning.partition_refs(refs, partition_bytes=PART_BYTES, partitions=None)
    frame = read_planned(spark, path, log.generation, schema, refs, parts=len(parts), columns=key)
    texts = {name: as_text(name, frame.schema[name].dataType) for name in key}
    texts |= {name: with_nan(texts[name]) for name in nan_key(schema)}
    columns = [text.alias(f"k{place}") for place, text in enumerate(texts.values())]
    return frame.select(*columns).distinct().withColumn("changed", f.lit(True))


def _kinds(log: EventLog, refs: list[SegmentRef], table: TableName) -> set[int]:
    found: set[int] = set()
    for ref in refs:
        for batch in log.batches(ref, ("kind",), tables=(str(table),)):
            found |= set(np.unique(batch.column("kind").to_numpy()).tolist())
    return found


# Rows that a `filter` step may add or remove because of a record with missing columns.

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
    """Yield the rows (shape `changes`, before ``steps``) of one table in ``refs`` that must be
    read again, each value of the key as for `keys_of_frame`; None: no rows. Valid inside the block.
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
