"""What a table of a lake contains of a table of the source, and in which of its columns.

A copy has a row for each row of the source, and the source's columns are its own. A table of
changes has a row for each change, in the source's shape `typed`: the source's columns are members
of its structs ``before``, ``after`` and ``key``. A table of history has a row for each state that a
row of the source had, with the source's columns, and the time for which it held.

How the columns follow the source's is planned here, by each policy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    BooleanType,
    DataType,
    LongType,
    StructField,
    StructType,
    TimestampType,
)

from tidelog.errors import OutputRefusedError, TableLeftOutError
from tidelog.outputs.base.schema_evolution import Wider, decide, holds
from tidelog.outputs.lake.data_files.disk_cache import CACHE_BYTES
from tidelog.outputs.lake.data_files.layout import (
    CURRENT,
    VALID_FROM,
    VALID_FROM_VERSION,
    VALID_TO,
    VALID_TO_VERSION,
)
from tidelog.ports import TargetTable
from tidelog.spark.formats import shapes

# Plans for columns.


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
        grows: whether a struct can get new members at its end, null in all rows.
    """

    location: str
    product: str
    types: Mapping[str, str]
    dropped: Sequence[str]
    wider: Wider
    rescales: bool = True
    grows: bool = False

    def can_become(self, have: str, want: str) -> bool:
        """Can a column of the type ``have`` be changed to ``want`` in place?"""
        grown = self.grows and have.startswith("struct<") and want.startswith(f"{have[:-1]},")
        return grown or holds(want, have, self.wider, rescales=self.rescales)


@dataclass(frozen=True)
class ColumnPlan:
    """The changes of the copy's columns, and the columns that rows then deliver.

    Attributes:
        delivered: names of the columns that rows have.
        added: new columns and their SQL types.
        widened: columns, by the copy's names, and their new SQL types.
        dropped: columns that the source does not have any more; they stay, null in later rows.
        readded: columns that the source had dropped and has again: their old values are removed.
    """

    delivered: tuple[str, ...]
    added: Mapping[str, str]
    widened: Mapping[str, str]
    dropped: list[str]
    readded: list[str]


def plan_columns(
    copy: CopyColumns, target: TargetTable, wanted: Mapping[str, str], policy: str
) -> ColumnPlan:
    """Return the plan from the columns of ``copy`` to those ``wanted`` (SQL types) of ``target``,
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
        if copy.can_become(have, want):
            widened[name] = want
        else:
            stuck[name] = have
    names = {name.lower() for name in wanted}
    dropped = [name for name in copy.types if name.lower() not in names]
    readded = [name for name in copy.dropped if name not in dropped and name in copy.types]
    decision = decide(policy, added, widened, stuck, dropped, copy.dropped)
    if decision.refused:
        raise OutputRefusedError(
            f"{copy.location}: columns {', '.join(decision.refused)} of {target.source} changed, "
            f"and on_schema_change is fail. Change the {copy.product} table and the policy."
        )
    if decision.impossible:
        name = decision.impossible[0]
        raise TableLeftOutError(
            f"{copy.location}: column {name} of {target.source} is {wanted[name]} now and was "
            f"{stuck[name]}; {copy.product} can't change that in place. Move the table away and "
            f"dump {target.source} again, or set on_schema_change to lenient, which leaves the "
            "column as it is."
        )
    delivered = _delivered(copy, target, decision.undelivered)
    if not decision.alters:
        return ColumnPlan(delivered, {}, {}, dropped, readded)
    changes = {folded[name.lower()]: kind for name, kind in widened.items()}
    return ColumnPlan(delivered, added, changes, dropped, readded)


def _delivered(copy: CopyColumns, target: TargetTable, left: Collection[str]) -> tuple[str, ...]:
    lost = set(left) & set(target.key)
    if lost:
        raise TableLeftOutError(
            f"{copy.location}: columns {', '.join(sorted(lost))} are of the key of {target.source} "
            "and changed. Move the table away and dump it again."
        )
    return tuple(name for name in target.columns.names if name not in left)


# The contents of a table.

TableContents = Literal["copy", "changes", "history"]

HISTORY_COLUMNS: Mapping[str, DataType] = {
    VALID_FROM: TimestampType(),
    VALID_TO: TimestampType(),
    VALID_FROM_VERSION: LongType(),
    VALID_TO_VERSION: LongType(),
    CURRENT: BooleanType(),
}
"""The columns that a table of history has beside the source's and the version."""

COMPLETE_DUMP = "s"
"""The op of a row that is no change: a complete dump of the whole table began at its version. Keys
without a row from there on were deleted in the source, as after a truncate."""


