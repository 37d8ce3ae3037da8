"""The last result of `check`, kept for the web page without passwords."""

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
"""The worst of them, and of each text so many characters: one of each table there may be."""
TEXT: Final = 1000
PATIENCE_S: Final = 5.0
_WORST_FIRST: Final = ("error", "warning", "ok")


def summary(findings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``at_ms``, how many findings there are of each level, and the worst of them, `redacted`."""
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


def note(config: Config, found: Mapping[str, Any]) -> None:
    """Keep a `summary`, if there is a state store already: a check makes none.

    Raises StateError.
    """
    if not state_exists(config.state.place):
        return
    with closing(open_state(config.state.place)) as state:
        state.put(KEY, dict(found), None)


def note_check(config: Config, findings: Sequence[Mapping[str, Any]]) -> None:
    """As `note`, for a caller that only wants the findings. A store that is away, hangs, or may not
    be written to is no failure.
    """

    def keep() -> None:
        with suppress(TidelogError, OSError):
            note(config, summary(findings))

    thread = threading.Thread(target=keep, name="tidelog-note-check", daemon=True)
    thread.start()
    thread.join(PATIENCE_S)


def noted(state: StateStore) -> dict[str, Any] | None:
    """The summary that was kept last."""
    stored = state.get(KEY)
    return None if stored is None else stored.value
