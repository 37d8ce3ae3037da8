"""Requests dumps at the times that the configuration names."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from tidelog.capture.dumps.state import DumpState
from tidelog.config.models import ScheduledDumpSection
from tidelog.control.mailbox import Mailbox
from tidelog.errors import CommandIdReusedError
from tidelog.model.units import printable
from tidelog.ports import StateStore

logger = logging.getLogger(__name__)

PREFIX: Final = "schedule/"
"""Prefix of the documents with the last time of each schedule for which a dump was requested."""
CHECK_EVERY_S: Final = 5.0


class DumpSchedule:
    """The schedules of a leading capture; used by one thread.

    Each time of a schedule is requested once, by any leader: the command's key names the time. A
    time is skipped while the schedule's former dump is not done.

    Args:
        schedules: what to request, and when.
        state: the store of the last requested times.
        mailbox: the mailbox for the commands.
        dumps: returns all known dumps.
        clock: returns the calendar time.
    """

    def __init__(
        self,
        schedules: Sequence[ScheduledDumpSection],
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
        self._requested: dict[str, datetime] = {}
        self._sent: dict[str, str] = {}
        self._check_at = 0.0

    def act(self) -> None:
        """Request what is due. Raises StateError."""
        if not self._schedules or time.monotonic() < self._check_at:
            return
        self._check_at = time.monotonic() + CHECK_EVERY_S
        self._log_outcomes()
        now = self._clock()
        for schedule in self._schedules:
            self._act(schedule, now)

    def _act(self, schedule: ScheduledDumpSection, now: datetime) -> None:
        requested = self._requested.get(schedule.name) or self._load(schedule)
        due = schedule.last_due(now)
        if requested is None:  # it is new or changed: times before that are not requested
            self._store(schedule, now)
        elif due is None or due <= requested:
            self._requested[schedule.name] = requested
        else:
            running = self._unfinished_dump(schedule.name)
            if running is None:
                self._request(schedule, due)
            else:
                logger.warning(
                    "dumps: %s is skipped this time: %s is not done yet", schedule.name, running
                )
            self._store(schedule, due)

    def _request(self, schedule: ScheduledDumpSection, due: datetime) -> None:
        command = schedule.command(due)
        try:
            sent = self._mailbox.send(command, key=f"{PREFIX}{command.dump_id}")
        except CommandIdReusedError:
            logger.warning("dumps: %s was requested before with other options", command.dump_id)
        else:
            self._sent[sent] = command.dump_id

    def _log_outcomes(self) -> None:
        """Log which dumps were refused: nobody waits for them."""
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

    def _unfinished_dump(self, name: str) -> str | None:
        for dump in self._dumps():
            if not dump.finished and dump.dump_id.rpartition("-")[0] == name:
                return dump.dump_id
        return None

    def _load(self, schedule: ScheduledDumpSection) -> datetime | None:
        document = self._state.get(PREFIX + schedule.name)
        if document is None or document.value["times"] != _times(schedule):
            return None
        return datetime.fromisoformat(document.value["asked"])

    def _store(self, schedule: ScheduledDumpSection, at: datetime) -> None:
        value = {"asked": at.isoformat(), "times": _times(schedule)}
        self._state.put(PREFIX + schedule.name, value, None)
        self._requested[schedule.name] = at


def _times(schedule: ScheduledDumpSection) -> list[str]:
    return [schedule.cron, schedule.time_zone]
