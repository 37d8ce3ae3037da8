"""A queue of commands in the state store: any process sends them, the leading capture executes
them.

A command is the document ``commands/<id>``; ids sort by time, so commands are handled in the order
in which they were sent. Its outcome is ``results/<id>``, written once; then the command is removed.
After a crash between handling and writing the outcome the command is handled again, so handlers are
idempotent; a command with an outcome is never handled again. Nor is a command during which capture
ended twice: it may be the cause, and would end every later capture.

A command that may be sent twice, such as a signal whose row is read again after a crash, is sent
under a key: ``given/<digest of the key>`` has the id that the command got the first time.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tidelog.control.commands import Command, command_from_json, digest
from tidelog.errors import (
    CommandIdReusedError,
    Policy,
    StateConflictError,
    StateError,
    TidelogError,
    UsageError,
)
from tidelog.ports import Document, StateStore
from tidelog.system import failpoints
from tidelog.system.processes import unix_ms

logger = logging.getLogger(__name__)

Handler = Callable[[str, Command], dict[str, Any]]

_COMMANDS = "commands/"
_RESULTS = "results/"
_GIVEN = "given/"
_KEEP_RESULTS_MS = 7 * 86_400_000
MOST_AT_ONCE = 100
MOST_BEGUN = 2
_digest = partial(digest, length=40)
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32, as ULID has it
_id_lock = threading.Lock()
_last_id = 0


def new_id() -> str:
    """A ULID: sorts by time, and strictly within this process."""
    global _last_id
    with _id_lock:
        fresh = unix_ms() << 80 | int.from_bytes(os.urandom(10), "big")
        _last_id = max(fresh, _last_id + 1)
        value = _last_id
    return "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))


def id_time_ms(command_id: str) -> int:
    """When `new_id` created the id, in milliseconds since 1970; 0 for another id."""
    try:
        return sum(
            _ALPHABET.index(character) << 5 * (9 - place)
            for place, character in enumerate(command_id[:10])
        )
    except ValueError:
        return 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a command. ``details``: what the handler returned; ``error``: why it failed,
    None if it did not; ``usage``: whether the request was the reason; ``handled``: False: it waits
    for a capture still.
    """

    command_id: str
    details: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    usage: bool = False
    handled: bool = True

    @property
    def state(self) -> str:
        """``done``, ``failed`` or ``waiting``."""
        if not self.handled:
            return "waiting"
        return "done" if self.error is None else "failed"

    def to_dict(self) -> dict[str, Any]:
        """The document that commands print with ``--json``."""
        return {"state": self.state, **self.to_json()}

    def to_json(self) -> dict[str, Any]:
        """The document that is stored."""
        return {
            "id": self.command_id,
            "details": self.details,
            "error": self.error,
            "usage": self.usage,
        }


