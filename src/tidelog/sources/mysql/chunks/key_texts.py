"""Converts columns of typed values to the texts of key columns of MySQL and MariaDB."""

from __future__ import annotations

import pyarrow as pa

from tidelog.codecs.columns import invalid_dates
from tidelog.codecs.mysql.rows import bytes_keys
from tidelog.sources import key_texts as shared

_SPELLING = shared.KeySpelling(true="1", false="0", utc="", binary=bytes_keys.shortest)


def key_texts(values: pa.Array) -> pa.StringArray:
    """See `tidelog.sources.key_texts.key_texts`. Bytes become ``0x`` and hexadecimal digits, or
    stay as they are if they are UTF-8 without NUL.
    """
    kind = values.type
    if pa.types.is_timestamp(kind):
        values = values.cast(pa.timestamp("us", kind.tz), safe=False)
    if (pa.types.is_date32(kind) or pa.types.is_timestamp(kind)) and invalid_dates.any_invalid(
        values
    ):
        return invalid_dates.texts(values)
    return shared.key_texts(values, _SPELLING)
