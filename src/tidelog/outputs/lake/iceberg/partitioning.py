"""What an Iceberg table is partitioned by: its transforms, and their values for rows.

Iceberg's specification, "Partition Transforms" and "Appendix B: 32-bit Hash Requirements".
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import time
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from tidelog.errors import OutputRefusedError
from tidelog.model.records import Int32s, Int64s, UInt8s
from tidelog.model.schema import backticked

_TRANSFORM = re.compile(r"(year|month|day|hour)s?\((.+)\)|(bucket|truncate)\((\d+), *(.+)\)")
_KEPT_TRANSFORM = re.compile(r"(year|month|day|hour)|(bucket|truncate)\[(\d+)\]")
_YEAR = re.compile(r"(-?)(\d+)")
_UNITS = {"years": "Y", "months": "M", "days": "D", "hours": "h"}
KNOWN_TRANSFORMS = ("", *_UNITS, "bucket", "truncate", "void")
_NAMES = {"bucket": "_bucket", "truncate": "_trunc"}


@dataclass(frozen=True)
class Partition:
    """A column, and what is made of it: nothing, ``days``, ``bucket`` with a number, …"""

    column: str
    transform: str = ""
    width: str = ""

    @classmethod
    def parse(cls, text: str) -> Partition:
        """``column``, ``days(column)`` (also years, months, hours), ``bucket(16, column)`` or
        ``truncate(4, column)``.
        """
        found = _TRANSFORM.fullmatch(text.strip())
        if found is None:
            return cls(text)
        if found[1]:
            return cls(found[2].strip(), f"{found[1]}s")
        return cls(found[5].strip(), found[3], found[4])

    @classmethod
    def kept(cls, column: str, transform: str) -> Partition:
        """From what Iceberg returns for a table."""
        found = _KEPT_TRANSFORM.fullmatch(transform)
        if found is None:
            return cls(column, "" if transform == "identity" else transform)
        return cls(column, f"{found[1]}s") if found[1] else cls(column, found[2], found[3])

    def sql(self, *, quote: bool = True) -> str:
        column = backticked(self.column) if quote else self.column
        if not self.transform:
            return column
        return f"{self.transform}({f'{self.width}, ' if self.width else ''}{column})"

    @property
    def spelled(self) -> str:
        """The transform as Iceberg's metadata has it."""
        if self.width:
            return f"{self.transform}[{self.width}]"
        return self.transform.removesuffix("s") or "identity"

    @property
    def field_name(self) -> str:
        """The name of the partition's field, as Spark names it."""
        if not self.transform:
            return self.column
        return self.column + _NAMES.get(self.transform, f"_{self.transform.removesuffix('s')}")


def partition_keys(values: pa.Array, partition: Partition) -> pa.Array:
    """Return the partition's value for each value of its column, by one of `KNOWN_TRANSFORMS`."""
    if not partition.transform:
        return values
    if unit := _UNITS.get(partition.transform):
        return _times(values, unit)
    width = int(partition.width or 0)
    if partition.transform == "bucket":
        return _buckets(values, width)
    if partition.transform == "truncate":
        return _truncated(values, width)
    return pa.nulls(len(values), pa.int32())


def _times(values: pa.Array, unit: str) -> pa.Array:
    kind = values.type
    if pa.types.is_date32(kind):
        found = np.asarray(values.cast(pa.int32()).fill_null(0)).astype("M8[D]")
    else:
        found = np.asarray(values.cast(pa.int64()).fill_null(0)).astype("M8[us]")
    whole = found.astype(f"M8[{unit}]").astype(np.int64).astype(np.int32)
    keys = pa.array(whole, mask=np.asarray(values.is_null()))
    return keys.cast(pa.date32()) if unit == "D" else keys


def _truncated(values: pa.Array, width: int) -> pa.Array:
    kind = values.type
    if pa.types.is_string(kind):
        return pc.utf8_slice_codeunits(values, 0, width)
    if pa.types.is_binary(kind):
        return pc.binary_slice(values, 0, width)
    if pa.types.is_decimal(kind):
        whole = [
            None if each is None else _truncated_decimal(each, width, kind.scale)
            for each in values.to_pylist()
        ]
        return pa.array(whole, kind)
    numbers = np.asarray(values.fill_null(0))
    return pa.array(numbers - np.mod(numbers, width), kind, mask=np.asarray(values.is_null()))


def _truncated_decimal(value: Decimal, width: int, scale: int) -> Decimal:
    whole = _unscaled(value)
    whole -= whole % width
    digits = tuple(map(int, str(abs(whole))))
    return Decimal((int(whole < 0), digits, -scale))


def _buckets(values: pa.Array, count: int) -> pa.Array:
    data, starts = _bytes(values)
    hashes = np.zeros(len(values), np.int64)
    _murmur3(data, starts, hashes)
    return pa.array(
        ((hashes & 0x7FFF_FFFF) % count).astype(np.int32), mask=np.asarray(values.is_null())
    )


