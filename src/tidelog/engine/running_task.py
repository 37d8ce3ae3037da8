"""One task in its own thread: start, poll, process, commit what consumers marked, stop."""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, Protocol

import numpy as np

from tidelog.engine.event_batches import Share
from tidelog.engine.events import Event, Events
from tidelog.engine.options import EngineOptions, Retries, StoppingError
from tidelog.engine.ports import Clock, EndReachedError, Message, SourceTask
from tidelog.errors import ConsumerError, TaskStartError
from tidelog.model.records import Int64s
from tidelog.system.callbacks import WorkNotDoneError, refuse_coroutine

# The committer: consumers mark events, the task's thread commits offsets.


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


# The thread.

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.1
_MARKS_S: Final = 0.02
_WARN_AFTER_S: Final = 10.0


class RecordHandler(Protocol):
    """Processes the batches of a task."""

    def process_records(self, records: Events) -> object: ...


class RunningTask:
    """A `SourceTask` and its thread: a daemon, so that a hanging one does not keep the process from
    ending.

    Args:
        task: delivers the events.
        processor: processes them.
        committer: knows which are done.
        retries: retries of polls and commits.
        stopping: set when the engine stops.
        on_end: called in the task's thread with the error that ended polling; None: all events were
            delivered and done.
        inside: called in each thread of the task as it begins.
    """

    def __init__(
        self,
        task: SourceTask,
        processor: RecordHandler,
        committer: TaskCommitter,
        retries: Retries,
        stopping: threading.Event,
        on_end: Callable[[BaseException | None], None],
        inside: Callable[[], object],
    ) -> None:
        self.name = task.name
        self.started: Future[None] = Future()
        self.task = self._task = task
        self._processor, self._committer = processor, committer
        self._retries, self._stopping = retries, stopping
        committer.write = self._commit
        self._on_end, self._inside = on_end, inside
        self._cancelled = threading.Event()
        self._go = threading.Event()
        self._polls = False
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._abandoned = False
        self._start_returned = False
        self._processing: tuple[Events, float] | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"tidelog-task-{task.name}", daemon=True
        )

    def start(self) -> None:
        """Begin to start; `started` has the result."""
        self._thread.start()

    def poll(self) -> None:
        """Begin to poll; all tasks have started."""
        self._polls = True
        self._go.set()

    def cancel(self) -> None:
        """Give up starting, or waiting for the others."""
        self._cancelled.set()
        self._go.set()

    def stop(self, processing_until: float, until: float) -> None:
        """Commit what is done, and free the task. Called once, from a thread that may wait.

        A start that hangs beyond ``until`` is abandoned: when it returns, its own thread frees what
        it acquired.

        Args:
            processing_until: `time.monotonic` at which running processing is given up.
            until: `time.monotonic` at which everything else is.
        """
        if self._thread.ident is None:
            return
        self.cancel()
        while not self._ended.is_set():
            limit = processing_until if self._processing else until
            left = limit - time.monotonic()
            if left <= 0:
                break
            self._ended.wait(min(left, 0.05))
        if (processing := self._processing) is not None:
            self._log_hanging(*processing)
        with self._lock:
            if not self._start_returned:
                self._abandoned = True
                logger.error("task %s still starts; it is freed when it returns", self.name)
                return
        offset = self._committer.fence()
        try:
            if offset is not None:
                self._task.commit(offset)
        finally:
            self._task.stop()

    def _run(self) -> None:
        self._inside()
        try:
            if not self._start():
                return
            self._go.wait()
            if self._polls:
                self._poll_until_stopped()
        finally:
            self._ended.set()

    def _start(self) -> bool:
        error: BaseException | None = None
        try:
            self._task.start(self._cancelled)
        except BaseException as raised:  # noqa: BLE001 - raised by the waiter for the start
            error = raised
        with self._lock:
            self._start_returned = True
            abandoned = self._abandoned
        if abandoned:
            self._free_late()
        elif error is not None:
            self.started.set_exception(error)
        else:
            self.started.set_result(None)
        return error is None and not abandoned

    def _free_late(self) -> None:
        late = TaskStartError(f"task {self.name} returned after the engine had stopped")
        self.started.set_exception(late)
        try:
            self._task.stop()
        except Exception as error:  # noqa: BLE001 - nobody is left to handle it
            logger.error("task %s could not be freed: %s", self.name, type(error).__name__)

    def _poll_until_stopped(self) -> None:
        try:
            while not self._stopping.is_set():
                self._wait_for_marks()
                events = self._retries.call(lambda: self._task.poll(_POLL_S), f"task {self.name}")
                if events is not None:
                    self._committer.begin(events)
                    if len(events):
                        self._process(events)
                self._commit()
        except StoppingError:
            pass
        except EndReachedError:
            self._end_when_all_done()
        except BaseException as error:  # noqa: BLE001 - the engine raises it
            self._on_end(error)

    def _end_when_all_done(self) -> None:
        """Commit until the consumer, which may mark later, has marked all events; then end."""
        try:
            while not self._stopping.is_set():
                self._commit()
                if self._committer.all_done:
                    self._on_end(None)
                    return
                self._stopping.wait(_MARKS_S)
        except StoppingError:
            pass
        except BaseException as error:  # noqa: BLE001 - the engine raises it
            self._on_end(error)

    def _process(self, events: Events) -> None:
        self._processing = events, time.monotonic()
        try:
            refuse_coroutine(self._processor.process_records(events))
        except WorkNotDoneError as error:
            raise ConsumerError(f"the record_processor {error}") from error
        finally:
            self._processing = None

    def _log_hanging(self, events: Events, since: float) -> None:
        done = self._committer.offset or 0
        left = (part for part in events.parts if len(part) and part.versions[-1] >= done)
        if (part := next(left, None)) is not None:
            first = int(part.versions[np.searchsorted(part.versions, done)])
            logger.error(
                "task %s: %s did not return, and is given up; it has worked on a batch for %.1f s, "
                "of which the first event that is not done is version %d of %s",
                self.name,
                getattr(self._processor, "consumer_name", None) or "the record_processor",
                time.monotonic() - since,
                first,
                part.schema.table,
            )

    def _commit(self) -> None:
        offset = self._committer.due()
        if offset is None:
            return
        try:
            self._retries.call(lambda: self._task.commit(offset), f"task {self.name}")
        except BaseException:
            self._committer.not_committed()
            raise
        self._committer.committed(offset)

    def _wait_for_marks(self) -> None:
        """Wait while too many batches have unmarked events: these are kept in memory."""
        since, warned = time.monotonic(), False
        while not self._committer.has_room and not self._stopping.wait(_MARKS_S):
            self._commit()
            if not warned and time.monotonic() - since > _WARN_AFTER_S:
                warned = True
                logger.warning(
                    "task %s waits: the consumer has not marked earlier batches as processed",
                    self.name,
                )
