"""A batch's changes of one table, brought over: files with new rows, and which old rows die.

The rules are in docs/internals/lake-rules.md. Runs in tasks: writes data files, commits nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from tidelog.model.records import Int64s
from tidelog.outputs.base.stores.port import FileStore
from tidelog.outputs.lake.data_files.file_reader import DataFileReader
from tidelog.outputs.lake.data_files.key_index_cache import KeyIndexCache
from tidelog.outputs.lake.data_files.keys import KeyQuery
from tidelog.outputs.lake.data_files.layout import FileLayout
from tidelog.outputs.lake.data_files.look_up import RowLookUp
from tidelog.outputs.lake.data_files.parquet_files import ParquetFileWriter
from tidelog.outputs.lake.delta_log.actions import DataFile
from tidelog.outputs.lake.settling.changes import ChangedRows, FoldedChanges
from tidelog.outputs.lake.settling.decisions import NO_VERSION, Decisions, decide
from tidelog.outputs.lake.settling.new_rows import marked, needed_columns, states
from tidelog.outputs.lake.settling.old_rows import (
    FoundPlaces,
    VersionBounds,
    below,
    compared,
    flags_of,
)
from tidelog.outputs.lake.settling.row_buffer import RowBuffer


@dataclass(frozen=True, slots=True)
class Settled:
    """What a batch's changes make of a table. Picklable.

    Attributes:
        added: new files.
        dead: by path of a file, numbers of rows that die: a serialized `pyroaring.BitMap`. It may
            hold rows that the file's vector marks already.
        rows: how many changes were settled.
    """

    added: tuple[DataFile, ...]
    dead: Mapping[str, bytes]
    rows: int


def settle(
    changes: FoldedChanges,
    files: Sequence[DataFile],
    store: FileStore,
    layout: FileLayout,
    columns: Sequence[str],
    cache: KeyIndexCache,
) -> Settled:
    """Decide about every row, and write the new ones.

    Old rows are read only where they count: their versions, unless the batch is newer than their
    file by its statistics; their values, where a change lacks columns, or a row is to be marked as
    deleted.

    Args:
        changes: one row for each key. They may be a part of the batch's keys, unless rows below a
            version are gone and deletes are soft: then rows of the other parts would be marked.
        files: all of the table.
        store: where the table is.
        layout: of the table.
        columns: that the changes deliver; rows that are there keep what they have in others.
        cache: of the files' keys; gets those of the new ones.
    """
    rows = ChangedRows.of(changes, layout, columns)
    reader = DataFileReader(store, layout)
    added = RowBuffer(ParquetFileWriter(store, layout, cache=cache))
    places = _places(rows, files, store, layout, cache)
    decided = decide(
        rows,
        compared(rows, places, reader, layout),
        changes.deleted_below,
        soft=bool(layout.deleted),
    )
    gone = places.by_file(np.flatnonzero(decided.dies))
    dead = {file.path: _bitmap(numbers) for file, numbers in gone}
    added.add(_states(rows, decided, places, reader, layout))
    if len(decided.marks):
        before = places.read(decided.marks, layout.schema.names, reader, layout)
        added.add(marked(before, layout, decided.mark_versions))
    if changes.deleted_below:
        sweep = _mark_below if layout.deleted else _remove_below
        every = np.arange(len(places.key))
        known = {file.path: numbers for file, numbers in places.by_file(every)}
        for file in files:
            old = sweep(file, changes.deleted_below, known.get(file.path), layout, reader, added)
            if old:
                dead[file.path] = dead.get(file.path, BitMap()) | old
    return Settled(
        added=added.close(),
        dead={path: numbers.serialize() for path, numbers in dead.items()},
        rows=len(rows),
    )


def _places(
    rows: ChangedRows,
    files: Sequence[DataFile],
    store: FileStore,
    layout: FileLayout,
    cache: KeyIndexCache,
) -> FoundPlaces:
    if not len(rows) or not files:
        return FoundPlaces.of([])
    keys = KeyQuery(rows.values.select(list(layout.key)), layout)
    return FoundPlaces.of(RowLookUp(store, layout, cache).find(files, keys))


def _states(
    rows: ChangedRows,
    decided: Decisions,
    places: FoundPlaces,
    reader: DataFileReader,
    layout: FileLayout,
) -> pa.Table:
    """Inserted and updated rows; the latter with what they keep of the rows that they replace."""
    kept = needed_columns(rows, layout)
    read = np.full(len(decided.updates), bool(kept))
    if set(kept) <= set(rows.values.column_names):
        # All columns are delivered: rows that are known as a whole keep nothing.
        read &= rows.partial[decided.updates]
    old_at = np.full(len(decided.updates), -1, np.int64)
    old_at[read] = np.arange(np.count_nonzero(read))
    old = places.read(decided.updated[read], kept, reader, layout)
    return states(rows, decided, old, old_at, layout)


def _remove_below(
    file: DataFile,
    limit: int,
    _: Int64s | None,
    layout: FileLayout,
    reader: DataFileReader,
    __: RowBuffer,
) -> BitMap:
    """Rows of a lower version; of keys that changed, too: these are gone or come anew."""
    bounds = VersionBounds.of(file, layout)
    if bounds is not None and (bounds.lowest >= limit or bounds.highest == NO_VERSION):
        return BitMap()
    if bounds is not None and bounds.complete and bounds.highest < limit:
        return BitMap(range(bounds.rows))
    versions = reader.read(file, [layout.version]).column(0)
    return _bitmap(np.flatnonzero(below(versions, limit)))


def _mark_below(
    file: DataFile,
    limit: int,
    found: Int64s | None,
    layout: FileLayout,
    reader: DataFileReader,
    added: RowBuffer,
) -> BitMap:
    """Rows of a lower version that no change is about come again, marked as deleted."""
    bounds = VersionBounds.of(file, layout)
    if bounds is not None and (bounds.lowest >= limit or bounds.highest == NO_VERSION):
        return BitMap()
    rows = reader.read(file, [layout.version, layout.deleted])
    gone = below(rows.column(0), limit) & ~flags_of(rows.column(1))
    gone[reader.deleted_rows(file)] = False
    if found is not None:
        gone[found] = False
    numbers = np.flatnonzero(gone)
    if len(numbers):
        added.add(marked(reader.read(file, None, numbers), layout))
    return _bitmap(numbers)


def _bitmap(rows: Int64s) -> BitMap:
    return BitMap(array("I", rows.astype(np.uint32).tobytes()))
