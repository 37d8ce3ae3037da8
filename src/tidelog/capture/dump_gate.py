"""The gate of a capture's dumps, and what closes it."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from tidelog.system.processes import unix_ms


class DumpBlockCause(StrEnum):
    """A cause that blocks dumps."""

    LOG_PAUSED = "log_paused"
    """The log is paused, so nobody would read the watermarks."""
    LOG_IN_DANGER = "log_in_danger"
    """Missing rows are read again all the same: there are few of them, and without them outputs
    lack columns."""


@dataclass(frozen=True, slots=True)
class DumpBlock:
    """One cause. ``reason``: a sentence without cell values."""

    why: DumpBlockCause
    reason: str
    since_ms: int


class DumpGate:
    """Open unless something blocks it. Thread-safe. It lasts for one leadership: in the next one a
    cause blocks it again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: dict[DumpBlockCause, DumpBlock] = {}

    def block(self, why: DumpBlockCause, reason: str) -> None:
        """Start no chunk of a dump; current reads end. A later call may change ``reason``."""
        with self._lock:
            before = self._blocks.get(why)
            since_ms = unix_ms() if before is None else before.since_ms
            self._blocks[why] = DumpBlock(why, reason, since_ms)

    def release(self, why: DumpBlockCause) -> None:
        with self._lock:
            self._blocks.pop(why, None)

    @property
    def blocks_dumps(self) -> bool:
        return bool(self._blocks)

    @property
    def blocks_all(self) -> bool:
        """Must reading missing rows wait too?"""
        return DumpBlockCause.LOG_PAUSED in self._blocks

    def summary(self) -> list[dict[str, Any]]:
        """For status."""
        with self._lock:
            return [asdict(block) for block in self._blocks.values()]
