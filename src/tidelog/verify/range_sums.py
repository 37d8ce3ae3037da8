"""Sums of an output's rows by ranges of the key: what tasks on executors do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.model.records import Int64s
from tidelog.ports import Digest
from tidelog.verify.md5_kernel import HALF_BITS, add_up
from tidelog.verify.row_texts import row_texts

_ROWS, _BYTES = 16_384, 8 << 20  # so few that processors' caches hold their texts


class RowSource(Protocol):
    """Some rows of a copy, which a task reads: picklable.

    ``bytes``: about how much is read; at least one.
    """

    @property
    def bytes(self) -> int: ...

    def batches(self) -> Iterator[pa.RecordBatch]: ...


@dataclass(frozen=True)
class SumPlan:
    """How rows of one copy are summed up. Picklable.

    Attributes:
        logicals: of the columns that batches begin with, in their order.
        key: numbers of the columns of the key.
        bounds: by column of the key, its values where a range ends and the next one begins, see
            `places_of`.
        first: number of the range, as `places_of` counts, that is the first to be summed up.
        ranges: so many are.
        sound: by number of a column, that of a column of truth values: does it hold a value of its
            type?
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
    """One task."""
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
    """int64[n]: the number of the range that each row is in.

    Args:
        key: the key's columns, of n rows each.
        bounds: their values at the end of each range but the last, ascending; the row with these
            values is in the range. Rows whose key holds null come behind all others.
    """
    count, ends = len(key[0]), len(bounds[0]) if bounds else 0
    if len(key) == 1 and pa.types.is_integer(key[0].type) and not key[0].null_count and ends:
        return np.searchsorted(np.asarray(bounds[0]), np.asarray(key[0])).astype(np.int64)
    low, high = np.zeros(count, np.int64), np.full(count, ends, np.int64)
    for _ in range(ends.bit_length()):
        open_ = low < high
        middle = (low + high) >> 1
        at = pa.array(np.minimum(middle, ends - 1))
        below = _upto(key, [column.take(at) for column in bounds])
        high = np.where(open_ & below, middle, high)
        low = np.where(open_ & ~below, middle + 1, low)
    return low


def _upto(key: Sequence[pa.Array], limits: Sequence[pa.Array]) -> np.ndarray:
    """bool[n]: ``key <= limits``, column by column; a key that holds null never is."""
    found: pa.Array | None = None
    for value, limit in zip(reversed(key), reversed(limits), strict=True):
        if found is None:
            found = pc.less_equal(value, limit)
        else:
            same = pc.and_kleene(pc.equal(value, limit), found)
            found = pc.or_kleene(pc.less(value, limit), same)
    assert found is not None
    return np.asarray(found.fill_null(False))
