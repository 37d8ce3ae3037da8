"""HOT PATH. Kernels that convert a column's cells to variable-width values.

Arguments as in `tidelog.codecs.columns.number_kernels`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tidelog.codecs.columns.memory import copy_bytes

_BACKSLASH, _X = ord("\\"), ord("x")
_NIBBLE = np.full(256, 255, dtype=np.uint8)
for _k, _byte in enumerate(b"0123456789abcdef"):
    _NIBBLE[_byte] = _k
for _k, _byte in enumerate(b"ABCDEF"):
    _NIBBLE[_byte] = 10 + _k


@njit(cache=True, nogil=True)
def text_offsets(length, out):  # type: ignore[no-untyped-def]
    """Fill int32[n + 1] ``out``; returns the total bytes (beyond int32: the caller must split)."""
    total = np.int64(0)
    out[0] = 0
    for i in range(len(length)):
        total += max(length[i], 0)
        out[i + 1] = total
    return total


@njit(cache=True, nogil=True)
def gather(data, start, length, offsets, out):  # type: ignore[no-untyped-def]
    """Copy the cells back to back."""
    source, target = data.ctypes.data, out.ctypes.data
    for i in range(len(length)):
        if length[i] > 0:
            copy_bytes(target + offsets[i], source + start[i], np.int64(length[i]))


@njit(cache=True, nogil=True)
def hex_offsets(data, start, length, out):  # type: ignore[no-untyped-def]
    r"""Fill int32[n + 1] ``out`` for ``\x…`` cells; returns the first row that is not
    one, or -1.
    """
    total = np.int64(0)
    out[0] = 0
    for i in range(len(length)):
        size = np.int64(length[i])
        if size >= 0:
            position = np.int64(start[i])
            if size < 2 or size % 2 or data[position] != _BACKSLASH or data[position + 1] != _X:
                return i
            total += size // 2 - 1
        out[i + 1] = total
    return -1


@njit(cache=True, nogil=True)
def hex_bytes(data, start, length, offsets, out):  # type: ignore[no-untyped-def]
    r"""Decode ``\x…`` cells; returns the first row with an invalid digit, or -1."""
    for i in range(len(length)):
        target = np.int64(offsets[i])
        source = np.int64(start[i]) + 2
        bad = np.uint8(0)
        for k in range(np.int64(offsets[i + 1]) - target):
            high = _NIBBLE[data[source + 2 * k]]
            low = _NIBBLE[data[source + 2 * k + 1]]
            bad |= high | low
            out[target + k] = np.uint8(high << 4) | low
        if bad > 15:
            return i
    return -1
