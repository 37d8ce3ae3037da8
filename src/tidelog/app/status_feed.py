"""The status that a leading capture publishes, asked for again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tidelog.app.elections import LEASE_NAME
from tidelog.capture.session import STATUS_KEY
from tidelog.config import Config
from tidelog.state.opening import open_election, open_state

OnStatus = Callable[[dict[str, Any]], None]


def ignore(_status: dict[str, Any]) -> None:
    """Nobody wants to know."""


class StatusFeed:
    """Reads the state store alone, so that looking costs capture nothing. A context manager."""

    def __init__(self, config: Config) -> None:
        self._state = open_state(config.state.place)
        self._election = open_election(config.state.place, LEASE_NAME, "watch", 10)

    def __enter__(self) -> StatusFeed:
        return self

    def __exit__(self, *_error: object) -> None:
        self._election.close()
        self._state.close()

    def latest(self) -> dict[str, Any] | None:
        """The last status with its ``leader`` and ``age_ms``; None before the first."""
        document = self._state.get(STATUS_KEY)
        if document is None:
            return None
        age_ms = int(time.time() * 1000) - document.value["updated_ms"]
        return {"leader": self._election.leader(), **document.value, "age_ms": age_ms}
