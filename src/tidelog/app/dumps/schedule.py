"""Asks for the dumps of ``dumps`` when their time has come."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from tidelog.capture.dumps.state import DumpState
from tidelog.config.schedules import ScheduledDump
from tidelog.control.mailbox import Mailbox
from tidelog.ports import StateStore

logger = logging.getLogger(__name__)

PREFIX: Final = "schedule/"
"""Of the documents that hold, for each schedule, the last time of it that was asked for."""
LOOK_EVERY_S: Final = 5.0


class DumpSchedule:
    """Of a leading capture; used by one thread.

    Each time of a schedule is asked for once, whoever leads: the command is given under a key that
    names it. A time is left out while the schedule's dump before it is not done.

    Args:
        schedules: what is asked for, and when.
        state: where it is kept what was asked for.
        mailbox: commands are given here.
        dumps: all that are known.
        clock: the time, by the calendar.
    """

    def __init__(
        self,
        schedules: Sequence[ScheduledDump],
        *,
        state: StateStore,
        mailbox: Mailbox,
        dumps: Callable[[], Iterable[DumpState]],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._schedules = schedules
        self._state = state
        self._mailbox = mailbox
        self._dumps = dumps
        self._clock = clock
        self._asked: dict[str, datetime] = {}
        self._look_at = 0.0

    def act(self) -> None:
        """Ask for what is due. Raises StateError."""
        if not self._schedules or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_EVERY_S
        now = self._clock()
        for schedule in self._schedules:
            self._act(schedule, now)

    def _act(self, schedule: ScheduledDump, now: datetime) -> None:
        asked = self._asked.get(schedule.name) or self._load(schedule.name)
        due = schedule.last_due(now)
        if asked is None:  # it is new: what passed before it was written down is not meant
            self._note(schedule.name, now)
        elif due is None or due <= asked:
            self._asked[schedule.name] = asked
        else:
            running = self._unfinished(schedule.name)
            if running is None:
                command = schedule.command(due)
                self._mailbox.send(command, key=f"{PREFIX}{command.dump_id}")
            else:
                logger.warning(
                    "dumps: %s is left out this time: %s is not done yet", schedule.name, running
                )
            self._note(schedule.name, due)

    def _unfinished(self, name: str) -> str | None:
        for dump in self._dumps():
            if not dump.finished and dump.dump_id.rpartition("-")[0] == name:
                return dump.dump_id
        return None

    def _load(self, name: str) -> datetime | None:
        document = self._state.get(PREFIX + name)
        return None if document is None else datetime.fromisoformat(document.value)

    def _note(self, name: str, at: datetime) -> None:
        self._state.put(PREFIX + name, at.isoformat(), None)
        self._asked[name] = at
