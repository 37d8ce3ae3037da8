"""Computes digests of ranges of outputs' copies, as defined by `tidelog.ports.DigestReader`, and
converts ranges to conditions in Spark.
"""

from __future__ import annotations

import decimal
import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import functions as f
from pyspark.sql.types import AtomicType, DataType, StringType, VariantType

from tidelog.codecs.wire_formats import wire_format
from tidelog.errors import OutputError
from tidelog.model.schema import Column, TableSchema, backticked
from tidelog.ports import Digest
from tidelog.spark.executor_jobs import run_on_executors, run_on_partitions
from tidelog.spark.formats.shapes import spark_type
from tidelog.spark.sessions.connect import default_parallelism
from tidelog.verify.model import Copy, Key, Range
from tidelog.verify.range_sums import PartitionSums, RangeSums, SumPlan, SumWork, sum_up

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame, SparkSession

# Settings that a comparison needs: decimals are written without an exponent, times are UTC.
SESSION_CONF = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
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


@dataclass(frozen=True)
class CopySums:
    """The part of a copy to sum up.

    Attributes:
        copy: the copy.
        names: by column of the copy, in order, the source's column.
        ranges: neighbours, from the lowest key on.
    """

    copy: Copy
    names: Mapping[str, str]
    ranges: tuple[Range, ...]

    @property
    def whole(self) -> Range:
        return self.ranges[0][0], self.ranges[-1][1]


def _order_of(column: Column) -> Callable[[str], Any] | None:
    if column.logical.startswith("decimal("):
        return decimal.Decimal
    uuid = column.type_name == "uuid" and column.logical == "text"
    return _ORDERED.get("uuid" if uuid else column.logical)


def has_common_order(schema: TableSchema) -> bool:
    """Do the source, Spark and Python sort the table's keys alike? Texts have the order of their
    collation.
    """
    columns = [schema.columns[schema.column_index(name)] for name in schema.match_key]
    sorts_uuids = wire_format(schema).sorts_uuids_as_texts
    return all(
        _order_of(column) is not None
        and not column.nullable
        and (column.type_name != "uuid" or sorts_uuids)
        for column in columns
    )


def ascending(schema: TableSchema, bounds: Sequence[Key]) -> bool:
    """Is each bound above the one before? Not with a descending index, and never with values beyond
    Python's dates or Spark's decimals (``NaN``).
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


def range_condition(
    frame: DataFrame, schema: TableSchema, key: Sequence[str], part: Range
) -> Expression:
    """Return the condition that a row of ``frame`` is in the range of columns ``key``."""
    after, upto = part
    condition = f.lit(True)
    if after is not None:
        condition &= ~_at_most(frame, schema, key, after)
    if upto is not None:
        condition &= _at_most(frame, schema, key, upto)
    return condition


def digests(spark: SparkSession, tables: Sequence[CopySums | None]) -> list[list[Digest]]:
    """Return the digest of each range of each table; nothing for None. Runs one Spark job for all
    copies that tasks can read, and one for each of the others.
    """
    plans = [None if each is None else _plan(each) for each in tables]
    sums = [RangeSums.none(0 if plan is None else plan.ranges) for plan in plans]
    works: list[tuple[int, SumWork]] = []
    for number, (table, plan) in enumerate(zip(tables, plans, strict=True)):
        if table is None or plan is None:
            continue
        sources = table.copy.sources(table.whole)
        if sources is None:
            for found in _of_frame(table, plan):
                sums[number].add(found)
        else:
            works += [(number, SumWork(plan, source)) for source in sources]
    groups = _distribute_tasks(works, default_parallelism(spark))
    results = run_on_executors(spark, sum_up, [[work for _, work in group] for group in groups])
    for group, of_group in zip(groups, results, strict=True):
        for (number, _), found in zip(group, of_group, strict=True):
            sums[number].add(found)
    return [each.digests() for each in sums]


def _plan(table: CopySums) -> SumPlan:
    schema, columns = table.copy.target.schema, table.copy.target.columns
    targets, sources = list(table.names), list(table.names.values())
    begin = table.ranges[0][0]
    bounds = [upto for _, upto in table.ranges if upto is not None]
    if begin is not None:
        bounds.insert(0, begin)
    key, values = [], []
    for place, name in enumerate(schema.match_key):
        number = sources.index(name)
        key.append(number)
        if bounds:
            order = _order_of(schema.columns[schema.column_index(name)])
            assert order is not None  # has_common_order
            texts = [bound[place] for bound in bounds]
            values.append(pa.array(map(order, texts), columns.field(targets[number]).type))  # type: ignore[arg-type]
    return SumPlan(
        logicals=tuple(schema.columns[schema.column_index(name)].logical for name in sources),
        key=tuple(key),
        bounds=tuple(values),
        first=0 if begin is None else 1,
        ranges=len(table.ranges),
    )


def _of_frame(table: CopySums, plan: SumPlan) -> list[RangeSums]:
    """Return the sums of each partition of the copy's frame."""
    frame = table.copy.frame(table.whole)
    if frame is None:
        raise OutputError(f"the copy of {table.copy.target.source} does not exist any more")
    frame = frame.where(
        range_condition(frame, table.copy.target.schema, table.copy.target.key, table.whole)
    )
    values, sound = [], {}
    for number, (name, logical) in enumerate(zip(table.names, plan.logicals, strict=True)):
        value, is_sound = cast_expressions(frame, name, spark_type(logical))
        values.append(f.expr(value).alias(f"c{number}"))
        if is_sound != "true":
            sound[number] = f.expr(is_sound).alias(f"s{number}")
    numbers = {number: len(values) + place for place, number in enumerate(sound)}
    rows = frame.select(*values, *sound.values())
    return run_on_partitions(rows, PartitionSums(replace(plan, sound=numbers)))


