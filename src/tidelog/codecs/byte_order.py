"""Reads and writes integers in byte arrays, for kernels. The caller has checked the bounds.

numba's cache depends on the time stamp of a kernel's own file only: touch the kernels' files when
this one changes.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tidelog.model.records import UInt8s

# Big-endian, which is network order.


@njit(inline="always")
def big_uint16_at(data: UInt8s, at: int) -> int:
    """The unsigned 16-bit integer at ``at``."""
    return int((np.int64(data[at]) << 8) | np.int64(data[at + 1]))


@njit(inline="always")
def big_uint32_at(data: UInt8s, at: int) -> int:
    """The unsigned 32-bit integer at ``at``."""
    return int(
        (np.int64(data[at]) << 24)
        | (np.int64(data[at + 1]) << 16)
        | (np.int64(data[at + 2]) << 8)
        | np.int64(data[at + 3])
    )


@njit(inline="always")
def big_int64_at(data: UInt8s, at: int) -> int:
    """The signed 64-bit integer at ``at``."""
    return (big_uint32_at(data, at) << 32) | big_uint32_at(data, at + 4)


@njit(inline="always")
def put_big_uint32(data: UInt8s, at: int, value: int) -> None:
    """Write the low 32 bits of ``value`` at ``at``."""
    data[at] = (value >> 24) & 0xFF
    data[at + 1] = (value >> 16) & 0xFF
    data[at + 2] = (value >> 8) & 0xFF
    data[at + 3] = value & 0xFF


# Little-endian.


@njit(inline="always")
def little_uint16_at(data: UInt8s, at: int) -> int:
    """The unsigned 16-bit integer at ``at``."""
    return int(np.int64(data[at]) | np.int64(data[at + 1]) << 8)


@njit(inline="always")
def little_uint24_at(data: UInt8s, at: int) -> int:
    """The unsigned 24-bit integer at ``at``."""
    return int(little_uint16_at(data, at) | np.int64(data[at + 2]) << 16)


@njit(inline="always")
def little_uint32_at(data: UInt8s, at: int) -> int:
    """The unsigned 32-bit integer at ``at``."""
    return little_uint16_at(data, at) | little_uint16_at(data, at + 2) << 16


@njit(inline="always")
def little_uint48_at(data: UInt8s, at: int) -> int:
    """The unsigned 48-bit integer at ``at``."""
    return little_uint32_at(data, at) | little_uint16_at(data, at + 4) << 32


@njit(inline="always")
def little_int64_at(data: UInt8s, at: int) -> int:
    """The signed 64-bit integer at ``at``."""
    return little_uint32_at(data, at) | little_uint32_at(data, at + 4) << 32
