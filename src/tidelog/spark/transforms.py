"""Applies declarative steps between decoding and an output, as DataFrame operations on executors.

They apply to the shapes `changes` (rows by key) and `events` (every change): to the table's
columns, without changing Tidelog's own (`META`). Columns that the log does not have (unchanged
TOAST) are listed by name in ``_tidelog_missing``: a renamed column by its new name, and a computed
one if it is computed from one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from tidelog.errors import ConfigError, NameRefusedError
from tidelog.model.patterns import matches, pattern_of, route_of
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.ports import SourceId, TargetTable
from tidelog.spark.executor_jobs import jvm_errors
from tidelog.spark.formats import shapes
from tidelog.spark.formats.shapes import CHANGE_MISSING, EVENT_BEFORE
from tidelog.spark.session import exact_session, in_session
from tidelog.spark.sessions.versions import arrow_schema
from tidelog.spark.step_actions import META, StepTable, apply_step
from tidelog.spark.step_actions import Step as Step
from tidelog.spark.step_actions import load as load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def steps_of(steps: Sequence[Step], table: TableName) -> tuple[Step, ...]:
    """Return the steps that apply to the table and change its rows (not its destination)."""
    return tuple(s for s in steps if s.action != "route" and matches(s.tables, table))


def destination_name(steps: Sequence[Step], table: TableName) -> str:
    """Return where the table's rows go: by the first matching route, or its own name."""
    routes = ((str(s.argument), s.tables) for s in steps if s.action == "route")
    try:
        return route_of(routes, table)
    except ValueError as error:
        raise ConfigError(str(error)) from None


_ADDED = frozenset(name.lower() for name in META)


def check_source_names(schema: TableSchema) -> None:
    """Raise NameRefusedError if columns have names of columns that Tidelog adds to rows before any
    step.
    """
    taken = [name for name in schema.column_names if name.lower() in _ADDED]
    if taken:
        excluded = ", ".join(
            "'" + f"{pattern_of(schema.table)}.{name}".replace("'", "''") + "'"
            for name in taken
            if name not in schema.match_key
        )
        leave_out = f", or leave it out: source.exclude_columns: [{excluded}]" if excluded else ""
        raise NameRefusedError(
            f"{schema.table} has {', '.join(taken)}: Tidelog adds columns of these names, and no "
            f"step can rename them. Rename yours in the source{leave_out}"
        )


def target_table(
    spark: SparkSession,
    schema: TableSchema,
    steps: Sequence[Step],
    origin: SourceId,
    *,
    keyed: bool,
) -> TargetTable:
    """Return the table as the output sees it, found by applying the steps to no rows.

    Raises ConfigError, which names step and table, if a step does not fit its columns or, with
    ``keyed``, if a column of the key is dropped or does not identify rows any more. Raises
    NameRefusedError as `check_source_names`.
    """
    check_source_names(schema)
    own = steps_of(steps, schema.table)
    if keyed:
        _check_key(schema, own)
    key = [name for name in delivered_names(schema.match_key, own) if name is not None]
    fields: StructType = shapes.row_type(schema)
    if own:
        shape = shapes.changes(schema) if keyed else shapes.events(schema)
        with jvm_errors():
            session = exact_session(spark)
            frame = apply(session.createDataFrame([], shape), own, schema, keyed=keyed)
        fields = StructType([x for x in frame.schema.fields if x.name not in META])
        lost = [name for name in key if name not in fields.names]
        if lost and keyed:  # by a step python
            raise _lost_key(schema, lost)
        key = [name for name in key if name in fields.names]
    return TargetTable(
        schema.table,
        destination_name(steps, schema.table),
        schema,
        arrow_schema(fields),
        tuple(key),
        origin,
        _unchanged(schema, own),
    )


