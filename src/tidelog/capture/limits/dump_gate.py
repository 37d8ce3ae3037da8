"""Why dumps are held: capture itself makes them wait, and lets them go on."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class DumpBlocks(StrEnum):
    """What holds dumps."""

    LOG_PAUSED = "log_paused"
    """The log is paused, so nobody would read the watermarks."""
    LOG_IN_DANGER = "log_in_danger"
    """Keys that the log has only in part are read again all the same: there are few of them, and
    without them outputs lack columns."""


@dataclass(frozen=True, slots=True)
class DumpBlock:
    """One reason. ``reason``: a sentence without cell values."""

    why: DumpBlocks
    reason: str
    since_ms: int


class DumpGate:
    """Open unless somebody holds it. Thread-safe. Of one leadership: who holds it in the next one
    says so again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holds: dict[DumpBlocks, DumpBlock] = {}

    def hold(self, why: DumpBlocks, reason: str) -> None:
        """No chunk of a dump is begun; those being read end. Said again it may have another
        ``reason``.
        """
        with self._lock:
            before = self._holds.get(why)
            since_ms = int(time.time() * 1000) if before is None else before.since_ms
            self._holds[why] = DumpBlock(why, reason, since_ms)

    def release(self, why: DumpBlocks) -> None:
        with self._lock:
            self._holds.pop(why, None)

    @property
    def dumps_wait(self) -> bool:
        return bool(self._holds)

    @property
    def all_waits(self) -> bool:
        """Do keys to read again wait too?"""
        return DumpBlocks.LOG_PAUSED in self._holds

    def summary(self) -> list[dict[str, Any]]:
        """For status."""
        with self._lock:
            return [asdict(hold) for hold in self._holds.values()]
