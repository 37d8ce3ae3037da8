"""HOT PATH. Kernels that convert the binlog's dates and times to the texts that MySQL prints.

Arguments and result as in `tidelog.codecs.mysql.texts.number_kernels`. Sources: MySQL internals,
"Rows_event", and ``mysys/my_time.cc`` (``TIME_to_longlong_*_packed``).
"""

from __future__ import annotations

import datetime as dt

import numpy as np
from numba import njit

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.texts.digit_kernels import (
    COLON,
    DOT,
    MINUS,
    POWERS,
    SPACE,
    big_endian,
    little_endian,
    put,
)

_ZERO_SECONDS = 838 * 3600 + 59 * 60 + 59 + 1
_EPOCH = dt.datetime(1970, 1, 1)


def old_text(type_id: int, digits: int, cell: bytes) -> bytes:
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
        to = put(data, to, value + 1900 if value else np.int64(0), 4)
    return to


@njit(cache=True, nogil=True)
def _put_date(data, to, year, month, day):  # type: ignore[no-untyped-def]
    to = put(data, to, year, 4)
    data[to] = MINUS
    to = put(data, to + 1, month, 2)
    data[to] = MINUS
    return put(data, to + 1, day, 2)


@njit(cache=True, nogil=True)
def _put_time(data, to, hour, minute, second):  # type: ignore[no-untyped-def]
    to = put(data, to, hour, 3 if hour > 99 else 2)
    data[to] = COLON
    to = put(data, to + 1, minute, 2)
    data[to] = COLON
    return put(data, to + 1, second, 2)


@njit(cache=True, nogil=True)
def _put_fraction(data, to, value, digits):  # type: ignore[no-untyped-def]
    """Write ``.`` and ``digits`` digits of a fraction stored in (digits + 1) // 2 bytes."""
    if digits == 0:
        return to
    if digits & 1:  # stored as hundredths instead of tenths, and so on
        value //= 10
    data[to] = DOT
    return put(data, to + 1, value, digits)


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
    """Convert DATETIME2: year * 13 + month in 17 bits, then day, hour, minute, second;
    big-endian.
    """
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
    """Convert TIME of columns created before MySQL 5.6: ±hhmmss as a decimal number in
    three bytes.
    """
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
