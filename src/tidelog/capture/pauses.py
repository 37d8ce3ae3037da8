"""Pauses of the source's log and of pipelines.

Those that people requested are kept in the state store until resumed: a pause outlives restarts and
changes of leader. Blocking dumps pause the log between two transactions, in memory.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any, Final

from tidelog.capture.dump_gate import DumpBlockCause, DumpGate
from tidelog.errors import StateError, UsageError
from tidelog.ports import StateStore
from tidelog.system.processes import unix_ms

logger = logging.getLogger(__name__)

LOG_KEY = "paused-log"
PIPELINE_KEYS = "paused-pipeline/"
PAUSE_WAIT_S = 2.0
"""How long a command that pauses the log waits until the loop stops reading. The loop may wait
for room in its buffer, or for a blocking dump.
"""


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause. ``by``: the requester, from the command; empty: not known."""

    by: str
    since_ms: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def sentence(self) -> str:
        return f"paused by {self.by}" if self.by else "paused"


def pause_of(state: StateStore, key: str) -> Pause | None:
    """The pause of ``key``; None: it is not paused."""
    document = state.get(key)
    return None if document is None else Pause(document.value["by"], document.value["since_ms"])


def pause(state: StateStore, key: str, by: str) -> Pause:
    """Pause what ``key`` names; an existing pause keeps its requester."""
    current = pause_of(state, key)
    if current is None:
        current = Pause(by, unix_ms())
        state.put(key, current.to_json(), None)
    return current


def resume(state: StateStore, key: str) -> bool:
    """Resume what ``key`` names; False: it was not paused."""
    paused = state.get(key) is not None
    if paused:
        state.delete(key)
    return paused


class ReadingPause:
    """Pauses and resumes the reading of the source's log. Thread-safe.

    Args:
        state: store of the pause.
        gate: gate of the dumps, which wait while the log is paused.
    """

    def __init__(self, state: StateStore, gate: DumpGate) -> None:
        self._state = state
        self._gate = gate
        self._current: Pause | None = None
        self._confirmed = threading.Event()
        self._note(pause_of(state, LOG_KEY))

    @property
    def current(self) -> Pause | None:
        """The current pause; None: the log is read."""
        return self._current

    def is_paused(self) -> bool:
        """Must the log not be read? The loop calls it before each read."""
        if self._current is None:
            return False
        self._confirmed.set()
        return True

    def pause(self, by: str) -> Pause:
        """Stop reading the log until `resume`. Durable when this returns, and later commits are
        not read, unless the loop did not check for `PAUSE_WAIT_S`.
        """
        current = pause(self._state, LOG_KEY, by)
        self._confirmed.clear()
        self._note(current)
        self._confirmed.wait(PAUSE_WAIT_S)
        return current

    def resume(self) -> bool:
        """Resume where reading stopped; False: it was not paused."""
        was_paused = resume(self._state, LOG_KEY)
        self._note(None)
        return was_paused

    def _note(self, current: Pause | None) -> None:
        self._current = current
        if current is None:
            self._gate.release(DumpBlockCause.LOG_PAUSED)
        else:
            logger.warning(
                "the log is %s; the source retains it in the meantime", current.sentence()
            )
            self._gate.block(DumpBlockCause.LOG_PAUSED, f"The log is {current.sentence()}.")


# Pauses of the log for blocking dumps.


class BlockingDumpPause:
    """A pause of the log at the first boundary between transactions that is not before `at`. One
    thread requests it (`set_position`, `wait`, `release`), the loop's follows it (`pause_at`).
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._at = 0
        self._paused_at = -1
        self._released = False

    @property
    def at(self) -> int | None:
        """The position to pause at; None: the log may be read on."""
        return None if self._released else self._at

    def set_position(self, at: int) -> None:
        """Let the log be read up to ``at``."""
        with self._changed:
            self._at = at
            self._changed.notify_all()

    def release(self) -> None:
        with self._changed:
            self._released = True
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the log is paused at the requested position; False after the timeout."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._paused_at != self._at:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                self._changed.wait(remaining)
            return True

    def pause_at(self, position: int, wait_s: float) -> bool:
        """Must the log, read up to ``position``, pause? Waits up to ``wait_s`` if so."""
        with self._changed:
            if self._released or self._at > position:
                return False
            self._paused_at = self._at
            self._changed.notify_all()
            self._changed.wait(wait_s)
            at = self.at
            return at is not None and at <= position


# Pauses of a pipeline.

POLL_EVERY_S: Final = 1.0
PAID_FACTOR: Final = 4
"""If requests cost money, pauses are polled so many times less often than commands."""


class PipelinePause:
    """Whether one pipeline is paused. `watch` runs in its own thread, as a store may be slow.

    Args:
        state: the state store.
        name: the name of the pipeline.
        every_s: how often a leader polls for commands; 0: requests cost nothing.
    """

    def __init__(self, state: StateStore, name: str, every_s: float) -> None:
        self._state = state
        self._name = name
        self._every_s = max(POLL_EVERY_S, PAID_FACTOR * every_s)
        self._pause: Pause | None = None
        self._poll()

    @property
    def now(self) -> bool:
        """Whether it is paused."""
        return self._pause is not None

    def watch(self, done: threading.Event) -> None:
        """Poll until ``done`` is set."""
        while not done.wait(self._every_s):
            self._poll()

    def _poll(self) -> None:
        try:
            pause = pause_of(self._state, PIPELINE_KEYS + self._name)
        except StateError:
            return  # the last answer stays
        if pause is not None and self._pause is None:
            logger.warning("pipeline %s is %s", self._name, pause.sentence())
        elif pause is None and self._pause is not None:
            logger.warning("pipeline %s resumes", self._name)
        self._pause = pause

    def refuse(self) -> None:
        """Raise UsageError if it is paused; for callers that do not wait."""
        if self._pause is not None:
            raise UsageError(
                f"pipeline {self._name} is {self._pause.sentence()}: `tidelog resume CONFIG "
                "--pipeline` resumes it"
            )
