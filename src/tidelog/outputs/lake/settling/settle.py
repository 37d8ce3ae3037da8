"""Settles a batch's changes of one table: writes new rows, and removes old ones from their files.

The rules are in docs/internals/lake-rules.md. Runs in tasks: writes data files, commits nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from tidelog.model.records import Bools, Int64s
from tidelog.outputs.base.stores import FileStore, open_file_store
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.data_files.disk_cache import CACHE_BYTES, RowCache
from tidelog.outputs.lake.data_files.file_reader import DataFileReader, format_of
from tidelog.outputs.lake.data_files.keys import KeyQuery
from tidelog.outputs.lake.data_files.layout import VALID_TO_VERSION, FileColumn, FileLayout
from tidelog.outputs.lake.data_files.look_up import KeyIndexCache, RowFinder
from tidelog.outputs.lake.data_files.parquet_files import ParquetFileWriter
from tidelog.outputs.lake.settling.changes import (
    NO_VERSION,
    ChangedRows,
    Decisions,
    FoldedChanges,
    decide,
)
from tidelog.outputs.lake.settling.rows import (
    RowBuffer,
    RowPositions,
    VersionBounds,
    build_rows,
    flags_of,
    is_below,
    is_open,
    live_rows,
    mark_deleted,
    needed_columns,
    read_old_rows,
    with_nulls,
    with_values,
)

_FOLDER = "_change_data"
_TYPE = FileColumn("_change_type", "_change_type", pa.string())


@dataclass(frozen=True, slots=True)
class ChangeFile:
    """A file of changes, as action ``cdc`` names it; see `DataFile`."""

    path: str
    partition_values: Mapping[str, str | None]
    size: int


class ChangeFeedWriter:
    """Writes one task's changes to the change data feed. All rows have all columns of the layout.

    Args:
        store: the store of the table.
        layout: the table's layout.
    """

    def __init__(self, store: FileStore, layout: FileLayout) -> None:
        # In any order: nobody looks keys up in these files.
        own = replace(
            layout, columns=(*layout.columns, _TYPE), key=(), statistics=(), prefix_length=0
        )
        folder = open_file_store(f"{store.path.rstrip('/')}/{_FOLDER}")
        self._buffer = RowBuffer(ParquetFileWriter(folder, own))

    def add_inserts(self, rows: pa.Table) -> None:
        """Add rows of keys that were not in the table."""
        self._add(rows, "insert")

    def add_updates(self, before: pa.Table, after: pa.Table) -> None:
        """Add rows that replace others."""
        self._add(before, "update_preimage")
        self._add(after, "update_postimage")

    def add_deletes(self, rows: pa.Table) -> None:
        """Add rows that nothing replaces."""
        self._add(rows, "delete")

    def close(self) -> tuple[ChangeFile, ...]:
        """Return the files of all added changes."""
        return tuple(
            ChangeFile(f"{_FOLDER}/{file.path}", file.partition_values, file.size)
            for file in self._buffer.close()
        )

    def _add(self, rows: pa.Table, kind: str) -> None:
        kinds = pa.repeat(pa.scalar(kind), len(rows))
        self._buffer.add(rows.append_column(_TYPE.name, kinds))


@dataclass(frozen=True, slots=True)
class SettledChanges:
    """The effect of a batch's changes on a table. Picklable.

    Attributes:
        added: new files.
        dead: by path of a file, numbers of removed rows: a serialized `pyroaring.BitMap`. It may
            contain rows that the file's vector marks already.
        change_files: files of the change data feed.
        rows: number of settled changes.
    """

    added: tuple[DataFile, ...]
    dead: Mapping[str, bytes]
    change_files: tuple[ChangeFile, ...]
    rows: int

    @classmethod
    def of_parts(cls, parts: Sequence[SettledChanges]) -> SettledChanges:
        """Return the sum of changes that were settled in parts with distinct keys."""
        dead: dict[str, BitMap] = {}
        for part in parts:
            for path, numbers in part.dead.items():
                dead[path] = dead.get(path, BitMap()) | BitMap.deserialize(numbers)
        return cls(
            added=tuple(file for part in parts for file in part.added),
            dead={path: numbers.serialize() for path, numbers in dead.items()},
            change_files=tuple(file for part in parts for file in part.change_files),
            rows=sum(part.rows for part in parts),
        )


def settle(
    changes: FoldedChanges,
    files: Sequence[DataFile],
    store: FileStore,
    layout: FileLayout,
    columns: Sequence[str],
    cache: KeyIndexCache,
) -> SettledChanges:
    """Decide about every row, and write the new ones.

    Old rows are read only where needed: their versions, unless the batch is newer than their file
    by its statistics; their values, where a change has missing columns, a row is to be marked as
    deleted, or the table has a change data feed.

    Args:
        changes: one row for each key. They may be a part of the batch's keys, while other tasks
            settle the others; but not where rows below a version are deleted and deletes are soft
            or there is a change feed: rows of other parts would be marked, too.
        files: all files of the table.
        store: the store of the table.
        layout: the table's layout.
        columns: columns that the changes deliver (without changes: none); existing rows keep their
            values in other columns.
        cache: the files' keys; receives those of the new files.
    """
    rows = ChangedRows.of(changes, layout, columns)
    reader = DataFileReader(store, layout)
    added = RowBuffer(ParquetFileWriter(store, layout, cache=cache))
    places = _places(rows, files, store, layout, cache)
    decided = decide(
        rows,
        read_old_rows(rows, places, reader, layout),
        changes.deleted_below,
        soft=bool(layout.deleted),
    )
    removed = places.by_file(np.flatnonzero(decided.dies))
    dead = {file.path: bitmap_of(numbers) for file, numbers in removed}
    new = _states(rows, decided, places, reader, layout)
    before = places.read(decided.marks, layout.schema.names, reader, layout)
    after = mark_deleted(before, layout, decided.mark_versions) if layout.deleted else before
    added.add(new)
    added.add(after)
    feed = ChangeFeedWriter(store, layout) if layout.change_feed else None
    if feed is not None:
        feed.add_updates(before, after)
        _feed_states(feed, decided, new, places, reader, layout)
    for file in files if changes.deleted_below else ():
        numbers = _rows_below(file, changes.deleted_below, reader, layout)
        if layout.deleted or feed is not None:
            numbers -= bitmap_of(reader.deleted_rows(file))
            numbers -= dead.get(file.path, BitMap())  # like all rows of changed keys
            _remove_rows(file, _numbers(numbers), added, feed, reader, layout)
        if numbers:
            dead[file.path] = dead.get(file.path, BitMap()) | numbers
    return SettledChanges(
        added=added.close(),
        dead={path: numbers.serialize() for path, numbers in dead.items()},
        change_files=() if feed is None else feed.close(),
        rows=len(rows),
    )


def _places(
    rows: ChangedRows,
    files: Sequence[DataFile],
    store: FileStore,
    layout: FileLayout,
    cache: KeyIndexCache,
) -> RowPositions:
    if not len(rows) or not files:
        return RowPositions.of([])
    keys = KeyQuery(rows.values.select(list(layout.key)), layout)
    return RowPositions.of(RowFinder(store, layout, cache).find(files, keys))


def _states(
    rows: ChangedRows,
    decided: Decisions,
    places: RowPositions,
    reader: DataFileReader,
    layout: FileLayout,
) -> pa.Table:
    """Return inserted and updated rows; the latter with the values that they keep of the rows that
    they replace.
    """
    kept = needed_columns(rows, layout)
    read = np.full(len(decided.updates), bool(kept))
    if set(kept) <= set(rows.values.column_names):
        # All columns are delivered: rows without missing columns keep nothing.
        read &= rows.partial[decided.updates]
    old_at = np.full(len(decided.updates), -1, np.int64)
    old_at[read] = np.arange(np.count_nonzero(read))
    old = places.read(decided.updated[read], kept, reader, layout)
    return build_rows(rows, decided, old, old_at, layout)


def _feed_states(
    feed: ChangeFeedWriter,
    decided: Decisions,
    new: pa.Table,
    places: RowPositions,
    reader: DataFileReader,
    layout: FileLayout,
) -> None:
    """Add inserts, updates and deletes of changed keys to the feed; ``new``: the result of
    `_states`.
    """
    number = np.sort(np.concatenate([decided.inserts, decided.updates]))
    in_place = np.isin(number, decided.updates)
    feed.add_inserts(new.filter(pa.array(~in_place)))
    removed = decided.dies.copy()
    removed[decided.updated] = removed[decided.marks] = False
    names = layout.schema.names
    before = places.read(decided.updated, names, reader, layout)
    feed.add_updates(before, new.filter(pa.array(in_place)))
    feed.add_deletes(places.read(np.flatnonzero(removed), names, reader, layout))


def _rows_below(file: DataFile, limit: int, reader: DataFileReader, layout: FileLayout) -> BitMap:
    """Return rows of a lower version not marked as deleted, even if the vector marks them."""
    bounds = VersionBounds.of(file, layout)
    if bounds is not None:
        if bounds.lowest >= limit or bounds.highest == NO_VERSION:
            return BitMap()
        if bounds.complete and bounds.highest < limit and not layout.deleted:
            return BitMap(range(bounds.rows))
    rows = reader.read(file, [name for name in (layout.version, layout.deleted) if name])
    found = is_below(rows.column(layout.version), limit)
    if layout.deleted:
        found &= ~flags_of(rows.column(layout.deleted))
    return bitmap_of(np.flatnonzero(found))


def _remove_rows(
    file: DataFile,
    numbers: Int64s,
    added: RowBuffer,
    feed: ChangeFeedWriter | None,
    reader: DataFileReader,
    layout: FileLayout,
) -> None:
    """Remove or mark these rows of a file, which were deleted in the source."""
    if not len(numbers):
        return
    before = reader.read(file, None, numbers)
    if not layout.deleted:
        if feed is not None:
            feed.add_deletes(before)
        return
    after = mark_deleted(before, layout)
    added.add(after)
    if feed is not None:
        feed.add_updates(before, after)


def _numbers(rows: BitMap) -> Int64s:
    return np.asarray(rows.to_array()).astype(np.int64)


def bitmap_of(rows: Int64s) -> BitMap:
    """Return row numbers as `SettledChanges` has them."""
    return BitMap(array("I", rows.astype(np.uint32).tobytes()))


# Files without their removed rows, and the same rows in fewer files.


@dataclass(frozen=True, slots=True)
class SettleOptions:
    """Options for tasks that settle rows, and remove them from their files.

    Attributes:
        deletion_vectors: whether rows may be marked as deleted; else their files are rewritten.
        rewrite_share: a file with a greater share of deleted rows is rewritten. With 0.3, each
            deleted row costs 2.3 others that are rewritten, and readers skip at most three rows of
            ten.
        cache_bytes: most bytes that tasks keep on their host's disk of keys, and of rows.
    """

    deletion_vectors: bool
    rewrite_share: float = 0.3
    cache_bytes: int = CACHE_BYTES


@dataclass(frozen=True, slots=True)
class FileChanges:
    """The changes of a table's files. Picklable.

    Attributes:
        added: new files.
        removed: files that the table does not have any more.
        marked: pairs of a file before, and the same file with its new vector.
        change_files: files of the change data feed.
    """

    added: tuple[DataFile, ...]
    removed: tuple[DataFile, ...]
    marked: tuple[tuple[DataFile, DataFile], ...]
    change_files: tuple[ChangeFile, ...] = ()


def replace_files(
    dead: Mapping[str, bytes | BitMap],
    files: Mapping[str, DataFile],
    store: FileStore,
    layout: FileLayout,
    options: SettleOptions,
    cache: KeyIndexCache | None = None,
) -> FileChanges:
    """Remove rows from their files: a file without other rows is removed; few rows are
    marked; else the file's other rows are rewritten, together with those of other files.

    Args:
        dead: by path, numbers of rows (serialized or not) to remove beyond the file's vector.
        files: by path, at least these files.
        store: the store of the table.
        layout: the table's layout.
        options: see `SettleOptions`.
        cache: receives the keys of new files.
    """
    own = layout.of_kept_rows
    reader = DataFileReader(store, own, _rows_of(cache, own))
    added = _KeptRows(store, own, cache)
    marks = format_of(layout).marks_writer(store)
    removed: list[DataFile] = []
    for path, numbers in dead.items():
        file = files[path]
        before = reader.deleted_rows(file)
        deleted = _flags(numbers, before, _count(file, reader))
        total = int(np.count_nonzero(deleted))
        if total == len(before):
            continue
        share = options.rewrite_share
        if layout.history and not is_open(file, layout):  # rows of ended states stay
            share = max(share, 0.5)
        few = total < len(deleted) and total <= share * len(deleted)
        if options.deletion_vectors and few:
            marks.mark(file, np.flatnonzero(deleted), len(deleted))
            continue
        removed.append(file)
        if total < len(deleted):
            added.add(reader.read(file, None, np.flatnonzero(~deleted)))
    return FileChanges(added.close(), tuple(removed), marks.close())


def rewrite(
    files: Sequence[DataFile],
    store: FileStore,
    layout: FileLayout,
    *,
    null_columns: Sequence[str] = (),
    drop_deleted: bool = False,
    cache: KeyIndexCache | None = None,
) -> FileChanges:
    """Rewrite the live rows of files into fewer files; as many as memory allows (256 MiB) are
    sorted together. If rows or values are to be removed, a file that has none of them stays.

    Args:
        files: the files.
        store: the store of the table.
        layout: the table's layout.
        null_columns: columns whose values are removed; not from states that have ended.
        drop_deleted: whether rows marked as deleted (in the layout's column ``deleted``) are
            removed, too.
        cache: receives the keys of new files.
    """
    own = layout.of_kept_rows
    reader = DataFileReader(store, own, _rows_of(cache, own))
    added = _KeptRows(store, own, cache)
    feed = ChangeFeedWriter(store, layout) if layout.change_feed else None
    removed: list[DataFile] = []
    for file in files:
        numbers = None
        if file.deleted_rows:
            numbers = np.flatnonzero(
                ~_flags(BitMap(), reader.deleted_rows(file), _count(file, reader))
            )
        rows = reader.read(file, None, numbers)
        live = live_rows(rows, layout.deleted) if drop_deleted else rows
        kept = with_nulls(live, null_columns, layout)
        changed = _lost_values(live, kept, null_columns)
        if (null_columns or drop_deleted) and len(live) == len(rows) and not changed.any():
            continue
        removed.append(file)
        for each in format_of(layout).lineage[1:] if changed.any() else ():
            values = pc.if_else(changed, pa.scalar(None, each.type), kept[each.name])
            kept = with_values(kept, each.name, values)
        added.add(kept)
        if feed is not None:
            feed.add_updates(live.filter(pa.array(changed)), kept.filter(pa.array(changed)))
            if drop_deleted:
                feed.add_deletes(rows.filter(pa.array(flags_of(rows.column(layout.deleted)))))
    return FileChanges(added.close(), tuple(removed), (), () if feed is None else feed.close())


def _lost_values(before: pa.Table, after: pa.Table, columns: Sequence[str]) -> Bools:
    """Return bool[n]: rows that have null in one of the columns, and had a value."""
    lost = np.zeros(len(before), np.bool_)
    for name in columns:
        nulls = (rows.column(name).is_null().to_numpy() for rows in (before, after))
        lost |= np.not_equal(*nulls)
    return lost


class _KeptRows:
    """Writes rows of rewritten files. Those of ended states get files of their own, which are not
    searched for keys.
    """

    def __init__(self, store: FileStore, layout: FileLayout, cache: KeyIndexCache | None) -> None:
        def buffer() -> RowBuffer:
            return RowBuffer(ParquetFileWriter(store, layout, cache=cache))

        self._rows = buffer()
        self._ended = buffer() if layout.history else None

    def add(self, rows: pa.Table) -> None:
        if self._ended is not None:
            is_ended = rows.column(VALID_TO_VERSION).is_valid()
            self._ended.add(rows.filter(is_ended))
            rows = rows.filter(pc.invert(is_ended))
        self._rows.add(rows)

    def close(self) -> tuple[DataFile, ...]:
        """Return the files of all added rows."""
        return (*self._rows.close(), *(() if self._ended is None else self._ended.close()))


def _rows_of(cache: KeyIndexCache | None, layout: FileLayout) -> RowCache | None:
    """Return the cache of rows; it has none of their lineage."""
    has_lineage = format_of(layout).lineage
    return cache.rows if cache is not None and layout.history and not has_lineage else None


def _flags(dead: bytes | BitMap, before: Int64s, count: int) -> Bools:
    """Return bool[count]: rows that are deleted now."""
    numbers = BitMap.deserialize(dead) if isinstance(dead, bytes) else dead
    deleted = np.zeros(count, np.bool_)
    deleted[np.asarray(numbers.to_array())] = True
    deleted[before] = True
    return deleted


def _count(file: DataFile, reader: DataFileReader) -> int:
    """Return the number of all rows of a file, with those that its vector marks."""
    count = file.statistics.get("numRecords")
    if count is None:
        count = reader.row_count(file)
    return int(count)
