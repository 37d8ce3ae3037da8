"""Declarative steps between decoding and an output, as DataFrame operations on executors.

They apply to the shapes `changes` (rows by key) and `events` (every change): to the table's
columns, while those named ``_tidelog_…`` go along. Columns that the log does not tell (unchanged
TOAST) are listed by name in ``_tidelog_missing``; a renamed column is listed by its new name, and a
computed one as soon as it refers to one that is.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from tidelog.errors import ConfigError
from tidelog.model.patterns import matches, routed
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.ports import SourceId, TargetTable
from tidelog.spark.formats import shapes
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, EVENT_BEFORE
from tidelog.spark.sessions.versions import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

META = "_tidelog_"


@dataclass(frozen=True)
class Step:
    """``action`` and ``argument`` as in the configuration; of the tables that match."""

    action: str
    argument: Any
    tables: tuple[str, ...] = ("*.*",)
    salt: str = field(default="", repr=False)


def steps_of(steps: Sequence[Step], table: TableName) -> tuple[Step, ...]:
    """The steps that apply to the table and change its rows (not where they go)."""
    return tuple(s for s in steps if s.action != "route" and matches(s.tables, table))


def destination_name(steps: Sequence[Step], table: TableName) -> str:
    """Where the table's rows go: the first route that matches, or its own name."""
    routes = ((str(s.argument), s.tables) for s in steps if s.action == "route")
    try:
        return routed(routes, table)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def target_table(
    spark: SparkSession,
    schema: TableSchema,
    steps: Sequence[Step],
    origin: SourceId,
    *,
    keyed: bool,
) -> TargetTable:
    """The table as the output sees it, found by applying the steps to no rows.

    Raises ConfigError, which names the table, if a step does not fit its columns or, with
    ``keyed``, a column of the key does not survive or loses what tells rows apart.
    """
    own = steps_of(steps, schema.table)
    key = renamed(schema.match_key, own)
    if keyed:
        _check_key(schema, own)
    fields: StructType = shapes.row_type(schema)
    if own:
        shape = shapes.changes(schema) if keyed else shapes.events(schema)
        try:
            frame = apply(spark.createDataFrame([], shape), own, schema, keyed=keyed)
            fields = StructType([x for x in frame.schema.fields if not x.name.startswith(META)])
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"the steps of an output do not fit {schema.table}: {_first_line(error)}"
            ) from error
        lost = [name for name in key if name not in fields.names]
        if lost and keyed:
            raise ConfigError(
                f"the steps of an output take {', '.join(lost)} away from {schema.table}, by which "
                "its rows are known: keep the columns of the key"
            )
        key = tuple(name for name in key if name in fields.names)
    return TargetTable(
        schema.table,
        destination_name(steps, schema.table),
        schema,
        arrow_schema(fields),
        key,
        origin,
        _unchanged(schema, own),
    )


def _check_key(schema: TableSchema, steps: Sequence[Step]) -> None:
    """Raises ConfigError if a step makes one key of several (rows would merge) or a key of what a
    delete does not tell (it would miss its row). Hashes differ where values do.
    """
    key: Sequence[str] = schema.match_key
    for step in steps:
        if step.action in ("compute", "mask"):
            for name in key:
                if name in step.argument:
                    raise ConfigError(
                        f"step {step.action}: column {name!r} is of the key of {schema.table}, by "
                        "which its rows are known: keep it as it is, or hash it"
                    )
        key = renamed(key, (step,))


def _unchanged(schema: TableSchema, steps: Sequence[Step]) -> dict[str, Column]:
    """By name after the steps, the source's columns whose values none of them changed."""
    found = {column.name: column for column in schema.columns}
    for step in steps:
        if step.action == "rename":
            found = {step.argument.get(name, name): column for name, column in found.items()}
        elif step.action == "python":
            return {}
        elif step.action in ("cast", "compute", "mask", "hash"):
            found = {n: column for n, column in found.items() if n not in step.argument}
    return found


def renamed(names: Sequence[str], steps: Sequence[Step]) -> tuple[str, ...]:
    """``names`` after all renames."""
    for step in steps:
        if step.action == "rename":
            names = [step.argument.get(name, name) for name in names]
    return tuple(names)


def apply(
    frame: DataFrame, steps: Sequence[Step], schema: TableSchema, *, keyed: bool
) -> DataFrame:
    """``frame`` (shape `changes` or `events` of ``schema``) after ``steps``."""
    names = f.array(*(f.lit(name) for name in schema.column_names))
    by_name = f.transform(CHANGE_MISSING, lambda i: f.element_at(names, i.cast("int") + 1))
    frame = frame.withColumn(CHANGE_MISSING, by_name)
    if EVENT_BEFORE in frame.columns:
        frame = frame.drop(EVENT_BEFORE)  # steps are of rows; of the old one little is known
    for step in steps:
        frame = _ACTIONS[step.action](frame, step, keyed)
    return frame


def _meta(frame: DataFrame) -> list[str]:
    return [name for name in frame.columns if name.startswith(META)]


