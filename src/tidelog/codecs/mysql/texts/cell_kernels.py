"""HOT PATH. Kernels: cells that are other bytes of the batch, or the same ones cut or filled up.

Arguments and result as in `tidelog.codecs.mysql.texts.number_kernels`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tidelog.codecs.mysql.texts.digit_kernels import little_endian


@njit(cache=True, nogil=True)
def members(data, start, length, binary, label_start, label_length):  # type: ignore[no-untyped-def]
    """ENUM's number → the place of its label; 0 is the empty text. -1, or -1 - the bad row - 1."""
    for i in range(len(start)):
        if not binary[i] or length[i] < 0:
            continue
        if length[i] > 2:
            return -1 - i
        number = np.int64(little_endian(data, np.int64(start[i]), np.int64(length[i])))
        if number >= len(label_start):
            return -1 - i
        start[i] = label_start[number]
        length[i] = label_length[number]
    return 0


@njit(cache=True, nogil=True)
def padded(data, start, length, binary, width, to):  # type: ignore[no-untyped-def]
    """BINARY(width), whose zero bytes at the end the log leaves out."""
    for i in range(len(start)):
        if not binary[i] or length[i] < 0 or length[i] == width:
            continue
        if length[i] > width:
            return -1 - i
        for k in range(length[i]):
            data[to + k] = data[start[i] + k]
        for k in range(length[i], width):
            data[to + k] = 0
        start[i] = to
        length[i] = width
        to += width
    return to


@njit(cache=True, nogil=True)
def without_srid(start, length, binary):  # type: ignore[no-untyped-def]
    """Geometry: the well-known binary behind the four bytes of the SRID."""
    for i in range(len(start)):
        if binary[i] and length[i] >= 4:
            start[i] += 4
            length[i] -= 4
