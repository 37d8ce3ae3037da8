"""HOT PATH. 64-bit hashes of keys. They are kept on disk: a change here needs a new format of
`tidelog.outputs.lake.data_files.key_index_cache`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numba import njit

from tidelog.codecs.key_kernel import hash64
from tidelog.model.records import Int32s, UInt8s, UInt64s

_NULL = 0x6E75_6C6C_6B65_7973

# Finalizer of splitmix64 (Sebastiano Vigna, public domain).
_INCREMENT = np.uint64(0x9E37_79B9_7F4A_7C15)
_FIRST = np.uint64(0xBF58_476D_1CE4_E5B9)
_SECOND = np.uint64(0x94D0_49BB_1331_11EB)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)


def key_hashes(columns: Sequence[pa.Array], count: int) -> UInt64s:
    """uint64[count]: a hash of each row's values.

    Args:
        columns: canonical (`tidelog.outputs.lake.data_files.keys.canonical`), of ``count`` rows.
        count: of rows.
    """
    hashes = np.zeros(count, np.uint64)
    for column in columns:
        words = _words(column)
        if column.null_count:
            words[np.asarray(column.is_null())] = np.uint64(_NULL)
        _mix(hashes, words)
    return hashes


def _words(column: pa.Array) -> UInt64s:
    """A number of each value, equal for equal values; a copy."""
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
