"""What fails at a channel now, for the status document and the log."""

from __future__ import annotations

import logging
import threading
from typing import Any, Final

from tidelog.system.processes import unix_ms

logger = logging.getLogger(__name__)

AGAIN: Final = "It is retried automatically once that is fixed."


class ChannelProblem:
    """The current problem of a channel, if any. Logged when it begins, changes and ends.
    Thread-safe.

    Args:
        channel: a name for programs.
        sentence: the message for people that precedes the reason.
    """

    def __init__(self, channel: str, sentence: str) -> None:
        self._channel = channel
        self._sentence = sentence
        self._lock = threading.Lock()
        self._now: dict[str, Any] | None = None

    def begin(self, reason: str, remedy: str = AGAIN) -> None:
        with self._lock:
            before, now_ms = self._now, unix_ms()
            self._now = {
                "channel": self._channel,
                "reason": f"{self._sentence}: {reason}",
                "remedy": remedy,
                "since_ms": now_ms if before is None else before["since_ms"],
            }
            changed = before is None or before["reason"] != self._now["reason"]
        if changed:
            logger.warning("%s: %s. %s", self._sentence, reason, remedy)

    def end(self) -> None:
        with self._lock:
            ended, self._now = self._now, None
        if ended is not None:
            logger.info("over: %s", ended["reason"])

    def now(self) -> dict[str, Any] | None:
        """``channel``, ``reason``, ``remedy``, ``since_ms``; None: the channel works."""
        with self._lock:
            return self._now
