"""Sums up an output's rows by ranges of the key, in tasks on executors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.model.records import Int64s, UInt8s
from tidelog.model.schema import element_of
from tidelog.ports import Digest

_NULL, _NO_VALUE = "~", pa.scalar("!", pa.large_string())  # no value has the second as its text
_EMPTY, _COMMA, _COLON = (pa.scalar(each, pa.large_string()) for each in ("", ",", ":"))
_OPEN, _CLOSE = (pa.scalar(each, pa.large_string()) for each in ("[", "]"))
# Arrow writes a decimal that is smaller than this power of ten with an exponent.
_PLAIN_SCALE = 6
_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)
_NAN32, _NAN64 = np.int32(0x7FC0_0000), np.int64(0x7FF8 << 48)


def row_texts(
    columns: Sequence[pa.Array], logicals: Sequence[str], sound: Mapping[int, pa.Array]
) -> tuple[UInt8s, Int64s]:
    """Return the texts of rows, in UTF-8, one after the other; and int64[n + 1], their starts.

    Args:
        columns: columns of n rows, in the types of ``logicals``; at least one.
        logicals: logical types (`tidelog.model.schema.Column`).
        sound: by number of a column, bool[n]: whether it is a value of that type at all.
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
    """Return large_string[n]: the text of each value, null for null."""
    element = element_of(logical)
    if element is not None:
        return _arrays(column, element)
    if logical.startswith("numeric("):
        return _without_zeros(_decimals(column)).cast(pa.large_string())
    text = _decimals if logical.startswith("decimal(") else _TEXTS.get(logical, _with_length)
    return text(column).cast(pa.large_string())


def _arrays(column: pa.Array, element: str) -> pa.Array:
    texts = pc.fill_null(column_text(column.flatten(), element), _NULL)
    ends = np.cumsum(np.asarray(pc.fill_null(pc.list_value_length(column), 0)))
    bounds = pa.array(np.concatenate([[0], ends]), pa.int64())
    lists = pa.LargeListArray.from_arrays(bounds, texts)
    known = pa.array(np.asarray(column.is_valid()))
    joined = pc.binary_join(lists, _COMMA)
    whole = pc.binary_join_element_wise(_OPEN, joined, _CLOSE, _EMPTY)
    return pc.if_else(known, whole, pa.scalar(None, pa.large_string()))


def _maps(column: pa.Array) -> pa.Array:
    """Return maps as the source writes ``hstore``, in their own order."""
    entries = column.cast(pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])))
    flat = entries.flatten()
    keys, values = (_quoted(flat.field(name)) for name in ("key", "value"))
    pairs = pc.binary_join_element_wise(keys, pc.fill_null(values, "NULL"), "=>")
    ends = np.cumsum(np.asarray(pc.fill_null(pc.list_value_length(entries), 0)))
    bounds = pa.array(np.concatenate([[0], ends]), pa.int64())
    lists = pa.LargeListArray.from_arrays(bounds, pairs.cast(pa.large_string()))
    whole = _with_length(pc.binary_join(lists, pa.scalar(", ", pa.large_string())))
    known = pa.array(np.asarray(column.is_valid()))
    return pc.if_else(known, whole, pa.scalar(None, pa.large_string()))


def _quoted(texts: pa.Array) -> pa.Array:
    escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    return pc.binary_join_element_wise('"', escaped, '"', "")


def _without_zeros(texts: pa.Array) -> pa.Array:
    """Return numbers without the zeros that end them after the point."""
    return pc.replace_substring_regex(texts, r"(\.\d*[1-9])0+$|\.0+$", r"\1")


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


def _with_length(column: pa.Array) -> pa.Array:
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
    "map": _maps,
}


def _bytes_of(column: pa.Array) -> tuple[UInt8s, Int64s]:
    """Return the bytes of a column with 64-bit offsets, and int64[n + 1], the start of
    each value.
    """
    _, offsets, data = column.buffers()
    count = len(column) + 1
    starts = np.frombuffer(offsets, np.int64, count, column.offset * 8)
    if data is None:
        return np.zeros(0, np.uint8), np.zeros(count, np.int64)
    return np.frombuffer(data, np.uint8)[starts[0] : starts[-1]], starts - starts[0]


HALF_BITS = 30
"""A number has 60 bits: halves of 2³³ rows' numbers can be summed up in 64 bits."""


def add_up(
    data: UInt8s, starts: Int64s, places: Int64s, rows: Int64s, upper: Int64s, lower: Int64s
) -> None:
    """Add each text's number to the sums of its range: the first 60 bits of its SHA-256.

    Args:
        data: uint8[…], all texts.
        starts: int64[n + 1], starts and end of the texts.
        places: int64[n], the range of each text.
        rows: int64[p], number of texts in each range; added to.
        upper: int64[p], sums of the numbers' upper halves; added to.
        lower: int64[p], sums of the lower halves; added to.
    """
    texts = data.data
    begins = [sha256(texts[start:end]).digest()[:8] for start, end in pairwise(starts.tolist())]
    numbers = (np.frombuffer(b"".join(begins), ">u8") >> (64 - 2 * HALF_BITS)).astype(np.int64)
    np.add.at(rows, places, 1)
    np.add.at(upper, places, numbers >> HALF_BITS)
    np.add.at(lower, places, numbers & ((1 << HALF_BITS) - 1))


