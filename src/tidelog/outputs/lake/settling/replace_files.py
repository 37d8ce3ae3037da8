"""Replaces files of a table: without deleted rows, or with the same rows in fewer files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pyroaring import BitMap

from tidelog.model.records import Bools, Int64s
from tidelog.outputs.base.stores.port import FileStore
from tidelog.outputs.lake.data_files.file_reader import DataFileReader
from tidelog.outputs.lake.data_files.key_index_cache import KeyIndexCache
from tidelog.outputs.lake.data_files.layout import FileLayout
from tidelog.outputs.lake.data_files.parquet_files import ParquetFileWriter
from tidelog.outputs.lake.delta_log.actions import DataFile
from tidelog.outputs.lake.delta_log.deletion_vectors import DeletionVectorWriter
from tidelog.outputs.lake.settling.new_rows import RowBuffer, live_rows, with_nulls
from tidelog.outputs.lake.settling.old_rows import is_closed

_TIGHT = re.compile(r'("tightBounds"\s*:\s*)true')


@dataclass(frozen=True, slots=True)
class SettleOptions:
    """Options for the removal of rows from their files.

    Attributes:
        deletion_vectors: whether rows may be marked in a vector; else their files are rewritten.
        rewrite_share: a file with a greater share of deleted rows is rewritten. With 0.3, each
            deleted row costs 2.3 others that are rewritten, and readers skip at most three rows of
            ten.
    """

    deletion_vectors: bool
    rewrite_share: float = 0.3


@dataclass(frozen=True, slots=True)
class FileChanges:
    """The changes of a table's files. Picklable.

    Attributes:
        added: new files.
        removed: files that the table does not have any more.
        marked: pairs of a file before, and the same file with its new vector.
    """

    added: tuple[DataFile, ...]
    removed: tuple[DataFile, ...]
    marked: tuple[tuple[DataFile, DataFile], ...]


def replace_files(
    dead: Mapping[str, bytes | BitMap],
    files: Mapping[str, DataFile],
    store: FileStore,
    layout: FileLayout,
    options: SettleOptions,
    cache: KeyIndexCache | None = None,
) -> FileChanges:
    """Remove rows from their files: a file without other rows is removed; few rows are marked by a
    vector; else the file's other rows are rewritten, together with those of other files.

    Args:
        dead: by path, numbers of rows (serialized or not) to remove beyond the file's vector.
        files: by path, at least these files.
        store: the store of the table.
        layout: the table's layout.
        options: see `SettleOptions`.
        cache: receives the keys of new files.
    """
    reader = DataFileReader(store, layout)
    added = RowBuffer(ParquetFileWriter(store, layout, cache=cache))
    vectors = DeletionVectorWriter(store)
    removed: list[DataFile] = []
    marked: list[tuple[DataFile, DataFile]] = []
    for path, numbers in dead.items():
        file = files[path]
        before = reader.deleted_rows(file)
        deleted = _flags(numbers, before, _count(file, reader))
        total = int(np.count_nonzero(deleted))
        if total == len(before):
            continue
        few = total < len(deleted) and total <= options.rewrite_share * len(deleted)
        if options.deletion_vectors and few:
            vector = vectors.add(np.flatnonzero(deleted))
            stats = _stats_of_marked(file.stats, len(deleted))
            marked.append((file, replace(file, deletion_vector=vector, stats=stats)))
            continue
        removed.append(file)
        if total < len(deleted):
            added.add(reader.read(file, None, np.flatnonzero(~deleted)))
    vectors.close()
    return FileChanges(added.close(), tuple(removed), tuple(marked))


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
    sorted together.

    Args:
        files: the files, all of which are removed.
        store: the store of the table.
        layout: the table's layout.
        null_columns: columns whose values are removed; not from states that have ended.
        drop_deleted: whether rows marked as deleted (in the layout's column ``deleted``) are
            removed, too.
        cache: receives the keys of new files.
    """
    reader = DataFileReader(store, layout)
    searched = not all(is_closed(file, layout) for file in files)
    added = RowBuffer(ParquetFileWriter(store, layout, cache=cache if searched else None))
    for file in files:
        numbers = None
        if file.deletion_vector is not None:
            numbers = np.flatnonzero(
                ~_flags(BitMap(), reader.deleted_rows(file), _count(file, reader))
            )
        rows = reader.read(file, None, numbers)
        if drop_deleted:
            rows = live_rows(rows, layout.deleted)
        added.add(with_nulls(rows, null_columns, layout))
    return FileChanges(added.close(), tuple(files), ())


def _flags(dead: bytes | BitMap, before: Int64s, count: int) -> Bools:
    """Returns bool[count]: rows that are deleted now."""
    numbers = BitMap.deserialize(dead) if isinstance(dead, bytes) else dead
    deleted = np.zeros(count, np.bool_)
    deleted[np.asarray(numbers.to_array())] = True
    deleted[before] = True
    return deleted


def _count(file: DataFile, reader: DataFileReader) -> int:
    """Returns the number of all rows of a file, with those that its vector marks."""
    count = json.loads(file.stats or "{}").get("numRecords")
    if count is None:
        count = reader.row_count(file)
    return int(count)


def _stats_of_marked(stats: str | None, count: int) -> str:
    """Returns the statistics of a file with a vector: they must have its number of rows, and bounds
    may be those of deleted rows (protocol: "Per-file Statistics"). Numbers keep their spelling:
    decimals are exact only as text.
    """
    known = json.loads(stats or "{}")
    if stats is None or "numRecords" not in known:
        return json.dumps({"numRecords": count, "tightBounds": False})
    if "tightBounds" not in known:
        return stats.rstrip()[:-1] + ',"tightBounds":false}'
    for found in _TIGHT.finditer(stats):
        loose = f"{stats[: found.end(1)]}false{stats[found.end() :]}"
        if json.loads(loose)["tightBounds"] is False:
            return loose
    return stats
