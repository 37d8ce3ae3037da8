"""What a leading capture hears from outside and tells it: signals, commands, notifications."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tidelog.app.dumps.schedule import DumpSchedule
from tidelog.app.notify import AppendControl, Notifier, OnNotification
from tidelog.capture.dumps.coordinator import DumpCoordinator
from tidelog.capture.dumps.store import KEEP_FINISHED
from tidelog.capture.notifications import Notification
from tidelog.config import Config
from tidelog.control.channels.file import SignalFile
from tidelog.control.channels.table import SignalIntake, SignalTable
from tidelog.control.commands import HandOver
from tidelog.control.handler import Actor
from tidelog.control.mailbox import MOST_AT_ONCE, Mailbox
from tidelog.ports import Catalogue, SignalSeen, SourceId, StateStore
from tidelog.state.opening import look_every_s

if TYPE_CHECKING:
    from tidelog.control.channels.rest import Surface


class Channels:
    """All channels of one leadership, around one mailbox.

    Args:
        config: says which there are.
        state: of the mailbox.
        source: which log signals stand in.
        callbacks: told of notifications.
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
        self._actor: Actor | None = None
        self._schedule: DumpSchedule | None = None
        self._look_every_s = look_every_s(config.state.place)
        self._look_at = 0.0

    def notify(self, notification: Notification) -> None:
        self._notifier.notify(notification)

    def open(
        self,
        coordinator: DumpCoordinator,
        catalogue: Catalogue,
        status: Callable[[], dict[str, Any]],
        append_control: AppendControl,
        hand_over: Callable[[HandOver], dict[str, Any]],
    ) -> None:
        """Begin to hear and to tell."""
        self._append = append_control
        self._status = status
        self._coordinator = coordinator
        self._actor = Actor(
            coordinator,
            catalogue,
            self._state,
            self._config.source.tables,
            database=self._source.database,
            notify=self._notifier.notify,
            hand_over=hand_over,
        )
        self._schedule = DumpSchedule(
            self._config.dumps,
            state=self._state,
            mailbox=self.mailbox,
            dumps=coordinator.dumps,
        )
        self._notifier.start()

    def surface(self) -> Surface:
        """What the HTTP interface shows, once open."""
        from tidelog.control.channels.rest import Surface

        return Surface(
            mailbox=self.mailbox,
            status=self._status,
            summary=lambda: self._coordinator.summary(finished=KEEP_FINISHED),
            notifications=self._notifier.history,
        )

    def act(self) -> None:
        """Take signals in, then act on the commands that wait."""
        self._table.deliver()
        if self._file is not None:
            self._file.poll()
        if self._schedule is not None:
            self._schedule.act()
        if self._actor is None or not self._is_due():
            return
        if self._actor.act(self.mailbox) >= MOST_AT_ONCE:
            self.mailbox.given.set()  # more wait

    def _is_due(self) -> bool:
        """In a store where each look costs, what other processes give waits for the next one."""
        now = time.monotonic()
        if now < self._look_at and not self.mailbox.given.is_set():
            return False
        self.mailbox.given.clear()
        self._look_at = now + self._look_every_s
        return True

    def close(self) -> None:
        self._notifier.close()

    def _append_control(self, value: dict[str, Any], done: Callable[[int], None]) -> None:
        if self._append is not None:
            self._append(value, done)
