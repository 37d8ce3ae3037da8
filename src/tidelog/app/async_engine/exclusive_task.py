"""An engine's task that is the only one of its name: another engine of that name stands by."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from tidelog.app.async_engine.group_members import GroupMembers
from tidelog.app.async_engine.log_task import LogTask
from tidelog.app.overview.engines import process_of
from tidelog.engine.events import Events
from tidelog.eventlog.reader import EventLog

logger = logging.getLogger(__name__)


class ExclusiveTask(LogTask):
    """A `LogTask` that gives events while it has its name, a lease in the state store; else it
    stands by, and goes on where the other has committed.

    Who did not reach the store in time gives and commits nothing more: LeaseLostError.

    Args:
        members: those of the name, which has one partition.
        log_task: as `LogTask`.
    """

    def __init__(self, path: str, name: str, members: GroupMembers, **log_task: Any) -> None:
        super().__init__(path, name, **log_task)
        self._members = members
        self._told_owner: str | None = None
        self._cancelled = threading.Event()

    def start(self, cancelled: threading.Event) -> None:
        self._cancelled = cancelled
        self._members.join(1, EventLog.open(self._path).generation, 0)
        self._begin_if_ours()

    @property
    def has_events(self) -> bool:
        return self._log is not None

    def poll(self, timeout_s: float) -> Events | None:
        self._members.check()
        if self._log is None and not self._begin_if_ours():
            time.sleep(timeout_s)
            return None
        polled = super().poll(timeout_s)
        self._members.check()
        return polled

    def commit(self, offset: int) -> None:
        """Raises LeaseLostError: another engine has the name by now."""
        self._members.change(lambda _found: None)
        super().commit(offset)

    def committed(self) -> int | None:
        return None if self._log is None else super().committed()

    def stop(self) -> None:
        self._members.leave()

    def _begin_if_ours(self) -> bool:
        """What progress there is, is read by who has the name: until then another moves it on."""
        if self._members.target():
            self._members.rebalance()
        if self._members.owned():
            super().start(self._cancelled)
            return True
        owner = self._members.owner
        if owner is not None and owner != self._told_owner:
            self._told_owner = owner
            logger.warning("engine %s stands by: %s has its name", self.name, process_of(owner))
        return False