def _bytes(values: pa.Array) -> tuple[UInt8s, Int32s]:
    """Return the bytes that are hashed, and where each value's begin."""
    kind = values.type
    if pa.types.is_decimal(kind):
        values = pa.array(
            [None if each is None else unscaled_bytes(each) for each in values.to_pylist()],
            pa.binary(),
        )
    elif not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        if pa.types.is_date32(kind):
            values = values.cast(pa.int32())
        numbers = np.asarray(values.cast(pa.int64()).fill_null(0)).astype("<i8")
        return numbers.view(np.uint8), np.arange(len(values) + 1, dtype=np.int32) * 8
    values = pa.concat_arrays([values])  # without an offset
    _, starts, data = values.buffers()
    bounds = np.zeros(1, np.int32)
    if len(values):
        bounds = np.frombuffer(starts, np.int32)[values.offset :][: len(values) + 1]
    return np.frombuffer(data or b"", np.uint8), bounds


def unscaled_bytes(value: Decimal) -> bytes:
    """Return a decimal's digits as the shortest big-endian number, in two's complement."""
    whole = _unscaled(value)
    return whole.to_bytes(
        ((whole if whole >= 0 else ~whole).bit_length() // 8) + 1, "big", signed=True
    )


def _unscaled(value: Decimal) -> int:
    """Return a decimal's digits as a number, whatever their count: Decimal's own arithmetic rounds
    to 28.
    """
    sign, digits, _ = value.as_tuple()
    return int("".join(map(str, digits))) * (-1 if sign else 1)


@njit(cache=True, nogil=True)
def _murmur3(data: UInt8s, starts: Int32s, hashes: Int64s) -> None:
    """Murmur3, 32 bits of x86, seed 0 (Austin Appleby, public domain)."""
    mask = np.int64(0xFFFF_FFFF)
    for row in range(len(hashes)):
        start, end = np.int64(starts[row]), np.int64(starts[row + 1])
        size, found = end - start, np.int64(0)
        whole = size // 4
        for at in range(whole):
            place = start + 4 * at
            word = np.int64(data[place])
            word |= np.int64(data[place + 1]) << 8
            word |= np.int64(data[place + 2]) << 16
            word |= np.int64(data[place + 3]) << 24
            found = found ^ _mixed(word)
            found = ((found << 13) | (found >> 19)) & mask
            found = (found * 5 + 0xE654_6B64) & mask
        word = np.int64(0)
        for at in range(size - 1, 4 * whole - 1, -1):
            word = (word << 8) | np.int64(data[start + at])
        if size > 4 * whole:
            found = found ^ _mixed(word)
        found = found ^ size
        found = found ^ (found >> 16)
        found = (found * 0x85EB_CA6B) & mask
        found = found ^ (found >> 13)
        found = (found * 0xC2B2_AE35) & mask
        hashes[row] = found ^ (found >> 16)


@njit(cache=True, nogil=True)
def _mixed(word: Any) -> Any:
    mask = np.int64(0xFFFF_FFFF)
    word = (word * np.int64(0xCC9E_2D51)) & mask
    word = ((word << 15) | (word >> 17)) & mask
    return (word * np.int64(0x1B87_3593)) & mask


def value_json(key: pa.Array) -> str | None:
    """Return the only value of an array as JSON, as Iceberg serializes single values; None: null
    (specification, "Appendix D: Single-value serialization").
    """
    value: Any = key[0].as_py() if not pa.types.is_temporal(key.type) else None
    kind = key.type
    if not key[0].is_valid:
        return None
    if pa.types.is_date32(kind):
        value = _iso(np.asarray(key.cast(pa.int32())).astype("M8[D]")[0])
    elif pa.types.is_timestamp(kind):
        text = _iso(np.asarray(key.cast(pa.int64())).astype("M8[us]")[0])
        value = text + ("+00:00" if kind.tz else "")
    elif pa.types.is_decimal(kind):
        value = f"{value:f}"
    elif pa.types.is_binary(kind):
        value = value.hex().upper()
    elif pa.types.is_floating(kind) and not np.isfinite(value):
        raise OutputRefusedError(
            f"a value of a partition is {value}, which Iceberg's metadata can't have as JSON: "
            "partition by another column"
        )
    return json.dumps(value, ensure_ascii=False)


def json_value(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return a value that Iceberg serialized as JSON; raise ValueError if it is no such type's."""
    if pa.types.is_nested(kind):
        raise ValueError("a value of a nested type")
    if pa.types.is_date32(kind):
        return pa.scalar(np.datetime64(value, "D").astype(int), pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind):
        moment = np.datetime64(value.removesuffix("+00:00"), "us")
        return pa.scalar(moment.astype(int), pa.int64()).cast(kind)
    if pa.types.is_time(kind):
        return pa.scalar(time.fromisoformat(value), kind)
    if pa.types.is_decimal(kind):
        return pa.scalar(Decimal(value), kind)
    return pa.scalar(bytes.fromhex(value) if pa.types.is_binary(kind) else value, kind)


def _iso(moment: np.datetime64) -> str:
    """Return a date or time as Java reads it: a year has four digits, or more and a sign."""

    def year(found: re.Match[str]) -> str:
        sign = found[1] or ("+" if len(found[2]) > 4 else "")
        return f"{sign}{found[2]:0>4}"

    return _YEAR.sub(year, str(moment), count=1)
