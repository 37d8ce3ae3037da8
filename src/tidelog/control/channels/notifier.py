"""Delivers notifications to their channels; dumps never wait for it."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tidelog.capture.notifications import Notification
from tidelog.system.callbacks import refuse_coroutine
from tidelog.system.private_files import append_text

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
