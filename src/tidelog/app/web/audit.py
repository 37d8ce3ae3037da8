"""Who did what on the page: the last actions, kept in the state store."""

from __future__ import annotations

import time
from typing import Any, Final

from tidelog.errors import StateConflictError
from tidelog.ports import StateStore

AUDIT_KEY: Final = "web-audit"
KEPT: Final = 200
_ATTEMPTS: Final = 20


def note(state: StateStore, **entry: str) -> None:
    """Add an entry; the oldest go. Several processes may do so at once."""
    row: dict[str, Any] = {"at_ms": time.time_ns() // 1_000_000, **entry}
    for attempt in range(_ATTEMPTS):
        stored = state.get(AUDIT_KEY)
        rows = [] if stored is None else stored.value
        try:
            state.put(AUDIT_KEY, [*rows, row][-KEPT:], 0 if stored is None else stored.version)
        except StateConflictError:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return


def entries(state: StateStore) -> list[dict[str, Any]]:
    """The newest first."""
    stored = state.get(AUDIT_KEY)
    return [] if stored is None else list(reversed(stored.value))
