"""HOT PATH. Kernels that write the binlog's numbers, dates and times as MySQL prints them.

Each kernel of a column takes ``data`` (uint8[...]) and the column's ``start``, ``length``
(int32[n]) and ``binary`` (bool[n], True for a log row's cell). It writes the texts to
``data[to:]``, where the caller has made room, updates ``start`` and ``length``, and returns the end
of the data, or -1 - the first row whose cell is not of the type.

Sources: MySQL internals, "Rows_event"; ``strings/decimal.cc`` (``decimal2bin``);
``mysys/my_time.cc`` (``TIME_to_longlong_*_packed``).

numba's cache depends on the time stamp of a kernel's own file only: touch the callers' files when
this one changes.
"""

from __future__ import annotations

import datetime as dt

import numpy as np
from numba import njit

from tidelog.codecs.mysql import types

# Digits, and the integers of binary cells.

ZERO, MINUS, DOT, COLON, SPACE = ord("0"), ord("-"), ord("."), ord(":"), ord(" ")
POWERS = np.array([10**k for k in range(10)], dtype=np.int64)


@njit(cache=True, nogil=True)
def put_digits(data, to, value, digits):  # type: ignore[no-untyped-def]
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


# Numbers.

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
                to = put_digits(data, to, value, digits)
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
def little_endian_numbers(data, start, length, binary, out):  # type: ignore[no-untyped-def]
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


# Dates and times.

_ZERO_SECONDS = 838 * 3600 + 59 * 60 + 59 + 1
_EPOCH = dt.datetime(1970, 1, 1)


def old_temporal_text(type_id: int, digits: int, cell: bytes) -> bytes:
    """The text that a SELECT shows of a value with ``digits`` of a fraction. Raises ValueError for
    an invalid value.
    """
    unit = 10**digits
    if type_id == types.TIMESTAMP:
        seconds, fraction = int.from_bytes(cell[:4], "big"), int.from_bytes(cell[4:], "big")
        moment = _EPOCH + dt.timedelta(seconds=seconds)
        text = f"{moment:%Y-%m-%d %H:%M:%S}" if seconds or fraction else "0000-00-00 00:00:00"
    else:
        number, sign = int.from_bytes(cell, "big"), ""
        if type_id == types.TIME:
            number -= _ZERO_SECONDS * unit
            sign, number = "-" if number < 0 else "", abs(number)
        number, fraction = divmod(number, unit)
        number, second = divmod(number, 60)
        hours, minute = divmod(number, 60)
        text = f"{sign}{hours:02}:{minute:02}:{second:02}"
        if type_id == types.DATETIME:
            number, hour = divmod(hours, 24)
            number, day = divmod(number, 32)
            year, month = divmod(number, 13)
            text = f"{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}"
    if fraction >= unit:
        raise ValueError
    return f"{text}.{fraction:0{digits}}".encode()


@njit(cache=True, nogil=True)
def years(data, start, length, binary, to):  # type: ignore[no-untyped-def]
    """Convert YEAR to four digits; 0 is the year 0000."""
    for i in range(len(start)):
        if not binary[i] or length[i] < 0:
            continue
        if length[i] != 1:
            return -1 - i
        value = np.int64(data[start[i]])
        start[i] = to
        length[i] = 4
        to = put_digits(data, to, value + 1900 if value else np.int64(0), 4)
    return to


@njit(cache=True, nogil=True)
def _put_date(data, to, year, month, day):  # type: ignore[no-untyped-def]
    to = put_digits(data, to, year, 4)
    data[to] = MINUS
    to = put_digits(data, to + 1, month, 2)
    data[to] = MINUS
    return put_digits(data, to + 1, day, 2)


@njit(cache=True, nogil=True)
def _put_time(data, to, hour, minute, second):  # type: ignore[no-untyped-def]
    to = put_digits(data, to, hour, 3 if hour > 99 else 2)
    data[to] = COLON
    to = put_digits(data, to + 1, minute, 2)
    data[to] = COLON
    return put_digits(data, to + 1, second, 2)


@njit(cache=True, nogil=True)
def _put_fraction(data, to, value, digits):  # type: ignore[no-untyped-def]
    """Write ``.`` and ``digits`` digits of a fraction stored in (digits + 1) // 2 bytes."""
    if digits == 0:
        return to
    if digits & 1:  # stored as hundredths instead of tenths, and so on
        value //= 10
    data[to] = DOT
    return put_digits(data, to + 1, value, digits)


@njit(cache=True, nogil=True)
def dates(data, start, length, binary, to):  # type: ignore[no-untyped-def]
    """Convert DATE, NEWDATE: day, month, year in 5, 4 and 15 bits, little-endian."""
    for i in range(len(start)):
        if not binary[i] or length[i] < 0:
            continue
        if length[i] != 3:
            return -1 - i
        value = np.int64(little_endian(data, np.int64(start[i]), 3))
        if value >> 9 > 9999:
            return -1 - i
        start[i] = to
        length[i] = 10
        to = _put_date(data, to, value >> 9, value >> 5 & 15, value & 31)
    return to


