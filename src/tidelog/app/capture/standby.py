"""What a standby does in threads: it follows the event log, and checks that it could lead."""

from __future__ import annotations

import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TypeVar

from tidelog.errors import ConnectionLostError, EventLogError, StorageError, TidelogError
from tidelog.eventlog.reader import EventLog

_TURN_S: Final = 0.1
_END_S: Final = 1.0


class StandbyWork(ABC):
    """Work in a thread while this process stands by. A context manager.

    Args:
        name: the name of the thread.
        after_s: the delay after this process begins to stand by.
    """

    def __init__(self, name: str, after_s: float = 0.0) -> None:
        self._after_s = after_s
        self._active = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed.set()
        self._active.set()
        self._thread.join(_END_S)

    def stand_by(self, stands_by: bool) -> None:
        """Start or stop the work."""
        if stands_by:
            self._active.set()
        else:
            self._active.clear()

    @abstractmethod
    def _turn(self) -> None:
        """Do what is due; called ten times a second."""

    def _run(self) -> None:
        while not self._closed.is_set():
            if self._active.is_set():
                self._turn()
                self._closed.wait(_TURN_S)
            else:
                self._active.wait()
                self._closed.wait(self._after_s)


logger = logging.getLogger(__name__)

_T = TypeVar("_T")
POLL_EVERY_S: Final = 5.0
POLL_IDLE_S: Final = 120.0
"""Seconds between two polls: of a log that grows, and of one that hardly grows, where a poll is
three requests.
"""
MANY: Final = 8
"""The log grows if there are so many segments since the last poll."""
RELEASE_POLL_S: Final = 0.2
"""Seconds between two polls once the leader has announced its release."""
AFTER_S: Final = 3.0
"""The delay after this process begins to stand by, so as not to disturb the new leader."""


class StandbyLogPoller(StandbyWork):
    """Polls the log now and then while this process stands by.

    Args:
        location: the path or URL of the event log.
        release_announced: whether the leader has announced its release; then the log is polled
            often.
    """

    def __init__(self, location: str, release_announced: Callable[[], bool]) -> None:
        super().__init__("tidelog-log-handle", AFTER_S)
        self._location = location
        self._release_announced = release_announced
        self._lock = threading.Lock()
        self._log: EventLog | None = None
        self._tail = ""
        self._polled_at, self._pause_s = -math.inf, POLL_EVERY_S

    def log(self) -> EventLog | None:
        """Return the log, as last read; None: there is none yet."""
        with self._lock:
            if self._log is None and EventLog.exists(self._location):
                self._log = EventLog.open(self._location)
            return self._log

    def current(self) -> EventLog | None:
        """Return `log` for a new leader: reopened if its end is not the known one. That may be so
        after a restore; then its schemas may differ, too.
        """
        log = self.log()
        if log is not None and not log.tail_unchanged():
            self._close_log()
            log = self.log()
        return log

    def newest_epoch(self) -> int:
        """Return the newest epoch of a leader, as of now; 0: there is no log yet."""
        # Between a lease and its first renewal is no time to read a long chain.
        tail = self._read(lambda log: log.chain().tail if log.is_known else log.newest())
        return 0 if tail is None else tail.epoch

    def _read(self, ask: Callable[[EventLog], _T | None]) -> _T | None:
        """Return what ``ask`` reads from the log; the log is reopened if it was replaced."""
        log = self.log()
        try:
            return None if log is None else ask(log)
        except StorageError:
            raise
        except EventLogError:
            self._close_log()
            log = self.log()
            return None if log is None else ask(log)

    def _close_log(self) -> None:
        with self._lock:
            self._log = None

    def _turn(self) -> None:
        passed_s = time.monotonic() - self._polled_at
        if passed_s >= self._pause_s or (passed_s >= RELEASE_POLL_S and self._release_announced()):
            self._pause_s = POLL_EVERY_S if self._poll() else POLL_IDLE_S
            self._polled_at = time.monotonic()

    def _poll(self) -> bool:
        """Read the log; return whether it grows, or may grow."""
        try:
            chain, log = self._read(lambda log: log.chain()), self.log()
            if chain is None or log is None or chain.tail is None or chain.tail.name == self._tail:
                return False
            log.schemas.tables()
        except TidelogError as error:  # the leader reports what is wrong
            logger.debug("the event log can't be read while this process stands by: %s", error)
            return False
        former_tail, self._tail = self._tail, chain.tail.name
        return former_tail not in [each.name for each in chain.segments[-MANY - 1 :]]


READINESS_POLL_S: Final = 60.0
"""Seconds between two polls of a standby; half of it after an error."""


class Readiness(StandbyWork):
    """Checks that this process could lead: while it stands by, and in `check`.

    Args:
        reach: connects to the source; raises TidelogError if it is unreachable. May take long.
        read_stores: the same for state and event log, which a standby polls anyway.
        stop: ends any wait.
    """

    def __init__(
        self, reach: Callable[[], None], read_stores: Callable[[], object], stop: threading.Event
    ) -> None:
        super().__init__("tidelog-readiness")
        self._reach = reach
        self._read_stores = read_stores
        self._stop = stop
        self._trouble = ""
        self._check_at = -math.inf

    @property
    def trouble(self) -> str:
        """What failed in a standby's last check; empty: nothing."""
        return self._trouble

    def check(self, failed: bool) -> None:
        """Raise TidelogError if this process can't lead.

        ``failed``: it tried to lead, and an error that a person has to fix ends it. Else the last
        check as a standby decides whether to check again, and no error ends it: another process may
        lead, and need a standby.
        """
        if failed:
            self._call(self._read_stores, self._reach)
        elif self._trouble:
            try:
                self._call(self._reach)
            except TidelogError as error:
                self._trouble = str(error)
                raise ConnectionLostError(self._trouble) from None
        self._trouble = ""

    def _call(self, *asks: Callable[[], object]) -> None:
        """Call in another thread: an answer may take long."""
        errors: list[BaseException] = []

        def run() -> None:
            try:
                for ask in asks:
                    ask()
            except BaseException as error:  # noqa: BLE001 - raised below
                errors.append(error)

        thread = threading.Thread(target=run, name="tidelog-readiness-now", daemon=True)
        thread.start()
        while thread.is_alive() and not self._stop.is_set():
            thread.join(_TURN_S)
        if errors:
            raise errors[0]

    def _turn(self) -> None:
        if time.monotonic() < self._check_at:
            return
        try:
            self._reach()
            self._trouble = ""
        except TidelogError as error:
            logger.warning("this process stands by, but could not lead: %s", error)
            self._trouble = str(error)
        self._check_at = time.monotonic() + READINESS_POLL_S / (2 if self._trouble else 1)
