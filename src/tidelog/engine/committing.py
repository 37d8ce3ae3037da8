"""The committer of a task: consumers mark events, the task's thread commits offsets."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from tidelog.engine.event_batches import Share
from tidelog.engine.events import Event, Events
from tidelog.engine.options import EngineOptions
from tidelog.engine.ports import Clock, Message
from tidelog.model.records import Int64s


class _Batch:
    def __init__(self, first: int, versions: Sequence[int] | Int64s, end: int) -> None:
        self.first = first
        self.versions = versions
        self.end = end
        self.done = bytearray(len(versions))
        self.low = 0  # all events before it are done


class CompletedEvents:
    """The completed events of a task, and the offset up to which all are completed. Not
    thread-safe.

    Events are numbered in the log's order, from 0 on, over all batches. Two events may have the
    same version (a key change is a delete and a create): the offset passes them when both are done.
    """

    def __init__(self) -> None:
        self._open: list[_Batch] = []
        self._following = 0
        self._offset: int | None = None

    @property
    def offset(self) -> int | None:
        """All events below it are done; None: nothing was done yet."""
        return self._offset

    @property
    def open_batches(self) -> int:
        """The number of batches with events that are not done."""
        return len(self._open)

    def begin(self, versions: Sequence[int] | Int64s, end: int) -> int:
        """Add a batch of events with these versions, up to offset ``end``; returns the number of
        its first event.
        """
        first = self._following
        self._following += len(versions)
        self._open.append(_Batch(first, versions, end))
        self._advance()
        return first

    def mark_done(self, start: int, stop: int) -> None:
        """Mark the events numbered ``start`` to ``stop`` (exclusive) as done. Idempotent."""
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


MOST_OPEN_BATCHES: Final = 16


class TaskCommitter:
    """`tidelog.engine.ports.Committer` of one task. Thread-safe.

    It writes no offset: the task's thread calls `due` and `committed`, so that no two threads write
    and no lock is held during I/O.
    """

    def __init__(self, options: EngineOptions, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._periodic = options.offset_commit_policy == "periodic"
        self._interval_s = options.offset_commit_interval_ms / 1000
        self.most_open_batches = MOST_OPEN_BATCHES
        self._lock = threading.Lock()
        self._done = CompletedEvents()
        self._finished = False
        self._fenced = False
        self._writing = False
        self._committed: int | None = None
        self._shares: dict[int, set[int]] = {}  # of events that a transform split
        self.below = 0
        """All events with lower numbers are done. Set by an in-order consumer, without the lock,
        which would take as long as the rest of the work for an event.
        """
        self._last = self._clock()
        self._taken = 0
        self.write: Callable[[], object] = lambda: None
        """Commits what is due. Set by the task, and called in its thread."""

    def begin(self, events: Events) -> None:
        """Number the events of a polled batch."""
        versions = [part.versions for part in events.parts]
        with self._lock:
            number = self._done.begin(
                np.concatenate(versions) if versions else np.empty(0, np.int64), events.end
            )
            for part in events.parts:
                part.first = number
                number += len(part)
            if not versions:
                self._finished = True  # nobody marks an empty batch, and it is progress

    @property
    def has_room(self) -> bool:
        """May another batch be begun? False while too many batches have unmarked events."""
        with self._lock:
            self._apply_below()
            return self._done.open_batches < self.most_open_batches

    @property
    def all_done(self) -> bool:
        """Are all begun events done?"""
        with self._lock:
            self._apply_below()
            return not self._done.open_batches

    def mark_processed(
        self, done: Event | Message | Events | Sequence[Event | Message | Events]
    ) -> None:
        ranges, shares = _ranges(done)
        with self._lock:
            if self._fenced:
                return
            for start, stop in ranges:
                self._done.mark_done(start, stop)
            for number, (which, count) in shares:
                marked = self._shares.setdefault(number, set())
                marked.add(which)
                if len(marked) == count:  # all parts of the event
                    del self._shares[number]
                    self._done.mark_done(number, number + 1)

    def mark_batch_finished(self) -> None:
        with self._lock:
            self._finished = True

    def commit_within_batch(self) -> None:
        """Commit the completed part of a long batch; call it in the task's thread."""
        self.mark_batch_finished()
        self.write()

    def due(self) -> int | None:
        """The offset to commit now; None: nothing is new, or the interval is not over. Call
        `committed` or `not_committed` next.
        """
        with self._lock:
            self._apply_below()
            if self._fenced or not self._finished or self._done.offset == self._committed:
                return None
            if self._periodic and self._clock() - self._last < self._interval_s:
                return None
            self._writing = True
            return self._done.offset

    def not_committed(self) -> None:
        """Report that the commit failed."""
        with self._lock:
            self._writing = False

    def committed(self, offset: int) -> None:
        """Report that ``offset`` is durable."""
        with self._lock:
            self._writing = False
            self._committed = offset
            self._last = self._clock()
            self._finished = self._finished and self._done.offset != offset

    @property
    def offset(self) -> int | None:
        """All events below it are done; None: no batch was begun."""
        with self._lock:
            self._apply_below()
            return self._done.offset

    def fence(self) -> int | None:
        """Ignore all later marks; returns the last offset to commit, None if there is none.

        Returns None also while a hanging thread writes another offset: that write may still
        succeed, and would then overwrite this one.
        """
        with self._lock:
            self._apply_below()
            self._fenced = True
            return (
                None if self._writing or self._done.offset == self._committed else self._done.offset
            )

    def _apply_below(self) -> None:
        below = self.below
        if below > self._taken and not self._fenced:
            self._done.mark_done(self._taken, below)
            self._taken = below


def _ranges(
    done: Event | Message | Events | Sequence[Event | Message | Events],
) -> tuple[list[tuple[int, int]], list[tuple[int, Share]]]:
    """Numbers of events as ranges; and the parts of split events."""
    ranges: list[tuple[int, int]] = []
    shares: list[tuple[int, Share]] = []
    start = stop = -1
    for each in [done] if isinstance(done, (Event, Message, Events)) else done:
        if isinstance(each, Events):
            for part in each.parts:
                if part.share is None:
                    ranges.append((part.first, part.first + len(part)))
                else:
                    shares.append((part.first, part.share))
            continue
        event = each.event if isinstance(each, Message) else each
        share, number = event.share, event.number
        if share is not None:
            shares.append((number, share))
            continue
        if number != stop:
            if start >= 0:
                ranges.append((start, stop))
            start = number
        stop = number + 1
    return [*ranges, (start, stop)] if start >= 0 else ranges, shares
