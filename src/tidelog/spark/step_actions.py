"""The actions of steps, applied to a DataFrame of the shape `changes` or `events`.

Names are exact: `v` and `V` are two columns (`tidelog.spark.session`). A step never gives
two columns one name, and never changes Tidelog's own columns.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f
from pyspark.sql import types

from tidelog.errors import ConfigError
from tidelog.model.schema import backticked
from tidelog.spark.formats.shapes import (
    CHANGE_MISSING,
    CHANGE_OP,
    CHANGE_VERSION,
    EVENT_BEFORE,
    EVENT_SOURCE,
)
from tidelog.spark.sessions.connect import is_remote

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Names = frozenset[str]
_NOTHING: Names = frozenset()


def columns_read(frame: DataFrame, expression: Column) -> Names:
    """Return the columns of ``frame`` that the expression's value depends on."""
    if is_remote(frame.sparkSession):
        return _columns_resolved(frame, expression)
    return columns_computed_of(frame, frame.select(expression.alias("read")))[0]


def columns_computed_of(frame: DataFrame, result: DataFrame) -> list[Names]:
    """Return, for each column of ``result``, in order, the columns of ``frame`` that its value
    depends on. All of them where the plan does not show it, e.g. after ``mapInArrow`` or a
    checkpoint.
    """
    base = _plan(frame)
    found = _Plans(base, dict(zip(_ids(base.output()), map(_only, frame.columns), strict=True)))
    plan = _plan(result)
    known = found.outputs(plan)
    every = frozenset(frame.columns)
    if not found.base_seen:
        return [every for _ in result.columns]
    return [known.get(each, every) for each in _ids(plan.output())]


def _columns_resolved(frame: DataFrame, expression: Column) -> Names:
    """As `columns_read` where no plan is shown: the columns without which the expression does not
    resolve, or to something else. Spark's own name for the value shows to what: without its column,
    ``user`` is ``current_user()``, and ``hash(*)`` reads the others.
    """

    def value(columns: Iterable[str]) -> list[str] | None:
        chosen = frame.select(*(f.col(backticked(name)) for name in columns))
        try:
            return chosen.select(f.struct(expression)).columns
        except Exception as error:
            if not _is_analysis(error):
                raise
            return None

    names, text = frame.columns, str(expression)
    whole = frame.select(f.struct(expression)).columns
    written = [name for name in names if name in text or backticked(name)[1:-1] in text]
    return frozenset(
        name
        for name in (written if value(written) == whole else names)
        if value(each for each in names if each != name) != whole
    )


def is_same_column(frame: DataFrame, result: DataFrame, name: str) -> bool:
    """Is the column of that name in ``result`` the same column as in ``frame``?"""
    sides = (
        dict(zip(each.columns, _ids(_plan(each).output()), strict=True)) for each in (frame, result)
    )
    before, after = sides
    return before.get(name) == after.get(name)


class _Plans:
    """Walks plans from the top down to ``base``; ``known`` has the columns of its outputs by id."""

    def __init__(self, base: Any, known: Mapping[int, Names]) -> None:
        self._base = base
        self._known = known
        self.base_seen = False

    def outputs(self, plan: Any) -> dict[int, Names]:
        """Return, by id of each of the plan's outputs, the columns that it depends on."""
        if plan.equals(self._base):
            self.base_seen = True
            return dict(self._known)
        children = [self.outputs(child) for child in _items(plan.children())]
        if not children:
            return dict.fromkeys(_ids(plan.output()), _NOTHING)
        below: dict[int, Names] = reduce(lambda one, other: one | other, children, {})
        every = _union(below.values())
        kind = plan.getClass().getSimpleName()
        expressions = []
        if kind == "Project":
            expressions = _items(plan.projectList())
        elif kind == "Aggregate":
            expressions = _items(plan.aggregateExpressions())
        computed = {
            each.exprId().id(): _union(
                below.get(id_, every) for id_ in _ids(each.references().toSeq())
            )
            for each in expressions
        }
        found = {}
        for id_ in _ids(plan.output()):
            found[id_] = below[id_] if id_ in below else computed.get(id_, every)
        if kind == "Join":
            # Which row of the other side it is depends on the condition.
            asked = _union(below.get(i, every) for i in _ids(plan.references().toSeq()))
            found = {id_: names or asked for id_, names in found.items()}
        return found


