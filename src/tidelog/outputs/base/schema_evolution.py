"""The four policies for a destination's columns when those of the source change."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidelog.errors import OutputRefusedError, TableLeftOutError

_DECIMAL = re.compile(r"(decimal\w*)\((\d+), ?(\d+)\)")

Wider = Mapping[str, Sequence[str]]


def holds(wide: str, narrow: str, wider: Wider, *, rescales: bool = True) -> bool:
    """Return True if every value of the type ``narrow`` fits into ``wide``, another type.

    Args:
        wide: the wide type's name; a decimal's ends in its precision and scale, ``(p, s)``.
        narrow: the narrow type's name.
        wider: by a type's name, the types that fit all its values; without decimals.
        rescales: whether a decimal of more digits may have a larger scale, too.
    """
    if wide in wider.get(narrow, ()):
        return True
    one, other = _DECIMAL.fullmatch(wide), _DECIMAL.fullmatch(narrow)
    if one is None or other is None or one[1] != other[1]:
        return False
    digits, scale = int(one[2]), int(one[3])
    if not rescales and scale != int(other[3]):
        return False
    return scale >= int(other[3]) and digits - scale >= int(other[2]) - int(other[3])


@dataclass(frozen=True)
class ColumnDecision:
    """What a policy does about columns that changed, by their names.

    Attributes:
        refused: changes for which the output stops, as the policy is ``fail``.
        impossible: changes that can't be followed, where the policy is ``evolve``.
        undelivered: the columns that rows do not deliver.
        alters: whether columns are added and widened.
    """

    refused: Sequence[str] = ()
    impossible: Sequence[str] = ()
    undelivered: Collection[str] = ()
    alters: bool = False


def decide(
    policy: str,
    added: Collection[str],
    widened: Collection[str],
    stuck: Collection[str],
    dropped: Collection[str],
    known_dropped: Collection[str],
) -> ColumnDecision:
    """Return what ``policy`` does.

    Args:
        policy: ``evolve``, ``lenient``, ``ignore`` or ``fail``.
        added: columns that the destination does not have.
        widened: columns of another type, to which the destination's can be changed in place.
        stuck: columns of a type to which it can't.
        dropped: the destination's columns that the source does not have.
        known_dropped: those of them that it did not have at the last check either.
    """
    if policy == "fail":
        fresh = [name for name in dropped if name not in known_dropped]
        return ColumnDecision(refused=[*added, *widened, *stuck, *fresh])
    if policy == "ignore":
        return ColumnDecision(undelivered={*added, *widened, *stuck})
    if policy == "evolve" and stuck:
        return ColumnDecision(impossible=list(stuck))
    return ColumnDecision(undelivered=set(stuck), alters=True)


# For each Arrow type, the types that fit every value of it.
_WIDER: dict[str, tuple[str, ...]] = {
    "int16": ("int32", "int64", "double"),
    "int32": ("int64", "double"),
    "float": ("double",),
}


@dataclass(frozen=True)
class ColumnChange:
    """The change that a destination's table needs, as Arrow fields. ``delivered``: the columns of
    the rows that follow; ``dropped``: those that the source does not have any more.
    """

    delivered: pa.Schema
    added: tuple[pa.Field, ...] = ()
    widened: tuple[pa.Field, ...] = ()
    dropped: tuple[str, ...] = ()

    @property
    def alters(self) -> bool:
        """Must the destination's table be altered?"""
        return bool(self.added or self.widened)

    def columns_after(self, known: Sequence[Sequence[str]]) -> list[list[str]]:
        """Return the destination's columns after the change, from those before it."""
        widened = {field.name: str(field.type) for field in self.widened}
        kept = [[name, widened.get(name, kind)] for name, kind in known]
        return kept + stored_columns(pa.schema(self.added))


def stored_columns(columns: pa.Schema) -> list[list[str]]:
    """Return columns as the state store keeps them between runs."""
    return [[field.name, str(field.type)] for field in columns]


def with_alterations(
    known: Sequence[Sequence[str]], now: pa.Schema, accepts_type: Callable[[str, str], bool]
) -> list[list[str]]:
    """Return the destination's columns: ``known``, the stored ones, with what somebody altered
    there. ``accepts_type`` is called with name and former type of each column whose type in ``now``
    differs.
    """
    types = {field.name: str(field.type) for field in now}
    changed = {name: kind for name, kind in known if types.get(name, kind) != kind}
    altered = {name for name, former in changed.items() if accepts_type(name, former)}
    return [[name, types[name] if name in altered else kind] for name, kind in known]


# For destinations that can't be altered.
LEAVE_OUT = (
    "Set the output's on_schema_change to lenient, which leaves the columns out, or leave them out "
    "by a step."
)


def plan_change(
    policy: str,
    table: str,
    known: Sequence[Sequence[str]],
    now: pa.Schema,
    key: Sequence[str],
    remedy_for: Callable[[Sequence[str]], str] = lambda names: LEAVE_OUT,
    known_dropped: Collection[str] = (),
) -> ColumnChange:
    """Return the change from the columns ``known`` (`stored_columns`) to those of rows ``now``.

    A column that was dropped stays in the destination and is not delivered any more. A rename is a
    drop and an addition. Raises OutputRefusedError for a change where the policy is ``fail``, and
    TableLeftOutError for one that can't be followed, under ``evolve`` or in a column of the key.
    ``remedy_for`` returns what the user can do about columns of another type. ``known_dropped``:
    see `decide`.
    """
    types = {column[0]: column[1] for column in known}
    added = {field.name: field for field in now if field.name not in types}
    dropped = tuple(name for name in types if now.get_field_index(name) < 0)
    widened: dict[str, pa.Field] = {}
    stuck: list[str] = []
    for field in now:
        name, kind = field.name, str(field.type)
        if name in added or kind == types[name] or holds(types[name], kind, _WIDER):
            continue
        if holds(kind, types[name], _WIDER):
            widened[name] = field
        else:
            stuck.append(name)
    decision = decide(policy, added, widened, stuck, dropped, known_dropped)
    if decision.refused:
        follow = "on_schema_change is fail: set it to evolve, or leave the columns out by a step."
        raise OutputRefusedError(_refusal(table, decision.refused, "changed", follow))
    if impossible := decision.impossible:
        remedy = remedy_for(impossible)
        raise TableLeftOutError(_refusal(table, impossible, "changed their type", remedy))
    kept = [field for field in now if field.name not in decision.undelivered]
    _key_survives(table, kept, key, remedy_for)
    if not decision.alters:
        return ColumnChange(pa.schema(kept), dropped=dropped)
    return ColumnChange(pa.schema(kept), tuple(added.values()), tuple(widened.values()), dropped)


def _key_survives(
    table: str,
    kept: Sequence[pa.Field],
    key: Sequence[str],
    remedy_for: Callable[[Sequence[str]], str],
) -> None:
    lost = sorted(set(key) - {field.name for field in kept})
    if lost:
        what = "are of the key and changed their type"
        raise TableLeftOutError(_refusal(table, lost, what, remedy_for(lost)))


def _refusal(table: str, names: Sequence[str], what: str, remedy: str) -> str:
    return f"{table}: columns {', '.join(names)} {what} in the source. {remedy}"
