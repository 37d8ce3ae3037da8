"""The last fold, by Spark, where a batch of one table was folded in several parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

from tidelog.model.schema import TableSchema
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, CHANGE_VERSION
from tidelog.spark.transforms import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def fold_parts(parts: DataFrame, schema: TableSchema) -> DataFrame:
    """One row per match key of rows in the shape `changes`, by the rules of
    `tidelog.spark.changes.combining.combine`. ``parts`` should be cached: it is looked at first.
    """
    keys = [quoted(name) for name in schema.match_key]
    if parts.where(f"{CHANGE_MISSING} IS NOT NULL").isEmpty():
        rest = [f.col(quoted(name)) for name in parts.columns if name not in schema.match_key]
        newest = parts.groupBy(*keys).agg(
            f.max_by(f.struct(*rest), CHANGE_VERSION).alias("_tidelog_n")
        )
        return newest.select(*(_from(name, schema, "_tidelog_n") for name in parts.columns))
    deleted_at = f.max(f.expr(f"IF({CHANGE_OP} = 'd', {CHANGE_VERSION}, -1)"))
    since = parts.withColumn("_tidelog_since", deleted_at.over(Window.partitionBy(*keys)))
    rows = since.where(f"{CHANGE_VERSION} >= _tidelog_since")
    columns = [
        f.max_by(CHANGE_OP, CHANGE_VERSION).alias("_tidelog_op"),
        f.max(CHANGE_VERSION).alias("_tidelog_v"),
    ]
    for index, column in enumerate(schema.columns):
        if column.name in schema.match_key:
            continue
        told = (
            f"IF({CHANGE_OP} = 'u' AND NOT coalesce(array_contains({CHANGE_MISSING}, "
            f"CAST({index} AS SMALLINT)), false), {CHANGE_VERSION}, null)"
        )
        value = f.max_by(f.struct(f.col(quoted(column.name)).alias("v")), f.expr(told))
        columns.append(value.alias(f"_tidelog_c{index}"))
    folded = rows.groupBy(*keys).agg(*columns)
    others = [i for i, c in enumerate(schema.columns) if c.name not in schema.match_key]
    unknown = ", ".join(f"IF(_tidelog_c{i} IS NULL, CAST({i} AS SMALLINT), null)" for i in others)
    missing = f"IF(_tidelog_op = 'u', nullif(array_compact(array({unknown})), array()), null)"
    return folded.select(
        f.col("_tidelog_op").alias(CHANGE_OP),
        f.col("_tidelog_v").alias(CHANGE_VERSION),
        *(
            f.col(quoted(c.name))
            if c.name in schema.match_key
            else f.col(f"_tidelog_c{i}.v").alias(c.name)
            for i, c in enumerate(schema.columns)
        ),
        f.expr(missing).alias(CHANGE_MISSING),
    )


def _from(name: str, schema: TableSchema, struct: str) -> Column:
    if name in schema.match_key:
        return f.col(quoted(name))
    return f.col(f"{struct}.{quoted(name)}").alias(name)
