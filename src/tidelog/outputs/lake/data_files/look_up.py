"""HOT PATH. Finds the rows of given keys: by files' statistics, then by an index of a file's keys.

Indexes are cached on the disk of the host that reads the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tidelog.model.records import Bools
from tidelog.outputs.base.stores import FileStore
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.data_files.disk_cache import CACHE_BYTES, DiskCache, RowCache, columns_of
from tidelog.outputs.lake.data_files.file_reader import DataFileReader
from tidelog.outputs.lake.data_files.keys import (
    KeyQuery,
    Places,
    SortedKeys,
    canonical,
    equal_keys,
    has_exact_places,
    partition_of,
    places_of,
)
from tidelog.outputs.lake.data_files.layout import VALID_TO_VERSION, FileColumn, FileLayout

# The index of one file's keys.

_MOST_INT32 = np.iinfo(np.int32).max


@dataclass(frozen=True)
class FileKeyIndex:
    """An index of the keys of a file's rows.

    Attributes:
        places: the keys' sort values, sorted (`places_of`); without rows with a null key where null
            matches nothing, and, of history, without those of states that have ended.
        rows: the row number of each place; None: the place's index.
        keys: canonical columns of the row of each place, to compare keys with equal places; empty
            if places are exact.
    """

    places: Places
    rows: np.ndarray | None
    keys: tuple[pa.Array, ...]

    def find(self, wanted: SortedKeys, layout: FileLayout) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of the rows whose key is wanted, and the numbers of their keys in the
        query.
        """
        places, found = _pairs(self.places, wanted.places)
        rows = places if self.rows is None else self.rows[places].astype(np.int64)
        numbers = wanted.numbers[found]
        if self.keys and len(rows):
            ours, theirs = pa.array(places), pa.array(numbers)
            same = equal_keys(
                [each.take(ours) for each in self.keys],
                [wanted.columns[each.name].take(theirs) for each in layout.file_key],
                null_key=layout.null_key,
            )
            rows, numbers = rows[same], numbers[same]
        return rows, numbers


def index_keys(rows: pa.Table, layout: FileLayout) -> FileKeyIndex:
    """Return the index of a file.

    Args:
        rows: all rows of the file, with at least the columns of `FileLayout.file_key`, of which
            there is at least one, and, of history, that of the end of states.
        layout: the table's layout.
    """
    columns = [canonical(rows[each.name].combine_chunks()) for each in layout.file_key]
    exact = has_exact_places(layout)
    searched = open_rows(rows) if layout.history else np.ones(rows.num_rows, np.bool_)
    if exact:
        searched &= np.asarray(columns[0].is_valid())
    numbers = None
    if not searched.all():
        numbers = np.flatnonzero(searched)
        columns = [each.take(pa.array(numbers)) for each in columns]
    places = places_of(columns, len(columns[0]), layout)
    if not (places[:-1] <= places[1:]).all():
        order = np.argsort(places)
        places = places[order]
        if not exact:
            columns = [each.take(pa.array(order)) for each in columns]
        numbers = order if numbers is None else numbers[order]
    if numbers is not None and rows.num_rows <= _MOST_INT32:
        numbers = numbers.astype(np.int32)
    return FileKeyIndex(places, numbers, () if exact else tuple(columns))


def open_rows(rows: pa.Table) -> Bools:
    """Return bool[n]: rows of history whose states have not ended."""
    found: Bools = rows.column(VALID_TO_VERSION).is_null().to_numpy()
    return found.copy()


def _pairs(left: Places, right: Places) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of all pairs of equal elements of two sorted arrays."""
    if len(left) < len(right):
        found, ours = _pairs(right, left)
        return ours, found
    none = np.zeros(0, np.int64)
    if not len(right):
        return none, none
    begin = np.searchsorted(right, left[0])
    right = right[begin : np.searchsorted(right, left[-1], side="right")]
    first = np.searchsorted(left, right)
    hits = np.flatnonzero(left[first] == right)
    first = first[hits]
    if not len(hits):
        return none, none
    after = np.minimum(first + 1, len(left) - 1)
    if ((after > first) & (left[after] == right[hits])).any():
        count = np.searchsorted(left, right[hits], side="right") - first
        skipped = np.cumsum(count) - count
        first = np.repeat(first - skipped, count) + np.arange(count.sum())
        hits = np.repeat(hits, count)
    return first, hits + begin


# The cache of indexes.


class KeyIndexCache:
    """A cache of indexes of files. Shared by the processes of a host; picklable.

    Args:
        directory: None: below the system's temporary directory.
        most_bytes: about the limit of all indexes, and of all rows; see `DiskCache`.

    Attributes:
        rows: a cache of rows, of tables of history.
    """

    def __init__(self, directory: str | None = None, most_bytes: int = CACHE_BYTES) -> None:
        if directory is None:
            from tidelog.spark.session import scratch_directory

            directory = str(scratch_directory() / "key-indexes")
        self._cache = DiskCache(Path(directory), most_bytes)
        self.rows = RowCache(Path(f"{directory}-rows"), most_bytes)

    def find(self, table: str, path: str, layout: FileLayout) -> FileKeyIndex | None:
        """Return the index of a file; None: not cached.

        Args:
            table: the table's location.
            path: the file's path, as the log has it.
            layout: the table's layout.
        """
        found = self._cache.find(table, path, *_key_of(layout))
        if found is None:
            return None
        columns = dict(zip(found[0].schema.names, found[0].columns, strict=True))
        places, rows = columns.pop("place"), columns.pop("row", None)
        return FileKeyIndex(
            places.to_numpy(), None if rows is None else rows.to_numpy(), tuple(columns.values())
        )

    def keep(self, table: str, path: str, layout: FileLayout, index: FileKeyIndex) -> None:
        """Store a file's index, if there is room. Arguments as in `find`."""
        columns = {"place": pa.array(index.places)}
        if index.rows is not None:
            columns["row"] = pa.array(index.rows)
        columns |= {f"key {number}": each for number, each in enumerate(index.keys)}
        batch = pa.record_batch(columns)
        self._cache.keep(batch.schema, [batch], table, path, *_key_of(layout))


