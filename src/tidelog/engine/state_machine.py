"""The states of an engine, and the only code that changes them."""

from __future__ import annotations

import threading
from enum import Enum
from typing import Final

from tidelog.errors import EngineStateError


class EngineState(Enum):
    """The states of an engine's life, in this order."""

    CREATING = "creating"
    INITIALIZING = "initializing"
    CREATING_TASKS = "creating tasks"
    STARTING_TASKS = "starting tasks"
    POLLING_TASKS = "polling tasks"
    STOPPING = "stopping"
    STOPPED = "stopped"


NEXT: Final = {
    EngineState.CREATING: {EngineState.INITIALIZING, EngineState.STOPPING},
    EngineState.INITIALIZING: {EngineState.CREATING_TASKS, EngineState.STOPPING},
    EngineState.CREATING_TASKS: {EngineState.STARTING_TASKS, EngineState.STOPPING},
    EngineState.STARTING_TASKS: {EngineState.POLLING_TASKS, EngineState.STOPPING},
    EngineState.POLLING_TASKS: {EngineState.STOPPING},
    EngineState.STOPPING: {EngineState.STOPPED},
    EngineState.STOPPED: set[EngineState](),
}


class StateCell:
    """The state of one engine. Thread-safe: each change is one atomic step along `NEXT`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = EngineState.CREATING

    @property
    def now(self) -> EngineState:
        return self._state

    def advance(self, expected: EngineState, to: EngineState) -> bool:
        """Change the state from ``expected`` to ``to``. False, without a change, if the state is
        another one by now.

        Raises:
            EngineStateError: if the step is not in `NEXT`.
        """
        if to not in NEXT[expected]:
            raise EngineStateError(f"an engine does not go from {expected.value} to {to.value}")
        with self._lock:
            if self._state is not expected:
                return False
            self._state = to
            return True

    def stop(self) -> EngineState:
        """Change to STOPPING, unless it is there or beyond; returns the state before."""
        with self._lock:
            before = self._state
            if EngineState.STOPPING in NEXT[before]:
                self._state = EngineState.STOPPING
            return before
