"""HOT PATH. Finds the rows of given keys."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tidelog.outputs.base.stores.port import FileStore
from tidelog.outputs.lake.data_files.file_reader import DataFileReader
from tidelog.outputs.lake.data_files.key_index import FileKeyIndex, index_keys
from tidelog.outputs.lake.data_files.key_index_cache import KeyIndexCache
from tidelog.outputs.lake.data_files.keys import KeyQuery, SortedKeys, partition_of
from tidelog.outputs.lake.data_files.layout import FileColumn, FileLayout
from tidelog.outputs.lake.delta_log.actions import DataFile

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
            if len(rows) and file.deletion_vector is not None:
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
