"""Is who fell silent still there? Asked over another connection.

A path that loses packets tells neither end: who waits for an answer waits on. A lease that is
renewed by another path keeps everybody else out meanwhile.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

ASK_AFTER_S: Final = 4.0
"""So long somebody may be silent before they are asked."""
ANSWER_S: Final = 6.0
"""So long an answer may take. Both together are no longer than a lease."""
ASK_AGAIN_S: Final = 10.0
"""Who answered may have been busy, and fall silent for good."""


class PeerCheck:
    """Asks, in threads of its own, who has been silent. Used by one thread."""

    def __init__(self, ask: Callable[[], bool]) -> None:
        """``ask``: do they answer? May take for ever."""
        self._ask = ask
        self._question: _Question | None = None

    def is_lost(self, silent_s: float) -> bool:
        """Were they silent for ``silent_s``, asked, and gave no answer? Never waits."""
        if silent_s < ASK_AFTER_S:
            self._question = None
            return False
        asked, now = self._question, time.monotonic()
        if asked is not None and asked.begun < now - silent_s:
            asked = None  # of a silence before, which ended since
        if asked is None or (asked.answered and now - asked.begun >= ASK_AGAIN_S):
            self._question = _Question(self._ask)
            return False
        if asked.answered is None:
            return now - asked.begun >= ANSWER_S
        return not asked.answered


class _Question:
    def __init__(self, ask: Callable[[], bool]) -> None:
        self.answered: bool | None = None
        self.begun = time.monotonic()
        self._ask = ask
        threading.Thread(target=self._run, name="tidelog-reach", daemon=True).start()

    def _run(self) -> None:
        self.answered = self._ask()


def peer_of(connection: int, hello: bytes = b"") -> PeerCheck:
    """Of the server at the other end of a connection.

    Args:
        connection: its file descriptor.
        hello: what a server answers, whoever says it; empty where it speaks first.
    """
    try:
        with socket.socket(fileno=os.dup(connection)) as held:
            family, address = held.family, held.getpeername()
    except OSError:  # it is closed already, as whoever reads from it will find
        return PeerCheck(lambda: False)

    def ask() -> bool:
        # Not who refuses: a host that has just started has forgotten our connection, too.
        try:
            with socket.socket(family) as asking:
                asking.settimeout(ANSWER_S)
                asking.connect(address)
                asking.sendall(hello)
                return bool(asking.recv(1))
        except OSError:
            return False

    return PeerCheck(ask)
