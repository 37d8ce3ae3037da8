"""MariaDB's temporal values with fractions in the format before ``mysql56_temporal_format``.

Format: MariaDB's ``sql/field.cc``: ``Field_timestamp_hires``, ``Field_time_hires``,
``Field_datetime_hires``. All are big-endian. A TIME is a number of units (the fraction's last
digit), counted from below the least TIME; a DATETIME the parts of the date and the time in mixed
radix; a TIMESTAMP seconds since 1970, then the fraction.
"""

from __future__ import annotations

import datetime as dt

from tidelog.codecs.mysql import types

_ZERO_SECONDS = 838 * 3600 + 59 * 60 + 59 + 1
_EPOCH = dt.datetime(1970, 1, 1)


def old_text(type_id: int, digits: int, cell: bytes) -> bytes:
    """The text that a SELECT shows of a value with ``digits`` of a fraction. ValueError: none."""
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
