"""Reads little-endian integers in byte arrays, for kernels. The caller has checked the bounds.

numba's cache depends on the time stamp of a kernel's own file only: touch the kernels' files when
this one changes.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tidelog.model.records import UInt8s


@njit(inline="always")
def uint16_at(data: UInt8s, at: int) -> int:
    """The unsigned 16-bit integer at ``at``."""
    return int(np.int64(data[at]) | np.int64(data[at + 1]) << 8)


@njit(inline="always")
def uint24_at(data: UInt8s, at: int) -> int:
    """The unsigned 24-bit integer at ``at``."""
    return int(uint16_at(data, at) | np.int64(data[at + 2]) << 16)


@njit(inline="always")
def uint32_at(data: UInt8s, at: int) -> int:
    """The unsigned 32-bit integer at ``at``."""
    return uint16_at(data, at) | uint16_at(data, at + 2) << 16


@njit(inline="always")
def uint48_at(data: UInt8s, at: int) -> int:
    """The unsigned 48-bit integer at ``at``."""
    return uint32_at(data, at) | uint16_at(data, at + 4) << 32


@njit(inline="always")
def int64_at(data: UInt8s, at: int) -> int:
    """The signed 64-bit integer at ``at``."""
    return uint32_at(data, at) | uint32_at(data, at + 4) << 32