def _distribute_tasks(
    works: Sequence[tuple[int, SumWork]], tasks: int
) -> list[list[tuple[int, SumWork]]]:
    """Distribute works to at most ``tasks`` groups with about equal bytes to read."""
    groups: list[list[tuple[int, SumWork]]] = [[] for _ in range(min(tasks, len(works)))]
    loads = [(0, number) for number in range(len(groups))]
    for work in sorted(works, key=lambda each: -each[1].source.bytes):
        load, number = loads[0]
        groups[number].append(work)
        heapq.heapreplace(loads, (load + work[1].source.bytes, number))
    return groups


def cast_expressions(frame: DataFrame, name: str, kind: DataType) -> tuple[str, str]:
    """Return two SQL expressions: the column cast to ``kind``, the source's type; and whether its
    value is one of that type, which is false if the cast gives NULL or another number.
    """
    value = backticked(name)
    found = frame.schema[name].dataType
    if found == kind:
        return value, "true"
    wanted = kind.simpleString()
    cast = f"try_cast({value} AS {wanted})"
    sound = f"({value} IS NULL OR {cast} IS NOT NULL)"
    if isinstance(found, AtomicType) and not isinstance(found, StringType | VariantType):
        sound = f"{value} <=> try_cast({cast} AS {found.simpleString()})"
    try:
        frame.selectExpr(cast, sound)
    except AnalysisException:  # there is no such cast
        return f"CAST(NULL AS {wanted})", f"{value} IS NULL"
    return cast, sound


def _at_most(frame: DataFrame, schema: TableSchema, key: Sequence[str], bound: Key) -> Expression:
    """Return the condition ``key <= bound``."""
    condition: Expression | None = None
    for name, source, text in reversed(list(zip(key, schema.match_key, bound, strict=True))):
        column = schema.columns[schema.column_index(source)]
        value = f.expr(cast_expressions(frame, name, spark_type(column.logical))[0])
        limit = f.lit(text).cast(spark_type(column.logical))
        if condition is None:
            condition = value <= limit
        else:
            condition = (value < limit) | ((value == limit) & condition)
    # A key with NULL, or without a value of its type, which the source never has, is last.
    return f.lit(True) if condition is None else f.coalesce(condition, f.lit(False))
