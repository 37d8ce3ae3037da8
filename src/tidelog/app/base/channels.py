"""The channels of a leading capture: signals, commands and scheduled dumps to it, notifications
from it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from tidelog.capture.dumps.coordinator import DumpCoordinator
from tidelog.capture.dumps.state import DumpState
from tidelog.capture.dumps.store import KEEP_FINISHED
from tidelog.capture.notifications import Notification
from tidelog.capture.pauses import ReadingPause
from tidelog.config import Config
from tidelog.config.control import KafkaChannelSection
from tidelog.config.models import ScheduledDumpSection
from tidelog.control.channels.file import SignalFile
from tidelog.control.channels.notifier import AppendControl, Notifier, OnNotification
from tidelog.control.commands import Handover
from tidelog.control.handler import CommandHandler
from tidelog.control.mailbox import MOST_AT_ONCE, ApiBackend, Mailbox
from tidelog.control.signal_intake import SignalIntake, SignalTable
from tidelog.errors import CommandIdReusedError, StateError
from tidelog.model.units import printable
from tidelog.ports import Catalogue, SignalSeen, SourceId, StateStore
from tidelog.state.opening import poll_interval_s
from tidelog.system.extras import check_installed

if TYPE_CHECKING:
    from tidelog.control.channels.kafka import KafkaNotifications, KafkaSignals, KafkaTopic

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


def check_channels(config: Config) -> None:
    """Raise MissingExtraError if a package of the channels, or of the page, is missing."""
    control = config.control
    if control.signal_kafka is not None or "kafka" in control.notifications:
        check_installed("confluent_kafka")
    if control.rest is not None:
        check_installed("starlette", "uvicorn", "prometheus_client")


def signal_key(config: Config) -> str:
    """Return the key of Kafka messages that are signals for this capture."""
    section = config.control.signal_kafka
    return (section and section.key) or config.source.connector


def signal_location(config: Config) -> KafkaTopic | None:
    """Return the topic of ``control.signal_kafka``; None: there is none."""
    section = config.control.signal_kafka
    if section is None:
        return None
    return _location(section, section.topic or f"{signal_key(config)}-signal")


def notification_location(config: Config) -> KafkaTopic | None:
    """Return the topic for notifications; None: there is none."""
    section = config.control.notification_kafka
    wanted = "kafka" in config.control.notifications
    return _location(section, section.topic) if section is not None and wanted else None


def _location(section: KafkaChannelSection, topic: str) -> KafkaTopic:
    from tidelog.control.channels.kafka import KafkaTopic

    given = {name: value.get_secret_value() for name, value in section.settings.items()}
    return KafkaTopic(section.servers, topic, given)


class Channels:
    """All channels of one leadership, with one mailbox.

    Args:
        config: the configuration of the channels.
        state: the store of the mailbox.
        source: the source whose log has the signals.
        callbacks: called with notifications.
    """

    def __init__(
        self,
        config: Config,
        state: StateStore,
        source: SourceId,
        callbacks: Sequence[OnNotification],
    ) -> None:
        self._config = config
        self._state = state
        self._source = source
        self.mailbox = Mailbox(state)
        control = config.control
        self._append: AppendControl | None = None
        self._kafka_notifications = self._notifications_to_kafka()
        if self._kafka_notifications is not None:
            callbacks = (*callbacks, self._kafka_notifications.send)
        self._notifier = Notifier(
            control.notifications,
            connector=config.source.connector,
            file=control.notification_file,
            append_control=self._append_control,
            callbacks=callbacks,
        )
        intake = SignalIntake(self.mailbox, self._notifier.notify)
        self._table = SignalTable(intake, f"{source.kind}:{source.system}:{source.database}", state)
        self.on_signals: Callable[[Sequence[SignalSeen]], None] = self._table.on_signals
        self._file = (
            None if control.signal_file is None else SignalFile(control.signal_file, state, intake)
        )
        self._kafka = self._signals_from_kafka(intake)
        self._handler: CommandHandler | None = None
        self._schedule: DumpSchedule | None = None
        self._poll_interval_s = poll_interval_s(config.state.location)
        self._poll_at = 0.0

    def notify(self, notification: Notification) -> None:
        self._notifier.notify(notification)

    def open(
        self,
        coordinator: DumpCoordinator,
        catalogue: Catalogue,
        status: Callable[[], dict[str, Any]],
        append_control: AppendControl,
        hand_over: Callable[[Handover], dict[str, Any]],
        reading_pause: ReadingPause,
    ) -> None:
        """Start to receive signals and to send notifications."""
        self._append = append_control
        self._status = status
        self._coordinator = coordinator
        self._handler = CommandHandler(
            coordinator,
            catalogue,
            self._state,
            self._config.source.tables,
            database=self._source.database,
            notify=self._notifier.notify,
            hand_over=hand_over,
            reading_pause=reading_pause,
        )
        self._schedule = DumpSchedule(
            self._config.dumps,
            state=self._state,
            mailbox=self.mailbox,
            dumps=coordinator.dumps,
        )
        if self._kafka_notifications is not None:
            self._kafka_notifications.start()
        self._notifier.start()
        if self._kafka is not None:
            self._kafka.start()

    def problems(self) -> list[dict[str, Any]]:
        """Return the channels' problems for the status document. See
        `tidelog.control.channels.channel_problem.ChannelProblem`.
        """
        channels = (self._kafka, self._kafka_notifications)
        problems = [each.trouble.now() for each in channels if each is not None]
        return [each for each in problems if each is not None]

    def surface(self) -> ApiBackend:
        """Return the backend of the HTTP interface; call `open` first."""
        return ApiBackend(
            mailbox=self.mailbox,
            status=self._status,
            summary=lambda: self._coordinator.summary(finished=KEEP_FINISHED),
            notifications=self._notifier.history,
        )

    def act(self) -> None:
        """Receive signals, then handle the pending commands. While the state store is unavailable
        they wait: the lease limits how long capture runs without it.
        """
        try:
            self._receive()
        except StateError as error:
            logger.info("signals wait for the state store: %s", error)
            return
        if self._handler is None or not self._is_due():
            return
        if self._handler.act(self.mailbox) >= MOST_AT_ONCE:
            self.mailbox.given.set()  # more are pending

    def _receive(self) -> None:
        self._table.deliver()
        if self._file is not None:
            self._file.poll()
        if self._kafka is not None:
            self._kafka.poll()
        if self._schedule is not None:
            self._schedule.act()

    def _is_due(self) -> bool:
        """Return whether to read commands: if requests cost money, only at intervals."""
        now = time.monotonic()
        if now < self._poll_at and not self.mailbox.given.is_set():
            return False
        self.mailbox.given.clear()
        self._poll_at = now + self._poll_interval_s
        return True

    def close(self) -> None:
        """Close all in the reverse order of `open`, also if one of them raises."""
        with ExitStack() as closing:
            for each in (self._kafka_notifications, self._notifier, self._kafka):
                if each is not None:
                    closing.callback(each.close)

    def _signals_from_kafka(self, intake: SignalIntake) -> KafkaSignals | None:
        section, location = self._config.control.signal_kafka, signal_location(self._config)
        if section is None or location is None:
            return None
        from tidelog.control.channels.kafka import KafkaSignals

        return KafkaSignals(
            location,
            key=signal_key(self._config),
            begin=section.begin,
            state=self._state,
            intake=intake,
        )

    def _notifications_to_kafka(self) -> KafkaNotifications | None:
        location = notification_location(self._config)
        if location is None:
            return None
        from tidelog.control.channels.kafka import KafkaNotifications

        return KafkaNotifications(location)

    def _append_control(self, value: dict[str, Any], done: Callable[[int], None]) -> None:
        if self._append is not None:
            self._append(value, done)
