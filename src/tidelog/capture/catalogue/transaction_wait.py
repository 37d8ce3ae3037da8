"""Dumps that wait until all transactions have ended that ran when a table's change was seen.

One that never ends (forgotten in a session, prepared, or a commit whose synchronous standby is
away) holds them up for as long: so it is told which, and for which tables.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from tidelog.errors import TidelogError
from tidelog.model.records import Snapshot

logger = logging.getLogger(__name__)

TOLD_AFTER_S = 30.0
"""A wait that lasts longer is told, once for each change of a table."""


@dataclass(slots=True)
class _Wait:
    found: str  # what the table was like
    snapshot: Snapshot
    began: float
    since_ms: int
    told: bool = False


class TransactionWait:
    """Used by one thread, but for `summary`.

    Args:
        snapshot: takes one of now.
        who_is_open: a sentence about the oldest open transactions, without values; empty: not
            known.
    """

    def __init__(self, snapshot: Callable[[], Snapshot], who_is_open: Callable[[], str]) -> None:
        self._snapshot = snapshot
        self._who_is_open = who_is_open
        self._waits: dict[str, _Wait] = {}

    def have_ended(self, table: str, found: str) -> bool:
        """Have all ended that ran when the table was first seen as it is now? Asked again later."""
        wait = self._waits.get(table)
        if wait is None or wait.found != found:
            now_ms = int(time.time() * 1000)
            self._waits[table] = _Wait(found, self._snapshot(), time.monotonic(), now_ms)
            return False
        if self._snapshot().follows(wait.snapshot):
            return True
        if not wait.told and time.monotonic() - wait.began > TOLD_AFTER_S:
            wait.told = True
            logger.warning("%s: %s", table, self._reason())
        return False

    def waits(self, table: str) -> bool:
        return table in self._waits

    def forget(self, table: str) -> None:
        """Its dump was asked for, or is not needed."""
        self._waits.pop(table, None)

    def keep(self, tables: Collection[str]) -> None:
        """All others are gone."""
        for table in self._waits.keys() - tables:
            del self._waits[table]

    def summary(self) -> list[dict[str, Any]]:
        """For status: the tables whose wait was told. From any thread."""
        return [
            {"table": table, "since_ms": wait.since_ms}
            for table, wait in sorted(self._waits.copy().items())
            if wait.told
        ]

    def _reason(self) -> str:
        reason = "its dump waits until all transactions have ended that ran before"
        try:
            open_now = self._who_is_open()
        except TidelogError:
            open_now = ""
        return f"{reason}. {open_now}" if open_now else reason
