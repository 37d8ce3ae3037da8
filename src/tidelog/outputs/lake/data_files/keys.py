"""Keys to look up, and their equality: as Spark's ``=`` and ``<=>`` define it.

NaN is equal to NaN, −0.0 to 0.0; texts are compared by their bytes, decimals by value.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from tidelog.codecs.key_kernel import hash64
from tidelog.errors import OutputRefusedError
from tidelog.model.records import Int32s, UInt8s, UInt64s
from tidelog.outputs.lake.data_files.file_reader import partition_value
from tidelog.outputs.lake.data_files.layout import FileLayout

_NULL = 0x6E75_6C6C_6B65_7973

# Finalizer of splitmix64 (Sebastiano Vigna, public domain).
_INCREMENT = np.uint64(0x9E37_79B9_7F4A_7C15)
_FIRST = np.uint64(0xBF58_476D_1CE4_E5B9)
_SECOND = np.uint64(0x94D0_49BB_1331_11EB)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)


def key_hashes(columns: Sequence[pa.Array], count: int) -> UInt64s:
    """Return uint64[count]: a hash of each row's values.

    Args:
        columns: canonical (`tidelog.outputs.lake.data_files.keys.canonical`), of ``count`` rows.
        count: number of rows.
    """
    hashes = np.zeros(count, np.uint64)
    for column in columns:
        words = _words(column)
        if column.null_count:
            words[np.asarray(column.is_null())] = np.uint64(_NULL)
        _mix(hashes, words)
    return hashes


def _words(column: pa.Array) -> UInt64s:
    """Return a number for each value, equal for equal values; a copy."""
    if pa.types.is_decimal(column.type):
        halves = np.frombuffer(column.buffers()[1], np.uint64)
        halves = halves[2 * column.offset : 2 * (column.offset + len(column))]
        words = halves[::2].copy()
        _mix(words, halves[1::2].copy())
        return words
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        _, offsets, data = column.buffers()
        words = np.zeros(len(column), np.uint64)
        if data is not None and len(column):
            starts = np.frombuffer(offsets, np.int32)[column.offset :][: len(column) + 1]
            _hash_texts(np.frombuffer(data, np.uint8), starts, words)
        return words
    whole: UInt64s = np.asarray(column.fill_null(0)).astype(np.int64).view(np.uint64)
    return whole


@njit(cache=True, nogil=True)
def _hash_texts(data: UInt8s, starts: Int32s, words: UInt64s) -> None:
    for row in range(len(words)):
        words[row] = hash64(data, starts[row], starts[row + 1])


@njit(cache=True, nogil=True)
def _mix(hashes: UInt64s, words: UInt64s) -> None:
    """Mix a word into each hash."""
    for row in range(len(hashes)):
        word = (hashes[row] + _INCREMENT) ^ words[row]
        word = (word ^ (word >> _30)) * _FIRST
        word = (word ^ (word >> _27)) * _SECOND
        hashes[row] = word ^ (word >> _31)


_FEW = 1000

Places = np.ndarray[Any, np.dtype[Any]]  # int64 or uint64


def canonical(values: pa.Array) -> pa.Array:
    """Return values that are equal, bit by bit, where ``values`` are equal: whole numbers, dates
    and times as int64, floats as their bits with one NaN and one zero.

    Raises:
        OutputRefusedError: values of this type can't be a key.
    """
    kind = values.type
    if pa.types.is_date32(kind):
        return values.cast(pa.int32()).cast(pa.int64())
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
        return values.cast(pa.int64())
    if pa.types.is_boolean(kind):
        return values.cast(pa.uint8()).cast(pa.int64())
    if pa.types.is_floating(kind):
        numbers = np.asarray(values.cast(pa.float64()).fill_null(0.0)) + 0.0  # −0.0 becomes 0.0
        numbers[np.isnan(numbers)] = np.nan
        known = None if not values.null_count else np.asarray(values.is_null())
        return pa.array(numbers.view(np.int64), mask=known)
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_decimal(kind):
        return values
    raise OutputRefusedError(f"a column of type {kind} can't be part of a key: choose another key")


def can_be_key(kind: pa.DataType) -> bool:
    """Return True if values of this type can be part of a key: see `canonical`."""
    try:
        canonical(pa.nulls(0, kind))
    except OutputRefusedError:
        return False
    return True


def has_exact_places(layout: FileLayout) -> bool:
    """Return True if keys of files are found by their values, rather than by hashes."""
    if layout.null_key or len(layout.file_key) != 1:
        return False
    kind = layout.file_key[0].type
    return bool(pa.types.is_integer(kind) or pa.types.is_temporal(kind))


def places_of(columns: Sequence[pa.Array], count: int, layout: FileLayout) -> Places:
    """Return the values by which the rows of a file, or keys to look up, are sorted: equal for
    equal keys.

    Args:
        columns: canonical, those of `FileLayout.file_key`; one column without nulls for exact
            places.
        count: number of rows.
        layout: the table's layout.
    """
    if has_exact_places(layout):
        return np.asarray(columns[0])
    return key_hashes(columns, count)


def partition_of(values: Mapping[str, str | None], layout: FileLayout) -> tuple[Any, ...]:
    """Return the partition's values of the key's columns, as `KeyQuery.within` takes them.

    Args:
        values: a file's partition values, by physical name.
        layout: the table's layout.
    """
    found = []
    for column in map(layout.column, layout.key):
        if column.name in layout.partitions:
            value = partition_value(values.get(column.physical), column.type)
            found.append(canonical(pa.array([value], column.type))[0].as_py())
    return tuple(found)


@dataclass(frozen=True)
class SortedKeys:
    """Some of a query's keys.

    Attributes:
        places: sort values, sorted (`places_of`).
        numbers: int64[n], the index in the query of each place.
        columns: canonical columns, by name, of all keys of the query.
    """

    places: Places
    numbers: np.ndarray
    columns: Mapping[str, pa.Array]
    _sorted: dict[tuple[str, int], Any] = field(default_factory=dict, repr=False, compare=False)

    def has_between(self, name: str, least: Any, greatest: Any) -> bool:
        """Return True if a value of the column is between the two, or equal to one of them."""
        # A few keys usually suffice: sorting all texts of a large query costs much.
        for count in (_FEW, len(self.numbers)):
            values = self._sorted_values(name, count)
            if bisect_left(values, least) < bisect_right(values, greatest):
                return True
        return False

    def _sorted_values(self, name: str, count: int) -> Any:
        if (name, count) not in self._sorted:
            values = self.columns[name].take(pa.array(self.numbers[:count])).drop_null()
            whole = pa.types.is_integer(values.type)
            self._sorted[name, count] = (
                np.sort(np.asarray(values)) if whole else sorted(values.to_pylist())
            )
        return self._sorted[name, count]

    def has_null(self, name: str) -> bool:
        """Return True if a value of the column is null."""
        column = self.columns[name]
        return bool(column.null_count and column.take(pa.array(self.numbers)).null_count)


class KeyQuery:
    """The keys to look up.

    Args:
        keys: the columns of the layout's key, of its types or narrower ones; rows are distinct. A
            key that contains null matches nothing, unless null is a value like others.
        layout: the table's layout.
    """

    def __init__(self, keys: pa.Table, layout: FileLayout) -> None:
        self._layout = layout
        self._count = keys.num_rows
        self._columns: dict[str, pa.Array] = {}
        for column in map(layout.column, layout.key):
            values = keys[column.name].combine_chunks()
            self._columns[column.name] = canonical(values.cast(column.type))
        self._groups: dict[tuple[Any, ...], np.ndarray] | None = None
        self._sorted: dict[tuple[Any, ...], SortedKeys] = {}

    def within(self, partition: tuple[Any, ...]) -> SortedKeys | None:
        """Return the keys of a partition (`partition_of`), or None."""
        if self._groups is None:
            self._groups = self._by_partition()
        numbers = self._groups.get(partition)
        if numbers is None:
            return None
        if partition not in self._sorted:
            self._sorted[partition] = self._sort(numbers)
        return self._sorted[partition]

    def _sort(self, numbers: np.ndarray) -> SortedKeys:
        columns = [self._columns[each.name] for each in self._layout.file_key]
        if len(numbers) < self._count:
            columns = [each.take(pa.array(numbers)) for each in columns]
        places = places_of(columns, len(numbers), self._layout)
        order = np.argsort(places)
        return SortedKeys(places[order], numbers[order], self._columns)

    def _by_partition(self) -> dict[tuple[Any, ...], np.ndarray]:
        """Return the numbers of the keys that can match, by the partition's values of the key."""
        numbers = np.arange(self._count)
        if not self._layout.null_key:
            for column in self._columns.values():
                if column.null_count:
                    numbers = numbers[np.asarray(column.is_valid())[numbers]]
        names = [name for name in self._layout.key if name in self._layout.partitions]
        if not names:
            return {(): numbers} if len(numbers) else {}
        codes = np.zeros(len(numbers), np.int64)
        for name in names:
            encoded = self._columns[name].dictionary_encode(null_encoding="encode")
            codes = codes * len(encoded.dictionary) + np.asarray(encoded.indices)[numbers]
            codes = np.unique(codes, return_inverse=True)[1]
        order = np.argsort(codes, kind="stable")
        groups: dict[tuple[Any, ...], np.ndarray] = {}
        for part in np.split(numbers[order], np.cumsum(np.bincount(codes))[:-1]):
            if len(part):
                values = (self._columns[name][int(part[0])].as_py() for name in names)
                # An empty value is null in a partition.
                partition = tuple(None if value in ("", b"") else value for value in values)
                groups[partition] = np.concatenate([groups.get(partition, part[:0]), part])
        return groups


def equal_keys(
    left: Sequence[pa.Array], right: Sequence[pa.Array], *, null_key: bool
) -> np.ndarray:
    """Return bool[n]: which rows of canonical columns are equal."""
    found = np.ones(len(left[0]) if left else 0, np.bool_)
    for ours, theirs in zip(left, right, strict=True):
        same = pc.equal(ours, theirs)
        if null_key:
            both = pc.and_(ours.is_null(), theirs.is_null())
            same = pc.or_(same.fill_null(False), both)
        found &= np.asarray(same.fill_null(False))
    return found
