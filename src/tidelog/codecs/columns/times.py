"""Dates and timestamps of columns: from ISO 8601 and to it, and those that no calendar has.

Texts: Arrow's own cast writes ``<value out of range: …>`` for years beyond 32767, as if that were a
value. Years of more than four digits have a sign, as ISO 8601 and Java
(`DateTimeFormatter.ISO_DATE`) write them: ``+100000-01-01``, ``-0043-03-15`` (44 BC; year 0 is
1 BC).

Invalid dates: MySQL and MariaDB store dates that no calendar has, ``0000-00-00`` and
``2024-02-31``. A key must identify its row, so in a key such a date is not NULL but a date that no
row of these servers can have: of the years 1398 to 2 before Christ, which every destination except
MySQL itself supports. Each invalid date has its own (docs/adr/0019). Year 0, which MySQL has and
history does not, is 1 before Christ, as in ISO 8601.

HOT PATH. The kernels `dates` and `timestamps` convert ISO texts (``DateStyle=ISO``,
``TimeZone=UTC``) to integers; arguments and result as in `tidelog.codecs.columns.kernels`. Days are
of the proleptic Gregorian calendar, as in PostgreSQL; year 1 BC is year 0.
"""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from tidelog.model.records import Int64s, bitmap

# Integers to texts.

_DAY_US = 86_400_000_000
_DATE_BYTES = 15  # sign, seven digits of the year, -MM-DD
_TIME_BYTES = 16  # T, HH:MM:SS, point and six digits
_MINUS, _PLUS, _DOT, _COLON, _SPACE, _ZERO = (ord(c) for c in "-+.: 0")

MICROSECONDS = 6
SHORTEST = -1


def date_texts(values: pa.Date32Array) -> pa.StringArray:
    """``YYYY-MM-DD``; null stays null."""
    days = values.view(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)
    return _texts(values, days.astype(np.int64), 0, 0)


def timestamp_texts(
    values: pa.TimestampArray, separator: str = "T", digits: int = MICROSECONDS
) -> pa.StringArray:
    """``YYYY-MM-DDTHH:MM:SS.ffffff`` of microseconds since 1970, in UTC; null stays null.

    Args:
        values: timestamps in microseconds.
        separator: one ASCII character between date and time.
        digits: digits of the second's fraction, 0 to 6; further ones are cut off. `SHORTEST`:
            without trailing zeros.
    """
    micros = values.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return _texts(values, micros, ord(separator), digits)


def _texts(values: pa.Array, numbers: Int64s, separator: int, digits: int) -> pa.StringArray:
    n = len(values)
    offsets = np.zeros(n + 1, np.int32)
    out = np.empty(n * (_DATE_BYTES + (_TIME_BYTES if separator else 0)), np.uint8)
    numbers = numbers.view()
    numbers.flags.writeable = False  # so that the kernel is compiled only once
    total = _write(numbers, separator, digits, offsets, out)
    texts = pa.StringArray.from_buffers(n, pa.py_buffer(offsets), pa.py_buffer(out[:total]))
    if not values.null_count:
        return texts
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    bits = bitmap(valid)
    return pa.Array.from_buffers(pa.string(), n, [bits, *texts.buffers()[1:]])


@njit(cache=True, nogil=True)
def _write(numbers, separator, digits, offsets, out):  # type: ignore[no-untyped-def]
    """Write the texts; returns their bytes. Numbers are days without a ``separator``, else
    microseconds.
    """
    at = np.int64(0)
    for i in range(len(numbers)):
        days, micros = numbers[i], np.int64(0)
        if separator:
            days = numbers[i] // _DAY_US
            micros = numbers[i] - days * _DAY_US
        at = _put_date(out, at, days)
        if separator:
            out[at] = separator
            at = _put_time(out, at + 1, micros, digits)
        offsets[i + 1] = at
    return at


@njit(cache=True, nogil=True)
def _put_date(out, at, days):  # type: ignore[no-untyped-def]
    # Civil from days: years start in March, eras of 400 years (Hinnant, "chrono-Compatible
    # Low-Level Date Algorithms").
    shifted = days + 719_468
    era = shifted // 146_097
    of_era = shifted - era * 146_097
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    day = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * day + 2) // 153
    day = day - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    year = year + era * 400 + (1 if month <= 2 else 0)
    if year < 0:
        out[at] = _MINUS
        at += 1
        year = -year
    elif year > 9999:
        out[at] = _PLUS
        at += 1
    width = 4
    while year >= 10**width:
        width += 1
    at = _put(out, at, year, width)
    out[at] = _MINUS
    at = _put(out, at + 1, month, 2)
    out[at] = _MINUS
    return _put(out, at + 1, day, 2)


