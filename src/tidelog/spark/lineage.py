"""Which columns of a DataFrame the columns of another one, made from it, are computed of.

Spark's analyzed plans know. The text of an expression alone does not: it may hold ``*``, names of
lambda variables, and texts that look like names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Names = frozenset[str]
_NOTHING: Names = frozenset()


def columns_read(frame: DataFrame, expression: Column) -> Names:
    """The columns of ``frame`` that the expression's value depends on."""
    return columns_computed_of(frame, frame.select(expression.alias("read")))[0]


def columns_computed_of(frame: DataFrame, result: DataFrame) -> list[Names]:
    """For each column of ``result``, in order, the columns of ``frame`` that its value depends on.

    All of them where the plan does not say, e.g. behind ``mapInArrow`` or a checkpoint.
    """
    base = _plan(frame)
    found = _Plans(base, dict(zip(_ids(base.output()), map(_only, frame.columns), strict=True)))
    plan = _plan(result)
    known = found.outputs(plan)
    every = frozenset(frame.columns)
    if not found.base_seen:
        return [every for _ in result.columns]
    return [known.get(each, every) for each in _ids(plan.output())]


def passed_along(frame: DataFrame, result: DataFrame, name: str) -> bool:
    """Is the column of that name in ``result`` the very one that ``frame`` has?"""
    sides = (
        dict(zip(each.columns, _ids(_plan(each).output()), strict=True)) for each in (frame, result)
    )
    before, after = sides
    return before.get(name) == after.get(name)


class _Plans:
    """Goes through plans from the top down to ``base``, whose outputs ``known`` has by id."""

    def __init__(self, base: Any, known: Mapping[int, Names]) -> None:
        self._base = base
        self._known = known
        self.base_seen = False

    def outputs(self, plan: Any) -> dict[int, Names]:
        """By id of each of the plan's outputs, what it depends on."""
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
            # Which row of the other side it is, the condition decides.
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
