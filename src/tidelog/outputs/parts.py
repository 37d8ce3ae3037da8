"""What a batch holds of each table, and how much: the bytes that tasks are divided by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from tidelog.eventlog.reader import SegmentRef
from tidelog.outputs.tasks import Item
from tidelog.ports import TargetTable

# Up to so much of a table, several tasks read all of it and each writes its keys; above, where a
# task can't hold a row of every key, Spark shuffles rows, for ten times the CPU.
SHARED_BYTES = 256 << 20


@dataclass(frozen=True)
class Part:
    """What a batch holds of a table."""

    target: TargetTable
    refs: tuple[tuple[SegmentRef, ...], ...]  # by task

    @cached_property
    def together(self) -> tuple[SegmentRef, ...]:
        return tuple(chain.from_iterable(self.refs))

    @cached_property
    def size_bytes(self) -> int:
        return sum(map(bytes_of, self.together))


def spread(items: Sequence[Item], count: int) -> list[list[Item]]:
    """``items`` over at most ``count`` tasks, about equal in bytes."""
    sizes = [sum(map(bytes_of, item.refs)) for item in items]
    groups: list[list[Item]] = [[] for _ in range(min(count, len(items)))]
    filled = [0] * len(groups)
    for at in sorted(range(len(items)), key=lambda n: -sizes[n]):
        least = filled.index(min(filled))
        groups[least].append(items[at])
        filled[least] += sizes[at]
    return groups


def bytes_of(ref: SegmentRef) -> int:
    """About what a segment takes a task."""
    return ref.payload_bytes + 64 * ref.rows
