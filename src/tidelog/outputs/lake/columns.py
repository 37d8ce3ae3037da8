"""Plans how a lake's copy follows the columns of its source, by each policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidelog.errors import OutputRefusedError, TableLeftOutError
from tidelog.outputs.base.schema_evolution import Wider, holds
from tidelog.ports import TargetTable


@dataclass(frozen=True)
class CopyColumns:
    """The columns of a copy as it is.

    Attributes:
        location: the copy's location, for messages.
        product: the table format, for messages.
        types: names and SQL types of its columns, in order, without Tidelog's own.
        dropped: the columns that the source had dropped at the last check.
        wider: by type, the types that fit all its values and that the product can widen it to.
        rescales: whether the product can also widen a decimal's scale.
    """

    location: str
    product: str
    types: Mapping[str, str]
    dropped: Sequence[str]
    wider: Wider
    rescales: bool = True


@dataclass(frozen=True)
class ColumnPlan:
    """The changes of the copy's columns, and the columns that rows then deliver.

    Attributes:
        delivered: names of the columns that rows have.
        added: new columns and their SQL types.
        widened: columns, by the copy's names, and their new SQL types.
        dropped: columns that the source does not have any more; they stay, null in later rows.
        back: columns that the source had dropped and has again: their old values are removed.
    """

    delivered: tuple[str, ...]
    added: Mapping[str, str]
    widened: Mapping[str, str]
    dropped: list[str]
    readded: list[str]


def plan(
    copy: CopyColumns, target: TargetTable, wanted: Mapping[str, str], policy: str
) -> ColumnPlan:
    """Returns the plan from the columns of ``copy`` to those ``wanted`` (SQL types) of ``target``,
    by ``policy`` (see `tidelog.outputs.base.schema_evolution`).

    Raises OutputRefusedError for a change where the policy is ``fail``, and TableLeftOutError for
    one that is impossible.
    """
    folded = {name.lower(): name for name in copy.types}
    added = {n: kind for n, kind in wanted.items() if n.lower() not in folded}
    widened: dict[str, str] = {}
    stuck: dict[str, str] = {}  # by the source's names, the types in the copy
    for name, want in wanted.items():
        if name in added:
            continue
        have = copy.types[folded[name.lower()]]
        if have == want or holds(have, want, copy.wider):
            continue
        if holds(want, have, copy.wider, rescales=copy.rescales):
            widened[name] = want
        else:
            stuck[name] = have
    names = {name.lower() for name in wanted}
    dropped = [name for name in copy.types if name.lower() not in names]
    readded = [name for name in copy.dropped if name not in dropped and name in copy.types]
    if policy == "fail":
        fresh = [name for name in dropped if name not in copy.dropped]
        if changed := [*added, *widened, *stuck, *fresh]:
            raise OutputRefusedError(
                f"{copy.location}: columns {', '.join(changed)} of {target.source} changed, and "
                f"on_schema_change is fail. Change the {copy.product} table and the policy."
            )
    if policy == "ignore":
        delivered = _delivered(copy, target, {*added, *widened, *stuck})
        return ColumnPlan(delivered, {}, {}, dropped, readded)
    if stuck and policy == "evolve":
        name, have = next(iter(stuck.items()))
        raise TableLeftOutError(
            f"{copy.location}: column {name} of {target.source} is {wanted[name]} now and was "
            f"{have}; {copy.product} can't change that in place. Move the table away and dump "
            f"{target.source} again, or set on_schema_change to lenient, which leaves the column "
            "as it is."
        )
    changes = {folded[name.lower()]: kind for name, kind in widened.items()}
    return ColumnPlan(_delivered(copy, target, set(stuck)), added, changes, dropped, readded)


def _delivered(copy: CopyColumns, target: TargetTable, left: set[str]) -> tuple[str, ...]:
    lost = left & set(target.key)
    if lost:
        raise TableLeftOutError(
            f"{copy.location}: columns {', '.join(sorted(lost))} are of the key of {target.source} "
            "and changed. Move the table away and dump it again."
        )
    return tuple(name for name in target.columns.names if name not in left)