class Mailbox:
    """Both ends of the queue. As thread-safe as the state store."""

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self._counted: dict[str, int] = {}
        """Commands that were begun, and how often before: they are begun again if a store or a
        source does not answer."""
        self.given = threading.Event()
        """Set by every command that this object sent, for a reader that polls rarely."""

    # ------------------------------------------------------------ the sender's end

    def send(self, command: Command, key: str | None = None) -> str:
        """Send a command; returns its id. Durable when this returns.

        Args:
            command: the command.
            key: key of a command that may be sent again: within a week it is executed once.

        Raises:
            CommandIdReusedError: if another command was sent under the key.
        """
        document = command.to_json()
        if key is None:
            command_id = new_id()
            self._state.put(_COMMANDS + command_id, document, 0)
            self.given.set()
            return command_id
        command_id, given, content = self._give(key, document)
        if content != _digest(json.dumps(document, sort_keys=True)):
            raise CommandIdReusedError("this id was used before, for something else")
        if self.outcome(command_id) is None:
            self._put_once(_COMMANDS + command_id, {**document, "given": given})
        return command_id

    def refuse(self, error: UsageError, key: str) -> str:
        """Record that what was sent under ``key`` can't be executed; returns the outcome's id."""
        command_id, given, _content = self._give(key, None)
        value = Outcome(command_id, {}, str(error), usage=True).to_json()
        self._put_once(_RESULTS + command_id, {**value, "given": given})
        return command_id

    def _give(self, key: str, document: Any) -> tuple[str, str, str]:
        """The id for the key, new or existing; the digests of key and content."""
        given = _digest(key)
        content = _digest(json.dumps(document, sort_keys=True))
        self._put_once(_GIVEN + given, {"id": new_id(), "content": content})
        document_given = self._state.get(_GIVEN + given)
        if document_given is None:  # removed just now, after a week
            return self._give(key, document)
        return document_given.value["id"], given, document_given.value["content"]

    def _put_once(self, name: str, value: dict[str, Any]) -> None:
        try:
            self._state.put(name, value, 0)
            self.given.set()
        except StateConflictError:
            logger.debug("%s is there already", name.partition("/")[0])

    def key_used(self, key: str) -> bool:
        """Was a command sent under this key before?"""
        return self._state.get(_GIVEN + _digest(key)) is not None

    def is_waiting(self, command_id: str) -> bool:
        """Has no capture executed the command yet?"""
        return self._state.get(_COMMANDS + command_id) is not None

    def has_command_for(self, dump_id: str) -> bool:
        """Is a command for the dump waiting?"""
        documents = (self._state.get(key) for key in self._state.keys(_COMMANDS))
        return any(d is not None and d.value["data"].get("dump_id") == dump_id for d in documents)

    def outcome(self, command_id: str) -> Outcome | None:
        """The command's outcome; None while it waits."""
        document = self._state.get(_RESULTS + command_id)
        if document is None:
            return None
        value = document.value
        return Outcome(command_id, value["details"], value["error"], value.get("usage", False))

    def wait(self, command_id: str, timeout_s: float, poll_s: float = 0.1) -> Outcome | None:
        """Wait for the outcome; None if there is none within ``timeout_s``; the command remains."""
        deadline = time.monotonic() + timeout_s
        while (outcome := self.outcome(command_id)) is None:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return None
            time.sleep(min(poll_s, remaining))
        return outcome

    # ------------------------------------------------------------ the leader's end

    def handle_pending(self, handler: Handler) -> int:
        """Handle waiting commands, oldest first, a limited number; returns their number. Called by
        the leader, by one thread.

        A handler's TidelogError becomes the command's outcome, unless its policy is to retry or to
        restart: then it is raised, and the command is handled again at the next call. Any other
        exception becomes an outcome too: one bad command must not stop capture for ever.
        """
        handled = 0
        for key in self._waiting()[:MOST_AT_ONCE]:
            command_id = key.removeprefix(_COMMANDS)
            document = self._state.get(key)
            if document is None:
                continue
            if self._state.get(_RESULTS + command_id) is None:
                outcome = self._begin(command_id, document, handler)
                try:
                    value = {**outcome.to_json(), "given": document.value.get("given")}
                    self._state.put(_RESULTS + command_id, value, 0)
                except StateConflictError:
                    logger.info("command %s has an outcome already", command_id)
                handled += 1
            self._state.delete(key)
            self._counted.pop(command_id, None)
        return handled

    def _waiting(self) -> list[str]:
        """The waiting commands; none if the store does not answer: the log need not wait for it,
        and the lease's keeper reports it.
        """
        try:
            return self._state.keys(_COMMANDS)
        except StateError:
            return []

    def _begin(self, command_id: str, document: Document, handler: Handler) -> Outcome:
        """Handle the command, unless capture ended during each earlier attempt."""
        key, version = _COMMANDS + command_id, document.version
        begun = document.value.get("begun", 0)
        if command_id not in self._counted and begun >= MOST_BEGUN:
            error = f"set aside: capture ended {begun} times while it executed this command"
            logger.error("command %s (%s) is %s", command_id, document.value["type"], error)
            return Outcome(command_id, {}, error)
        if command_id not in self._counted:
            self._counted[command_id] = begun
            version = self._state.put(key, {**document.value, "begun": begun + 1}, version)
        try:
            return self._handle(command_id, document.value, handler)
        except TidelogError:  # it waits for something else
            value = {**document.value, "begun": self._counted[command_id]}
            self._state.put(key, value, version)
            del self._counted[command_id]
            raise

    def _handle(self, command_id: str, document: Any, handler: Handler) -> Outcome:
        try:
            failpoints.hit("command.begun")
            return Outcome(command_id, handler(command_id, command_from_json(document)))
        except TidelogError as error:
            if error.policy in (Policy.RETRY, Policy.RESTART):
                raise
            return Outcome(command_id, {}, str(error), isinstance(error, UsageError))
        except Exception as error:  # noqa: BLE001 - see handle_pending
            # The exception's text is not ours and may contain values.
            logger.error("command %s failed: %s", command_id, type(error).__name__)
            return Outcome(command_id, {}, f"internal error ({type(error).__name__})")

    def forget_old_outcomes(self, now_ms: int) -> int:
        """Delete outcomes of commands sent over a week ago; returns their number."""
        old = [
            key
            for key in self._state.keys(_RESULTS)
            if id_time_ms(key.removeprefix(_RESULTS)) < now_ms - _KEEP_RESULTS_MS
        ]
        for key in old:
            document = self._state.get(key)
            if document is not None and document.value.get("given"):
                self._state.delete(_GIVEN + document.value["given"])
            self._state.delete(key)
        return len(old)


@dataclass(frozen=True, slots=True)
class ApiBackend:
    """What the leading capture provides to its HTTP interface. Thread-safe.

    Attributes:
        mailbox: takes commands.
        status: returns the status document, from memory.
        summary: returns `DumpCoordinator.summary` of all stored dumps.
        notifications: returns at most so many notifications after a number.
    """

    mailbox: Mailbox
    status: Callable[[], dict[str, Any]]
    summary: Callable[[], dict[str, Any]]
    notifications: Callable[[int, int], list[dict[str, Any]]]