def _key_of(layout: FileLayout) -> tuple[object, ...]:
    return columns_of(layout.file_key), layout.null_key, layout.history


@cache
def shared_cache(most_bytes: int) -> KeyIndexCache:
    """Return the process's only cache of this limit. A new cache lists its directory, which may
    have one file for each batch, before it stores anything.
    """
    return KeyIndexCache(most_bytes=most_bytes)


# The search.

# Some writers store bounds of decimals as doubles.
_DECIMAL_SLACK = Decimal("1E-15")


def files_to_search(
    files: Sequence[DataFile], keys: KeyQuery, layout: FileLayout
) -> list[DataFile]:
    """Return those of ``files`` that can have a row of a key, by their partition and their
    statistics.
    """
    return [file for file in files if _may_hold(file, keys, layout)]


def _may_hold(file: DataFile, keys: KeyQuery, layout: FileLayout) -> bool:
    wanted = keys.within(partition_of(file.partition_values, layout))
    if wanted is None:
        return False
    return all(_may_be_in(column, wanted, file.statistics) for column in layout.file_key)


def _may_be_in(column: FileColumn, wanted: SortedKeys, stats: Mapping[str, Any]) -> bool:
    found = [(stats.get(each) or {}).get(column.physical) for each in ("minValues", "maxValues")]
    if None in found:
        return True
    if wanted.has_null(column.name) and (stats.get("nullCount") or {}).get(column.physical) != 0:
        return True
    try:
        least, greatest = (_bound(each, column.type) for each in found)
    except (ValueError, TypeError, ArithmeticError):
        return True
    if least is None:
        return True
    if pa.types.is_timestamp(column.type):
        greatest += 999  # most writers round milliseconds down
    elif pa.types.is_decimal(column.type):
        least -= abs(least) * _DECIMAL_SLACK
        greatest += abs(greatest) * _DECIMAL_SLACK
    return wanted.has_between(column.name, least, greatest)


def _bound(value: Any, kind: pa.DataType) -> Any:
    """Return a bound in the form of `canonical`; None: a bound of this type is of no use."""
    if pa.types.is_integer(kind):
        return int(value)
    if pa.types.is_decimal(kind):
        return Decimal(value)
    if pa.types.is_string(kind):
        return str(value)
    if pa.types.is_temporal(kind):
        unit = "D" if pa.types.is_date32(kind) else "us"
        return int(np.datetime64(value.removesuffix("Z")).astype(f"M8[{unit}]").astype(np.int64))
    return None


@dataclass(frozen=True)
class FoundRows:
    """Live rows of a file.

    Attributes:
        file: the file.
        rows: int64[n], their numbers in the file, ascending.
        keys: int64[n], the numbers of their keys in the query.
    """

    file: DataFile
    rows: np.ndarray
    keys: np.ndarray


class RowFinder:
    """Looks up keys in the files of a table at ``store``."""

    def __init__(self, store: FileStore, layout: FileLayout, cache: KeyIndexCache) -> None:
        self._store = store
        self._layout = layout
        self._cache = cache
        self._reader = DataFileReader(store, layout)

    def find(self, files: Sequence[DataFile], keys: KeyQuery) -> list[FoundRows]:
        """Return all live rows of ``keys`` in ``files``; files without any are left out.

        Raises:
            OutputError, StorageError: a file can't be read.
        """
        found = []
        for file in files_to_search(files, keys, self._layout):
            wanted = keys.within(partition_of(file.partition_values, self._layout))
            assert wanted is not None
            rows, numbers = self._find(file, wanted)
            if len(rows) and file.deleted_rows:
                alive = ~_among(rows, self._reader.deleted_rows(file))
                rows, numbers = rows[alive], numbers[alive]
            if len(rows):
                if not (rows[:-1] <= rows[1:]).all():
                    order = np.argsort(rows)
                    rows, numbers = rows[order], numbers[order]
                found.append(FoundRows(file, rows, numbers))
        return found

    def _find(self, file: DataFile, wanted: SortedKeys) -> tuple[np.ndarray, np.ndarray]:
        if not self._layout.file_key:  # all rows of a partition have the same key
            searched = np.arange(self._reader.row_count(file))
            if self._layout.history:
                ends = self._reader.read(file, [VALID_TO_VERSION])
                searched = np.flatnonzero(open_rows(ends))
            rows = np.tile(searched, len(wanted.numbers))
            return rows, np.repeat(wanted.numbers, len(searched))
        return self._index(file).find(wanted, self._layout)

    def _index(self, file: DataFile) -> FileKeyIndex:
        place = self._store.path, file.path, self._layout
        index = self._cache.find(*place)
        if index is None:
            names = [each.name for each in self._layout.file_key]
            names += [VALID_TO_VERSION] if self._layout.history else []
            index = index_keys(self._reader.read(file, names), self._layout)
            self._cache.keep(*place, index)
        return index


def _among(rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return bool[n]: which rows are among the sorted ``chosen`` ones."""
    if not len(chosen):
        return np.zeros(len(rows), np.bool_)
    found: np.ndarray = chosen[np.searchsorted(chosen[:-1], rows)] == rows
    return found
