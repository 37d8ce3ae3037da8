"""The channels of a leading capture: signals and commands to it, notifications from it."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidelog.app.base.dump_schedule import DumpSchedule
from tidelog.capture.dumps.coordinator import DumpCoordinator
from tidelog.capture.dumps.store import KEEP_FINISHED
from tidelog.capture.notifications import Notification
from tidelog.capture.pauses import ReadingPause
from tidelog.config import Config
from tidelog.config.control import KafkaChannelSection
from tidelog.control.channels.file import SignalFile
from tidelog.control.commands import Handover
from tidelog.control.handler import CommandHandler
from tidelog.control.mailbox import MOST_AT_ONCE, ApiBackend, Mailbox
from tidelog.control.signal_intake import SignalIntake, SignalTable
from tidelog.engine.options import refuse_coroutine
from tidelog.errors import StateError
from tidelog.ports import Catalogue, SignalSeen, SourceId, StateStore
from tidelog.state.opening import poll_interval_s
from tidelog.system.extras import check_installed
from tidelog.system.private_files import append_text

if TYPE_CHECKING:
    from tidelog.control.channels.kafka import KafkaNotifications, KafkaSignals, KafkaTopic

# Notifications: dumps never wait for their delivery.

logger = logging.getLogger(__name__)
notification_lines = logging.getLogger("tidelog.notifications")
notification_lines.setLevel(logging.INFO)  # the channel `log` needs them, whatever --log-level

NOTIFICATIONS_KEPT = 1_000
NOTIFICATIONS_WAITING = 10_000
JOIN_S = 5.0

OnNotification = Callable[[Notification], None]
AppendControl = Callable[[dict[str, Any], Callable[[int], None]], None]


class Notifier:
    """Delivers notifications to channels, in order, in its own thread.

    `notify` is a `tidelog.capture.notifications.Notify`: it returns at once and never raises. What
    a channel does not accept is dropped and logged. A notification that was not delivered before a
    crash is not repeated; `tidelog status` has the truth.

    Args:
        channels: some of ``log``, ``file`` and ``eventlog``.
        connector: the name of this capture, Debezium's ``connector_name``.
        file: the file of JSON lines, for ``file``.
        append_control: appends a CONTROL record to the event log, for ``eventlog``.
        callbacks: called with each notification in the notifier's thread: the program's own, and
            that of ``kafka``.
    """

    def __init__(
        self,
        channels: Collection[str],
        *,
        connector: str,
        file: Path | None = None,
        append_control: AppendControl | None = None,
        callbacks: Iterable[OnNotification] = (),
    ) -> None:
        self._connector = connector
        self._file = file if "file" in channels else None
        self._to_log = "log" in channels
        self._append_control = append_control if "eventlog" in channels else None
        self._callbacks = tuple(callbacks)
        self._condition = threading.Condition()
        self._waiting: deque[Notification] = deque()
        self._history: deque[tuple[int, Notification]] = deque(maxlen=NOTIFICATIONS_KEPT)
        self._count = 0
        self._closing = False
        self._thread: threading.Thread | None = None
        self._failing: set[str] = set()
        self._torn = False

    # ------------------------------------------------------------ for all threads

    def notify(self, notification: Notification) -> None:
        """Queue a notification; returns at once, from any thread."""
        data = {"connector_name": self._connector, **_texts(notification.data)}
        ready = replace(notification, data=data)
        with self._condition:
            self._count += 1
            self._history.append((self._count, ready))
            full = len(self._waiting) >= NOTIFICATIONS_WAITING
            if not full:
                self._waiting.append(ready)
            self._condition.notify()
        self._log_failure(
            "the queue of notifications", "it is full; one is dropped" if full else None
        )

    def history(self, after: int = 0, limit: int = NOTIFICATIONS_KEPT) -> list[dict[str, Any]]:
        """Return the notifications with a ``number`` above ``after``, the oldest first, at most
        ``limit`` of them. Numbers start at 1 in each leadership.
        """
        with self._condition:
            found = [(number, item) for number, item in self._history if number > after]
        return [{"number": number, **item.to_json()} for number, item in found[:limit]]

    # ------------------------------------------------------------ for the owner

    def start(self) -> None:
        """Start to deliver, also what was queued before."""
        self._thread = threading.Thread(
            target=self._deliver_all, name="tidelog-notifications", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Deliver what is queued, for five seconds at most; then end."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def _deliver_all(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                batch = list(self._waiting)
                self._waiting.clear()
            self._deliver(batch)

    def _deliver(self, batch: list[Notification]) -> None:
        if self._to_log:
            for item in batch:
                self._attempt("log", partial(notification_lines.info, "%s", _line(item)))
        if self._file is not None:
            self._attempt("file", lambda: self._append_lines(batch))
        for item in batch:
            if self._append_control is not None:
                value = {"type": "notification", "notification": item.to_json()}
                self._attempt("eventlog", partial(self._append, value))
            for location, callback in enumerate(self._callbacks):
                self._attempt(f"callback {location}", partial(callback, item))

    def _append(self, value: dict[str, Any]) -> None:
        assert self._append_control is not None
        self._append_control(value, lambda _offset: None)

    def _append_lines(self, batch: list[Notification]) -> None:
        """Append lines; the file is opened each time, so that it may be moved away."""
        assert self._file is not None
        text = "".join(_line(item) + "\n" for item in batch)
        before = "\n" if self._torn else ""  # a full disk may have cut off a line
        self._torn = True
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with append_text(self._file) as file:
            file.write(before + text)
        self._torn = False

    def _attempt(self, channel: str, deliver: Callable[[], object]) -> None:
        try:
            refuse_coroutine(deliver())
        except Exception as error:  # noqa: BLE001 - a channel's failure is never capture's
            # The text of a foreign exception may contain anything.
            strerror = error.strerror if isinstance(error, OSError) else None
            self._log_failure(channel, strerror or type(error).__name__)
        else:
            self._log_failure(channel, None)

    def _log_failure(self, channel: str, failure: str | None) -> None:
        """Log the first of consecutive failures."""
        if failure is None:
            self._failing.discard(channel)
        elif channel not in self._failing:
            self._failing.add(channel)
            logger.warning("notifications are lost: %s: %s", channel, failure)


def _line(notification: Notification) -> str:
    return json.dumps(notification.to_json(), ensure_ascii=False)


def _texts(data: Mapping[str, Any]) -> dict[str, str]:
    """Return Debezium's additional data: texts, lists with commas between."""
    return {
        name: ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        for name, value in data.items()
        if value is not None
    }


# All channels of one leadership.


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

    def problems(self) -> dict[str, Any]:
        """Return the channels' problems for the status document. See
        `tidelog.control.channels.kafka.ChannelProblem`.
        """
        channels = (self._kafka, self._kafka_notifications)
        problems = [each.trouble.now() for each in channels if each is not None]
        return {"channels": [each for each in problems if each is not None]}

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
