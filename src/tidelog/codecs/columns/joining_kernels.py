"""HOT PATH. Kernels: columns → texts of rows, put together from constants and cells.

A piece writes at each row's cursor ``at`` (int64[n]), which moves on: always ``lead``; then of a
row that is ``valid`` (bool[n]; bool[0]: all are) its value between ``opening`` and ``closing``, of
another ``null``. Of all pieces the rows ``low`` to ``high`` are written before the next ones, so
that what is being written stays in the cache.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tidelog.codecs.columns.memory import copy_bytes

_SPACE, _QUOTE, _BACKSLASH = np.uint8(0x20), np.uint8(ord('"')), np.uint8(ord("\\"))
_FOUR_BYTES = np.uint8(0xF0)  # the first of UTF-8's longest characters
_TEN, _HUNDRED = np.uint64(10), np.uint64(100)
_PAIRS = np.frombuffer(b"".join(b"%02d" % number for number in range(100)), np.uint8)


@njit(cache=True, nogil=True)
def has_escapes(data, low, high):  # type: ignore[no-untyped-def]
    """Is there a byte in ``data[low:high]`` that JSON texts do not hold as it is, or one of a
    character beyond U+FFFF?
    """
    found = False
    for i in range(low, high):
        byte = data[i]
        found |= (byte < _SPACE) | (byte >= _FOUR_BYTES) | (byte == _QUOTE) | (byte == _BACKSLASH)
    return found


@njit(cache=True, nogil=True)
def _put(text, out, place):  # type: ignore[no-untyped-def]
    copy_bytes(out.ctypes.data + place, text.ctypes.data, len(text))
    return place + len(text)


@njit(cache=True, nogil=True)
def _digits(value):  # type: ignore[no-untyped-def]
    count = 1
    while value >= _TEN:
        value //= _TEN
        count += 1
    return count


@njit(cache=True, nogil=True)
def _magnitude(value):  # type: ignore[no-untyped-def]
    """uint64, of the least int64 as well."""
    return np.uint64(value) if value >= 0 else ~np.uint64(value) + np.uint64(1)


@njit(cache=True, nogil=True)
def size_texts(bounds, valid, around, null, sizes):  # type: ignore[no-untyped-def]
    """Add to ``sizes`` (int64[n]) what cells of ``bounds`` (int64[n + 1]) take with ``around``
    bytes about each; ``null``: bytes of what stands for one.
    """
    some = len(valid) > 0
    for i in range(len(sizes)):
        if some and not valid[i]:
            sizes[i] += null
        else:
            sizes[i] += bounds[i + 1] - bounds[i] + around


@njit(cache=True, nogil=True)
def write_texts(  # type: ignore[no-untyped-def]
    data, bounds, valid, lead, opening, closing, null, out, at, low, high
):
    """Write cells of ``data`` (uint8[...]) to ``out`` (uint8[...])."""
    some = len(valid) > 0
    source, target = data.ctypes.data, out.ctypes.data
    for i in range(low, high):
        place = _put(lead, out, at[i])
        if some and not valid[i]:
            at[i] = _put(null, out, place)
        else:
            place = _put(opening, out, place)
            size = bounds[i + 1] - bounds[i]
            copy_bytes(target + place, source + bounds[i], size)
            at[i] = _put(closing, out, place + size)


@njit(cache=True, nogil=True)
def size_numbers(values, valid, null, sizes):  # type: ignore[no-untyped-def]
    """As `size_texts`, of ``values`` (int64[n]) in decimal digits."""
    some = len(valid) > 0
    for i in range(len(sizes)):
        if some and not valid[i]:
            sizes[i] += null
        else:
            sizes[i] += _digits(_magnitude(values[i])) + (values[i] < 0)


@njit(cache=True, nogil=True)
def write_numbers(values, valid, lead, null, out, at, low, high):  # type: ignore[no-untyped-def]
    """As `write_texts`."""
    some = len(valid) > 0
    for i in range(low, high):
        place = _put(lead, out, at[i])
        if some and not valid[i]:
            at[i] = _put(null, out, place)
            continue
        rest = _magnitude(values[i])
        if values[i] < 0:
            out[place] = ord("-")
            place += 1
        place += _digits(rest)
        at[i] = place
        while rest >= _HUNDRED:
            pair = np.int64(rest % _HUNDRED) * 2
            rest //= _HUNDRED
            out[place - 1] = _PAIRS[pair + 1]
            out[place - 2] = _PAIRS[pair]
            place -= 2
        pair = np.int64(rest) * 2
        out[place - 1] = _PAIRS[pair + 1]
        if rest >= _TEN:
            out[place - 2] = _PAIRS[pair]