def _plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(at) for at in range(sequence.size())]


def _ids(attributes: Any) -> list[int]:
    return [each.exprId().id() for each in _items(attributes)]


def _only(name: str) -> Names:
    return frozenset([name])


def _union(names: Iterable[Names]) -> Names:
    return frozenset().union(*names)


META = (CHANGE_OP, CHANGE_VERSION, CHANGE_MISSING, EVENT_BEFORE, EVENT_SOURCE)
"""The columns of the shapes that are not the table's."""

_INTEGERS = (types.ByteType, types.ShortType, types.IntegerType, types.LongType)
_INSTANTS = (types.TimestampType, types.TimestampNTZType)


@dataclass(frozen=True)
class Step:
    """``action`` and ``argument`` as in the configuration; for the tables that match."""

    action: str
    argument: Any
    tables: tuple[str, ...] = ("*.*",)
    salt: str = field(default="", repr=False)


@dataclass(frozen=True)
class StepTable:
    """The table that an action applies to.

    ``key``: the columns, by their names before the step, whose values must stay distinct; empty
    where no copy is kept.
    """

    name: str
    keyed: bool
    key: tuple[str, ...] = ()


def apply_step(frame: DataFrame, step: Step, table: StepTable) -> DataFrame:
    """Apply a step. Raises ConfigError, which names step and table, if the step does not fit the
    columns.
    """
    try:
        return _ACTIONS[step.action](frame, step, table)
    except ConfigError as error:
        raise ConfigError(f"step {step.action}, table {table.name}: {error}") from error
    except Exception as error:
        if _is_analysis(error) or step.action == "python":
            raise ConfigError(
                f"step {step.action}, table {table.name}: it does not fit the columns: "
                f"{_first_line(error)}"
            ) from error
        raise


