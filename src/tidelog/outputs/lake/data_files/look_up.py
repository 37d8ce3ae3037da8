"""HOT PATH. Finds the rows of given keys: by files' statistics, then by an index of a file's keys.

Indexes are cached on the disk of the host that reads the files.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tidelog.outputs.base.stores import FileStore
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
from tidelog.outputs.lake.data_files.layout import FileColumn, FileLayout
from tidelog.outputs.lake.delta_log.actions import DataFile
from tidelog.system.private_files import create_directory, create_file

# The index of one file's keys.

_MOST_INT32 = np.iinfo(np.int32).max


@dataclass(frozen=True)
class FileKeyIndex:
    """An index of the keys of a file's rows.

    Attributes:
        places: the keys' sort values, sorted (`places_of`); without rows with a null key where null
            matches nothing.
        rows: the row number of each place; None: the place's index.
        keys: canonical columns of all rows of the file, to compare keys with equal places; empty if
            places are exact.
    """

    places: Places
    rows: np.ndarray | None
    keys: tuple[pa.Array, ...]

    def find(self, wanted: SortedKeys, layout: FileLayout) -> tuple[np.ndarray, np.ndarray]:
        """Returns the numbers of the rows whose key is wanted, and the numbers of their keys in the
        query.
        """
        places, found = _pairs(self.places, wanted.places)
        rows = places if self.rows is None else self.rows[places].astype(np.int64)
        numbers = wanted.numbers[found]
        if self.keys and len(rows):
            ours, theirs = pa.array(rows), pa.array(numbers)
            same = equal_keys(
                [each.take(ours) for each in self.keys],
                [wanted.columns[each.name].take(theirs) for each in layout.file_key],
                null_key=layout.null_key,
            )
            rows, numbers = rows[same], numbers[same]
        return rows, numbers


def index_keys(rows: pa.Table, layout: FileLayout) -> FileKeyIndex:
    """Returns the index of a file.

    Args:
        rows: all rows of the file, with at least the columns of `FileLayout.file_key`, of which
            there is at least one.
        layout: the table's layout.
    """
    columns = [canonical(rows[each.name].combine_chunks()) for each in layout.file_key]
    numbers = None
    exact = has_exact_places(layout)
    if exact and columns[0].null_count:
        numbers = np.flatnonzero(np.asarray(columns[0].is_valid()))
        columns = [columns[0].drop_null()]
    places = places_of(columns, len(columns[0]), layout)
    if not (places[:-1] <= places[1:]).all():
        order = np.argsort(places)
        places = places[order]
        numbers = order if numbers is None else numbers[order]
    if numbers is not None and rows.num_rows <= _MOST_INT32:
        numbers = numbers.astype(np.int32)
    return FileKeyIndex(places, numbers, () if exact else tuple(columns))


def _pairs(left: Places, right: Places) -> tuple[np.ndarray, np.ndarray]:
    """Returns the indices of all pairs of equal elements of two sorted arrays."""
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

_FORMAT = 1
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class KeyIndexCache:
    """A cache of indexes of files that never change: a cached index is valid; a lost one is created
    again. Shared by the processes of a host; picklable.

    Index files are mapped, never read as a whole, and not synced: those of an earlier boot of the
    host are not used. They contain keys, and only their owner can read them.

    Args:
        directory: None: below the system's temporary directory.
        most_bytes: about the limit of all indexes; those that were not used for longest are deleted
            first.
    """

    def __init__(self, directory: str | None = None, most_bytes: int = 8 << 30) -> None:
        if directory is None:
            from tidelog.spark.sessions.session import scratch_directory

            directory = str(scratch_directory() / "key-indexes")
        self._directory = Path(directory)
        self._most_bytes = most_bytes
        self._bytes_until_sweep = 0

    def find(self, table: str, path: str, layout: FileLayout) -> FileKeyIndex | None:
        """Returns the index of a file; None: not cached.

        Args:
            table: the table's location.
            path: the file's path, as the log has it.
            layout: the table's layout.
        """
        place = self._place(table, path, layout)
        try:
            with place.open("rb") as file:
                os.utime(file.fileno())
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            batch = pa.ipc.open_file(pa.py_buffer(mapped)).get_batch(0)
        except FileNotFoundError:
            return None
        except (OSError, ValueError):  # empty, or incomplete
            with suppress(OSError):
                place.unlink()
            return None
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        places, rows = columns.pop("place"), columns.pop("row", None)
        return FileKeyIndex(
            places.to_numpy(), None if rows is None else rows.to_numpy(), tuple(columns.values())
        )

    def keep(self, table: str, path: str, layout: FileLayout, index: FileKeyIndex) -> None:
        """Store a file's index, if there is room. Arguments as in `find`."""
        place = self._place(table, path, layout)
        columns = {"place": pa.array(index.places)}
        if index.rows is not None:
            columns["row"] = pa.array(index.rows)
        columns |= {f"key {number}": each for number, each in enumerate(index.keys)}
        batch = pa.record_batch(columns)
        if batch.nbytes > self._most_bytes:
            return
        fresh = place.with_name(f".{secrets.token_hex(8)}")
        try:
            create_directory(self._directory)
            self._make_room(batch.nbytes)
            with (
                os.fdopen(create_file(fresh, os.O_WRONLY | os.O_EXCL), "wb") as file,
                pa.ipc.new_file(file, batch.schema) as writer,
            ):
                writer.write_batch(batch)
            fresh.replace(place)
        except OSError:  # such as a full disk
            with suppress(OSError):
                fresh.unlink()

    def _place(self, table: str, path: str, layout: FileLayout) -> Path:
        kinds = [(each.name, str(each.type)) for each in layout.file_key]
        named = repr((_FORMAT, _boot_id(), table, path, kinds, layout.null_key))
        return self._directory / hashlib.sha256(named.encode()).hexdigest()

    def _make_room(self, size: int) -> None:
        """Delete old indexes now and then: not each time, since it lists the directory."""
        self._bytes_until_sweep -= size
        if self._bytes_until_sweep > 0:
            return
        found = []
        for entry in os.scandir(self._directory):
            with suppress(FileNotFoundError):
                status = entry.stat()
                found.append((status.st_mtime_ns, status.st_size, entry.path))
        total = size + sum(each[1] for each in found)
        for _, freed, place in sorted(found):
            if total <= self._most_bytes:
                break
            with suppress(OSError):
                Path(place).unlink()
                total -= freed
        self._bytes_until_sweep = min(self._most_bytes - total, self._most_bytes // 8)


@cache
def shared_cache() -> KeyIndexCache:
    """Returns the process's only cache. A new cache lists its directory, which may have one file
    for each batch, before it stores anything.
    """
    return KeyIndexCache()


@cache
def _boot_id() -> str:
    with suppress(OSError):
        return _BOOT_ID.read_text()
    return ""


# The search.

# Some writers store bounds of decimals as doubles.
_DECIMAL_SLACK = Decimal("1E-15")


def files_to_search(
    files: Sequence[DataFile], keys: KeyQuery, layout: FileLayout
) -> list[DataFile]:
    """Returns those of ``files`` that can have a row of a key, by their partition and their
    statistics.
    """
    return [file for file in files if _may_hold(file, keys, layout)]


def _may_hold(file: DataFile, keys: KeyQuery, layout: FileLayout) -> bool:
    wanted = keys.within(partition_of(file.partition_values, layout))
    if wanted is None:
        return False
    if file.stats is None:
        return True
    stats = json.loads(file.stats, parse_float=Decimal)
    return all(_may_be_in(column, wanted, stats) for column in layout.file_key)


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
    """Returns a bound in the form of `canonical`; None: a bound of this type is of no use."""
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
        """Returns all live rows of ``keys`` in ``files``; files without any are left out.

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
            rows = np.tile(np.arange(self._reader.row_count(file)), len(wanted.numbers))
            return rows, np.repeat(wanted.numbers, len(rows) // len(wanted.numbers))
        return self._index(file).find(wanted, self._layout)

    def _index(self, file: DataFile) -> FileKeyIndex:
        place = self._store.path, file.path, self._layout
        index = self._cache.find(*place)
        if index is None:
            names = [each.name for each in self._layout.file_key]
            index = index_keys(self._reader.read(file, names), self._layout)
            self._cache.keep(*place, index)
        return index


def _among(rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Returns bool[n]: which rows are among the sorted ``chosen`` ones."""
    if not len(chosen):
        return np.zeros(len(rows), np.bool_)
    found: np.ndarray = chosen[np.searchsorted(chosen[:-1], rows)] == rows
    return found
