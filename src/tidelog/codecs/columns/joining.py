"""Columns → a text for each row, put together by kernels
(`tidelog.codecs.columns.joining_kernels`): what `pyarrow.compute.binary_join_element_wise` does, in
a fifth of its time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.codecs.columns import joining_kernels as kernels
from tidelog.model.records import Bools, Int64s, UInt8s, bitmap

_BLOCK_BYTES = 128 << 10  # a part of a core's cache
_MAX_BYTES = 2**31 - 1  # Arrow's int32 offsets
_Write = Callable[[UInt8s, Int64s, int, int], None]


@dataclass(frozen=True, slots=True)
class TextCells:
    """Values between ``opening`` and ``closing``.

    Attributes:
        values: text, bytes or integers (in decimal digits).
        where: bool[n]: the others count as null.
    """

    values: pa.Array
    opening: str = ""
    closing: str = ""
    where: Bools | None = None

    def __len__(self) -> int:
        return len(self.values)

    def texts(self) -> pa.StringArray:
        """string[n], null where the value is."""
        found = join([self], "")
        valid = self.valid()
        if valid is None:
            return found
        bits = bitmap(valid)
        return pa.StringArray.from_buffers(len(self), *found.buffers()[1:], bits)

    def valid(self) -> Bools | None:
        """bool[n]; None: all are."""
        if not self.values.null_count:
            return self.where
        valid: Bools = self.values.is_valid().to_numpy(zero_copy_only=False)
        return valid if self.where is None else valid & self.where


Piece: TypeAlias = str | pa.Array | TextCells


def join(pieces: Sequence[Piece], null: str, *, large: bool = False) -> pa.Array:
    """The pieces one after the other, row by row.

    Args:
        pieces: constants; columns, all of one length ``n``, at least one of them.
        null: what stands for a null.
        large: large_string, which holds more than 2 GiB in all.

    Returns:
        string[n] without nulls, or large_string[n].

    Raises:
        pyarrow.ArrowCapacityError: more than 2 GiB, unless ``large``.
    """
    lead, leads = "", 0
    columns: list[tuple[bytes, TextCells]] = []
    for piece in pieces:
        if isinstance(piece, str):
            lead += piece
            continue
        columns.append((lead.encode(), piece if isinstance(piece, TextCells) else TextCells(piece)))
        leads += len(columns[-1][0])
        lead = ""
    n = len(columns[0][1])
    tail = lead.encode()
    sizes = np.full(n, leads + len(tail), np.int64)
    absent = _bytes(null.encode())
    writes = [_column(before, cells, absent, sizes) for before, cells in columns]
    if tail:
        writes.append(
            _texts(_NOTHING, _read_only(np.zeros(n + 1, np.int64)), _ALL, tail, b"", b"", absent)
        )
    bounds = np.zeros(n + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    total = int(bounds[-1])
    if total > _MAX_BYTES and not large:
        raise pa.ArrowCapacityError(f"{n} texts are {total} bytes, more than {_MAX_BYTES}")
    out = np.empty(total, np.uint8)
    at = bounds[:-1].copy()
    step = max(64, _BLOCK_BYTES * n // max(total, 1))
    for low in range(0, n, step):
        for write in writes:
            write(out, at, low, min(low + step, n))
    kind, width = (pa.large_string(), np.int64) if large else (pa.string(), np.int32)
    buffers = [None, pa.py_buffer(bounds.astype(width, copy=False)), pa.py_buffer(out)]
    return pa.Array.from_buffers(kind, n, buffers, null_count=0)


def has_escapes(texts: pa.Array) -> bool:
    """Is there anything in the texts that JSON does not hold as it is, or a character beyond
    U+FFFF?
    """
    data, bounds = _cells(texts)
    return bool(kernels.has_escapes(data, bounds[0], bounds[-1]))


def _column(lead: bytes, cells: TextCells, null: UInt8s, sizes: Int64s) -> _Write:
    values, valid = cells.values, cells.valid()
    there = _ALL if valid is None else _read_only(valid)
    opening, closing = cells.opening.encode(), cells.closing.encode()
    if pa.types.is_integer(values.type) and values.type != pa.uint64() and not opening + closing:
        filled = values.fill_null(0) if values.null_count else values
        numbers = _read_only(filled.to_numpy(zero_copy_only=False).astype(np.int64, copy=False))
        kernels.size_numbers(numbers, there, len(null), sizes)
        before = _bytes(lead)
        return lambda out, at, low, high: kernels.write_numbers(
            numbers, there, before, null, out, at, low, high
        )
    data, bounds = _cells(values)
    kernels.size_texts(bounds, there, len(opening) + len(closing), len(null), sizes)
    return _texts(data, bounds, there, lead, opening, closing, null)


def _texts(
    data: UInt8s,
    bounds: Int64s,
    valid: Bools,
    lead: bytes,
    opening: bytes,
    closing: bytes,
    null: UInt8s,
) -> _Write:
    ends = _bytes(lead), _bytes(opening), _bytes(closing)
    return lambda out, at, low, high: kernels.write_texts(
        data, bounds, valid, *ends, null, out, at, low, high
    )


def _cells(values: pa.Array) -> tuple[UInt8s, Int64s]:
    """The bytes that the values are of, and int64[n + 1] bounds in them."""
    kind = values.type
    large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    if not large and not pa.types.is_string(kind) and not pa.types.is_binary(kind):
        values = values.cast(pa.large_string())
        large = True
    if not len(values):  # Java's Arrow leaves out the one offset that there is
        return _NOTHING, _read_only(np.zeros(1, np.int64))
    _, offsets, content = values.buffers()
    width = np.int64 if large else np.int32
    bounds = np.frombuffer(offsets, width)[values.offset : values.offset + len(values) + 1]
    data = np.zeros(0, np.uint8) if content is None else np.frombuffer(content, np.uint8)
    return _read_only(data), _read_only(bounds.astype(np.int64, copy=False))


def _bytes(text: bytes) -> UInt8s:
    return np.frombuffer(text, np.uint8)


def _read_only(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """So that the kernels are compiled once."""
    found = values.view()
    found.flags.writeable = False
    return found


_ALL = _read_only(np.zeros(0, np.bool_))
_NOTHING = _bytes(b"")
