r"""Converts Arrow columns to the text that servers load in bulk, without Python per row.

PostgreSQL's ``COPY … FROM STDIN`` (format text) and MySQL's ``LOAD DATA`` (its defaults) read the
same lines: tabs between columns, ``\N`` for NULL, a backslash before special characters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from tidelog.codecs.columns.concatenation import KeyPiece, TextCells, join

_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
# Byte → its two hexadecimal digits, as they are in memory.
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)
_TEXT = pa.large_string()
_YEAR_1, _YEAR_10000 = -719_162, 2_932_897  # in days since 1970
_DAY = 86_400_000_000  # microseconds


def text(column: pa.Array) -> pa.Array:
    """Return large_string[n]: each value as both servers read it, escaped; binary as hexadecimal
    digits. Integers are returned unchanged.

    Instants are written in UTC without a zone: sessions are pinned to UTC.
    """
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _escaped(column.cast(_TEXT))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _hexadecimal(column.cast(pa.large_binary()))
    if pa.types.is_integer(kind):
        return column
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8())
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us"))
    if pa.types.is_temporal(kind):
        return _with_eras(column)
    return column.cast(_TEXT)


def prefixed(prefix: str, column: pa.Array) -> TextCells:
    """Return ``prefix`` before each value that is not null."""
    return TextCells(column, prefix)


def lines(columns: Sequence[KeyPiece]) -> memoryview:
    """Return `text` columns as lines of one buffer."""
    pieces: list[KeyPiece] = []
    for column in columns:
        pieces += ["\t", column]
    return memoryview(_bytes(join([*pieces[1:], "\n"], "\\N", large=True))[1].data)


def tuples(columns: Sequence[pa.Array], binary: Sequence[bool], limit: int) -> Iterator[bytes]:
    """Yield `text` columns as ``(…),(…)`` of SQL literals, in pieces of about ``limit`` bytes.

    ``binary``: whether each column's text is hexadecimal digits. A backslash must be an escape in
    the session's literals.
    """
    comma, quote = pa.scalar(",", _TEXT), pa.scalar("'", _TEXT)
    nothing = pa.scalar("", _TEXT)
    literals = []
    for column, is_binary in zip(columns, binary, strict=True):
        first = pa.scalar("x'" if is_binary else "'", _TEXT)
        inner = pc.replace_substring(column.cast(_TEXT), "'", "''")
        literals.append(pc.binary_join_element_wise(first, inner, quote, nothing))
    rows = pc.binary_join_element_wise(
        *literals, comma, null_handling="replace", null_replacement="NULL"
    )
    rows = pc.binary_join_element_wise(pa.scalar("(", _TEXT), rows, pa.scalar("),", _TEXT), nothing)
    starts, data = _bytes(rows)
    ends = np.flatnonzero(np.diff(starts[:-1] // limit)) + 1
    for low, high in pairwise([0, *ends.tolist(), len(starts) - 1]):
        yield data[starts[low] : starts[high] - 1].tobytes()


def _bytes(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return int64[n+1] bounds from 0 on, and their bytes."""
    _, bounds_buffer, data = column.buffers()
    bounds = np.frombuffer(bounds_buffer, np.int64, len(column) + 1, column.offset * 8)
    values = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return bounds - bounds[0], values[bounds[0] : bounds[-1]]


_BACKSLASH, _TAB, _LINE_FEED, _RETURN = np.frombuffer(b"\\\t\n\r", np.uint8)


@njit(cache=True, nogil=True)
def _any_special(data):  # type: ignore[no-untyped-def]
    """HOT PATH. Return True if one of these bytes must be escaped."""
    found = False
    for byte in data:
        found |= (byte == _BACKSLASH) | (byte == _TAB) | (byte == _LINE_FEED) | (byte == _RETURN)
    return found


def _escaped(column: pa.Array) -> pa.Array:
    if _any_special(_bytes(column)[1]):
        for plain, escaped in _ESCAPES:
            column = pc.replace_substring(column, plain, escaped)
    return column


def _hexadecimal(column: pa.Array) -> pa.Array:
    bounds, values = _bytes(column)
    digits = pa.LargeStringArray.from_buffers(
        len(column), pa.py_buffer(bounds * 2), pa.py_buffer(_HEX[values])
    )
    if not column.null_count:
        return digits
    return pc.if_else(column.is_valid(), digits, pa.scalar(None, _TEXT))


def _with_eras(column: pa.Array) -> pa.Array:
    """Return dates and timestamps as texts. Years before 1 are written like ``0044-03-15 BC``.
    Years without four digits, which few tables have, are converted one by one: Arrow can't print
    them all.
    """
    is_date = pa.types.is_date(column.type)
    a_day = 1 if is_date else _DAY
    numbers = column.cast(pa.int32() if is_date else pa.int64())
    ends = pc.min_max(numbers)
    least, greatest = ends["min"].as_py(), ends["max"].as_py()
    plain = column.cast(_TEXT)
    if least is None or (least >= _YEAR_1 * a_day and greatest < _YEAR_10000 * a_day):
        return plain
    kind = "datetime64[D]" if is_date else "datetime64[us]"
    values = zip(plain.to_pylist(), numbers.to_pylist(), strict=True)
    return pa.array(
        [
            text
            if number is None or _YEAR_1 <= number // a_day < _YEAR_10000
            else _with_era(np.array(number).astype(kind).astype(str).item())
            for text, number in values
        ],
        _TEXT,
    )


def _with_era(iso: str) -> str:
    sign = -1 if iso.startswith("-") else 1
    year, rest = iso.lstrip("-").replace("T", " ").split("-", 1)
    return f"{year}-{rest}" if sign * int(year) > 0 else f"{1 - sign * int(year):04d}-{rest} BC"
