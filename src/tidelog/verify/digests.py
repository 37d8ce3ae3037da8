"""Sums over rows of an output, as `tidelog.ports.DigestReader` says them: Spark SQL expressions."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import functions as f
from pyspark.sql.types import AtomicType, DataType, StringType, VariantType

from tidelog.model.schema import Column, TableSchema
from tidelog.ports import Digest
from tidelog.spark.formats.shapes import spark_type
from tidelog.spark.transforms import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

Key = tuple[str | None, ...]
Range = tuple[Key | None, Key | None]
"""``after < key <= upto``; None: open."""

# What a sum needs of a session: decimals are written without an exponent, times are UTC.
SESSION_CONF = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.databricks.delta.snapshotPartitions": "1",
}

_NO_VALUE = "!,"  # in place of a text: no value has this one
_HALF = 30  # bits: 2³³ rows' halves can be added up in 64 bits


def _digits(value: Expression) -> Expression:
    return value.cast("string")


def _bits(java: str, method: str, kind: str) -> Callable[[Expression], Expression]:
    """Java's: NaN has one form there."""

    def text(value: Expression) -> Expression:
        given = f.coalesce(value, f.lit(0).cast(kind))  # it takes no NULL
        return f.reflect(f.lit(f"java.lang.{java}"), f.lit(method), given)

    return text


def _hexadecimal(value: Expression) -> Expression:
    return f.lower(f.hex(value))


def _counted(value: Expression) -> Expression:
    return f.concat(f.octet_length(value), f.lit(":"), value)


_TEXTS: Mapping[str, Callable[[Expression], Expression]] = {
    "bool": _digits,
    "int16": _digits,
    "int32": _digits,
    "int64": _digits,
    "float32": _bits("Float", "floatToIntBits", "float"),
    "float64": _bits("Double", "doubleToLongBits", "double"),
    "date": lambda value: f.unix_date(value).cast("string"),
    "timestamp": lambda value: f.unix_micros(value.cast("timestamp")).cast("string"),
    "timestamptz": lambda value: f.unix_micros(value).cast("string"),
    "binary": _hexadecimal,
    "bytes": _hexadecimal,
}

# Keys of these types have one order, in the databases, in Spark and here.
_ORDERED: Mapping[str, Callable[[str], Any]] = {
    "int16": int,
    "int32": int,
    "int64": int,
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "timestamptz": datetime.fromisoformat,
    "uuid": str,
}


def _order_of(column: Column) -> Callable[[str], Any] | None:
    if column.logical.startswith("decimal("):
        return decimal.Decimal
    uuid = column.type_name == "uuid" and column.logical == "text"
    return _ORDERED.get("uuid" if uuid else column.logical)


def has_common_order(schema: TableSchema) -> bool:
    """Do the source, Spark and Python order the table's keys alike? A text's order is its
    collation's.
    """
    columns = [schema.columns[schema.column_index(name)] for name in schema.match_key]
    # MariaDB orders a uuid by its bytes, and not as they are written.
    return all(
        _order_of(column) is not None
        and not column.nullable
        and (column.type_name != "uuid" or schema.wire_format == "pgoutput")
        for column in columns
    )


def ascending(schema: TableSchema, bounds: Sequence[Key]) -> bool:
    """Is each bound above the one before? Not so with an index that counts down, and never with
    values that are beyond Python's dates or Spark's decimals (``NaN``).
    """
    columns = [schema.columns[schema.column_index(name)] for name in schema.match_key]
    orders = [_order_of(column) for column in columns]
    try:
        values = [
            tuple(order(text) for order, text in zip(orders, bound, strict=True))  # type: ignore[misc,arg-type]
            for bound in bounds
        ]
        if any("NaN" in bound for bound in bounds):
            return False
        return all(low < high for low, high in pairwise(values))
    except (ValueError, TypeError, ArithmeticError):
        return False


def within(frame: DataFrame, schema: TableSchema, key: Sequence[str], part: Range) -> Expression:
    """The condition that a row of ``frame`` is in the range; ``key`` names its key's columns."""
    after, upto = part
    condition = f.lit(True)
    if after is not None:
        condition &= ~_upto(frame, schema, key, after)
    if upto is not None:
        condition &= _upto(frame, schema, key, upto)
    return condition


