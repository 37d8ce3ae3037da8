"""Asks for the dumps of ``dumps`` when their time has come."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from tidelog.capture.dumps.state import DumpState
from tidelog.config.schedules import ScheduledDump
from tidelog.control.mailbox import CommandIdReusedError, Mailbox
from tidelog.model.printable import printable
from tidelog.ports import StateStore

logger = logging.getLogger(__name__)

PREFIX: Final = "schedule/"
"""Prefix of the documents with the last time of each schedule for which a dump was requested."""
LOOK_EVERY_S: Final = 5.0


class DumpSchedule:
    """The schedules of a leading capture; used by one thread.

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
        self._sent: dict[str, str] = {}
        self._look_at = 0.0

    def act(self) -> None:
        """Ask for what is due. Raises StateError."""
        if not self._schedules or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_EVERY_S
        self._tell_outcomes()
        now = self._clock()
        for schedule in self._schedules:
            self._act(schedule, now)

    def _act(self, schedule: ScheduledDump, now: datetime) -> None:
        asked = self._asked.get(schedule.name) or self._load(schedule)
        due = schedule.last_due(now)
        if asked is None:  # it is new, or another: what passed before it was written is not meant
            self._note(schedule, now)
        elif due is None or due <= asked:
            self._asked[schedule.name] = asked
        else:
            running = self._unfinished(schedule.name)
            if running is None:
                self._ask(schedule, due)
            else:
                logger.warning(
                    "dumps: %s is left out this time: %s is not done yet", schedule.name, running
                )
            self._note(schedule, due)

    def _ask(self, schedule: ScheduledDump, due: datetime) -> None:
        command = schedule.command(due)
        try:
            sent = self._mailbox.send(command, key=f"{PREFIX}{command.dump_id}")
        except CommandIdReusedError:
            logger.warning("dumps: %s was asked for otherwise before", command.dump_id)
        else:
            self._sent[sent] = command.dump_id

    def _tell_outcomes(self) -> None:
        """Nobody waits for these dumps: the log says which were refused."""
        for sent, dump_id in list(self._sent.items()):
            outcome = self._mailbox.outcome(sent)
            if outcome is None:
                continue
            del self._sent[sent]
            refused = [
                f"{each['table']}: {each['reason']}" for each in outcome.details.get("rejected", ())
            ]
            if outcome.error is not None or refused:
                why = outcome.error or "; ".join(refused)
                logger.warning("dumps: %s: not dumped: %s", dump_id, printable(why))

    def _unfinished(self, name: str) -> str | None:
        for dump in self._dumps():
            if not dump.finished and dump.dump_id.rpartition("-")[0] == name:
                return dump.dump_id
        return None

    def _load(self, schedule: ScheduledDump) -> datetime | None:
        document = self._state.get(PREFIX + schedule.name)
        if document is None or document.value["times"] != _times(schedule):
            return None
        return datetime.fromisoformat(document.value["asked"])

    def _note(self, schedule: ScheduledDump, at: datetime) -> None:
        value = {"asked": at.isoformat(), "times": _times(schedule)}
        self._state.put(PREFIX + schedule.name, value, None)
        self._asked[schedule.name] = at


def _times(schedule: ScheduledDump) -> list[str]:
    return [schedule.cron, schedule.time_zone]
