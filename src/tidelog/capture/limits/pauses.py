"""What people have paused: the reading of the source's log, and pipelines.

Kept in the state store until somebody resumes it: it outlives restarts and changes of leader.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

from tidelog.capture.limits.dump_gate import DumpBlocks, DumpGate
from tidelog.ports import StateStore

logger = logging.getLogger(__name__)

LOG_KEY = "paused-log"
PIPELINE_KEYS = "paused-pipeline/"
OBEY_S = 2.0
"""How long a command that pauses the log waits until the engine reads no more. It may have to wait
for room in its buffer, or for a blocking dump.
"""


@dataclass(frozen=True, slots=True)
class Pause:
    """``by``: who asked for it, as the command says; empty: not known."""

    by: str
    since_ms: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def sentence(self) -> str:
        return f"paused by {self.by}" if self.by else "paused"


def pause_of(state: StateStore, key: str) -> Pause | None:
    """None: it is not paused."""
    document = state.get(key)
    return None if document is None else Pause(document.value["by"], document.value["since_ms"])


def pause(state: StateStore, key: str, by: str) -> Pause:
    """Pause what ``key`` stands for; who did so first is remembered."""
    found = pause_of(state, key)
    if found is None:
        found = Pause(by, int(time.time() * 1000))
        state.put(key, found.to_json(), None)
    return found


def resume(state: StateStore, key: str) -> bool:
    """Resume it; False: it was not paused."""
    found = state.get(key) is not None
    if found:
        state.delete(key)
    return found


class LogSwitch:
    """Is the source's log read? Commands turn it, the engine and the dumps go by it. Thread-safe.

    Args:
        state: where it is kept.
        gate: of the dumps, which wait while the log is paused.
    """

    def __init__(self, state: StateStore, gate: DumpGate) -> None:
        self._state = state
        self._gate = gate
        self._pause: Pause | None = None
        self._obeyed = threading.Event()
        self._note(pause_of(state, LOG_KEY))

    @property
    def pause(self) -> Pause | None:
        """None: the log is read."""
        return self._pause

    def is_off(self) -> bool:
        """Asked by the engine each time before it reads."""
        if self._pause is None:
            return False
        self._obeyed.set()
        return True

    def turn_off(self, by: str) -> Pause:
        """Read no more of it, until `turn_on`. Durable when this returns, and what is committed
        from now on is not read; unless the engine is kept from asking for `OBEY_S`.
        """
        found = pause(self._state, LOG_KEY, by)
        self._obeyed.clear()
        self._note(found)
        self._obeyed.wait(OBEY_S)
        return found

    def turn_on(self) -> bool:
        """Go on where it was left; False: it was not paused."""
        found = resume(self._state, LOG_KEY)
        self._note(None)
        return found

    def _note(self, found: Pause | None) -> None:
        self._pause = found
        if found is None:
            self._gate.release(DumpBlocks.LOG_PAUSED)
        else:
            logger.warning("the log is %s; the source keeps it meanwhile", found.sentence())
            self._gate.hold(DumpBlocks.LOG_PAUSED, f"The log is {found.sentence()}.")