def digests(
    frame: DataFrame,
    schema: TableSchema,
    names: Mapping[str, str],
    bounds: Sequence[Key],
) -> list[Digest]:
    """The digests of the rows up to the first bound, from there to the second, …, after the last.

    Args:
        frame: the output's rows.
        schema: of the source.
        names: by column of the output, in order, the source's column.
        bounds: of the key, ascending.
    """
    sources = {source: target for target, source in names.items()}
    key = [sources[name] for name in schema.match_key]
    parts = []
    for target, source in names.items():
        logical = schema.columns[schema.column_index(source)].logical
        held, sound = held_as(frame, target, spark_type(logical))
        parts.append(f.when(sound, column_text(held, logical)).otherwise(f.lit(_NO_VALUE)))
    row = frame.select(
        _place(frame, schema, key, bounds, 0).alias("place"),
        f.conv(f.substring(f.md5(f.concat(*parts).cast("binary")), 1, 15), 16, 10)
        .cast("bigint")
        .alias("h"),
    )
    found = (
        row.groupBy("place")
        .agg(
            f.count("*").alias("rows"),
            f.sum(f.shiftright("h", _HALF)).alias("high"),
            f.sum(f.col("h").bitwiseAND(f.lit((1 << _HALF) - 1))).alias("low"),
        )
        .collect()
    )
    out = [Digest(0, 0)] * (len(bounds) + 1)
    for each in found:
        out[each["place"]] = Digest(each["rows"], (each["high"] << _HALF) + each["low"])
    return out


def column_text(column: Expression, logical: str) -> Expression:
    """The text of a value of this logical type, with the comma behind it; never NULL."""
    text = _digits if logical.startswith("decimal(") else _TEXTS.get(logical, _counted)
    written = f.when(column.isNull(), f.lit("~")).otherwise(text(column))
    return f.concat(written, f.lit(","))


def held_as(frame: DataFrame, name: str, kind: DataType) -> tuple[Expression, Expression]:
    """The column in ``kind``, the type of the source's, as which it counts; and whether it holds a
    value of that type: not so where the cast gives NULL or another number.
    """
    value = f.col(quoted(name))
    found = frame.schema[name].dataType
    if found == kind:
        return value, f.lit(True)
    held = value.try_cast(kind)
    sound = value.isNull() | held.isNotNull()
    if isinstance(found, AtomicType) and not isinstance(found, StringType | VariantType):
        sound = value.eqNullSafe(held.try_cast(found))
    try:
        frame.select(held, sound)
    except AnalysisException:  # there is no such cast
        return f.lit(None).cast(kind), value.isNull()
    return held, sound


def _place(
    frame: DataFrame, schema: TableSchema, key: Sequence[str], bounds: Sequence[Key], first: int
) -> Expression:
    """The number, from ``first`` on, of the range that a row is in: by a tree of comparisons."""
    if not bounds:
        return f.lit(first)
    middle = len(bounds) // 2
    return f.when(
        _upto(frame, schema, key, bounds[middle]),
        _place(frame, schema, key, bounds[:middle], first),
    ).otherwise(_place(frame, schema, key, bounds[middle + 1 :], first + middle + 1))


def _upto(frame: DataFrame, schema: TableSchema, key: Sequence[str], bound: Key) -> Expression:
    """``key <= bound``"""
    condition: Expression | None = None
    for name, source, text in reversed(list(zip(key, schema.match_key, bound, strict=True))):
        column = schema.columns[schema.column_index(source)]
        value, _ = held_as(frame, name, spark_type(column.logical))
        limit = f.lit(text).cast(spark_type(column.logical))
        if condition is None:
            condition = value <= limit
        else:
            condition = (value < limit) | ((value == limit) & condition)
    # A key that holds NULL, or no value of its type, which the source's never does, comes last.
    return f.lit(True) if condition is None else f.coalesce(condition, f.lit(False))
