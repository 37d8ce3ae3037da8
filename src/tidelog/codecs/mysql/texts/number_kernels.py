"""HOT PATH. Kernels that convert the binlog's numbers to the texts that MySQL prints.

Each takes ``data`` (uint8[...]) and a column's ``start``, ``length`` (int32[n]) and ``binary``
(bool[n], True for a log row's cell). It writes the texts to ``data[to:]``, where the caller has
made room, updates ``start`` and ``length``, and returns the end of the data, or -1 - the first row
whose cell is not of the type. Sources: MySQL internals, "Rows_event", and ``strings/decimal.cc``
(``decimal2bin``).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tidelog.codecs.mysql.texts.digit_kernels import (
    DOT,
    MINUS,
    POWERS,
    ZERO,
    little_endian,
    put,
    put_unsigned,
)

_DIGIT_BYTES = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4], dtype=np.int64)


@njit(cache=True, nogil=True)
def integers(data, start, length, binary, size, unsigned, to):  # type: ignore[no-untyped-def]
    """Convert TINY, SHORT, INT24, LONG, LONGLONG of ``size`` bytes to decimal digits."""
    shift = np.uint64(64 - 8 * size)
    for i in range(len(start)):
        if not binary[i] or length[i] < 0:
            continue
        if length[i] != size:
            return -1 - i
        first = to
        value = little_endian(data, np.int64(start[i]), size)
        if not unsigned:
            signed = np.int64(value << shift) >> np.int64(shift)
            if signed < 0:
                data[to] = MINUS
                to += 1
                value = np.uint64(0) - np.uint64(signed)
        to = put_unsigned(data, to, value)
        start[i] = first
        length[i] = to - first
    return to


@njit(cache=True, nogil=True)
def bits(data, start, length, binary, truth, to):  # type: ignore[no-untyped-def]
    """Convert BIT to digits, or ``t`` and ``f``."""
    for i in range(len(start)):
        if not binary[i] or length[i] < 0:
            continue
        if length[i] > 8 or length[i] < 1:
            return -1 - i
        value = np.uint64(0)
        for k in range(length[i]):
            value = (value << np.uint64(8)) | np.uint64(data[start[i] + k])
        start[i] = to
        if truth:
            data[to] = 116 if value else 102
            length[i] = 1
            to += 1
        else:
            first = to
            to = put_unsigned(data, to, value)
            length[i] = to - first
    return to


@njit(cache=True, nogil=True)
def put_decimal(data, at, precision, scale, to):  # type: ignore[no-untyped-def]
    """Write the DECIMAL at ``data[at:]``; returns its end, or -1 if it is invalid.

    Groups of nine digits take four bytes, big-endian, those at the ends fewer; the first bit is
    inverted, and for a negative number all bits are.
    """
    whole = precision - scale
    first_byte = data[at]
    flip = np.uint8(0) if first_byte & 0x80 else np.uint8(0xFF)
    top = np.uint8(0x80)
    if flip:
        data_minus_at = to
        data[to] = MINUS
        to += 1
    else:
        data_minus_at = np.int64(-1)
    any_digit = False  # a digit other than zero, to recognize zero
    begun = False  # has a digit of the whole part been written?
    left = whole
    for part in range(2):
        left = whole if part == 0 else scale
        if part == 1:
            if not begun:
                data[to] = ZERO
                to += 1
            if scale == 0:
                break
            data[to] = DOT
            to += 1
        while left > 0:
            digits = left % 9 if part == 0 and left % 9 else min(left, 9)
            size = _DIGIT_BYTES[digits]
            value = np.int64(0)
            for k in range(size):
                value = (value << 8) | np.int64(data[at + k] ^ flip ^ top)
                top = np.uint8(0)
            at += size
            if value >= POWERS[digits]:
                return np.int64(-1)
            any_digit |= value != 0
            if part == 1 or begun:
                to = put(data, to, value, digits)
            elif value:
                to = put_unsigned(data, to, np.uint64(value))
                begun = True
            left -= digits
    if not any_digit and data_minus_at >= 0:
        for k in range(data_minus_at, to - 1):
            data[k] = data[k + 1]
        to -= 1
    return to


@njit(cache=True, nogil=True)
def decimals(data, start, length, binary, precision, scale, to):  # type: ignore[no-untyped-def]
    """Convert NEWDECIMAL to digits with ``scale`` decimals."""
    for i in range(len(start)):
        if not binary[i] or length[i] < 0:
            continue
        end = put_decimal(data, np.int64(start[i]), precision, scale, to)
        if end < 0:
            return -1 - i
        start[i] = to
        length[i] = end - to
        to = end
    return to


@njit(cache=True, nogil=True)
def numbers(data, start, length, binary, out):  # type: ignore[no-untyped-def]
    """Fill uint64[n] ``out`` with the little-endian numbers of up to eight bytes."""
    for i in range(len(start)):
        out[i] = 0
        if not binary[i] or length[i] < 0:
            continue
        if length[i] > 8:
            return -1 - i
        out[i] = little_endian(data, np.int64(start[i]), np.int64(length[i]))
    return 0


@njit(cache=True, nogil=True)
def floats(data, start, length, binary, size, out):  # type: ignore[no-untyped-def]
    """Fill uint64[n] ``out`` with the cells' bit patterns."""
    for i in range(len(start)):
        out[i] = 0
        if not binary[i] or length[i] < 0:
            continue
        if length[i] != size:
            return -1 - i
        out[i] = little_endian(data, np.int64(start[i]), size)
    return 0
