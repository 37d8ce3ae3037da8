"""Sums over rows of an output, as `tidelog.ports.DigestReader` says them: Spark SQL expressions."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    from pyspark.sql import DataFrame, SparkSession

Key = tuple[str | None, ...]
Range = tuple[Key | None, Key | None]
"""``after < key <= upto``; None: open."""

# What a sum needs of a session: decimals are written without an exponent, times are UTC.
SESSION_CONF = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.databricks.delta.snapshotPartitions": "1",
}

_FEW_GROUPS = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "1"}

_NO_VALUE = "!,"  # in place of a text: no value has this one
_HALF = 30  # bits: 2³³ rows' halves can be added up in 64 bits


def _digits(value: str) -> str:
    return f"CAST({value} AS STRING)"


def _bits(java: str, method: str, kind: str) -> Callable[[str], str]:
    """Java's: NaN has one form there."""

    def text(value: str) -> str:
        given = f"coalesce({value}, CAST(0 AS {kind}))"  # it takes no NULL
        return f"reflect('java.lang.{java}', '{method}', {given})"

    return text


def _hexadecimal(value: str) -> str:
    return f"lower(hex({value}))"


def _counted(value: str) -> str:
    return f"concat(octet_length({value}), ':', {value})"


_TEXTS: Mapping[str, Callable[[str], str]] = {
    "bool": _digits,
    "int16": _digits,
    "int32": _digits,
    "int64": _digits,
    "float32": _bits("Float", "floatToIntBits", "FLOAT"),
    "float64": _bits("Double", "doubleToLongBits", "DOUBLE"),
    "date": lambda value: f"CAST(unix_date({value}) AS STRING)",
    "timestamp": lambda value: f"CAST(unix_micros(CAST({value} AS TIMESTAMP)) AS STRING)",
    "timestamptz": lambda value: f"CAST(unix_micros({value}) AS STRING)",
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
        text = column_text(held, logical)
        parts.append(text if sound == "true" else f"IF({sound}, {text}, '{_NO_VALUE}')")
    text = f"CAST(concat({', '.join(parts)}) AS BINARY)"
    hashed = f.expr(f"CAST(conv(substring(md5({text}), 1, 15), 16, 10) AS BIGINT)")
    row = frame.select(_place(frame, schema, key, bounds, 0).alias("place"), hashed.alias("h"))
    high, low = f"shiftright(h, {_HALF})", f"h & {(1 << _HALF) - 1}"
    sums = [f.expr(sql) for sql in ("count(*)", f"sum({high})", f"sum({low})")]
    out = [Digest(0, 0)] * (len(bounds) + 1)
    with _few_groups(frame.sparkSession):
        for place, rows, upper, lower in row.groupBy("place").agg(*sums).collect():
            out[place] = Digest(rows, (upper << _HALF) + lower)
    return out


@contextmanager
def _few_groups(spark: SparkSession) -> Iterator[None]:
    """For what is planned inside: groups are so few that planning each stage anew, by what the one
    before gave, costs more than all their rows.
    """
    before = {name: str(spark.conf.get(name)) for name in _FEW_GROUPS}  # both have a default
    try:
        for name, value in _FEW_GROUPS.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, found in before.items():
            spark.conf.set(name, found)


def column_text(value: str, logical: str) -> str:
    """The text of a value of this logical type, with the comma behind it, never NULL; both SQL."""
    text = _digits if logical.startswith("decimal(") else _TEXTS.get(logical, _counted)
    return f"concat(IF({value} IS NULL, '~', {text(value)}), ',')"


def held_as(frame: DataFrame, name: str, kind: DataType) -> tuple[str, str]:
    """The column in ``kind``, the type of the source's, as which it counts; and whether it holds a
    value of that type: not so where the cast gives NULL or another number. Both SQL.
    """
    value = quoted(name)
    found = frame.schema[name].dataType
    if found == kind:
        return value, "true"
    wanted = kind.simpleString()
    held = f"try_cast({value} AS {wanted})"
    sound = f"({value} IS NULL OR {held} IS NOT NULL)"
    if isinstance(found, AtomicType) and not isinstance(found, StringType | VariantType):
        sound = f"{value} <=> try_cast({held} AS {found.simpleString()})"
    try:
        frame.selectExpr(held, sound)
    except AnalysisException:  # there is no such cast
        return f"CAST(NULL AS {wanted})", f"{value} IS NULL"
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
        value = f.expr(held_as(frame, name, spark_type(column.logical))[0])
        limit = f.lit(text).cast(spark_type(column.logical))
        if condition is None:
            condition = value <= limit
        else:
            condition = (value < limit) | ((value == limit) & condition)
    # A key that holds NULL, or no value of its type, which the source's never does, comes last.
    return f.lit(True) if condition is None else f.coalesce(condition, f.lit(False))
