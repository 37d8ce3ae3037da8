"""The changes of a batch, one row per key, and the decisions about the rows that they replace.

The rules of the decisions are in docs/internals/lake-rules.md; they need neither files nor values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.cell_positions import named_lists
from tidelog.model.records import Bools, Int64s
from tidelog.outputs.lake.data_files.layout import FileLayout
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, CHANGE_VERSION


@dataclass(frozen=True)
class FoldedChanges:
    """The changes of one table in a batch (shape `changes`, `tidelog.spark.formats.shapes`).

    Attributes:
        rows: one row per key: op (``u``: the key has this state, ``d``: it is deleted), version,
            delivered columns by name, and as list<string> the names of missing columns (null:
            none).
        deleted_below: rows of a lower version were deleted in the source, with or without an event;
            0: none.
    """

    rows: pa.Table
    deleted_below: int = 0

    @classmethod
    def from_changes(
        cls, rows: pa.Table, names: Sequence[str], deleted_below: int = 0
    ) -> FoldedChanges:
        """Return the changes of rows with the numbers of missing columns, as positions in
        ``names``; rows that already have their names stay as they are.
        """
        at = rows.schema.get_field_index(CHANGE_MISSING)
        lists = pa.concat_arrays(
            [named_lists(chunk, names) for chunk in rows.column(at).chunks]
            or [pa.nulls(0, pa.list_(pa.string()))]
        )
        return cls(rows.set_column(at, CHANGE_MISSING, lists), deleted_below)

    @classmethod
    def none(cls, deleted_below: int) -> FoldedChanges:
        """Return the changes of a batch without rows of the table, which removes those of a lower
        version.
        """
        columns = {
            CHANGE_OP: pa.array([], pa.string()),
            CHANGE_VERSION: pa.array([], pa.int64()),
            CHANGE_MISSING: pa.array([], pa.list_(pa.string())),
        }
        return cls(pa.table(columns), deleted_below)


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Folded changes by the names and types of the table that receives them.

    Attributes:
        values: the delivered columns, of n rows.
        version: int64[n].
        deletes: bool[n], the key is deleted, also by `FoldedChanges.deleted_below`.
        partial: bool[n], some columns are missing.
        missing: by column, bool[n]: the value is missing. Without columns that all rows have.
    """

    values: pa.Table
    version: Int64s
    deletes: Bools
    partial: Bools
    missing: Mapping[str, Bools]

    def __len__(self) -> int:
        return len(self.version)

    @classmethod
    def of(cls, changes: FoldedChanges, layout: FileLayout, columns: Sequence[str]) -> ChangedRows:
        """Return changes of the ``columns``, whose names may differ from the table's by case."""
        rows = changes.rows
        of_table = {column.name.lower(): column for column in layout.columns}
        delivered = [(of_table[name.lower()], rows.column(name)) for name in columns]
        version = rows.column(CHANGE_VERSION).to_numpy().astype(np.int64, copy=False)
        deletes = _flags(pc.equal(rows.column(CHANGE_OP), "d"))
        values = pa.table(
            [_cast_to(value, column.type) for column, value in delivered],
            names=[column.name for column, _ in delivered],
        )
        lists = rows.column(CHANGE_MISSING)
        partial = np.zeros(len(rows), np.bool_)
        missing: dict[str, Bools] = {}
        if lists.null_count < len(rows):
            partial = _flags(lists.is_valid())
            known = {*layout.key, layout.version, layout.deleted}
            missing = {
                of_table[name.lower()].name: flags
                for name, flags in _missing(lists).items()
                if name.lower() in of_table and of_table[name.lower()].name not in known
            }
        return cls(values, version, deletes | (version < changes.deleted_below), partial, missing)


def _cast_to(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Cast to the table's type, which fits all values of the source's: see
    `tidelog.outputs.lake.contents`.
    """
    return values if values.type == kind else values.cast(kind)


def _flags(values: pa.ChunkedArray) -> Bools:
    found: Bools = values.to_numpy().astype(np.bool_, copy=False)
    return found


def _missing(lists: pa.ChunkedArray) -> dict[str, Bools]:
    """Return, by name in any of n lists, bool[n]: the lists that have it."""
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    row = np.repeat(np.arange(len(lists)), counts)
    names = pc.list_flatten(lists)
    found: dict[str, Bools] = {}
    for name in pc.unique(names).to_pylist():
        found[name] = np.zeros(len(lists), np.bool_)
        found[name][row[_flags(pc.equal(names, name))]] = True
    return found


# Decisions.

# Stands for a version that is null: older than any. Also for one that need not be known.
NO_VERSION = int(np.iinfo(np.int64).min)


@dataclass(frozen=True, slots=True)
class OldRows:
    """The table's n rows whose keys a batch changes, in any order; a key may have several.

    Attributes:
        key: int64[n], the number of the change of the row's key.
        version: int64[n], `NO_VERSION` where there is none or any is older than the change.
        deleted: bool[n], the row is marked as deleted.
    """

    key: Int64s
    version: Int64s
    deleted: Bools


@dataclass(frozen=True, slots=True)
class Decisions:
    """What happens to old rows and changes, by their numbers.

    Attributes:
        dies: bool[old rows], the row is removed.
        inserts: int64[], changes that become rows of keys that are not in the table.
        updates: int64[m], changes that become rows in place of old ones.
        updated: int64[m], the old row of each update, ascending; it has the change's missing
            columns.
        marks: int64[k], ascending, old rows that are written again, marked as deleted.
        mark_versions: int64[k], the versions that these then have.
    """

    dies: Bools
    inserts: Int64s
    updates: Int64s
    updated: Int64s
    marks: Int64s
    mark_versions: Int64s


def decide(changes: ChangedRows, old: OldRows, deleted_below: int, *, soft: bool) -> Decisions:
    """Decide about the old rows and the changes.

    Args:
        changes: one change for each key.
        old: all rows of these keys.
        deleted_below: as in `FoldedChanges`.
        soft: whether deleted rows stay, marked.
    """
    chosen = newest_rows(old)
    key, before = old.key[chosen], old.version[chosen]
    version, deletes = changes.version[key], changes.deletes[key]
    newer = (version > before) | (before == NO_VERSION)
    removed = deletes & (newer | (before < deleted_below) if deleted_below else newer)
    updated = ~deletes & newer
    if soft:
        # The values of a deleted row are not those of a row that was inserted again.
        updated &= ~(changes.partial[key] & old.deleted[chosen])
    dies = np.ones(len(old.key), np.bool_)
    dies[chosen] = removed | updated
    absent = np.ones(len(changes), np.bool_)
    absent[key] = False
    none = np.zeros(0, np.int64)
    return Decisions(
        dies=dies,
        inserts=np.flatnonzero(absent & ~changes.deletes & ~changes.partial),
        updates=key[updated],
        updated=chosen[updated],
        marks=chosen[removed] if soft else none,
        mark_versions=np.maximum(before, version)[removed] if soft else none,
    )


def newest_rows(old: OldRows) -> Int64s:
    """Return int64[keys]: the row of each key with the highest version, the first of equal
    ones.
    """
    n = len(old.key)
    if not has_doubles(old.key):
        return np.arange(n)
    order = np.lexsort((-np.arange(n), old.version, old.key))
    last = np.append(old.key[order][1:] != old.key[order][:-1], True)
    return np.sort(order[last])


def has_doubles(key: Int64s) -> bool:
    """Return True if a number is there twice (all are ≥ 0)."""
    return bool(len(key)) and int(np.bincount(key).max()) > 1
