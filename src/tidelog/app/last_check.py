"""Keeps the last result of `check` for the web page, without passwords."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, Final

from tidelog.app.redaction import redacted
from tidelog.config import Config
from tidelog.errors import TidelogError
from tidelog.ports import StateStore
from tidelog.state.opening import open_state, state_exists

KEY: Final = "checked"
FINDINGS: Final = 200
"""The number of findings to keep, the worst first; there may be one for each table."""
TEXT: Final = 1000
PATIENCE_S: Final = 5.0
_WORST_FIRST: Final = ("error", "warning", "ok")


def summary(findings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return ``at_ms``, the number of findings of each level, and the worst of them, `redacted`."""
    ranked = sorted(findings, key=lambda each: _WORST_FIRST.index(each["level"]))
    return {
        "at_ms": time.time_ns() // 1_000_000,
        "counts": {
            level: sum(each["level"] == level for each in findings) for level in _WORST_FIRST
        },
        "findings": [
            {
                name: redacted(str(each[name]))[:TEXT]
                for name in ("check", "level", "message", "fix")
            }
            for each in ranked[:FINDINGS]
        ],
    }


def store_result(config: Config, result: Mapping[str, Any]) -> None:
    """Store a `summary`, if there is a state store; check creates none. Raises StateError."""
    if not state_exists(config.state.place):
        return
    with closing(open_state(config.state.place)) as state:
        state.put(KEY, dict(result), None)


def store_check_result(config: Config, findings: Sequence[Mapping[str, Any]]) -> None:
    """As `store_result`, but ignores a state store that fails, hangs, or can't be written to."""

    def keep() -> None:
        with suppress(TidelogError, OSError):
            store_result(config, summary(findings))

    thread = threading.Thread(target=keep, name="tidelog-note-check", daemon=True)
    thread.start()
    thread.join(PATIENCE_S)


def stored_result(state: StateStore) -> dict[str, Any] | None:
    """Return the summary that was stored last."""
    stored = state.get(KEY)
    return None if stored is None else stored.value
