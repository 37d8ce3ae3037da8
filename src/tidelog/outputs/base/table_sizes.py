"""What a batch holds of each table, and how much: the bytes that tasks are divided by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from tidelog.eventlog.reader import SegmentRef
from tidelog.model.schema import TableName
from tidelog.outputs.base.executors.tasks import Item
from tidelog.ports import OutputBatch, TargetTable

# Up to so much of a table, several tasks read all of it and each writes its keys; above, where a
# task can't hold a row of every key, Spark shuffles rows, for ten times the CPU.
SHARED_BYTES = 256 << 20


_DECODED = 0.3  # of the work on a row, what all tasks do that share its table
_UNEQUAL = 1.25  # times the mean: what the busiest task may have to do


@dataclass(frozen=True)
class TablePart:
    """What a batch holds of a table."""

    target: TargetTable
    refs: tuple[tuple[SegmentRef, ...], ...]  # by task

    @cached_property
    def together(self) -> tuple[SegmentRef, ...]:
        return tuple(chain.from_iterable(self.refs))

    @cached_property
    def size_bytes(self) -> int:
        return sum(map(bytes_of, self.together))


@dataclass(frozen=True)
class BatchPlan:
    """What is about to be written.

    Attributes:
        batch: the offsets.
        tables: that have something to be written by tasks.
        tasks: at most so many write one table at once.
        removed: by table, the version that `ExecutorOutput.remove_below` was called with.
    """

    batch: OutputBatch
    tables: tuple[TargetTable, ...]
    tasks: int
    removed: Mapping[TableName, int]


def hash_partition_counts(sizes: Sequence[int], limits: Sequence[int], count: int) -> list[int]:
    """How many of ``count`` tasks read each table: one, if tasks are about equal without sharing
    it, because each task that shares a table decodes all of it.

    Args:
        sizes: of each table, in bytes.
        limits: the most tasks that may share it.
        count: of tasks.
    """
    of = [1] * len(sizes)
    while sizes:
        filled = [0.0] * count
        largest = [-1] * count  # table
        costs = [_cost(size, shared) for size, shared in zip(sizes, of, strict=True)]
        for at in sorted(range(len(sizes)), key=lambda at: -costs[at]):
            for _ in range(of[at]):
                least = filled.index(min(filled))
                filled[least] += costs[at]
                largest[least] = at if largest[least] < 0 else largest[least]
        most = filled.index(max(filled))
        if filled[most] * count <= _UNEQUAL * sum(filled):
            break
        if of[largest[most]] >= min(count, limits[largest[most]]):
            break
        of[largest[most]] += 1
    return of


def _cost(size: float, shared: int) -> float:
    """The cost of each task that shares the table."""
    return size * (_DECODED + (1 - _DECODED) / shared)


def spread(items: Sequence[Item], count: int) -> list[list[Item]]:
    """``items`` over at most ``count`` tasks, about equal in bytes."""
    sizes = [_cost(sum(map(bytes_of, item.refs)), item.hash_partition[1]) for item in items]
    groups: list[list[Item]] = [[] for _ in range(min(count, len(items)))]
    filled = [0.0] * len(groups)
    for at in sorted(range(len(items)), key=lambda n: -sizes[n]):
        least = filled.index(min(filled))
        groups[least].append(items[at])
        filled[least] += sizes[at]
    return groups


def bytes_of(ref: SegmentRef) -> int:
    """About what a segment takes a task."""
    return ref.payload_bytes + 64 * ref.rows
