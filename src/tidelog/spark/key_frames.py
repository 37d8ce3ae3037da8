"""Reads a DataFrame's key columns as texts: executors convert them and drop duplicates, the driver
receives Arrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql import types as t

from tidelog.errors import UsageError
from tidelog.spark.transforms import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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
    """Yields the distinct keys in ``df``, as texts, in no order.

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
    """Returns the column ``name`` as text."""
    if df.isStreaming:
        raise UsageError("a streaming DataFrame has no end: repair inside foreachBatch")
    found = [field.dataType for field in df.schema.fields if field.name == name]
    if len(found) != 1:
        how = "has more than one column" if found else "has no column"
        raise UsageError(f"the DataFrame {how} {name}; the key is ({', '.join(columns)})")
    return as_text(name, found[0])


def with_nan(text: Column) -> Column:
    """Returns the text of a column of `nan_key`, where null is ``NaN``."""
    return f.coalesce(text, f.lit("NaN"))


def as_text(name: str, kind: t.DataType) -> Column:
    """Returns the column ``name`` of type ``kind`` as a text that the source's input functions
    read.

    Raises:
        UsageError: no key has a column of this type.
    """
    expression = _TEXTS.get(type(kind))
    if expression is None:
        spelled = kind.simpleString()
        raise UsageError(f"column {name}: values of type {spelled} can't be part of a key")
    return f.expr(expression.format(c=quoted(name)))
