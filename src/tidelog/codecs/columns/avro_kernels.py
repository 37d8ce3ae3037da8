"""HOT PATH. Kernels that encode columns as rows of Avro's binary encoding (Avro 1.12, "Binary
Encoding").

Fields are written one column after the other: first the sizes of all rows are added up, then each
column's bytes are written at the row's cursor. ``state`` (int8[n]) says what is written for a row's
cell: `NOTHING` (the surrounding record is null), `NULL` (the union's first branch), `BARE` (only
the value, of a field that is no union) or `BRANCH` (the union's second branch, and the value).
"""

from __future__ import annotations

import numpy as np
from numba import njit

NOTHING, NULL, BARE, BRANCH = 0, 1, 2, 3

_MORE = np.uint64(0x80)
_SEVEN = np.uint64(7)
_LOW = np.uint64(0x7F)
_DECIMAL_BYTES = 16


@njit(cache=True, nogil=True)
def _zigzag(value):  # type: ignore[no-untyped-def]
    return np.uint64((value << 1) ^ (value >> 63))


@njit(cache=True, nogil=True)
def _digits(value):  # type: ignore[no-untyped-def]
    """The number of bytes of a variable-length integer."""
    count = 1
    while value >= _MORE:
        value >>= _SEVEN
        count += 1
    return count


@njit(cache=True, nogil=True)
def _put(value, out, at):  # type: ignore[no-untyped-def]
    while value >= _MORE:
        out[at] = np.uint8((value & _LOW) | _MORE)
        value >>= _SEVEN
        at += 1
    out[at] = np.uint8(value)
    return at + 1


@njit(cache=True, nogil=True)
def _branch(state, out, at):  # type: ignore[no-untyped-def]
    """Write the branch number of the union, if the field is a union."""
    if state == BARE:
        return at
    out[at] = 2 if state == BRANCH else 0
    return at + 1


@njit(cache=True, nogil=True)
def size_numbers(values, state, sizes):  # type: ignore[no-untyped-def]
    """Add the sizes of ``values`` (int64[n]) as ``int`` or ``long`` to ``sizes`` (int64[n])."""
    for i in range(len(values)):
        if state[i] == NULL:
            sizes[i] += 1
        elif state[i] != NOTHING:
            sizes[i] += _digits(_zigzag(values[i])) + (state[i] == BRANCH)


@njit(cache=True, nogil=True)
def write_numbers(values, state, out, at):  # type: ignore[no-untyped-def]
    """Write the values to ``out`` (uint8[...]) at the cursors ``at`` (int64[n]), and
    advance these.
    """
    for i in range(len(values)):
        if state[i] == NOTHING:
            continue
        place = _branch(state[i], out, at[i])
        if state[i] != NULL:
            place = _put(_zigzag(values[i]), out, place)
        at[i] = place


@njit(cache=True, nogil=True)
def size_bytes(length, counted, state, sizes):  # type: ignore[no-untyped-def]
    """Add the sizes of values of ``length`` (int64[n]) bytes.

    ``counted``: each value is preceded by its length, as in ``bytes`` and ``string``; otherwise
    there is no length.
    """
    for i in range(len(length)):
        if state[i] == NULL:
            sizes[i] += 1
        elif state[i] != NOTHING:
            sizes[i] += length[i] + (state[i] == BRANCH)
            if counted:
                sizes[i] += _digits(_zigzag(length[i]))


@njit(cache=True, nogil=True)
def write_bytes(data, start, length, counted, state, out, at):  # type: ignore[no-untyped-def]
    """Write the values at ``start`` (int64[n]) of ``data`` (uint8[...])."""
    for i in range(len(length)):
        if state[i] == NOTHING:
            continue
        place = _branch(state[i], out, at[i])
        if state[i] != NULL:
            if counted:
                place = _put(_zigzag(length[i]), out, place)
            first = start[i]
            for k in range(length[i]):
                out[place + k] = data[first + k]
            place += length[i]
        at[i] = place


@njit(cache=True, nogil=True)
def decimals(values, out, start, length):  # type: ignore[no-untyped-def]
    """Convert Arrow's decimal128 (uint8[n, 16], little endian) to the shortest two's complement,
    big endian.

    It is written to the end of each 16 bytes of ``out`` (uint8[16 n]), from ``start`` on, with
    ``length`` bytes (int64[n]).
    """
    for i in range(len(values)):
        for k in range(_DECIMAL_BYTES):
            out[_DECIMAL_BYTES * i + k] = values[i, _DECIMAL_BYTES - 1 - k]
        first = _DECIMAL_BYTES * i
        last = first + _DECIMAL_BYTES - 1
        while first < last and (
            (out[first] == 0 and out[first + 1] < 128)
            or (out[first] == 255 and out[first + 1] >= 128)
        ):
            first += 1
        start[i] = first
        length[i] = last + 1 - first
