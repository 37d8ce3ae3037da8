"""Converts keys' texts as Spark writes them to texts that the source reads.

Spark's are those of `tidelog.spark.key_frames.as_text`, which PostgreSQL reads, except where two of
its values have become one (docs/sources/postgresql.md, "What is not one-to-one").
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from datetime import date, timedelta

import numpy as np
import pyarrow as pa

from tidelog.codecs import invalid_dates
from tidelog.model.schema import Column, TableSchema

Key = tuple[str | None, ...]

# The value that an infinite date or timestamp decodes to (`tidelog.codecs.columns.time_kernels`),
# and its text.
_EPOCH = date(1970, 1, 1)
_INFINITE = {
    str(_EPOCH + timedelta(days=2_932_896)): "infinity",
    str(_EPOCH - timedelta(days=719_160)): "-infinity",
}
_MIDNIGHTS = ("", "00:00:00", "00:00:00+00")
_TIMES = ("date", "timestamp", "timestamptz")
# A date of year 0 or before it, as Spark writes it, and the rest of a timestamp.
_INVALID = re.compile(r"(-\d{4}|0000)-(\d\d)-(\d\d)(.*)")


def source_spellings(key: Key, schema: TableSchema, columns: Sequence[str]) -> list[Key]:
    """Returns the source's keys that ``key`` (of ``columns``) may stand for: one, except for values
    that may be infinite.
    """
    found = [schema.columns[schema.column_index(name)] for name in columns]
    of_postgres = schema.wire_format == "pgoutput"
    spelled = _of_postgres if of_postgres else _of_mysql
    return list(itertools.product(*itertools.starmap(spelled, zip(key, found, strict=True))))


def _of_postgres(text: str | None, column: Column) -> tuple[str | None, ...]:
    if text is None or column.logical not in _TIMES:
        return (text,)
    day, _, rest = text.partition(" ")
    infinite = _INFINITE.get(day) if rest in _MIDNIGHTS else None
    return (text,) if infinite is None else (text, infinite)


def _of_mysql(text: str | None, column: Column) -> tuple[str | None, ...]:
    if text is None:
        return (text,)
    if column.logical in _TIMES and (found := _INVALID.match(text)) is not None:
        return (_invalid_date(found),)
    if column.logical == "bytes" and text.startswith("\\x"):
        return ("0x" + text[2:],)
    if column.logical == "float32":
        return (repr(float(np.float32(text))),)  # the server compares it as a double
    return (text,)


def _invalid_date(found: re.Match[str]) -> str:
    """Returns a date that no calendar has, as MySQL and MariaDB write it."""
    year, month, day, rest = found.groups()
    days = np.datetime64(f"{year}-{month}-{day}", "D").astype(np.int32)
    [text] = invalid_dates.texts(pa.array([days.item()], pa.int32()).view(pa.date32())).to_pylist()
    return f"{text}{rest}"