_ROWS, _BYTES = 16_384, 8 << 20  # few enough that processors' caches fit their texts


class RowSource(Protocol):
    """Some rows of a copy, which a task reads: picklable. ``bytes``: about how much is read; at
    least one.
    """

    @property
    def bytes(self) -> int: ...

    def batches(self) -> Iterator[pa.RecordBatch]: ...


@dataclass(frozen=True)
class SumPlan:
    """How rows of one copy are summed up. Picklable.

    Attributes:
        logicals: logical types of the columns that batches begin with, in their order.
        key: numbers of the columns of the key.
        bounds: by column of the key, its values where a range ends and the next one begins, see
            `places_of`.
        first: number of the first range to sum up, as `places_of` counts.
        ranges: number of ranges.
        sound: by number of a column, that of a column of booleans: whether it has a value of its
            type.
    """

    logicals: tuple[str, ...]
    key: tuple[int, ...]
    bounds: tuple[pa.Array, ...] = ()
    first: int = 0
    ranges: int = 1
    sound: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RangeSums:
    """int64[ranges] each: rows, and the sums of their numbers' upper and lower halves."""

    rows: Int64s
    upper: Int64s
    lower: Int64s

    @classmethod
    def none(cls, ranges: int) -> RangeSums:
        return cls(*(np.zeros(ranges, np.int64) for _ in range(3)))

    def add(self, other: RangeSums) -> None:
        self.rows[:] += other.rows
        self.upper[:] += other.upper
        self.lower[:] += other.lower

    def digests(self) -> list[Digest]:
        columns = (self.rows.tolist(), self.upper.tolist(), self.lower.tolist())
        return [
            Digest(rows, (upper << HALF_BITS) + lower)
            for rows, upper, lower in zip(*columns, strict=True)
        ]


@dataclass(frozen=True)
class SumWork:
    """Rows that one task sums up."""

    plan: SumPlan
    source: RowSource


def sum_up(works: Sequence[SumWork]) -> list[RangeSums]:
    """Run one task."""
    return [PartitionSums(work.plan)(work.source.batches()) for work in works]


@dataclass(frozen=True)
class PartitionSums:
    """Sums up the batches that it is called with."""

    plan: SumPlan

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> RangeSums:
        plan, sums = self.plan, RangeSums.none(self.plan.ranges)
        count = len(plan.logicals)
        for whole in batches:
            fit = whole.num_rows * _BYTES // max(1, whole.nbytes)
            step = max(1, min(_ROWS, fit))
            for start in range(0, whole.num_rows, step):
                batch = whole.slice(start, step)
                key = [batch.column(number) for number in plan.key]
                places = places_of(key, plan.bounds) - plan.first
                inside = (places >= 0) & (places < plan.ranges)
                if not inside.all():
                    batch, places = batch.filter(pa.array(inside)), places[inside]
                columns = batch.columns
                sound = {number: columns[at] for number, at in plan.sound.items()}
                data, starts = row_texts(columns[:count], plan.logicals, sound)
                add_up(data, starts, places, sums.rows, sums.upper, sums.lower)
        return sums


def places_of(key: Sequence[pa.Array], bounds: Sequence[pa.Array]) -> Int64s:
    """Return int64[n]: the number of the range that each row is in.

    Args:
        key: the key's columns, of n rows each.
        bounds: their values at the end of each range but the last, ascending; the row with these
            values is in the range. Rows with null in the key are after all others.
    """
    count, ends = len(key[0]), len(bounds[0]) if bounds else 0
    if len(key) == 1 and pa.types.is_integer(key[0].type) and not key[0].null_count and ends:
        return np.searchsorted(np.asarray(bounds[0]), np.asarray(key[0])).astype(np.int64)
    low, high = np.zeros(count, np.int64), np.full(count, ends, np.int64)
    for _ in range(ends.bit_length()):
        open_ = low < high
        middle = (low + high) >> 1
        at = pa.array(np.minimum(middle, ends - 1))
        below = _keys_at_most(key, [column.take(at) for column in bounds])
        high = np.where(open_ & below, middle, high)
        low = np.where(open_ & ~below, middle + 1, low)
    return low


def _keys_at_most(key: Sequence[pa.Array], limits: Sequence[pa.Array]) -> np.ndarray:
    """Return bool[n]: ``key <= limits``, column by column; false for a key with null."""
    found: pa.Array | None = None
    for value, limit in zip(reversed(key), reversed(limits), strict=True):
        if found is None:
            found = pc.less_equal(value, limit)
        else:
            same = pc.and_kleene(pc.equal(value, limit), found)
            found = pc.or_kleene(pc.less(value, limit), same)
    assert found is not None
    return np.asarray(found.fill_null(False))
