"""HOT PATH. Kernels: columns → texts of rows, put together from constants and cells.

The pieces of a row are int64[pieces, FIELDS]: a piece is always its ``lead``; then of a row that is
valid its value between ``opening`` and ``closing``, of another the text that stands for a null.
Where things are is said by addresses, so that one call writes all pieces of all rows: a call costs
as much as some hundred cells.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tidelog.codecs.columns.memory import copy_bytes, read_byte, read_int32, read_int64

# The slots of a piece.
KIND = 0
VALUES = 1  # address: of bytes; of `NUMBERS` of int64[n]
BOUNDS = 2  # address of int32[n + 1] or int64[n + 1], by the kind
VALID = 3  # address of bool[n]; 0: all are
LEAD, LEAD_SIZE = 4, 5
OPENING, OPENING_SIZE = 6, 7
CLOSING, CLOSING_SIZE = 8, 9
FIELDS = 10

# Kinds.
NUMBERS = 0
TEXTS = 1
LARGE_TEXTS = 2
NOTHING = 3  # the lead is all

_SPACE, _QUOTE, _BACKSLASH = np.uint8(0x20), np.uint8(ord('"')), np.uint8(ord("\\"))
_FOUR_BYTES = np.uint8(0xF0)  # the first of UTF-8's longest characters
_TEN, _HUNDRED, _THOUSAND, _TEN_THOUSAND = map(np.uint64, (10, 100, 1000, 10_000))
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
def _digits(value):  # type: ignore[no-untyped-def]
    count = 1
    while value >= _TEN_THOUSAND:
        value //= _TEN_THOUSAND
        count += 4
    return count + (value >= _TEN) + (value >= _HUNDRED) + (value >= _THOUSAND)


@njit(cache=True, nogil=True)
def _magnitude(value):  # type: ignore[no-untyped-def]
    """uint64, of the least int64 as well."""
    return np.uint64(value) if value >= 0 else ~np.uint64(value) + np.uint64(1)


@njit(cache=True, nogil=True)
def _bounds(kind, at, i):  # type: ignore[no-untyped-def]
    """Where the cell of row ``i`` begins and ends."""
    if kind == TEXTS:
        return np.int64(read_int32(at + 4 * i)), np.int64(read_int32(at + 4 * i + 4))
    return read_int64(at + 8 * i), read_int64(at + 8 * i + 8)


@njit(cache=True, nogil=True)
def ends(pieces, null_size, out):  # type: ignore[no-untyped-def]
    """Fill int64[n + 1] ``out`` with where the rows' texts end, behind a 0."""
    out[:] = 0
    for p in range(len(pieces)):
        piece = pieces[p]
        kind, valid = piece[KIND], piece[VALID]
        lead = piece[LEAD_SIZE]
        around = lead + piece[OPENING_SIZE] + piece[CLOSING_SIZE]
        for i in range(len(out) - 1):
            if kind == NOTHING:
                out[i + 1] += lead
            elif valid != 0 and read_byte(valid + i) == 0:
                out[i + 1] += lead + null_size
            elif kind == NUMBERS:
                value = read_int64(piece[VALUES] + 8 * i)
                out[i + 1] += around + _digits(_magnitude(value)) + (value < 0)
            else:
                low, high = _bounds(kind, piece[BOUNDS], i)
                out[i + 1] += around + high - low
    for i in range(len(out) - 1):
        out[i + 1] += out[i]


@njit(cache=True, nogil=True)
def write(pieces, null, null_size, out):  # type: ignore[no-untyped-def]
    """Fill uint8[...] ``out``, row after row."""
    base = out.ctypes.data
    place = np.int64(0)
    i = np.int64(0)
    while place < len(out):
        for p in range(len(pieces)):
            kind = pieces[p, KIND]
            copy_bytes(base + place, pieces[p, LEAD], pieces[p, LEAD_SIZE])
            place += pieces[p, LEAD_SIZE]
            if kind == NOTHING:
                continue
            if pieces[p, VALID] != 0 and read_byte(pieces[p, VALID] + i) == 0:
                copy_bytes(base + place, null, null_size)
                place += null_size
                continue
            if pieces[p, OPENING_SIZE] != 0:
                copy_bytes(base + place, pieces[p, OPENING], pieces[p, OPENING_SIZE])
                place += pieces[p, OPENING_SIZE]
            if kind == NUMBERS:
                place = _number(read_int64(pieces[p, VALUES] + 8 * i), out, place)
            else:
                low, high = _bounds(kind, pieces[p, BOUNDS], i)
                copy_bytes(base + place, pieces[p, VALUES] + low, high - low)
                place += high - low
            if pieces[p, CLOSING_SIZE] != 0:
                copy_bytes(base + place, pieces[p, CLOSING], pieces[p, CLOSING_SIZE])
                place += pieces[p, CLOSING_SIZE]
        i += 1


@njit(cache=True, nogil=True)
def _number(value, out, place):  # type: ignore[no-untyped-def]
    """Write it in decimal digits; the place behind it."""
    rest = _magnitude(value)
    if value < 0:
        out[place] = ord("-")
        place += 1
    place += _digits(rest)
    end = place
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
    return end
