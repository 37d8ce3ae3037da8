"""One task in its own thread: start, poll, process, commit, stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Protocol

import numpy as np

from tidelog.engine.callables import WorkNotDoneError, refuse_coroutine
from tidelog.engine.committing import TaskCommitter
from tidelog.engine.events import Events
from tidelog.engine.ports import EndReachedError, SourceTask
from tidelog.engine.retries import Retries, StoppingError
from tidelog.errors import ConsumerError, TaskStartError

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.1
_MARKS_S: Final = 0.02
_WARN_AFTER_S: Final = 10.0


class RecordHandler(Protocol):
    """RecordHandler the task's batches."""

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
