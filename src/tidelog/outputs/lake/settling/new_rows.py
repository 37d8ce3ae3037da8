"""Builds the new rows of a table, from changes and from the rows that these replace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.model.records import Int64s
from tidelog.outputs.lake.data_files.layout import VALID_TO_VERSION, FileLayout
from tidelog.outputs.lake.data_files.parquet_files import ParquetFileWriter
from tidelog.outputs.lake.delta_log.actions import DataFile
from tidelog.outputs.lake.settling.changes import ChangedRows
from tidelog.outputs.lake.settling.decisions import Decisions

_MOST_BYTES = 256 << 20


class RowBuffer:
    """Collects rows and writes them to files, when there are many and at the end."""

    def __init__(self, writer: ParquetFileWriter) -> None:
        self._writer = writer
        self._waiting: list[pa.Table] = []
        self._bytes = 0
        self._written: list[DataFile] = []

    def add(self, rows: pa.Table) -> None:
        """Add rows with all columns of the layout."""
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= _MOST_BYTES:
            self._write()

    def close(self) -> tuple[DataFile, ...]:
        """Returns the files of all added rows."""
        self._write()
        return tuple(self._written)

    def _write(self) -> None:
        rows = [each for each in self._waiting if len(each)]
        if rows:
            self._written += self._writer.write(pa.concat_tables(rows))
        self._waiting, self._bytes = [], 0


def needed_columns(changes: ChangedRows, layout: FileLayout) -> list[str]:
    """Returns the columns of old rows that updated rows may keep: those that are missing in
    changes, always or sometimes.
    """
    given = set(changes.values.column_names) - set(changes.missing)
    given |= {layout.version, layout.deleted}
    return [column.name for column in layout.columns if column.name not in given]


def build_rows(
    changes: ChangedRows, decided: Decisions, old: pa.Table, old_at: Int64s, layout: FileLayout
) -> pa.Table:
    """Returns inserted and updated rows with all columns of the layout, by number of their change.

    Args:
        changes: the changes of the batch.
        decided: the decisions about them.
        old: rows of the table with `needed_columns`.
        old_at: int64[updates], the position in ``old`` of the row that each update replaces; -1: no
            value of it is needed.
        layout: the table's layout.
    """
    chosen = np.concatenate([decided.inserts, decided.updates])
    base = np.concatenate([np.full(len(decided.inserts), -1, np.int64), old_at])
    order = np.argsort(chosen, kind="stable")
    chosen, base = chosen[order], base[order]
    given = changes.values
    if len(chosen) < len(changes):
        given = given.take(pa.array(chosen))
    columns: list[pa.ChunkedArray | pa.Array] = []
    for column in layout.columns:
        name = column.name
        if name == layout.version:
            columns.append(pa.array(changes.version[chosen], column.type))
        elif name == layout.deleted:
            columns.append(pa.array(np.zeros(len(chosen), np.bool_)))
        elif name not in given.column_names:
            columns.append(old.column(name).take(pa.array(base, mask=base < 0)))
        elif name in changes.missing and (is_absent := changes.missing[name][chosen]).any():
            both = pa.chunked_array(
                [*given.column(name).chunks, *old.column(name).chunks], column.type
            )
            at = np.where(is_absent, len(chosen) + base, np.arange(len(chosen)))
            columns.append(both.take(pa.array(at)))
        else:
            columns.append(given.column(name))
    return pa.Table.from_arrays(columns, schema=layout.schema)


def mark_deleted(old: pa.Table, layout: FileLayout, versions: Int64s | None = None) -> pa.Table:
    """Returns whole rows of the table, marked as deleted; with other ``versions``, if given."""
    if versions is not None:
        old = _replaced(old, layout.version, pa.array(versions))
    return _replaced(old, layout.deleted, pa.array(np.ones(len(old), np.bool_)))


def with_nulls(rows: pa.Table, columns: Sequence[str], layout: FileLayout) -> pa.Table:
    """Returns whole rows of the table with null in these columns. Rows of states that have ended
    keep their values.
    """
    for name in columns:
        values = pa.nulls(len(rows), rows.schema.field(name).type)
        if layout.history:
            is_open = rows.column(VALID_TO_VERSION).is_null()
            values = pc.if_else(is_open, values, rows.column(name))
        rows = _replaced(rows, name, values)
    return rows


def live_rows(rows: pa.Table, deleted: str) -> pa.Table:
    """Returns the rows that are not marked as deleted in the column of this name."""
    return rows.filter(pc.invert(pc.fill_null(rows.column(deleted), False)))


def _replaced(rows: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    at = rows.schema.get_field_index(name)
    return rows.set_column(at, rows.schema.field(at), values)
