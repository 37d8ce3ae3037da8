"""What a process does in a thread of its own while it stands by."""

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
    """Use it as a context manager while there may be something to do.

    Args:
        name: of the thread.
        after_s: so long after this process began to stand by nothing is done.
    """

    def __init__(self, name: str, after_s: float = 0.0) -> None:
        self._after_s = after_s
        self._stands_by = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._stands_by.set()
        self._thread.join(_END_S)

    def stand_by(self, stands_by: bool) -> None:
        """From now on do something now and then, or don't."""
        if stands_by:
            self._stands_by.set()
        else:
            self._stands_by.clear()

    @abstractmethod
    def _turn(self) -> None:
        """Called ten times a second: do what is due."""

    def _keep(self) -> None:
        while not self._ended.is_set():
            if self._stands_by.is_set():
                self._turn()
                self._ended.wait(_TURN_S)
            else:
                self._stands_by.wait()
                self._ended.wait(self._after_s)


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
        if log is not None and not log.tail_unchanged():
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


READINESS_LOOK_EVERY_S: Final = 60.0
"""A standby asks so often; half as long after an answer that was none."""


class Readiness(StandbyWork):
    """Asks while this process stands by, and when it is checked.

    Args:
        reach: asks the source; raises TidelogError if it is out of reach. May take long.
        look: the same of state and event log, which a standby looks at anyway.
        stop: whoever waits for an answer waits no more.
    """

    def __init__(
        self, reach: Callable[[], None], look: Callable[[], object], stop: threading.Event
    ) -> None:
        super().__init__("tidelog-readiness")
        self._reach = reach
        self._look = look
        self._stop = stop
        self._trouble = ""
        self._ask_at = -math.inf

    @property
    def trouble(self) -> str:
        """What a standby lacked when it asked last; empty: nothing."""
        return self._trouble

    def check(self, failed: bool) -> None:
        """Raises TidelogError if this process can't lead.

        ``failed``: it tried, and what needs a person ends it. Else what was found while it stood by
        decides whether to ask at all, and nothing ends it: another process may lead meanwhile, and
        need one that stands by.
        """
        if failed:
            self._waited_for(self._look, self._reach)
        elif self._trouble:
            try:
                self._waited_for(self._reach)
            except TidelogError as error:
                self._trouble = str(error)
                raise ConnectionLostError(self._trouble) from None
        self._trouble = ""

    def _waited_for(self, *asks: Callable[[], object]) -> None:
        """Ask in a thread of its own: an answer may take long."""
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
        if time.monotonic() < self._ask_at:
            return
        try:
            self._reach()
            self._trouble = ""
        except TidelogError as error:
            logger.warning("this process stands by, but could not lead: %s", error)
            self._trouble = str(error)
        self._ask_at = time.monotonic() + READINESS_LOOK_EVERY_S / (2 if self._trouble else 1)