@njit(cache=True, nogil=True)
def _put_time(out, at, micros, digits):  # type: ignore[no-untyped-def]
    seconds = micros // 1_000_000
    fraction = micros - seconds * 1_000_000
    at = _put(out, at, seconds // 3600, 2)
    out[at] = _COLON
    at = _put(out, at + 1, seconds // 60 % 60, 2)
    out[at] = _COLON
    at = _put(out, at + 1, seconds % 60, 2)
    shown = digits
    if digits < 0:
        shown = 0 if fraction == 0 else 6
        while shown > 0 and fraction % 10 ** (7 - shown) == 0:
            shown -= 1
    if shown == 0:
        return at
    out[at] = _DOT
    return _put(out, at + 1, fraction // 10 ** (6 - shown), shown)


@njit(cache=True, nogil=True)
def _put(out, at, value, width):  # type: ignore[no-untyped-def]
    for k in range(width - 1, -1, -1):
        out[at + k] = _ZERO + value % 10
        value //= 10
    return at + width


# Invalid dates in keys.

# Each year has 51 invalid dates: month 0 (32 days), day 0 (12 months), and days that a month may
# lack: February's 29th to 31st, the 31st of April, June, September and November.
INVALID_DATES_A_YEAR = 51
FIRST_INVALID_DATE = -1_230_000  # in days since 1970: 0000-00-00
END_OF_INVALID_DATES = (
    FIRST_INVALID_DATE + 10_000 * INVALID_DATES_A_YEAR
)  # the first day after them
_YEAR_0, _YEAR_1 = -719_528, -719_162  # in days since 1970
_EPOCH = date(1970, 1, 1)
_UNREAL = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:Z|\+00(?::00)?)?)?"
)
_LACKED = ((2, 29), (2, 30), (2, 31), (4, 31), (6, 31), (9, 31), (11, 31))  # month, day
_DAY_ZERO, _FIRST_LACKED = 32, 44
_MONTH_OF_LACKED = np.array([0, 0, 44, 0, 47, 0, 48, 0, 0, 49, 0, 50, 0], np.int64)


@njit(cache=True, nogil=True)
def invalid_date_days(year, month, day):  # type: ignore[no-untyped-def]
    """The days since 1970 that represent an invalid date; END if there are none."""
    if month > 12 or day > 31:
        return np.int64(END_OF_INVALID_DATES)
    if month == 0:
        number = day
    elif day == 0:
        number = _DAY_ZERO - 1 + month
    elif month == 2:
        number = _FIRST_LACKED + day - 29
    else:
        number = _MONTH_OF_LACKED[month]
    return np.int64(FIRST_INVALID_DATE) + year * INVALID_DATES_A_YEAR + number


def invalid_date_value(text: str, kind: pa.DataType) -> pa.Array | None:
    """The date or timestamp that represents such a text; None if the text is not one of them."""
    found = _UNREAL.fullmatch(text)
    if found is None or not pa.types.is_temporal(kind) or pa.types.is_time(kind):
        return None
    year, month, day = (int(found[n]) for n in (1, 2, 3))
    if year and month and 0 < day <= monthrange(year, min(month, 12))[1]:
        return None
    if month > 12 or day > 31:
        return None
    real = year == 0 and month and 0 < day <= monthrange(4, month)[1]
    days = (
        (date(4, month, day) - _EPOCH).days - 1461 if real else invalid_date_days(year, month, day)
    )
    if pa.types.is_date(kind):
        return pa.array([int(days)], pa.int32()).view(pa.date32())
    hour, minute, second = (int(found[n] or 0) for n in (4, 5, 6))
    micros = int((found[7] or "").ljust(6, "0"))
    seconds = int(days) * 86_400 + hour * 3600 + minute * 60 + second
    return pa.array([seconds * 1_000_000 + micros], pa.int64()).view(kind)


def any_invalid_date(values: pa.Array) -> bool:
    """Return True if dates or timestamps include such dates, or dates of year 0."""
    kind = pa.int32() if pa.types.is_date(values.type) else pa.int64()
    least = pc.min(values.view(kind)).as_py()
    unit = 1 if pa.types.is_date(values.type) else _DAY_US
    return least is not None and FIRST_INVALID_DATE * unit <= least < _YEAR_1 * unit