@dataclass(frozen=True)
class LakeLayout:
    """The layout of rows in files.

    Attributes:
        version, deleted: names of Tidelog's own columns; ``deleted`` is "" where deletes are hard.
        partitions: columns that the table is partitioned by; fixed once the table exists.
        holds: what the table contains.
        keyless: whether it holds changes because the source's table had no key when it was created.
        cache_bytes: see `SettleOptions`.
    """

    version: str = "_version"
    deleted: str = ""
    partitions: tuple[str, ...] = ()
    holds: TableContents = "copy"
    keyless: bool = False
    cache_bytes: int = CACHE_BYTES

    @property
    def own(self) -> tuple[str, ...]:
        """Names of our own columns beside the source's."""
        if self.holds == "changes":
            return ()
        states = HISTORY_COLUMNS if self.holds == "history" else {}
        return tuple(name for name in (self.version, self.deleted, *states) if name)


@dataclass(frozen=True)
class ColumnEdit:
    """A new column, or one that gets a wider type (``widens``). ``within``: the struct that it is a
    member of; "": the table.
    """

    field: StructField
    within: str = ""
    widens: bool = False


def fields_of(target: TargetTable) -> dict[str, StructField]:
    """Return the delivered columns with Spark's types, in order."""
    found = from_arrow_schema(target.columns, prefer_timestamp_ntz=True)
    return {field.name: field for field in found.fields}


def columns_of(target: TargetTable, layout: LakeLayout) -> list[StructField]:
    """Return all columns of a new table."""
    fields = fields_of(target)
    if layout.holds == "changes":
        key = StructType([fields[name] for name in target.key])
        found = shapes.typed_changes(StructType(list(fields.values())), key).fields
        return [field for field in found if key.fields or field.name != "key"]
    own = [StructField(layout.version, LongType())]
    if layout.deleted:
        own.append(StructField(layout.deleted, BooleanType()))
    if layout.holds == "history":
        own += [StructField(name, kind) for name, kind in HISTORY_COLUMNS.items()]
    return [*fields.values(), *own]


def source_columns_of(columns: StructType, layout: LakeLayout) -> list[StructField]:
    """Return those of a table's columns that follow the source's."""
    if layout.holds != "changes":
        return [field for field in columns.fields if field.name not in layout.own]
    return _members(columns, "after") or []


def column_edits(
    plan: ColumnPlan, target: TargetTable, columns: StructType, layout: LakeLayout
) -> list[ColumnEdit]:
    """Return the edits that turn ``columns`` of a table into the planned ones."""
    row = _planned_columns(source_columns_of(columns, layout), plan, fields_of(target))
    if layout.holds != "changes":
        return list(_differences("", columns.fields, row))
    whole = columns_of(target, layout)
    found = [ColumnEdit(each) for each in whole if each.name not in columns.names]
    key = {name.lower() for name in target.key}
    of_key = [field for field in row if field.name.lower() in key]
    for within, wanted in (("before", row), ("after", row), ("key", of_key)):
        have = _members(columns, within)
        if have is not None:
            found += _differences(within, have, wanted)
    return found


def _members(columns: StructType, name: str) -> list[StructField] | None:
    if name not in columns.names:
        return None
    kind = columns[name].dataType
    assert isinstance(kind, StructType)
    return list(kind.fields)


def _planned_columns(
    row: Sequence[StructField], plan: ColumnPlan, fields: Mapping[str, StructField]
) -> list[StructField]:
    """Return the columns that follow the source's, as planned."""
    by_name = {name.lower(): field.dataType for name, field in fields.items()}
    found = [
        StructField(each.name, by_name[each.name.lower()] if each.name in plan.widened else kind)
        for each in row
        for kind in [each.dataType]
    ]
    names = {each.name.lower() for each in row}
    added = [name for name in plan.added if name.lower() not in names]
    return [*found, *(fields.get(name) or StructField(name, BooleanType()) for name in added)]


def _differences(
    within: str, have: Sequence[StructField], wanted: Sequence[StructField]
) -> Iterator[ColumnEdit]:
    by_name = {field.name.lower(): field for field in have}
    for field in wanted:
        found = by_name.get(field.name.lower())
        if found is None:
            yield ColumnEdit(StructField(field.name, field.dataType), within)
        elif found.dataType == field.dataType:
            continue
        elif isinstance(found.dataType, StructType) and isinstance(field.dataType, StructType):
            new = field.dataType.fields[len(found.dataType.fields) :]
            yield from (ColumnEdit(member, found.name) for member in new)
        else:
            yield ColumnEdit(StructField(found.name, field.dataType), within, widens=True)
