"""HOT PATH. Texts of rows, as `tidelog.ports.DigestReader` describes them, of Arrow's columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.model.records import Int64s, UInt8s

_NULL, _NO_VALUE = "~", pa.scalar("!", pa.large_string())  # no value has the second as its text
_EMPTY, _COMMA, _COLON = (pa.scalar(each, pa.large_string()) for each in ("", ",", ":"))
# Arrow writes a decimal that is smaller than this power of ten with an exponent.
_PLAIN_SCALE = 6
_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)
_NAN32, _NAN64 = np.int32(0x7FC0_0000), np.int64(0x7FF8 << 48)


def row_texts(
    columns: Sequence[pa.Array], logicals: Sequence[str], sound: Mapping[int, pa.Array]
) -> tuple[UInt8s, Int64s]:
    """The texts of rows, in UTF-8, one behind the other; and int64[n + 1], where they start.

    Args:
        columns: in the types of ``logicals``, of n rows each; at least one.
        logicals: logical types (`tidelog.model.schema.Column`).
        sound: by number of a column, bool[n]: is it a value of that type at all?
    """
    texts = []
    for number, (column, logical) in enumerate(zip(columns, logicals, strict=True)):
        text = column_text(column, logical)
        if number in sound:
            text = pc.if_else(sound[number], text, _NO_VALUE)
        texts.append(text)
    joined = pc.binary_join_element_wise(
        *texts, _EMPTY, _COMMA, null_handling="replace", null_replacement=_NULL
    )
    return _bytes_of(joined)


def column_text(column: pa.Array, logical: str) -> pa.Array:
    """large_string[n]: the text of each value, null for null."""
    text = _decimals if logical.startswith("decimal(") else _TEXTS.get(logical, _counted)
    return text(column).cast(pa.large_string())


def _plain(column: pa.Array) -> pa.Array:
    return column.cast(pa.string())


def _decimals(column: pa.Array) -> pa.Array:
    scale = column.type.scale
    if scale <= _PLAIN_SCALE:
        return column.cast(pa.string())
    whole = pa.Array.from_buffers(
        pa.decimal128(38, 0), len(column), column.buffers(), column.null_count, column.offset
    ).cast(pa.string())
    sign = pc.if_else(pc.starts_with(whole, "-"), "-", "")
    digits = pc.utf8_lpad(pc.utf8_ltrim(whole, "-"), scale + 1, "0")
    before, after = (
        pc.utf8_slice_codeunits(digits, 0, -scale),
        pc.utf8_slice_codeunits(digits, -scale),
    )
    return pc.binary_join_element_wise(pc.binary_join_element_wise(sign, before, ""), after, ".")


def _bits(
    whole: type[np.int32] | type[np.int64], nan: np.integer
) -> Callable[[pa.Array], pa.Array]:
    def text(column: pa.Array) -> pa.Array:
        numbers = np.asarray(column.fill_null(0))
        bits = np.where(np.isnan(numbers), nan, numbers.view(whole))
        known = np.asarray(column.is_null()) if column.null_count else None
        return pa.array(bits, mask=known).cast(pa.string())

    return text


def _days(column: pa.Array) -> pa.Array:
    return column.cast(pa.int32()).cast(pa.string())


def _microseconds(column: pa.Array) -> pa.Array:
    return column.cast(pa.int64()).cast(pa.string())


def _hexadecimal(column: pa.Array) -> pa.Array:
    data, starts = _bytes_of(column.cast(pa.large_binary()))
    known = column.is_valid().buffers()[1] if column.null_count else None
    buffers = [known, pa.py_buffer(starts * 2), pa.py_buffer(_HEX[data])]
    return pa.Array.from_buffers(pa.large_string(), len(column), buffers)


def _counted(column: pa.Array) -> pa.Array:
    length = pc.binary_length(column).cast(pa.large_string())
    return pc.binary_join_element_wise(length, column.cast(pa.large_string()), _COLON)


_TEXTS: Mapping[str, Callable[[pa.Array], pa.Array]] = {
    "bool": _plain,
    "int16": _plain,
    "int32": _plain,
    "int64": _plain,
    "float32": _bits(np.int32, _NAN32),
    "float64": _bits(np.int64, _NAN64),
    "date": _days,
    "timestamp": _microseconds,
    "timestamptz": _microseconds,
    "binary": _hexadecimal,
    "bytes": _hexadecimal,
}


def _bytes_of(column: pa.Array) -> tuple[UInt8s, Int64s]:
    """The bytes of a column with 64-bit offsets, and int64[n + 1], where each value starts."""
    _, offsets, data = column.buffers()
    count = len(column) + 1
    starts = np.frombuffer(offsets, np.int64, count, column.offset * 8)
    if data is None:
        return np.zeros(0, np.uint8), np.zeros(count, np.int64)
    return np.frombuffer(data, np.uint8)[starts[0] : starts[-1]], starts - starts[0]
