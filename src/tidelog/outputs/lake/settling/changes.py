"""The changes of a batch, one row per key, as the rows of a lake's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.missing_columns import named_lists
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
        """Returns the changes of rows with the numbers of missing columns, as positions in
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
        """Returns the changes of a batch without rows of the table, which removes those of a lower
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
        """Returns the changes with the delivered ``columns``, whose names may differ from the
        table's by case.
        """
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
    `tidelog.outputs.lake.columns`.
    """
    return values if values.type == kind else values.cast(kind)


def _flags(values: pa.ChunkedArray) -> Bools:
    found: Bools = values.to_numpy().astype(np.bool_, copy=False)
    return found


def _missing(lists: pa.ChunkedArray) -> dict[str, Bools]:
    """Returns, by name in any of n lists, bool[n]: the lists that have it."""
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    row = np.repeat(np.arange(len(lists)), counts)
    names = pc.list_flatten(lists)
    found: dict[str, Bools] = {}
    for name in pc.unique(names).to_pylist():
        found[name] = np.zeros(len(lists), np.bool_)
        found[name][row[_flags(pc.equal(names, name))]] = True
    return found
