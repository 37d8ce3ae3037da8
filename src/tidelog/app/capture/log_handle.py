"""The event log as a capture knows it, from before it leads and from one leadership to the next.

To begin at the log's end takes the metadata of all its segments: thousands of requests, where they
are objects. Who stands by reads them before they are needed, and then what was appended since.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from tidelog.app.capture.standby import StandbyWork
from tidelog.errors import EventLogError, StorageError, TidelogError
from tidelog.eventlog.reader import EventLog

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
LOOK_EVERY_S: Final = 5.0
LOOK_IDLE_S: Final = 120.0
"""Between two looks: at a log that grows, and at one that hardly does, where a look is three
requests."""
MANY: Final = 8
"""Segments since the last look: then it grows."""
WATCH_EVERY_S: Final = 0.2
"""Between two looks while the leader is about to end."""
AFTER_S: Final = 3.0
"""After this process began to stand by: who leads now begins, and is not to be disturbed."""


class LogHandle(StandbyWork):
    """Looks at the log now and then while this process stands by.

    Args:
        place: of the event log.
        on_watch: is the leader about to end? Then the log is looked at often.
    """

    def __init__(self, place: str, on_watch: Callable[[], bool]) -> None:
        super().__init__("tidelog-known-log", AFTER_S)
        self._place = place
        self._on_watch = on_watch
        self._lock = threading.Lock()
        self._log: EventLog | None = None
        self._tail = ""
        self._looked_at, self._pause_s = -math.inf, LOOK_EVERY_S

    def log(self) -> EventLog | None:
        """The log, as it was looked at last; None: there is none yet."""
        with self._lock:
            if self._log is None and EventLog.exists(self._place):
                self._log = EventLog.open(self._place)
            return self._log

    def current(self) -> EventLog | None:
        """`log`, for who begins to lead: opened anew if its end is not what is known of it, as
        after a restore. Then its schemas may be others, too.
        """
        log = self.log()
        if log is not None and not log.stands():
            self._forget()
            log = self.log()
        return log

    def newest_epoch(self) -> int:
        """The newest that a leader has written, as of now; 0: there is no log yet."""
        # Between a lease and its first renewal is no time to walk a long chain.
        tail = self._asked(lambda log: log.chain().tail if log.is_known else log.newest())
        return 0 if tail is None else tail.epoch

    def _asked(self, ask: Callable[[EventLog], _T | None]) -> _T | None:
        """What the log says; it is opened anew if it is another one by now."""
        log = self.log()
        try:
            return None if log is None else ask(log)
        except StorageError:
            raise
        except EventLogError:
            self._forget()
            log = self.log()
            return None if log is None else ask(log)

    def _forget(self) -> None:
        with self._lock:
            self._log = None

    def _turn(self) -> None:
        passed_s = time.monotonic() - self._looked_at
        if passed_s >= self._pause_s or (passed_s >= WATCH_EVERY_S and self._on_watch()):
            self._pause_s = LOOK_EVERY_S if self._learn() else LOOK_IDLE_S
            self._looked_at = time.monotonic()

    def _learn(self) -> bool:
        """Does the log grow, or may it?"""
        try:
            chain, log = self._asked(lambda log: log.chain()), self.log()
            if chain is None or log is None or chain.tail is None or chain.tail.name == self._tail:
                return False
            log.schemas.tables()
        except TidelogError as error:  # who leads tells what is wrong
            logger.debug("the event log can't be read while this process stands by: %s", error)
            return False
        known, self._tail = self._tail, chain.tail.name
        return known not in [each.name for each in chain.segments[-MANY - 1 :]]
