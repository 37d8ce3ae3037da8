"""Keeps the last result of `check` for the web page, without passwords.

Each configuration has its own: a check of a mistyped one says nothing about the capture that the
page shows.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, Final

from tidelog.app.redaction import redacted
from tidelog.config import Config
from tidelog.config.loading import SECRET
from tidelog.errors import TidelogError
from tidelog.ports import StateStore
from tidelog.state.opening import open_state, state_exists

PREFIX: Final = "checked/"
CONFIGURATIONS: Final = 4
"""The number of configurations whose results are kept, the newest."""
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


def key_of(config: Config) -> str:
    """Return the key of the last result of this configuration.

    It depends on what `check` reads: source, log, state and outputs, without their secrets.
    """
    sections = config.model_dump(mode="json", include={"source", "log", "state", "outputs"})
    text = json.dumps(_without_secrets(sections), sort_keys=True, default=str)
    return PREFIX + hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {name: each for name, each in value.items() if name not in SECRET - {"url"}}
        return {name: _without_secrets(each) for name, each in kept.items()}
    if isinstance(value, list):
        return [_without_secrets(each) for each in value]
    return redacted(value) if isinstance(value, str) else value


def store_result(config: Config, result: Mapping[str, Any]) -> None:
    """Store a `summary`, if there is a state store; check creates none. Raises StateError."""
    if not state_exists(config.state.place):
        return
    with closing(open_state(config.state.place)) as state:
        state.put(key_of(config), dict(result), None)
        stored = {key: state.get(key) for key in state.keys(PREFIX)}
        ages = {key: each.value["at_ms"] for key, each in stored.items() if each is not None}
        for key in sorted(ages, key=lambda each: -ages[each])[CONFIGURATIONS:]:
            state.delete(key)


def store_check_result(config: Config, findings: Sequence[Mapping[str, Any]]) -> None:
    """As `store_result`, but ignores a state store that fails, hangs, or can't be written to.

    A check that could not connect is not stored: the password may be mistyped, and capture itself
    reports that it can't connect.
    """
    if any(each["check"] == "connection" and each["level"] == "error" for each in findings):
        return

    def keep() -> None:
        with suppress(TidelogError, OSError):
            store_result(config, summary(findings))

    thread = threading.Thread(target=keep, name="tidelog-note-check", daemon=True)
    thread.start()
    thread.join(PATIENCE_S)


def stored_result(state: StateStore, config: Config) -> dict[str, Any] | None:
    """Return the summary that was stored last for this configuration."""
    stored = state.get(key_of(config))
    return None if stored is None else stored.value
