"""Converts dates and timestamps to ISO 8601 text, for every value of their integers.

Arrow's own cast writes ``<value out of range: …>`` for years beyond 32767, as if that were a value.
Years of more than four digits have a sign, as ISO 8601 and Java (`DateTimeFormatter.ISO_DATE`)
write them: ``+100000-01-01``, ``-0043-03-15`` (44 BC; year 0 is 1 BC).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numba import njit

from tidelog.model.records import Int64s, bitmap

_DAY_US = 86_400_000_000
_DATE_BYTES = 15  # sign, seven digits of the year, -MM-DD
_TIME_BYTES = 16  # T, HH:MM:SS, point and six digits
_MINUS, _PLUS, _DOT, _COLON, _ZERO = (ord(c) for c in "-+.:0")

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