def texts_with_invalid_dates(values: pa.Array) -> pa.StringArray:
    """Dates or timestamps as MySQL and MariaDB write them; null stays null."""
    if pa.types.is_date(values.type):
        found = date_texts(values).to_pylist()
        numbers = values.view(pa.int32()).to_pylist()
    else:
        found = timestamp_texts(values, " ").to_pylist()
        numbers = [None if n is None else n // _DAY_US for n in values.view(pa.int64()).to_pylist()]
    written = [
        text
        if number is None or not FIRST_INVALID_DATE <= number < END_OF_INVALID_DATES
        else _date_text(number) + _time(text)
        for number, text in zip(numbers, found, strict=True)
    ]
    return pa.array(written, pa.string())


def _time(text: str) -> str:
    """The part after the date, with its space."""
    _, space, time = text.partition(" ")
    return space + time


def _date_text(days: int) -> str:
    year, number = divmod(days - FIRST_INVALID_DATE, INVALID_DATES_A_YEAR)
    if number < _DAY_ZERO:
        month, day = 0, number
    elif number < _FIRST_LACKED:
        month, day = number - _DAY_ZERO + 1, 0
    else:
        month, day = _LACKED[number - _FIRST_LACKED]
    return f"{year:04}-{month:02}-{day:02}"


# HOT PATH. Texts to integers.

# How to convert dates that no calendar has (``0000-00-00``, ``2024-02-31``): an error, null, or a
# distinct date (`invalid_date_days`).
INVALID_DATE_IS_ERROR, INVALID_DATE_IS_NULL, INVALID_DATE_IS_DISTINCT = 0, 1, 2

# 'infinity' and '-infinity'. They are valid dates in every system downstream, in every time zone:
# Python's datetime ends at the last hour of 9999 and begins at year 1, and PySpark shifts instants
# into the session's zone; Parquet's INT96 and Delta's statistics overflow near int64's limits.
POSITIVE_INFINITY_DAYS = (date(9999, 12, 31) - _EPOCH).days
NEGATIVE_INFINITY_DAYS = (date(1, 1, 3) - _EPOCH).days

_INT64_MAX = 2**63 - 1
_INT32_MAX = 2**31 - 1
_LAST_DAY = _INT64_MAX // _DAY_US - 1  # int64 microseconds end within the next day
_BAD = -(2**62)
_INFINITY = np.frombuffer(b"infinity", dtype=np.uint8)
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
def _invalid_day(data, position):  # type: ignore[no-untyped-def]
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
    days = invalid_date_days(year, month, day)
    return np.int64(_BAD) if days == END_OF_INVALID_DATES else days


_NULL = 2


@njit(cache=True, nogil=True)
def _day_or_infinity(data, position, end, invalid):  # type: ignore[no-untyped-def]
    """Return the day at ``position``, where it ends, the text's end without BC; and, if the day is
    _BAD, why: ±1 infinity, 0 malformed, `_NULL` a date that does not exist and is null.
    """
    before_christ = _ends_before_christ(data, position, end)
    if before_christ:
        end -= 3
    days, after = _day(data, position, end, before_christ)
    if days == _BAD and invalid != INVALID_DATE_IS_ERROR and _has_date_shape(data, position, end):
        if invalid == INVALID_DATE_IS_DISTINCT:
            days = _invalid_day(data, position)
            after = position + 10
        if days == _BAD:
            return days, after, end, _NULL
    if days != _BAD or before_christ:
        return days, after, end, 0
    return days, after, end, _infinite(data, position, end)


@njit(cache=True, nogil=True)
def dates(data, start, length, invalid, out, null):  # type: ignore[no-untyped-def]
    """Convert ``YYYY-MM-DD[ BC]`` or ±infinity to int32 days since 1970. ``invalid``:
    `INVALID_DATE_IS_ERROR`, `INVALID_DATE_IS_NULL` or `INVALID_DATE_IS_DISTINCT`.
    """
    for i in range(len(start)):
        out[i] = 0
        null[i] = length[i] < 0
        if null[i]:
            continue
        position = np.int64(start[i])
        end = position + np.int64(length[i])
        days, after, end, sign = _day_or_infinity(data, position, end, invalid)
        if days == _BAD:
            if sign == _NULL:
                null[i] = True
                continue
            if sign == 0:
                return i
            days = np.int64(POSITIVE_INFINITY_DAYS if sign > 0 else NEGATIVE_INFINITY_DAYS)
        elif after != end or days > _INT32_MAX:
            return i
        out[i] = days
    return -1


@njit(cache=True, nogil=True)
def timestamps(data, start, length, invalid, out, null):  # type: ignore[no-untyped-def]
    """Convert ``YYYY-MM-DD[ HH:MM:SS[.ffffff]][±HH[:MM[:SS]]][ BC]`` or ±infinity to int64 µs since
    1970 UTC.

    Timestamps beyond int64 (PostgreSQL's end in year 294276) become +infinity. ``invalid`` as in
    `dates`.
    """
    for i in range(len(start)):
        out[i] = 0
        null[i] = length[i] < 0
        if null[i]:
            continue
        position = np.int64(start[i])
        end = position + np.int64(length[i])
        days, after, end, sign = _day_or_infinity(data, position, end, invalid)
        if days == _BAD:
            if sign == _NULL:
                null[i] = True
                continue
            if sign == 0:
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
