"""Puts signals of every channel into the mailbox: each is executed once, and none is fatal.

A signal is identified by its place (a position in the source's log or in a file): its id need not
be unique, as in Debezium. A signal that can't be parsed becomes a failed outcome, a log message and
a notification; the channel continues.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

from tidelog.capture.notifications import Notification, NotificationType, Notify
from tidelog.control import plain_conditions
from tidelog.control.commands import Command, StartDump, digest
from tidelog.control.debezium import Signal, dump_id_of, parse
from tidelog.control.mailbox import Mailbox, new_id
from tidelog.errors import UsageError
from tidelog.ports import MAX_SIGNAL_BYTES, SignalSeen, StateStore
from tidelog.system import failpoints
from tidelog.system.processes import unix_ms

logger = logging.getLogger(__name__)

SIGNAL_AGGREGATE = "Signal"
DEBEZIUM_WINDOWS = frozenset({"snapshot-window-open", "snapshot-window-close"})
KEPT_TOGETHER = 100
KEPT_LENGTH = 1 << 18
"""Most signals in one document, and most characters of them; or one longer signal."""
DELIVERED_AT_ONCE = 5
"""Documents delivered per call; other work comes in between."""
_KEPT = "signals/"


def skipped(signal_id: str, reason: str) -> Notification:
    """The notification that a signal was not executed. ``reason`` contains no values."""
    return Notification(
        dump_id=signal_id,
        aggregate_type=SIGNAL_AGGREGATE,
        type=NotificationType.SKIPPED,
        timestamp_ms=unix_ms(),
        data={"status": "SKIPPED", "reason": reason},
    )


class SignalIntake:
    """Puts signals into the mailbox. As thread-safe as the mailbox.

    Args:
        mailbox: the mailbox of commands.
        notify: receives notifications about invalid signals.
    """

    def __init__(self, mailbox: Mailbox, notify: Notify) -> None:
        self._mailbox = mailbox
        self._notify = notify

    def take(self, signal: Signal, place: str, *, plain: bool = False) -> str:
        """Put the signal's command into the mailbox, or record that there is none; returns the
        command's id.

        Durable when this returns. ``place`` is the same whenever the same signal is read again.
        ``{}`` in the message of a ``log`` signal is replaced by the place. ``plain``: the writer
        may not have the privileges of capture's role, so conditions must be `plain_conditions`.

        Raises:
            StateError: if the state store fails; the signal must be passed again.
        """
        # After a file was truncated, or a log restored, a place may have another signal.
        text = f"{signal.signal_id}\0{signal.type}\0{signal.data}"
        key = f"{place}:{digest(text)}"
        try:
            command = parse(signal, coordinates=place)
            if plain:
                command = _require_plain(command)
            return self._mailbox.send(command, key)
        except UsageError as error:
            return self._refuse(signal.signal_id, error, place, key)

    def refuse(self, text: bytes, error: UsageError, place: str) -> str:
        """Record that ``text``, in the place of a signal, is none."""
        return self._refuse("", error, place, f"{place}:{digest(text)}")

    def _refuse(self, signal_id: str, error: UsageError, place: str, key: str) -> str:
        logger.warning("signal at %s is skipped: %s", place, error)
        self._notify(skipped(dump_id_of(signal_id), str(error)))
        return self._mailbox.refuse(error, key)


class SignalTable:
    """The channel of the source's signal table.

    However many signals one statement inserts, the log waits for few writes: they are stored as
    read, several in a document ``signals/<id>``, and `deliver` puts them into the mailbox. The ids
    sort by time, so signals keep their order.

    Args:
        intake: receives the signals.
        source: name of the log that positions belong to, e.g. ``kind:system:database``.
        state: store of signals until they are delivered.
    """

    def __init__(self, intake: SignalIntake, source: str, state: StateStore) -> None:
        self._intake = intake
        self._source = source
        self._state = state
        self._waiting = threading.Event()
        self._waiting.set()  # an earlier capture may have left some

    def on_signals(self, seen: Sequence[SignalSeen]) -> None:
        """Store signals, before their position is acknowledged; durable when this returns.

        After a crash the same rows may be read again. Marks of a Debezium that uses the same table
        for its signals are ignored.
        """
        kept: list[list[Any]] = []
        size = 0
        for one in seen:
            if one.type in DEBEZIUM_WINDOWS:
                continue
            place = f"table:{self._source}:{one.position}:{one.ordinal}"
            # A text that is too long is stored only as far as needed to show that.
            texts = [_cut(text) for text in (one.signal_id, one.type, one.data)]
            length = sum(len(text or "") for text in texts)
            if kept and (len(kept) == KEPT_TOGETHER or size + length > KEPT_LENGTH):
                self._keep(kept)
                kept, size = [], 0
            kept.append([place, *texts])
            size += length
        if kept:
            self._keep(kept)
        failpoints.hit("signals.kept")

    def deliver(self) -> None:
        """Put stored signals into the mailbox, some at a time; called by the thread of commands.

        Signals delivered before a crash are recognized there by their place.

        Raises:
            StateError: if the state store fails; call it again.
        """
        if not self._waiting.is_set():
            return
        self._waiting.clear()
        try:
            kept = self._state.keys(_KEPT)
            self._deliver_all(kept[:DELIVERED_AT_ONCE])
        except BaseException:
            self._waiting.set()
            raise
        if len(kept) > DELIVERED_AT_ONCE:
            self._waiting.set()

    def _deliver_all(self, kept: Sequence[str]) -> None:
        for key in kept:
            document = self._state.get(key)
            for signal in () if document is None else document.value:
                self._deliver(*signal)
                failpoints.hit("signals.delivered_one")
            self._state.delete(key)

    def _keep(self, signals: list[list[Any]]) -> None:
        self._state.put(_KEPT + new_id(), signals, 0)
        self._waiting.set()

    def _deliver(self, place: str, signal_id: str, type_: str, data: str | None) -> None:
        """Deliver one signal; an invalid one is recorded and does not block the next."""
        texts = (signal_id, type_, data or "")
        if any(_is_too_long(text) for text in texts):
            error = UsageError(f"a column of more than {MAX_SIGNAL_BYTES} bytes")
            self._intake.refuse("\0".join(texts).encode("utf-8", "surrogatepass"), error, place)
            return
        self._intake.take(Signal(signal_id, type_, data), place, plain=True)


def _require_plain(command: Command) -> Command:
    if not isinstance(command, StartDump):
        return command
    conditions = [c for c in (*command.conditions.values(), command.where) if c is not None]
    if not conditions:
        return command
    try:
        for condition in conditions:
            plain_conditions.checked(condition)
    except ValueError as error:
        raise UsageError(f"{command.type}: additional-conditions: {error}") from None
    return command.model_copy(update={"plain": True})


def _cut(text: str | None) -> str | None:
    return None if text is None else text[: MAX_SIGNAL_BYTES + 1]


def _is_too_long(text: str) -> bool:
    return len(text.encode("utf-8", "surrogatepass")) > MAX_SIGNAL_BYTES
