"""How far a task is: only what has nothing undone before it counts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from tidelog.model.records import Int64s


class _Batch:
    def __init__(self, first: int, versions: Sequence[int] | Int64s, end: int) -> None:
        self.first = first
        self.versions = versions
        self.end = end
        self.done = bytearray(len(versions))
        self.low = 0  # the events before it are all done


class CompletedEvents:
    """Which events of a task are done, and so up to which offset it is. Not thread-safe.

    Events are numbered in the log's order, from 0 on, through all batches. Two events may share a
    version (a key change is a delete and a creation): the offset is behind them if both are done.
    """

    def __init__(self) -> None:
        self._open: list[_Batch] = []
        self._following = 0
        self._offset: int | None = None

    @property
    def offset(self) -> int | None:
        """Every event below it is done; None: nothing was done yet."""
        return self._offset

    @property
    def open_batches(self) -> int:
        """Batches with events that are not done."""
        return len(self._open)

    def begin(self, versions: Sequence[int] | Int64s, end: int) -> int:
        """A further batch, of events with these versions, up to offset ``end``. The number of its
        first event.
        """
        first = self._following
        self._following += len(versions)
        self._open.append(_Batch(first, versions, end))
        self._advance()
        return first

    def done(self, start: int, stop: int) -> None:
        """Mark the events numbered ``start`` to ``stop`` (exclusive) as done; doing so twice is no
        harm.
        """
        if not 0 <= start <= stop <= self._following:
            raise ValueError(f"there are no events {start} to {stop}")
        at = max(0, bisect_right(self._open, start, key=lambda batch: batch.first) - 1)
        for batch in self._open[at:]:
            if batch.first >= stop:
                break
            low = max(start - batch.first, 0)
            high = min(stop - batch.first, len(batch.done))
            if low < high:
                batch.done[low:high] = b"\1" * (high - low)
        self._advance()

    def _advance(self) -> None:
        while self._open:
            batch = self._open[0]
            undone = batch.done.find(0, batch.low)
            if undone >= 0:
                if undone > batch.low:
                    batch.low = undone
                    self._offset = int(batch.versions[undone])
                return
            self._offset = batch.end
            del self._open[0]
