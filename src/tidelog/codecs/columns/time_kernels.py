"""HOT PATH. Kernels that convert ISO dates and timestamps (``DateStyle=ISO``, ``TimeZone=UTC``) to
integers.

Arguments and result as in `tidelog.codecs.columns.number_kernels`. Days are of the proleptic
Gregorian calendar, as in PostgreSQL; year 1 BC is year 0.
"""

from __future__ import annotations

from datetime import date

import numpy as np
from numba import njit

from tidelog.codecs.columns.invalid_dates import END, code

# How to convert dates that no calendar has (``0000-00-00``, ``2024-02-31``): an error, null, or a
# distinct date (`tidelog.codecs.columns.invalid_dates`).
UNREAL_IS_WRONG, UNREAL_IS_NULL, UNREAL_IS_TOLD = 0, 1, 2

_EPOCH = date(1970, 1, 1)
# 'infinity' and '-infinity'. They are valid dates in every system downstream, in every time zone:
# Python's datetime ends at the last hour of 9999 and begins at year 1, and PySpark shifts instants
# into the session's zone; Parquet's INT96 and Delta's statistics overflow near int64's limits.
POSITIVE_INFINITY_DAYS = (date(9999, 12, 31) - _EPOCH).days
NEGATIVE_INFINITY_DAYS = (date(1, 1, 3) - _EPOCH).days

_DAY_US = 86_400_000_000
_INT64_MAX = 2**63 - 1
_INT32_MAX = 2**31 - 1
_LAST_DAY = _INT64_MAX // _DAY_US - 1  # int64 microseconds end within the next day
_BAD = -(2**62)
_INFINITY = np.frombuffer(b"infinity", dtype=np.uint8)
_MINUS, _PLUS, _DOT, _COLON, _SPACE = ord("-"), ord("+"), ord("."), ord(":"), ord(" ")
_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], dtype=np.int64)


@njit(cache=True, nogil=True)
def _infinite(data, position, end):  # type: ignore[no-untyped-def]
    """1 for infinity, -1 for -infinity, else 0."""
    sign = 1
    if position < end and data[position] == _MINUS:
        sign = -1
        position += 1
    if end - position != len(_INFINITY):
        return 0
    for k in range(len(_INFINITY)):
        if data[position + k] != _INFINITY[k]:
            return 0
    return sign


@njit(cache=True, nogil=True)
def _two_digits(data, position):  # type: ignore[no-untyped-def]
    tens = np.int64(data[position]) - 48
    ones = np.int64(data[position + 1]) - 48
    if tens < 0 or tens > 9 or ones < 0 or ones > 9:
        return np.int64(-1)
    return tens * 10 + ones


@njit(cache=True, nogil=True)
def _day(data, position, end, before_christ):  # type: ignore[no-untyped-def]
    """(days since 1970, position after the date); days is _BAD for an invalid date."""
    year = np.int64(0)
    first = position
    while position < end and data[position] != _MINUS:
        digit = np.int64(data[position]) - 48
        if digit < 0 or digit > 9:
            return np.int64(_BAD), position
        year = year * 10 + digit
        position += 1
    if position - first < 4 or position - first > 7 or position + 6 > end:
        return np.int64(_BAD), position
    month = _two_digits(data, position + 1)
    day = _two_digits(data, position + 4)
    if data[position + 3] != _MINUS or month < 1 or month > 12 or day < 1 or year < 1:
        return np.int64(_BAD), position
    if before_christ:
        if year > 7000:
            return np.int64(_BAD), position
        year = 1 - year
    if day > _MONTH_DAYS[month]:
        leap = (year % 4 == 0 and year % 100 != 0) or year % 400 == 0
        if not (month == 2 and day == 29 and leap):
            return np.int64(_BAD), position
    # Days from civil: years start in March, eras of 400 years (Hinnant, "chrono-Compatible
    # Low-Level Date Algorithms"). Years shifted to be positive, so that // is a plain division.
    shifted = year + 8000 - (1 if month <= 2 else 0)
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    days = era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468
    return days - 20 * 146097, position + 6


@njit(cache=True, nogil=True)
def _ends_before_christ(data, position, end):  # type: ignore[no-untyped-def]
    return (
        end - position > 3
        and data[end - 1] == 67
        and data[end - 2] == 66
        and data[end - 3] == _SPACE
    )


@njit(cache=True, nogil=True)
def _has_date_shape(data, position, end):  # type: ignore[no-untyped-def]
    """Return True if the text begins with ``NNNN-NN-NN``."""
    if end - position < 10 or (end - position > 10 and data[position + 10] != _SPACE):
        return False
    for k in range(10):
        byte = data[position + k]
        if k in (4, 7):
            if byte != _MINUS:
                return False
        elif byte < 48 or byte > 57:
            return False
    return True