def delivered_names(names: Sequence[str | None], steps: Sequence[Step]) -> tuple[str | None, ...]:
    """Return the names of these columns of the source after the steps; None for one that they
    leave out.
    """
    now: list[str | None] = list(names)
    for step in steps:
        if step.action == "rename":
            now = [None if name is None else step.argument.get(name, name) for name in now]
        elif step.action == "select":
            now = [name if name in step.argument else None for name in now]
        elif step.action == "drop":
            now = [None if name in step.argument else name for name in now]
    return tuple(now)


def named_table(schema: TableSchema, steps: Sequence[Step], origin: SourceId) -> TargetTable | None:
    """Return `target_table` without a session: its columns have names and no types. None where a
    step python determines the columns.
    """
    own = steps_of(steps, schema.table)
    if any(step.action == "python" for step in own):
        return None
    names: list[str] = list(schema.column_names)
    for step in own:
        names = [name for name in delivered_names(names, [step]) if name is not None]
        if step.action == "compute":
            names += [name for name in step.argument if name not in names]
    columns = pa.schema([(name, pa.null()) for name in names])
    key = tuple(n for n in delivered_names(schema.match_key, own) if n is not None)
    name = destination_name(steps, schema.table)
    return TargetTable(schema.table, name, schema, columns, key, origin)


def _check_key(schema: TableSchema, steps: Sequence[Step]) -> None:
    """Raise ConfigError if a step makes one key of several (rows would merge), a key of columns
    that a delete does not have (it would not find its row), or none. Hashes differ where values do;
    `apply` checks casts.
    """
    reason = merges_keys(schema, steps)
    if reason is not None:
        raise ConfigError(reason)


def merges_keys(schema: TableSchema, steps: Sequence[Step]) -> str | None:
    """Return why rows of several keys may have the same key after the steps; None if they don't.
    Without casts.
    """
    for number, step in enumerate(steps):
        now = delivered_names(schema.match_key, steps[:number])
        if step.action in ("compute", "mask"):
            for name in now:
                if name in step.argument:
                    return (
                        f"step {step.action}: column {name!r} is of the key of {schema.table}, "
                        "which identifies its rows: keep it as it is, or hash it"
                    )
        lost = [
            name
            for name, then in zip(now, delivered_names(now, [step]), strict=True)
            if then is None
        ]
        if lost:
            return str(_lost_key(schema, lost))
    return None


def _lost_key(schema: TableSchema, names: Sequence[str | None]) -> ConfigError:
    return ConfigError(
        f"the steps of an output take {', '.join(map(str, names))} away from {schema.table}, "
        "which identify its rows: keep the columns of the key"
    )


def _unchanged(schema: TableSchema, steps: Sequence[Step]) -> dict[str, Column]:
    """Return, by name after the steps, the source's columns whose values no step changed."""
    found = {column.name: column for column in schema.columns}
    for step in steps:
        if step.action == "python":
            return {}
        if step.action in ("cast", "compute", "mask", "hash"):
            found = {n: column for n, column in found.items() if n not in step.argument}
            continue
        names = zip(delivered_names(list(found), [step]), found.values(), strict=True)
        found = {name: column for name, column in names if name is not None}
    return found


def apply(
    frame: DataFrame, steps: Sequence[Step], schema: TableSchema, *, keyed: bool
) -> DataFrame:
    """Return ``frame`` (shape `changes` or `events` of ``schema``) after ``steps``, in its
    session. Raises ConfigError, which names step and table, if a step does not fit the columns.
    """
    session = frame.sparkSession
    frame = in_session(frame, exact_session(session))
    names = f.array(*(f.lit(name) for name in schema.column_names))
    by_name = f.transform(CHANGE_MISSING, lambda i: f.element_at(names, i.cast("int") + 1))
    frame = frame.withColumn(CHANGE_MISSING, by_name)
    if EVENT_BEFORE in frame.columns:
        frame = frame.drop(EVENT_BEFORE)  # steps are for rows; of the old row little is known
    key = schema.match_key if keyed else ()
    for step in steps:
        frame = apply_step(frame, step, StepTable(str(schema.table), keyed, key))
        key = tuple(n for n in delivered_names(key, [step]) if n is not None)
    return in_session(frame, session)
