"""Pauses the log between two transactions, for blocking dumps."""

from __future__ import annotations

import threading
import time


class LogPause:
    """A pause of the log at the first boundary between transactions that is not before `at`.

    One thread requests it (`move`, `wait`, `release`), the engine's obeys (`pause_at`).
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

    def move(self, at: int) -> None:
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
