"""The four policies for a destination's columns when those of the source change."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
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


# For each Arrow type, the types that fit every value of it.
_WIDER: dict[str, tuple[str, ...]] = {
    "int16": ("int32", "int64", "double"),
    "int32": ("int64", "double"),
    "float": ("double",),
}


@dataclass(frozen=True)
class ColumnChange:
    """The change that a destination's table needs, as Arrow fields. ``delivered``: the columns of
    the rows that follow.
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
) -> ColumnChange:
    """Return the change from the columns ``known`` (`stored_columns`) to those of rows ``now``.

    A column that was dropped stays in the destination and is not delivered any more. A rename is a
    drop and an addition. Raises OutputRefusedError for a change where the policy is ``fail``, and
    TableLeftOutError for one that can't be followed, under ``evolve`` or in a column of the key.
    ``remedy_for`` returns what the user can do about columns of another type.
    """
    types = {column[0]: column[1] for column in known}
    added = tuple(field for field in now if field.name not in types)
    dropped = tuple(name for name in types if now.get_field_index(name) < 0)
    changed = [f for f in now if f.name in types and str(f.type) != types[f.name]]
    widened = tuple(field for field in changed if holds(str(field.type), types[field.name], _WIDER))
    narrower = {f.name for f in changed if holds(types[f.name], str(f.type), _WIDER)}
    others = [f for f in changed if f not in widened and f.name not in narrower]
    if policy == "fail" and (added or dropped or changed):
        names = [f.name for f in (*added, *changed)] + list(dropped)
        follow = "on_schema_change is fail: set it to evolve, or leave the columns out by a step."
        raise OutputRefusedError(_refusal(table, names, "changed", follow))
    if policy == "ignore":
        keep = [f for f in now if f.name in types and f not in others and f not in widened]
        _key_survives(table, keep, key, remedy_for)
        return ColumnChange(pa.schema(keep))
    if others and policy == "evolve":
        names = [field.name for field in others]
        raise TableLeftOutError(_refusal(table, names, "changed their type", remedy_for(names)))
    kept = [field for field in now if field not in others]
    _key_survives(table, kept, key, remedy_for)
    return ColumnChange(pa.schema(kept), added, widened, dropped)


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
