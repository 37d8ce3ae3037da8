"""The channels of a leading capture: signals and commands to it, notifications from it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from tidelog.app.base.dump_schedule import DumpSchedule
from tidelog.capture.dumps.coordinator import DumpCoordinator
from tidelog.capture.dumps.store import KEEP_FINISHED
from tidelog.capture.notifications import Notification
from tidelog.capture.pauses import ReadingPause
from tidelog.config import Config
from tidelog.config.control import KafkaChannelSection
from tidelog.control.channels.file import SignalFile
from tidelog.control.channels.notifier import AppendControl, Notifier, OnNotification
from tidelog.control.commands import Handover
from tidelog.control.handler import CommandHandler
from tidelog.control.mailbox import MOST_AT_ONCE, ApiBackend, Mailbox
from tidelog.control.signal_intake import SignalIntake, SignalTable
from tidelog.errors import StateError
from tidelog.ports import Catalogue, SignalSeen, SourceId, StateStore
from tidelog.state.opening import poll_interval_s
from tidelog.system.extras import check_installed

if TYPE_CHECKING:
    from tidelog.control.channels.kafka import KafkaNotifications, KafkaSignals, KafkaTopic

logger = logging.getLogger(__name__)


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
