"""An engine's task that captures a source and reads what was captured."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from tidelog.app.async_engine.exclusive_task import ExclusiveTask
from tidelog.app.async_engine.group_members import GroupMembers
from tidelog.app.async_engine.group_task import GroupTask
from tidelog.app.async_engine.log_task import LogTask, OffsetStore, StartingOffset
from tidelog.app.capture.run import Capture
from tidelog.app.log_location import log_place
from tidelog.app.status_stream import OnStatus, ignore
from tidelog.config import Config
from tidelog.engine.callables import refuse_coroutine
from tidelog.engine.events import Events
from tidelog.engine.ports import EndReachedError
from tidelog.errors import IncompleteDumpError, SourceError, TaskStartError
from tidelog.eventlog.reader import EventLog
from tidelog.outputs.base.sections import StepSection
from tidelog.state.opening import open_state

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.02
_LED_S: Final = 10.0
_READY: Final = ("leading", "standby")


class CaptureTask:
    """`tidelog.engine.ports.SourceTask`: a capture, beside it a reader of its event log.

    It has started when capture leads or stands by: then another process writes the same log. It has
    given everything when capture has ended by itself (``snapshot: initial_only``) and what that
    left in the log was read. If that lacks tables, `stop` raises what capture did: by then all that
    there is was delivered, by this task and the others.

    Args:
        most_retries: so often in a row capture may fail, without leading for ten seconds, or
            standing by, between; -1: without end.
        on_status: as of `tidelog.Capture.run`.
    """

    def __init__(
        self,
        config: Config,
        name: str,
        *,
        batch_size: int,
        offsets: OffsetStore | None = None,
        steps: Sequence[StepSection] = (),
        starting_offset: StartingOffset = "earliest",
        exclusive: bool = True,
        group: int | None = None,
        most_retries: int = -1,
        on_status: OnStatus = ignore,
    ) -> None:
        self.name = name
        self.capture = Capture(config)
        self._path = log_place(config)
        given: dict[str, Any] = {
            "batch_size": batch_size,
            "steps": steps,
            "starting_offset": starting_offset,
        }
        opened = partial(open_state, config.state.place)
        members = GroupMembers(opened, name, config.renewal_s[0])
        self._reader: LogTask
        if group is not None:
            self._reader = GroupTask(self._path, name, members, partitions=group, **given)
        elif exclusive:
            self._reader = ExclusiveTask(self._path, name, members, offsets=offsets, **given)
        else:
            self._reader = LogTask(self._path, name, offsets=offsets, **given)
        self._stop = threading.Event()
        self._most_retries, self._told, self._retries = most_retries, on_status, 0
        self._led_at = math.inf
        self._ready = False
        self.trouble = ""
        self._failure: BaseException | None = None
        self._failed = False
        self._complete = False
        self._lacking: IncompleteDumpError | None = None
        self._thread: threading.Thread | None = None

    def start(self, cancelled: threading.Event) -> None:
        thread = self._begin()
        while not ((self._ready or self._complete) and EventLog.exists(self._path)):
            self._raise_failure()
            if not thread.is_alive() and not (self._complete and EventLog.exists(self._path)):
                self._raise_failure()
                raise TaskStartError(f"task {self.name}: capture ended before there was a log")
            if cancelled.wait(_LOOK_S):
                raise TaskStartError(f"task {self.name} was told to give up starting")
        self._reader.start(cancelled)

    def poll(self, timeout_s: float) -> Events | None:
        if self._failed:  # told, and tried again
            self._failed = False
            self._begin()
        self._raise_failure()
        complete = self._complete  # asked before the log is: then that holds all there will be
        events = self._reader.poll(timeout_s)
        if events is None and complete and self._reader.has_events:
            raise EndReachedError
        return events

    def committed(self) -> int | None:
        return self._reader.committed()

    def commit(self, offset: int) -> None:
        self._reader.commit(offset)

    def stop(self) -> None:
        """Stop. What capture has read is durable when this returns."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._reader.stop()
        self._raise_failure()
        if self._lacking is not None:
            raise self._lacking

    def _raise_failure(self) -> None:
        """Once: what ended the polling is not raised by `stop` again."""
        failure, self._failure = self._failure, None
        if failure is not None:
            self._failed = True
            raise failure

    def _begin(self) -> threading.Thread:
        name = f"tidelog-capture-{self.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        return self._thread

    def _run(self) -> None:
        try:
            self.capture.run(self._stop, self._on_status)
            self._complete = not self._stop.is_set()
        except IncompleteDumpError as error:
            # Raised now, it would keep the rest from being delivered, at every start again.
            self._lacking, self._complete = error, True
        except BaseException as error:  # noqa: BLE001 - raised by whichever call comes next
            self._failure = error

    def _on_status(self, status: dict[str, Any]) -> None:
        role = status.get("role")
        self._ready = self._ready or role in _READY
        self.trouble = str(status.get("reason", "")) if role == "retrying" else ""
        if role == "standby":
            self._retries = 0
        elif role == "leading":
            self._led_at = time.monotonic()
        elif role == "retrying":
            led_s = time.monotonic() - self._led_at
            self._led_at = math.inf
            self._retries = 1 if led_s >= _LED_S else self._retries + 1
            if 0 <= self._most_retries < self._retries and not self._stop.is_set():
                self._stop.set()  # it tries no more
                self._failure = SourceError(
                    f"capture failed {self._retries} times in a row (errors_max_retries: "
                    f"{self._most_retries}), the last time: {self.trouble}"
                )
        try:
            refuse_coroutine(self._told(status))
        except Exception as error:  # noqa: BLE001 - as of every callback
            logger.error("on_status raised %s", type(error).__name__)
