"""Columns → a text for each row, put together by kernels
(`tidelog.codecs.columns.concatenation_kernels`): what `pyarrow.compute.binary_join_element_wise`
does, in a fifth of its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.codecs.columns import concatenation_kernels as kernels
from tidelog.model.records import Bools, Int64s, UInt8s, bitmap

_MAX_BYTES = 2**31 - 1  # Arrow's int32 offsets


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


KeyPiece: TypeAlias = str | pa.Array | TextCells


def join(pieces: Sequence[KeyPiece], null: str, *, large: bool = False) -> pa.Array:
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
    joining = _Joining()
    for piece in pieces:
        if isinstance(piece, str):
            joining.text(piece)
        else:
            joining.cells(piece if isinstance(piece, TextCells) else TextCells(piece))
    n, described = joining.described()
    absent = pa.py_buffer(null.encode())
    bounds = np.empty(n + 1, np.int64)
    kernels.ends(described, absent.size, bounds)
    total = int(bounds[-1])
    if total > _MAX_BYTES and not large:
        raise pa.ArrowCapacityError(f"{n} texts are {total} bytes, more than {_MAX_BYTES}")
    out = np.empty(total, np.uint8)
    kernels.write(described, absent.address, absent.size, out)
    kind, width = (pa.large_string(), np.int64) if large else (pa.string(), np.int32)
    buffers = [None, pa.py_buffer(bounds.astype(width, copy=False)), pa.py_buffer(out)]
    return pa.Array.from_buffers(kind, n, buffers, null_count=0)


def has_escapes(texts: pa.Array) -> bool:
    """Is there anything in the texts that JSON does not hold as it is, or a character beyond
    U+FFFF?
    """
    data, bounds = _cells(texts)
    return bool(kernels.has_escapes(data, bounds[0], bounds[-1]))


class _Joining:
    """Pieces as the kernels take them; what their addresses lead to lives as long as this."""

    def __init__(self) -> None:
        self._rows: list[list[int]] = []
        self._constants = bytearray()
        self._lead = b""
        self._n: int | None = None
        self._kept: list[Any] = []

    def text(self, text: str) -> None:
        self._lead += text.encode()

    def cells(self, cells: TextCells) -> None:
        valid = cells.valid()
        n = len(cells) if self._n is None else self._n  # 0: the first column has no rows
        if {len(cells), len(cells if valid is None else valid)} != {n}:
            raise ValueError("columns of different lengths are no rows")  # kernels would not see it
        self._n = n
        opening, closing = cells.opening.encode(), cells.closing.encode()
        if valid is None:  # then they are constants like others
            self._lead += opening
            self._add(self._column(cells.values), 0, b"", b"")
            self._lead = closing
        else:
            self._add(self._column(cells.values), self._address(valid), opening, closing)

    def described(self) -> tuple[int, Int64s]:
        """How many rows there are, and the pieces of each."""
        if self._lead:
            self._add((kernels.NOTHING, 0, 0), 0, b"", b"")
        rows = np.array(self._rows, np.int64)
        constants = pa.py_buffer(bytes(self._constants))
        self._kept.append(constants)
        for field in (kernels.LEAD, kernels.OPENING, kernels.CLOSING):
            rows[:, field] += constants.address
        return self._n or 0, rows

    def _add(
        self, column: tuple[int, int, int], valid: int, opening: bytes, closing: bytes
    ) -> None:
        row = [*column, valid]
        for constant in (self._lead, opening, closing):
            row += [len(self._constants), len(constant)]
            self._constants += constant
        self._rows.append(row)
        self._lead = b""

    def _column(self, values: pa.Array) -> tuple[int, int, int]:
        """Kind, address of the values, address of the bounds."""
        kind = values.type
        if not len(values):
            return kernels.NOTHING, 0, 0
        if pa.types.is_integer(kind) and kind != pa.uint64():
            if kind != pa.int64():
                values = values.cast(pa.int64())
            self._kept.append(values)
            return kernels.NUMBERS, values.buffers()[1].address + 8 * values.offset, 0
        large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
        if not large and not pa.types.is_string(kind) and not pa.types.is_binary(kind):
            values = values.cast(pa.large_string())
            large = True
        self._kept.append(values)
        _, offsets, content = values.buffers()
        which, width = (kernels.LARGE_TEXTS, 8) if large else (kernels.TEXTS, 4)
        at = offsets.address + width * values.offset
        return which, 0 if content is None else content.address, at

    def _address(self, array: npt.NDArray[Any]) -> int:
        array = np.ascontiguousarray(array)
        self._kept.append(array)
        return int(array.ctypes.data)


def _cells(values: pa.Array) -> tuple[UInt8s, Int64s]:
    """The bytes of the values, and int64[n + 1] bounds in them."""
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


def _read_only(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A read-only view, so that the kernels are compiled once."""
    found = values.view()
    found.flags.writeable = False
    return found


_NOTHING = np.frombuffer(b"", np.uint8)
