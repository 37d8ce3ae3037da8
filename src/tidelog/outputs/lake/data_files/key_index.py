"""HOT PATH. Finds the rows of one file by their keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidelog.outputs.lake.data_files.keys import (
    Places,
    SortedKeys,
    canonical,
    equal_keys,
    has_exact_places,
    places_of,
)
from tidelog.outputs.lake.data_files.layout import FileLayout

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