@njit(cache=True, nogil=True)
def _unreal_day(data, position):  # type: ignore[no-untyped-def]
    """The days since 1970 that represent ``NNNN-NN-NN``; _BAD if there are none."""
    year = _two_digits(data, position) * 100 + _two_digits(data, position + 2)
    month = _two_digits(data, position + 5)
    day = _two_digits(data, position + 8)
    if year == 0 and month > 0 and day > 0:
        # Year 4 is a leap year like year 0: compute the date there and subtract four years.
        scratch = np.empty(10, dtype=np.uint8)
        for k in range(10):
            scratch[k] = data[position + k]
        scratch[3] = 52
        days, _ = _day(scratch, 0, 10, False)
        if days != _BAD:
            return days - 1461
    days = code(year, month, day)
    return np.int64(_BAD) if days == END else days


@njit(cache=True, nogil=True)
def dates(data, start, length, unreal, out, null):  # type: ignore[no-untyped-def]
    """Convert ``YYYY-MM-DD[ BC]`` or ±infinity to int32 days since 1970.

    ``unreal``: `UNREAL_IS_WRONG`, `UNREAL_IS_NULL` or `UNREAL_IS_TOLD`.
    """
    for i in range(len(start)):
        out[i] = 0
        null[i] = length[i] < 0
        if null[i]:
            continue
        position = np.int64(start[i])
        end = position + np.int64(length[i])
        before_christ = _ends_before_christ(data, position, end)
        if before_christ:
            end -= 3
        days, after = _day(data, position, end, before_christ)
        if days == _BAD and unreal != UNREAL_IS_WRONG and _has_date_shape(data, position, end):
            if unreal == UNREAL_IS_TOLD:
                days = _unreal_day(data, position)
                after = position + 10
            if days == _BAD:
                null[i] = True
                continue
        if days == _BAD:
            sign = _infinite(data, position, end)
            if sign == 0 or before_christ:
                return i
            days = np.int64(POSITIVE_INFINITY_DAYS if sign > 0 else NEGATIVE_INFINITY_DAYS)
        elif after != end or days > _INT32_MAX:
            return i
        out[i] = days
    return -1


@njit(cache=True, nogil=True)
def timestamps(data, start, length, unreal, out, null):  # type: ignore[no-untyped-def]
    """Convert ``YYYY-MM-DD[ HH:MM:SS[.ffffff]][±HH[:MM[:SS]]][ BC]`` or ±infinity to int64 µs since
    1970 UTC.

    Timestamps beyond int64 (PostgreSQL's end in year 294276) become +infinity. ``unreal`` as in
    `dates`.
    """
    for i in range(len(start)):
        out[i] = 0
        null[i] = length[i] < 0
        if null[i]:
            continue
        position = np.int64(start[i])
        end = position + np.int64(length[i])
        before_christ = _ends_before_christ(data, position, end)
        if before_christ:
            end -= 3
        days, after = _day(data, position, end, before_christ)
        if days == _BAD and unreal != UNREAL_IS_WRONG and _has_date_shape(data, position, end):
            if unreal == UNREAL_IS_TOLD:
                days = _unreal_day(data, position)
                after = position + 10
            if days == _BAD:
                null[i] = True
                continue
        if days == _BAD:
            sign = _infinite(data, position, end)
            if sign == 0 or before_christ:
                return i
            out[i] = (POSITIVE_INFINITY_DAYS if sign > 0 else NEGATIVE_INFINITY_DAYS) * _DAY_US
            continue
        position = after
        micros = np.int64(0)
        if position < end:
            if end - position < 9 or data[position] != _SPACE:
                return i
            hour = _two_digits(data, position + 1)
            minute = _two_digits(data, position + 4)
            second = _two_digits(data, position + 7)
            if hour < 0 or hour > 24 or minute < 0 or minute > 59 or second < 0 or second > 60:
                return i
            if data[position + 3] != _COLON or data[position + 6] != _COLON:
                return i
            position += 9
            micros = ((hour * 60 + minute) * 60 + second) * 1_000_000
            if position < end and data[position] == _DOT:
                position += 1
                unit = np.int64(100_000)
                first = position
                while position < end and data[position] >= 48 and data[position] <= 57:
                    micros += unit * (np.int64(data[position]) - 48)
                    unit //= 10
                    position += 1
                if position == first or position - first > 6:
                    return i
            if position < end:
                sign = np.int64(-1 if data[position] == _PLUS else 1)
                if data[position] != _PLUS and data[position] != _MINUS:
                    return i
                unit = np.int64(3_600_000_000)
                position += 1
                while True:
                    if position + 2 > end or unit < 1_000_000:
                        return i
                    part = _two_digits(data, position)
                    if part < 0:
                        return i
                    micros += sign * part * unit
                    unit //= 60
                    position += 2
                    if position == end:
                        break
                    if data[position] != _COLON:
                        return i
                    position += 1
        if days > _LAST_DAY:
            out[i] = POSITIVE_INFINITY_DAYS * _DAY_US
        else:
            out[i] = days * _DAY_US + micros
    return -1
