"""Key values for dates that MySQL and MariaDB store and no calendar has: ``0000-00-00``,
``2024-02-31``.

A key must identify its row, so in a key such a date is not NULL but a date that no row of these
servers can have: of the years 1398 to 2 before Christ, which every destination except MySQL itself
supports. Each invalid date has its own (docs/adr/0022). Year 0, which MySQL has and history does
not, is 1 before Christ, as in ISO 8601.
"""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from tidelog.codecs.columns.instant_texts import date_texts, timestamp_texts

# Each year has 51 invalid dates: month 0 (32 days), day 0 (12 months), and days that a month may
# lack: February's 29th to 31st, the 31st of April, June, September and November.
OF_A_YEAR = 51
FIRST = -1_230_000  # in days since 1970: 0000-00-00
END = FIRST + 10_000 * OF_A_YEAR  # the first day after them
_YEAR_0, _YEAR_1 = -719_528, -719_162  # in days since 1970
_DAY_US = 86_400_000_000
_EPOCH = date(1970, 1, 1)
_UNREAL = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:Z|\+00(?::00)?)?)?"
)
_LACKED = ((2, 29), (2, 30), (2, 31), (4, 31), (6, 31), (9, 31), (11, 31))  # month, day
_DAY_ZERO, _FIRST_LACKED = 32, 44
_MONTH_OF_LACKED = np.array([0, 0, 44, 0, 47, 0, 48, 0, 0, 49, 0, 50, 0], np.int64)


@njit(cache=True, nogil=True)
def code(year, month, day):  # type: ignore[no-untyped-def]
    """The days since 1970 that represent an invalid date; END if there are none."""
    if month > 12 or day > 31:
        return np.int64(END)
    if month == 0:
        number = day
    elif day == 0:
        number = _DAY_ZERO - 1 + month
    elif month == 2:
        number = _FIRST_LACKED + day - 29
    else:
        number = _MONTH_OF_LACKED[month]
    return np.int64(FIRST) + year * OF_A_YEAR + number


def value(text: str, kind: pa.DataType) -> pa.Array | None:
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
    days = (date(4, month, day) - _EPOCH).days - 1461 if real else code(year, month, day)
    if pa.types.is_date(kind):
        return pa.array([int(days)], pa.int32()).view(pa.date32())
    hour, minute, second = (int(found[n] or 0) for n in (4, 5, 6))
    micros = int((found[7] or "").ljust(6, "0"))
    seconds = int(days) * 86_400 + hour * 3600 + minute * 60 + second
    return pa.array([seconds * 1_000_000 + micros], pa.int64()).view(kind)


def any_invalid(values: pa.Array) -> bool:
    """Return True if dates or timestamps include such dates, or dates of year 0."""
    kind = pa.int32() if pa.types.is_date(values.type) else pa.int64()
    least = pc.min(values.view(kind)).as_py()
    unit = 1 if pa.types.is_date(values.type) else _DAY_US
    return least is not None and FIRST * unit <= least < _YEAR_1 * unit


def texts(values: pa.Array) -> pa.StringArray:
    """Dates or timestamps as MySQL and MariaDB write them; null stays null."""
    if pa.types.is_date(values.type):
        found = date_texts(values).to_pylist()
        numbers = values.view(pa.int32()).to_pylist()
    else:
        found = timestamp_texts(values, " ").to_pylist()
        numbers = [None if n is None else n // _DAY_US for n in values.view(pa.int64()).to_pylist()]
    written = [
        text if number is None or not FIRST <= number < END else _date_text(number) + _time(text)
        for number, text in zip(numbers, found, strict=True)
    ]
    return pa.array(written, pa.string())


def _time(text: str) -> str:
    """The part after the date, with its space."""
    _, space, time = text.partition(" ")
    return space + time


def _date_text(days: int) -> str:
    year, number = divmod(days - FIRST, OF_A_YEAR)
    if number < _DAY_ZERO:
        month, day = 0, number
    elif number < _FIRST_LACKED:
        month, day = number - _DAY_ZERO + 1, 0
    else:
        month, day = _LACKED[number - _FIRST_LACKED]
    return f"{year:04}-{month:02}-{day:02}"
