"""Assigns rows to tasks by their keys, in the same way in every process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_Hashes = npt.NDArray[np.uint64]

_ODD = np.uint64(0x9E3779B97F4A7C15)
_BASE = np.uint64(0x100000001B3)


def select_rows(
    rows: pa.RecordBatch, key: Sequence[str], partition: int, count: int
) -> pa.RecordBatch:
    """Returns the rows whose key belongs to task ``partition`` of ``count``, in their order."""
    if count == 1 or not rows.num_rows:
        return rows
    return rows.filter(pa.array(partition_numbers(rows, key, count) == partition))


def partition_numbers(
    rows: pa.RecordBatch, key: Sequence[str], count: int
) -> npt.NDArray[np.int64]:
    """Returns the partition of each row, ``0 … count - 1``."""
    hashes = np.zeros(rows.num_rows, np.uint64)
    for name in key:
        hashes = (hashes ^ _hashes(rows.column(name))) * _ODD
        hashes ^= hashes >> np.uint64(29)
    return ((hashes >> np.uint64(16)) % np.uint64(count)).astype(np.int64)


def _hashes(column: pa.Array) -> _Hashes:
    """Returns uint64[n]: equal for equal values; null is a value."""
    kind = column.type
    if pa.types.is_integer(kind):
        plain = pc.fill_null(column, 0).cast(pa.int64()).to_numpy(zero_copy_only=False)
        found: _Hashes = plain.view(np.uint64)
        return found
    if not pa.types.is_binary(kind):
        column = column.cast(pa.string())
    column = pc.fill_null(column, "").cast(pa.large_binary())
    n = len(column)
    _, bounds_buffer, data = column.buffers()
    bounds = np.frombuffer(bounds_buffer, np.int64, n + 1, column.offset * 8)
    result = np.zeros(n, np.uint64)
    lengths = np.diff(bounds)
    if not lengths.any():
        return result
    data_bytes = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]].astype(np.uint64)
    starts = bounds[:-1] - bounds[0]
    place = np.arange(len(data_bytes)) - np.repeat(starts, lengths)
    powers = np.cumprod(np.full(int(lengths.max()), _BASE), dtype=np.uint64)
    filled = lengths > 0
    weighted = (data_bytes + np.uint64(1)) * powers[place]
    result[filled] = np.add.reduceat(weighted, starts[filled])
    return result
