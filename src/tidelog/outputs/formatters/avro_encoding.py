"""Encodes Arrow columns as rows in Avro's binary encoding, one column after the other, by
kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.codecs.columns import avro_kernels as kernels
from tidelog.errors import OutputError
from tidelog.model.records import Bools, bitmap
from tidelog.outputs.formatters.messages import null_in_key

_MAX_BYTES = 2**31 - 1  # of a batch: Arrow's int32 offsets
_DECIMAL_BYTES = 16
States = npt.NDArray[np.int8]


class AvroRows:
    """``n`` records under construction: their fields in the schema's order.

    ``there`` of all methods, bool[n]: records that have the field at all; None: all. In a nullable
    union the other records are null.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self._sizes = np.zeros(n, np.int64)
        self._writes: list[Callable[[Any, Any], None]] = []

    def constant(self, encoded: bytes, there: Bools | None = None) -> None:
        """Write the same bytes in all records."""
        self._bytes(_constant(encoded, self.n), _bare(self.n, there), counted=False)

    def union_branch(self, there: Bools) -> None:
        """Write the branch of a union of null and a record; the record's fields follow."""
        data = np.array([0, 2], np.uint8)
        at = there.astype(np.int64)
        self._bytes((data, at, np.ones(self.n, np.int64)), _bare(self.n, None), counted=False)

    def choice(self, encoded: list[bytes], which: npt.NDArray[np.int64]) -> None:
        """Write, for each record, the ``which``-th of ``encoded``."""
        lengths = np.array([len(each) for each in encoded], np.int64)
        starts = np.cumsum(lengths) - lengths
        data = np.frombuffer(b"".join(encoded), np.uint8)
        self._bytes((data, starts[which], lengths[which]), _bare(self.n, None), counted=False)

    def field(
        self, name: str, values: pa.Array, *, nullable: bool, there: Bools | None = None
    ) -> None:
        """Write a column, of one of the types of `tidelog.outputs.formatters.avro_schema.type_of`.
        Raises OutputRefusedError, which names the column, for a null that the schema does not
        allow.
        """
        if pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type):
            values = values.cast(pa.binary())  # Spark's, if so configured
        state = _states(name, values, nullable, there)
        kind = values.type
        if pa.types.is_boolean(kind):
            self._fixed(values.fill_null(False).to_numpy(zero_copy_only=False), state)
        elif pa.types.is_floating(kind):
            self._fixed(values.fill_null(0.0).to_numpy(zero_copy_only=False), state)
        elif pa.types.is_decimal(kind):
            self._bytes(_decimals(values), state, counted=True)
        elif pa.types.is_string(kind) or pa.types.is_binary(kind):
            self._bytes(_texts(values), state, counted=True)
        else:
            if pa.types.is_date32(kind):
                values = values.view(pa.int32())
            elif pa.types.is_timestamp(kind):
                values = values.view(pa.int64())
            self._numbers(values.fill_null(0).to_numpy(zero_copy_only=False), state)

    def finish(self, present: Bools | None = None) -> pa.BinaryArray:
        """Returns the records; null where not ``present``."""
        ends = np.cumsum(self._sizes)
        total = int(ends[-1]) if self.n else 0
        if total > _MAX_BYTES:
            raise OutputError(f"a batch of {self.n} messages is more than {_MAX_BYTES} bytes")
        out = np.empty(total, np.uint8)
        at = ends - self._sizes
        for write in self._writes:
            write(out, at)
        offsets = np.zeros(self.n + 1, np.int32)
        offsets[1:] = ends
        valid = None
        if present is not None:
            valid = bitmap(present)
        buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(out)]
        return pa.BinaryArray.from_buffers(pa.binary(), self.n, buffers)

    def _numbers(self, values: npt.NDArray[Any], state: States) -> None:
        numbers = _read_only(values.astype(np.int64, copy=False))
        kernels.size_numbers(numbers, state, self._sizes)
        self._writes.append(lambda out, at: kernels.write_numbers(numbers, state, out, at))

    def _fixed(self, values: npt.NDArray[Any], state: States) -> None:
        """Write booleans and floats, whose bytes are Avro's."""
        width = values.dtype.itemsize
        data = np.ascontiguousarray(values).view(np.uint8)
        start = np.arange(self.n, dtype=np.int64) * width
        self._bytes((data, start, np.full(self.n, width, np.int64)), state, counted=False)

    def _bytes(self, cells: _Cells, state: States, *, counted: bool) -> None:
        data, start, length = _read_only(cells[0]), *cells[1:]
        kernels.size_bytes(length, counted, state, self._sizes)
        self._writes.append(
            lambda out, at: kernels.write_bytes(data, start, length, counted, state, out, at)
        )


def number(value: int) -> bytes:
    """Returns an ``int`` or ``long``."""
    value = (value << 1) ^ (value >> 63)
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def text(value: str) -> bytes:
    """Returns a ``string``."""
    encoded = value.encode()
    return number(len(encoded)) + encoded


def names(values: list[str]) -> bytes:
    """Returns an array of ``string`` in one block."""
    return (number(len(values)) + b"".join(map(text, values)) if values else b"") + b"\0"


# data uint8[...], start int64[n], length int64[n]
# (read-only, so that the kernels are compiled once)
_Cells = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]


def _read_only(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    found = values.view()
    found.flags.writeable = False
    return found


def _constant(encoded: bytes, n: int) -> _Cells:
    data = np.frombuffer(encoded, np.uint8)
    return data, np.zeros(n, np.int64), np.full(n, len(encoded), np.int64)


def _bare(n: int, there: Bools | None) -> States:
    if there is None:
        return np.full(n, kernels.BARE, np.int8)
    return np.where(there, kernels.BARE, kernels.NOTHING).astype(np.int8)


def _states(name: str, values: pa.Array, nullable: bool, there: Bools | None) -> States:
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    if nullable:
        state = np.where(valid, kernels.BRANCH, kernels.NULL)
    else:
        state = np.full(len(values), kernels.BARE)
        if not (valid if there is None else valid | ~there).all():
            raise null_in_key("avro", name)
    if there is not None:
        state = np.where(there, state, kernels.NOTHING)
    return state.astype(np.int8)


def _texts(values: pa.Array) -> _Cells:
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    start = ends[:-1].astype(np.int64)
    content = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return content, start, ends[1:] - start


def _decimals(values: pa.Array) -> _Cells:
    n = len(values)
    cells = np.frombuffer(values.buffers()[1], np.uint8)
    cells = cells[values.offset * _DECIMAL_BYTES : (values.offset + n) * _DECIMAL_BYTES]
    out = np.empty(n * _DECIMAL_BYTES, np.uint8)
    start, length = np.empty(n, np.int64), np.empty(n, np.int64)
    kernels.decimals(_read_only(cells).reshape(n, _DECIMAL_BYTES), out, start, length)
    return out, start, length
