"""HOT PATH. Kernels that write integers as digits, and read the integers of binary cells.

numba's cache depends on the time stamp of a kernel's own file only: touch the callers' files when
this one changes.
"""

from __future__ import annotations

import numpy as np
from numba import njit

ZERO, MINUS, DOT, COLON, SPACE = ord("0"), ord("-"), ord("."), ord(":"), ord(" ")
POWERS = np.array([10**k for k in range(10)], dtype=np.int64)


@njit(cache=True, nogil=True)
def put(data, to, value, digits):  # type: ignore[no-untyped-def]
    """Write ``value`` with leading zeros."""
    for k in range(to + digits - 1, to - 1, -1):
        rest = value // 10
        data[k] = ZERO + (value - rest * 10)
        value = rest
    return to + digits


@njit(cache=True, nogil=True)
def put_unsigned(data, to, value):  # type: ignore[no-untyped-def]
    """Write a uint64 without leading zeros."""
    ten = np.uint64(10)
    rest = value
    digits = 1
    while rest >= ten:
        rest //= ten
        digits += 1
    for k in range(to + digits - 1, to - 1, -1):
        rest = value // ten
        data[k] = ZERO + np.uint8(value - rest * ten)
        value = rest
    return to + digits


@njit(cache=True, nogil=True)
def little_endian(data, at, size):  # type: ignore[no-untyped-def]
    """The little-endian uint64 of ``size`` bytes at ``at``."""
    value = np.uint64(0)
    for k in range(size):
        value |= np.uint64(data[at + k]) << np.uint64(8 * k)
    return value


@njit(cache=True, nogil=True)
def big_endian(data, at, size):  # type: ignore[no-untyped-def]
    """The big-endian int64 of ``size`` bytes at ``at``."""
    value = np.int64(0)
    for k in range(size):
        value = (value << 8) | np.int64(data[at + k])
    return value
