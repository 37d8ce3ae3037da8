"""Who did what on the page, and what became of it: the last actions, kept in the state store."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

from tidelog.errors import StateConflictError
from tidelog.ports import StateStore

AUDIT_KEY: Final = "web-audit"
KEPT: Final = 200
_ATTEMPTS: Final = 20


class Result(StrEnum):
    """What became of an action. An entry without one: the process ended, or could not note it."""

    DONE = "done"
    GIVEN = "given"
    """No capture has acted on it within the time that the page waits."""
    REFUSED = "refused"


def note(state: StateStore, **entry: str) -> str:
    """Add an entry, and return its id; the oldest go. Several processes may do so at once."""
    entry_id = secrets.token_hex(8)
    row: dict[str, Any] = {"id": entry_id, "at_ms": time.time_ns() // 1_000_000, **entry}
    _change(state, lambda rows: [*rows, row][-KEPT:])
    return entry_id


def finish(state: StateStore, entry_id: str, result: Result) -> None:
    """Note what became of it, unless the entry has gone meanwhile."""
    _change(
        state,
        lambda rows: [
            {**row, "result": result} if row.get("id") == entry_id else row for row in rows
        ],
    )


def entries(state: StateStore) -> list[dict[str, Any]]:
    """The newest first."""
    stored = state.get(AUDIT_KEY)
    return [] if stored is None else list(reversed(stored.value))


def _change(
    state: StateStore, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
) -> None:
    for attempt in range(_ATTEMPTS):
        stored = state.get(AUDIT_KEY)
        rows = change([] if stored is None else stored.value)
        try:
            state.put(AUDIT_KEY, rows, 0 if stored is None else stored.version)
        except StateConflictError:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return