@njit(cache=True, nogil=True)
def datetimes(data, start, length, binary, digits, to):  # type: ignore[no-untyped-def]
    """Convert DATETIME2: year * 13 + month in 17 bits, day, hour, minute, second; big-endian."""
    fraction_bytes = (digits + 1) // 2
    for i in range(len(start)):
        if not binary[i] or length[i] < 0:
            continue
        if length[i] != 5 + fraction_bytes:
            return -1 - i
        at = np.int64(start[i])
        value = big_endian(data, at, 5) - 0x8000000000
        fraction = big_endian(data, at + 5, fraction_bytes)
        year_month = value >> 22
        if value < 0 or year_month // 13 > 9999 or fraction >= POWERS[2 * fraction_bytes]:
            return -1 - i
        first = to
        to = _put_date(data, to, year_month // 13, year_month % 13, value >> 17 & 31)
        data[to] = SPACE
        to = _put_time(data, to + 1, value >> 12 & 31, value >> 6 & 63, value & 63)
        to = _put_fraction(data, to, fraction, digits)
        start[i] = first
        length[i] = to - first
    return to


@njit(cache=True, nogil=True)
def timestamps(data, start, length, binary, digits, big, to):  # type: ignore[no-untyped-def]
    """Convert TIMESTAMP2 (big-endian), TIMESTAMP (little-endian): seconds since 1970; 0: the zero
    date.
    """
    fraction_bytes = (digits + 1) // 2
    for i in range(len(start)):
        if not binary[i] or length[i] < 0:
            continue
        if length[i] != 4 + fraction_bytes:
            return -1 - i
        at = np.int64(start[i])
        seconds = big_endian(data, at, 4) if big else np.int64(little_endian(data, at, 4))
        fraction = big_endian(data, at + 4, fraction_bytes)
        if fraction >= POWERS[2 * fraction_bytes]:
            return -1 - i
        first = to
        if seconds == 0 and fraction == 0:
            to = _put_date(data, to, np.int64(0), np.int64(0), np.int64(0))
        else:
            # Civil from days (Hinnant, "chrono-Compatible Low-Level Date Algorithms").
            days = seconds // 86400 + 719468
            era = days // 146097
            of_era = days - era * 146097
            year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
            of_year = of_era - (365 * year + year // 4 - year // 100)
            shifted = (5 * of_year + 2) // 153
            day = of_year - (153 * shifted + 2) // 5 + 1
            month = shifted + 3 if shifted < 10 else shifted - 9
            year += era * 400 + (1 if month <= 2 else 0)
            to = _put_date(data, to, year, month, day)
        of_day = seconds % 86400
        data[to] = SPACE
        to = _put_time(data, to + 1, of_day // 3600, of_day // 60 % 60, of_day % 60)
        to = _put_fraction(data, to, fraction, digits)
        start[i] = first
        length[i] = to - first
    return to


@njit(cache=True, nogil=True)
def times(data, start, length, binary, digits, to):  # type: ignore[no-untyped-def]
    """Convert TIME2: hour, minute, second in 10, 6 and 6 bits and the fraction as one big-endian
    number, minus half its range; the whole number, with its fraction, is negated for negative
    times.
    """
    fraction_bytes = (digits + 1) // 2
    for i in range(len(start)):
        if not binary[i] or length[i] < 0:
            continue
        if length[i] != 3 + fraction_bytes:
            return -1 - i
        packed = big_endian(data, np.int64(start[i]), 3 + fraction_bytes)
        packed -= np.int64(0x800000) << (8 * fraction_bytes)
        first = to
        if packed < 0:
            data[to] = MINUS
            to += 1
            packed = -packed
        value = packed >> (8 * fraction_bytes)
        fraction = packed & ((np.int64(1) << (8 * fraction_bytes)) - 1)
        if value >> 22 or fraction >= POWERS[2 * fraction_bytes]:
            return -1 - i
        to = _put_time(data, to, value >> 12, value >> 6 & 63, value & 63)
        to = _put_fraction(data, to, fraction, digits)
        start[i] = first
        length[i] = to - first
    return to


@njit(cache=True, nogil=True)
def old_times(data, start, length, binary, to):  # type: ignore[no-untyped-def]
    """Convert TIME of columns created before MySQL 5.6: ±hhmmss, a number of three bytes."""
    for i in range(len(start)):
        if not binary[i] or length[i] < 0:
            continue
        if length[i] != 3:
            return -1 - i
        value = np.int64(little_endian(data, np.int64(start[i]), 3))
        first = to
        if value >= 1 << 23:
            value = (1 << 24) - value
            data[to] = MINUS
            to += 1
        if value // 10000 > 999:
            return -1 - i
        to = _put_time(data, to, value // 10000, value // 100 % 100, value % 100)
        start[i] = first
        length[i] = to - first
    return to


@njit(cache=True, nogil=True)
def old_datetimes(data, start, length, binary, to):  # type: ignore[no-untyped-def]
    """Convert DATETIME of columns created before MySQL 5.6: YYYYMMDDhhmmss as a decimal number."""
    for i in range(len(start)):
        if not binary[i] or length[i] < 0:
            continue
        if length[i] != 8:
            return -1 - i
        value = np.int64(little_endian(data, np.int64(start[i]), 8))
        if value < 0 or value > 99999999999999:
            return -1 - i
        date, time = value // 1000000, value % 1000000
        start[i] = to
        length[i] = 19
        to = _put_date(data, to, date // 10000, date // 100 % 100, date % 100)
        data[to] = SPACE
        to = _put_time(data, to + 1, time // 10000, time // 100 % 100, time % 100)
    return to