def _own(frame: DataFrame) -> list[str]:
    return [name for name in frame.columns if not name.startswith(META)]


def quoted(name: str) -> str:
    """A name as a Spark SQL identifier."""
    return "`" + name.replace("`", "``") + "`"


def _select(frame: DataFrame, step: Step, keyed: bool) -> DataFrame:
    frame = frame.select(*(f.col(quoted(n)) for n in [*_meta(frame), *step.argument]))
    return _keep_missing(frame)


def _drop(frame: DataFrame, step: Step, keyed: bool) -> DataFrame:
    unknown = set(step.argument) - set(_own(frame))
    if unknown:
        raise ConfigError(f"step drop: no column {sorted(unknown)[0]!r}")
    return _keep_missing(frame.drop(*step.argument))


def _keep_missing(frame: DataFrame) -> DataFrame:
    left = f.array(*(f.lit(name) for name in _own(frame)))
    kept = f.array_intersect(CHANGE_MISSING, left)
    return frame.withColumn(CHANGE_MISSING, f.when(f.size(kept) > 0, kept))


def _rename(frame: DataFrame, step: Step, keyed: bool) -> DataFrame:
    unknown = set(step.argument) - set(_own(frame))
    if unknown:
        raise ConfigError(f"step rename: no column {sorted(unknown)[0]!r}")
    frame = frame.withColumnsRenamed(step.argument)
    names = f.create_map(*(f.lit(part) for pair in step.argument.items() for part in pair))
    mapped = f.transform(CHANGE_MISSING, lambda n: f.coalesce(names[n], n))
    return frame.withColumn(CHANGE_MISSING, mapped)


def _filter(frame: DataFrame, step: Step, keyed: bool) -> DataFrame:
    meets = f.coalesce(f.expr(step.argument), f.lit(False))
    looked_at = _words(step.argument, _own(frame))
    names = f.array(*(f.lit(name) for name in looked_at)).cast("array<string>")
    untold = f.coalesce(f.arrays_overlap(CHANGE_MISSING, names), f.lit(False))
    if not keyed:
        # A delete tells the key alone, an update may lack a column: these can't be judged, and too
        # many do no harm.
        return frame.where(meets | untold | f.col(CHANGE_OP).isin("d", "t"))
    # Where the log does not tell what the condition looks at, a row stays in or out as it was.
    return frame.withColumn(CHANGE_OP, f.when(meets | untold, f.col(CHANGE_OP)).otherwise("d"))


def _words(expression: str, columns: Sequence[str]) -> list[str]:
    """The columns that an expression may refer to; rather one too many."""
    found = {word.lower() for word in re.findall(r"`[^`]+`|\w+", expression)}
    return [c for c in columns if c.lower() in found or f"`{c.lower()}`" in found]


def _cast(frame: DataFrame, step: Step, keyed: bool) -> DataFrame:
    columns = {n: f.col(quoted(n)).cast(kind) for n, kind in step.argument.items()}
    return frame.withColumns(columns)


def _compute(frame: DataFrame, step: Step, keyed: bool) -> DataFrame:
    own = _own(frame)
    untold = f.col(CHANGE_MISSING)
    for name, expression in step.argument.items():
        looked_at = f.array(*(f.lit(n) for n in _words(expression, own))).cast("array<string>")
        affected = f.coalesce(f.arrays_overlap(CHANGE_MISSING, looked_at), f.lit(False))
        listed = f.array_union(untold, f.array(f.lit(name)))
        without = f.array_except(untold, f.array(f.lit(name)))
        untold = f.when(affected, listed).otherwise(f.when(f.size(without) > 0, without))
    columns = {name: f.expr(text) for name, text in step.argument.items()}
    return frame.withColumns({**columns, CHANGE_MISSING: untold})


def _mask(frame: DataFrame, step: Step, keyed: bool) -> DataFrame:
    masked = {
        n: f.when(f.col(quoted(n)).isNotNull(), f.lit(text)) for n, text in step.argument.items()
    }
    return frame.withColumns(masked)


def _hash(frame: DataFrame, step: Step, keyed: bool) -> DataFrame:
    hashed = {
        n: f.sha2(f.concat(f.lit(step.salt), f.col(quoted(n)).cast("string")), 256)
        for n in step.argument
    }
    return frame.withColumns(hashed)


def _python(frame: DataFrame, step: Step, keyed: bool) -> DataFrame:
    function = load(step.argument)
    result: DataFrame = function(frame)
    lost = [name for name in _meta(frame) if name not in result.columns]
    if lost:
        raise ConfigError(f"step python: {step.argument} took the column {lost[0]} away")
    return result


def load(name: str) -> Any:
    """``module:attribute``. Raises ConfigError if there is no such thing."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{name} can't be imported ({type(error).__name__}: {error})") from error


_ACTIONS: Mapping[str, Any] = {
    "select": _select,
    "drop": _drop,
    "rename": _rename,
    "filter": _filter,
    "cast": _cast,
    "compute": _compute,
    "mask": _mask,
    "hash": _hash,
    "python": _python,
}


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]