def load(name: str) -> Any:
    """Return ``module:attribute``. Raises ConfigError if it does not exist."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{name} can't be imported ({type(error).__name__}: {error})") from error


# ---------------------------------------------------------------- the actions


def _select(frame: DataFrame, step: Step, table: StepTable) -> DataFrame:
    _check_exist(frame, step.argument)
    _check_distinct(step.argument)
    return _select_columns(frame, {name: f.col(backticked(name)) for name in step.argument}, {})


def _drop(frame: DataFrame, step: Step, table: StepTable) -> DataFrame:
    _check_exist(frame, step.argument)
    left = [name for name in _table_columns(frame) if name not in step.argument]
    return _select_columns(frame, {name: f.col(backticked(name)) for name in left}, {})


def _rename(frame: DataFrame, step: Step, table: StepTable) -> DataFrame:
    """Renames all columns at once, so that two may swap names."""
    _check_exist(frame, step.argument)
    new = [(step.argument.get(name, name), name) for name in _table_columns(frame)]
    _check_distinct([name for name, _ in new])
    _check_ours(step.argument.values())
    columns = {name: f.col(backticked(old)) for name, old in new}
    return _select_columns(
        frame, columns, {name: frozenset([old]) for name, old in new if name != old}
    )


def _filter(frame: DataFrame, step: Step, table: StepTable) -> DataFrame:
    condition = f.expr(step.argument)
    meets = f.coalesce(condition, f.lit(False))
    unknown = _lacks(columns_read(frame, condition))
    if not table.keyed:
        # A delete has only the key, an update may have missing columns: they can't be evaluated,
        # and delivering too many does no harm.
        return frame.where(meets | unknown | f.col(CHANGE_OP).isin("d", "t"))
    # Where the log does not have the columns that the condition reads, a row stays in or out.
    return frame.withColumn(CHANGE_OP, f.when(meets | unknown, f.col(CHANGE_OP)).otherwise("d"))


def may_pass(frame: DataFrame, text: str, key: Sequence[str]) -> Column | None:
    """Return the condition for rows with missing columns, as they are before a `filter`: may such
    a record add or remove the row? Not if it has none of the columns that the condition reads
    beside the ``key``: they have not changed. None: the condition reads only the key.
    """
    condition = f.expr(text)
    read = columns_read(frame, condition) - {*key, *META}
    if not read:
        return None
    lacked = f.size(f.array_intersect(f.col(CHANGE_MISSING), _names(read)))
    meets = f.coalesce(condition, f.lit(False)) | (lacked > 0)
    return (f.col(CHANGE_OP) == "u") & (lacked < len(read)) & meets


def _cast(frame: DataFrame, step: Step, table: StepTable) -> DataFrame:
    _check_exist(frame, step.argument)
    result = _replace_columns(
        frame, {n: f.col(backticked(n)).cast(kind) for n, kind in step.argument.items()}
    )
    for name in table.key:
        if name in step.argument:
            before, after = (each.schema[name].dataType for each in (frame, result))
            if not _remain_distinct(before, after, step.argument[name]):
                raise ConfigError(
                    f"column {name!r} is of the key, which identifies rows, and a cast from "
                    f"{before.simpleString()} to {step.argument[name]} may make one value of "
                    "several: rows would merge. Keep it as it is, or hash it"
                )
    return result


def _compute(frame: DataFrame, step: Step, table: StepTable) -> DataFrame:
    """Add or replace columns. Expressions read the columns as they were before the step, and
    columns that earlier expressions of the same step add.
    """
    _check_ours(step.argument)
    before = set(_table_columns(frame))
    seen, replaced = frame, {}
    read: dict[str, frozenset[str]] = {}
    for name, text in step.argument.items():
        expression = f.expr(text)
        found = columns_read(seen, expression)
        read[name] = frozenset().union(
            *(read.get(n, {n}) if n not in before else {n} for n in found)
        )
        if name in before:
            replaced[name] = expression
        else:
            seen = seen.withColumn(name, expression)
    order = [*_table_columns(frame), *(name for name in step.argument if name not in before)]
    columns = {name: replaced.get(name, f.col(backticked(name))) for name in order}
    return _select_columns(seen, columns, read)


def _mask(frame: DataFrame, step: Step, table: StepTable) -> DataFrame:
    _check_exist(frame, step.argument)
    return _replace_columns(
        frame,
        {
            n: f.when(f.col(backticked(n)).isNotNull(), f.lit(text))
            for n, text in step.argument.items()
        },
    )


def _hash(frame: DataFrame, step: Step, table: StepTable) -> DataFrame:
    _check_exist(frame, step.argument)
    return _replace_columns(
        frame,
        {
            n: f.sha2(f.concat(f.lit(step.salt), f.col(backticked(n)).cast("string")), 256)
            for n in step.argument
        },
    )


def _python(frame: DataFrame, step: Step, table: StepTable) -> DataFrame:
    if is_remote(frame.sparkSession):
        raise ConfigError(
            "which columns a function changes is read from Spark's plan, which Spark Connect does "
            "not show: write it as a step compute, or leave out pipeline.remote"
        )
    result: DataFrame = load(step.argument)(frame)
    lost = [name for name in _meta(frame) if name not in result.columns]
    if lost:
        raise ConfigError(f"{step.argument} removed the column {lost[0]}")
    names = _table_columns(result)
    _check_distinct(names)
    known = set(_table_columns(frame))
    for name in names:
        near = [each for each in known if each.lower() == name.lower()]
        if name not in known and near and not any(each not in names for each in near):
            raise ConfigError(
                f"{step.argument} created a column {name!r} beside {near[0]!r}: names are exact, "
                "so these are two columns. Write it as it is, or give it another name"
            )
    if not is_same_column(frame, result, CHANGE_MISSING):
        return result  # the function has set the missing columns itself
    sources = dict(zip(result.columns, columns_computed_of(frame, result), strict=True))
    ours = set(META)
    return _select_columns(
        result,
        {name: f.col(backticked(name)) for name in names},
        {n: sources[n] - ours for n in names},
    )


_ACTIONS: Mapping[str, Callable[[DataFrame, Step, StepTable], DataFrame]] = {
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


# ---------------------------------------------------------------- parts of them


def _meta(frame: DataFrame) -> list[str]:
    return [name for name in frame.columns if name in META]


def _table_columns(frame: DataFrame) -> list[str]:
    return [name for name in frame.columns if name not in META]


def _replace_columns(frame: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
    """Replace values, each computed from its own column: missing columns stay missing."""
    return frame.select(*(columns.get(n, f.col(backticked(n))).alias(n) for n in frame.columns))


def _select_columns(
    frame: DataFrame, columns: Mapping[str, Column], read: Mapping[str, frozenset[str]]
) -> DataFrame:
    """Return ``columns`` and Tidelog's own. A column is missing in a row if one of the columns is
    that it is computed from: ``read``; by default itself.
    """
    missing = f.col(CHANGE_MISSING)
    same = [name for name in columns if read.get(name, {name}) == {name}]
    kept = [f.array_intersect(missing, _names(same))]
    for name in columns:
        sources = read.get(name, frozenset([name]))
        if sources and sources != {name}:
            kept.append(f.when(_lacks(sources), f.array(f.lit(name))).otherwise(_names([])))
    lists = f.concat(*kept)
    still = f.when(missing.isNotNull(), f.when(f.size(lists) > 0, lists))
    ours = [still.alias(n) if n == CHANGE_MISSING else f.col(n) for n in _meta(frame)]
    return frame.select(*ours, *(column.alias(name) for name, column in columns.items()))


def _lacks(names: Iterable[str]) -> Column:
    """Return whether one of the columns is missing in the row."""
    return f.coalesce(f.arrays_overlap(f.col(CHANGE_MISSING), _names(names)), f.lit(False))


def _names(names: Iterable[str]) -> Column:
    return f.array(*(f.lit(name) for name in sorted(names))).cast("array<string>")


def _check_exist(frame: DataFrame, names: Iterable[str]) -> None:
    own = _table_columns(frame)
    for name in names:
        if name not in own:
            near = [repr(each) for each in own if each.lower() == name.lower()]
            hint = f"; there is {' and '.join(near)}: names are exact" if near else ""
            raise ConfigError(f"no column {name!r}{hint}")


def _check_distinct(names: Sequence[str]) -> None:
    twice = [name for at, name in enumerate(names) if name in names[:at]]
    if twice:
        raise ConfigError(f"two columns would have the name {twice[0]!r}")


def _check_ours(names: Iterable[str]) -> None:
    for name in names:
        if name in META:
            raise ConfigError(f"{name!r} is the name of a column of ours: choose another one")


def _remain_distinct(before: types.DataType, after: types.DataType, wanted: str) -> bool:
    """Do two values of a type stay distinct after the cast? A value that does not fit raises an
    error.
    """
    text = "char" not in wanted.lower() and after == types.StringType()
    if before == after:
        return after != types.StringType() or text
    if isinstance(before, types.DecimalType):
        if isinstance(after, types.DecimalType):
            return after.scale >= before.scale
        return text or (before.scale <= 0 and isinstance(after, _INTEGERS))
    if isinstance(before, (types.BooleanType, *_INTEGERS)):
        wide = isinstance(after, types.DecimalType) and after.scale >= 0
        return text or wide or isinstance(after, _INTEGERS)
    if isinstance(before, (types.DateType, *_INSTANTS)):
        return text or isinstance(after, _INSTANTS)  # sessions are in UTC
    if isinstance(before, (types.FloatType, types.DoubleType)):
        return text or isinstance(after, types.DoubleType)
    return before == types.StringType() and isinstance(after, types.BinaryType)


def _is_analysis(error: Exception) -> bool:
    from pyspark.errors import AnalysisException, ParseException

    return isinstance(error, AnalysisException | ParseException)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]
