"""Finds the rows of a table whose keys a batch changes, and builds the rows that replace them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.model.records import Bools, Int64s
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.data_files.file_reader import DataFileReader
from tidelog.outputs.lake.data_files.layout import VALID_TO_VERSION, FileColumn, FileLayout
from tidelog.outputs.lake.data_files.look_up import FoundRows
from tidelog.outputs.lake.data_files.parquet_files import FULL_BYTES, ParquetFileWriter
from tidelog.outputs.lake.settling.changes import (
    NO_VERSION,
    ChangedRows,
    Decisions,
    OldRows,
    has_doubles,
)

# New rows.

_MOST_BYTES = 2 * FULL_BYTES  # of rows that are sorted together


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
        """Return the files of all added rows."""
        self._write()
        return tuple(self._written)

    def _write(self) -> None:
        rows = [each for each in self._waiting if len(each)]
        if rows:
            self._written += self._writer.write(pa.concat_tables(rows))
        self._waiting, self._bytes = [], 0


def needed_columns(changes: ChangedRows, layout: FileLayout) -> list[str]:
    """Return the columns of old rows that updated rows may keep: those that are missing in
    changes, always or sometimes.
    """
    given = set(changes.values.column_names) - set(changes.missing)
    given |= {layout.version, layout.deleted}
    return [column.name for column in layout.columns if column.name not in given]


def build_rows(
    changes: ChangedRows, decided: Decisions, old: pa.Table, old_at: Int64s, layout: FileLayout
) -> pa.Table:
    """Return inserted and updated rows with all columns of the layout, by number of their change.

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
            columns.append(kept_values(old, column, base))
        elif name in changes.missing and (is_absent := changes.missing[name][chosen]).any():
            both = pa.chunked_array(
                [*given.column(name).chunks, *old.column(name).chunks], column.type
            )
            at = np.where(is_absent, len(chosen) + base, np.arange(len(chosen)))
            columns.append(both.take(pa.array(at)))
        else:
            columns.append(given.column(name))
    return pa.Table.from_arrays(columns, schema=layout.schema)


def kept_values(old: pa.Table, column: FileColumn, at: Int64s) -> pa.ChunkedArray:
    """Return a column's values of the rows of ``old`` at these positions; -1: what a new row has
    that brings none.
    """
    values = old.column(column.name).take(pa.array(at, mask=at < 0))
    return (
        values if column.written is None else pc.if_else(pa.array(at >= 0), values, column.written)
    )


def mark_deleted(old: pa.Table, layout: FileLayout, versions: Int64s | None = None) -> pa.Table:
    """Return whole rows of the table, marked as deleted; with other ``versions``, if given."""
    if versions is not None:
        old = with_values(old, layout.version, pa.array(versions))
    return with_values(old, layout.deleted, pa.array(np.ones(len(old), np.bool_)))


def with_nulls(rows: pa.Table, columns: Sequence[str], layout: FileLayout) -> pa.Table:
    """Return whole rows of the table with null in these columns. Rows of states that have ended
    keep their values.
    """
    for name in columns:
        values = pa.nulls(len(rows), rows.schema.field(name).type)
        if layout.history:
            is_open = rows.column(VALID_TO_VERSION).is_null()
            values = pc.if_else(is_open, values, rows.column(name))
        rows = with_values(rows, name, values)
    return rows


def live_rows(rows: pa.Table, deleted: str) -> pa.Table:
    """Return the rows that are not marked as deleted in the column of this name."""
    return rows.filter(pc.invert(pc.fill_null(rows.column(deleted), False)))


