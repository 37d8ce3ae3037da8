"""Signals of every channel on their way to the mailbox: each is acted on once, none is fatal.

A signal is known by where it stands (a position of the source's log, a place in a file): its id
need not be unique, as it need not for Debezium. What can't be understood becomes a failed outcome,
a log line and a notification; the channel goes on.
"""

from __future__ import annotations

import hashlib
import logging
import time

from tidelog.capture.notifications import Notification, NotificationType, Notify
from tidelog.control import plain_conditions
from tidelog.control.commands import Command, ExecuteSnapshot
from tidelog.control.debezium import Signal, dump_id_of, parse
from tidelog.control.mailbox import Mailbox
from tidelog.errors import UsageError
from tidelog.ports import MAX_SIGNAL_BYTES, SignalSeen

logger = logging.getLogger(__name__)

SIGNAL_AGGREGATE = "Signal"
DEBEZIUM_WINDOWS = frozenset({"snapshot-window-open", "snapshot-window-close"})


def skipped(signal_id: str, reason: str) -> Notification:
    """Says that a signal was not acted on. ``reason`` holds no values."""
    return Notification(
        dump_id=signal_id,
        aggregate_type=SIGNAL_AGGREGATE,
        type=NotificationType.SKIPPED,
        timestamp_ms=int(time.time() * 1000),
        data={"status": "SKIPPED", "reason": reason},
    )


class SignalIntake:
    """Puts signals into the mailbox. Thread-safe as far as the mailbox is.

    Args:
        mailbox: where commands wait.
        notify: told of what can't be understood.
    """

    def __init__(self, mailbox: Mailbox, notify: Notify) -> None:
        self._mailbox = mailbox
        self._notify = notify

    def take(self, signal: Signal, place: str, *, plain: bool = False) -> str:
        """Put the signal's command, or record that there is none; the command's id.

        Durable when this returns. ``place`` is the same whenever the same signal is taken again.
        ``{}`` in the message of a ``log`` signal becomes the place. ``plain``: whoever wrote it may
        not have the rights of capture's role, so conditions may only be `plain_conditions`.

        Raises:
            StateError: the state store failed; the signal has to be taken again.
        """
        # A file that was cut, or a log restored from a backup, has a place again, with another
        # signal there.
        text = f"{signal.signal_id}\0{signal.type}\0{signal.data}"
        key = f"{place}:{_digest(text)}"
        try:
            command = parse(signal, coordinates=place)
            if plain:
                command = _require_plain(command)
            return self._mailbox.send(command, key)
        except UsageError as error:
            return self._refuse(signal.signal_id, error, place, key)

    def refuse(self, text: bytes, error: UsageError, place: str) -> str:
        """Record that ``text`` is where a signal is expected, and is none."""
        return self._refuse("", error, place, f"{place}:{_digest(text)}")

    def _refuse(self, signal_id: str, error: UsageError, place: str, key: str) -> str:
        logger.warning("signal at %s is skipped: %s", place, error)
        self._notify(skipped(dump_id_of(signal_id), str(error)))
        return self._mailbox.refuse(error, key)


class SignalTable:
    """The channel of the source's signal table.

    Args:
        intake: where signals go.
        source: names the log that positions are of, e.g. ``kind:system:database``.
    """

    def __init__(self, intake: SignalIntake, source: str) -> None:
        self._intake = intake
        self._source = source

    def on_signal(self, seen: SignalSeen) -> None:
        """Called as the log is read, before the position is acknowledged; durable upon return.

        The same row may be seen again after a crash. A bad signal returns normally. The marks of a
        Debezium that has the same table for its signals are none of ours.
        """
        if seen.type in DEBEZIUM_WINDOWS:
            return
        place = f"table:{self._source}:{seen.position}:{seen.ordinal}"
        texts = (seen.signal_id, seen.type, seen.data or "")
        if any(_is_too_long(text) for text in texts):
            error = UsageError(f"a column of more than {MAX_SIGNAL_BYTES} bytes")
            self._intake.refuse("\0".join(texts).encode("utf-8", "surrogatepass"), error, place)
            return
        self._intake.take(Signal(seen.signal_id, seen.type, seen.data), place, plain=True)


def _require_plain(command: Command) -> Command:
    if not isinstance(command, ExecuteSnapshot):
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


def _is_too_long(text: str) -> bool:
    return len(text.encode("utf-8", "surrogatepass")) > MAX_SIGNAL_BYTES


def _digest(text: str | bytes) -> str:
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()[:16]
