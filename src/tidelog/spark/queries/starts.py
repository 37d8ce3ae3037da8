"""The queries of one process start one after the other.

A query starts Python workers, to which Spark gives 10 s each. If several outputs start at the same
time on a busy host, none of their workers is ready in time, and all of them try again together.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Any, Final

_LONGEST_S: Final = 60.0
"""How long a query that does not get on may keep others from starting."""
_POLL_S: Final = 0.1
_STARTING: Final = ("Initializing", "Getting offsets")
"""What Spark's status of a query begins with before it plans its first batch."""

_turn = threading.Lock()


class StartTurn:
    """The turn of one query, within a ``with``. Used by one thread; it lasts a minute at most."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._until = 0.0
        self._is_held = False

    def __enter__(self) -> StartTurn:
        """Wait until no other query starts, or ``stop`` is set."""
        deadline = time.monotonic() + _LONGEST_S
        while not self._stop.is_set() and time.monotonic() < deadline:
            if _turn.acquire(timeout=_POLL_S):
                self._is_held, self._until = True, time.monotonic() + _LONGEST_S
                break
        return self

    def __exit__(self, *_error: object) -> None:
        self._release()

    def release_if_started(self, query: Any) -> None:
        """Let the next one start if ``query`` has planned a batch, waits for data or has ended."""
        if self._is_held and (time.monotonic() > self._until or not _is_starting(query)):
            self._release()

    def _release(self) -> None:
        if self._is_held:
            self._is_held = False
            _turn.release()


def _is_starting(query: Any) -> bool:
    return bool(query.isActive) and query.status["message"].startswith(_STARTING)


def spread(seconds: float) -> float:
    """A pause of about so long, so that outputs that failed together don't try again together."""
    return seconds * random.uniform(0.75, 1.25)  # noqa: S311 - nothing is secret