def with_values(rows: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return the rows with other values in the column of this name."""
    at = rows.schema.get_field_index(name)
    return rows.set_column(at, rows.schema.field(at), values)


# Old rows.


@dataclass(frozen=True, slots=True)
class VersionBounds:
    """The versions of a file's rows, by its statistics.

    Attributes:
        lowest: no version is lower.
        highest: no version is higher; `NO_VERSION`: no row has one.
        complete: whether every row has a version.
        rows: number of rows of the file, with those that its vector marks.
    """

    lowest: int
    highest: int
    complete: bool
    rows: int

    @classmethod
    def of(cls, file: DataFile, layout: FileLayout, column: str = "") -> VersionBounds | None:
        """Return the bounds; None: the statistics do not give them. ``column``: another one than
        the layout's version.
        """
        stats = file.statistics
        name = layout.column(column or layout.version).physical
        lowest, highest = (stats.get(each, {}).get(name) for each in ("minValues", "maxValues"))
        rows, nulls = stats.get("numRecords"), stats.get("nullCount", {}).get(name)
        if rows is None:
            return None
        if nulls == rows:
            return cls(NO_VERSION, NO_VERSION, False, rows)
        if lowest is None or highest is None:
            return None
        return cls(lowest, highest, nulls == 0, rows)


@dataclass(frozen=True, slots=True)
class RowPositions:
    """The positions of n live rows, file by file.

    Attributes:
        files: the files that contain them.
        file: int64[n], ascending, positions in ``files``.
        row: int64[n], row numbers in their file.
        key: int64[n], the change of each row's key.
    """

    files: Sequence[DataFile]
    file: Int64s
    row: Int64s
    key: Int64s

    @classmethod
    def of(cls, found: Sequence[FoundRows]) -> RowPositions:
        """Return all positions that were found."""
        none = [np.zeros(0, np.int64)]
        return cls(
            files=[each.file for each in found],
            file=np.repeat(np.arange(len(found)), [len(each.rows) for each in found]),
            row=np.concatenate(none + [each.rows for each in found]),
            key=np.concatenate(none + [each.keys for each in found]),
        )

    def by_file(self, chosen: Int64s) -> list[tuple[DataFile, Int64s]]:
        """Return files and row numbers of the positions ``chosen`` (ascending), in their order."""
        bounds = np.searchsorted(self.file[chosen], np.arange(len(self.files) + 1))
        parts = zip(self.files, bounds[:-1], bounds[1:], strict=True)
        return [(file, self.row[chosen[start:end]]) for file, start, end in parts if end > start]

    def read(
        self, chosen: Int64s, columns: Sequence[str], reader: DataFileReader, layout: FileLayout
    ) -> pa.Table:
        """Return the rows at the positions ``chosen`` (ascending), in their order."""
        schema = pa.schema([layout.schema.field(name) for name in columns])
        parts = [reader.read(file, columns, rows) for file, rows in self.by_file(chosen)]
        return pa.concat_tables([schema.empty_table(), *parts])


def read_old_rows(
    changes: ChangedRows, places: RowPositions, reader: DataFileReader, layout: FileLayout
) -> OldRows:
    """Return what decisions need to know about the rows. Versions are not read from a file that is
    older than the change by its statistics; in most batches all files are.
    """
    n = len(places.key)
    version, deleted = np.full(n, NO_VERSION, np.int64), np.zeros(n, np.bool_)
    if n:
        highest = np.array([_highest(file, layout) for file in places.files])
        to_read = changes.version[places.key] <= highest[places.file]
        if has_doubles(places.key):
            to_read[:] = True
        if (at := np.flatnonzero(to_read)).size:
            version[at] = _numbers(places.read(at, [layout.version], reader, layout).column(0))
        if layout.deleted and (at := np.flatnonzero(changes.partial[places.key])).size:
            deleted[at] = flags_of(places.read(at, [layout.deleted], reader, layout).column(0))
    return OldRows(places.key, version, deleted)


def is_closed(file: DataFile, layout: FileLayout) -> bool:
    """Return True if all rows of a file of history are of states that have ended, by its
    statistics.
    """
    return layout.history and _null_ends(file, layout) == "none"


def is_open(file: DataFile, layout: FileLayout) -> bool:
    """Return True if no state of a file's rows has ended, by its statistics."""
    return _null_ends(file, layout) == "all"


def _null_ends(file: DataFile, layout: FileLayout) -> str:
    """Return how many rows have a state that has not ended: "none", "all" or "unknown"."""
    stats = file.statistics
    nulls = stats.get("nullCount", {}).get(layout.column(VALID_TO_VERSION).physical)
    rows = stats.get("numRecords")
    if nulls is None or rows is None:
        return "unknown"
    return {0: "none", rows: "all"}.get(nulls, "unknown")


def newest_version(file: DataFile, reader: DataFileReader, layout: FileLayout) -> int:
    """Return at least the highest version of the file's rows, of a state's end too; `NO_VERSION`:
    no row has one. Read from the rows where the statistics do not give it.
    """
    found = NO_VERSION
    for name in [layout.version, *([VALID_TO_VERSION] if layout.history else [])]:
        bounds = VersionBounds.of(file, layout, name)
        if bounds is not None:
            found = max(found, bounds.highest)
        else:
            found = int(_numbers(reader.read(file, [name]).column(0)).max(initial=found))
    return found


def flags_of(marks: pa.ChunkedArray) -> Bools:
    """Return bool[n]; null is false."""
    found: Bools = pc.fill_null(marks, False).to_numpy()
    return found


def is_below(versions: pa.ChunkedArray, limit: int) -> Bools:
    """Return bool[n]: lower than ``limit``; null is not."""
    return flags_of(pc.less(versions, limit))


def _highest(file: DataFile, layout: FileLayout) -> int:
    bounds = VersionBounds.of(file, layout)
    return np.iinfo(np.int64).max if bounds is None else bounds.highest


def _numbers(versions: pa.ChunkedArray) -> Int64s:
    found: Int64s = pc.fill_null(versions, NO_VERSION).to_numpy()
    return found
