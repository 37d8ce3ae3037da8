"""Which state store the captures of an event log have: ``led-by.json``.

Captures stand by for each other through their state store. Two that have different ones, by a
mistake in a configuration, would both lead: the fences keep the log right, but each would shut the
other out for ever, and neither knows of the other's dumps.

A store that has never led this log may have replaced one that was lost, so it takes over, and says
so. One that has led it before finds that another did since: its capture ends. So of two, one stays.
"""

from __future__ import annotations

import logging
import secrets
import time
from typing import Any, Final

from tidelog.errors import PreflightError, StateConflictError
from tidelog.eventlog.log_files import sealed, unsealed
from tidelog.eventlog.storage.port import Storage
from tidelog.ports import StateStore

logger = logging.getLogger(__name__)

LED_BY_FILE: Final = "led-by.json"
STORE_KEY: Final = "event-log-led"
"""The document of the state store: its ``id``, and the ``generation`` that it led. A copy of the
store has another id: the one that it was made of is not to be used any more."""


def claim(storage: Storage, generation: str, state: StateStore, about: str) -> None:
    """This state store's capture leads the log of this generation from now on.

    Args:
        storage: the event log's.
        generation: the event log's.
        state: the store.
        about: which store and host this is, for people; no secrets.

    Raises PreflightError: another store's capture has led the log since ours did.
    """
    own = _own(state)
    try:
        found = unsealed(storage.read(LED_BY_FILE))
    except (FileNotFoundError, ValueError):  # a new log, or one of an earlier version
        found = {}
    if found.get("store") == own["id"]:
        _note(state, own, generation)
        return
    if found and own.get("generation") == generation:
        raise PreflightError(
            f"this event log is led through another state store since "
            f"{_when(found)}: {found.get('about', 'unknown')}; ours is {about}. Captures of one "
            "event log need one state.url. Correct it here, or stop those captures, delete "
            f"{LED_BY_FILE} of the event log and start this one again"
        )
    if found:
        logger.warning(
            "the event log was led through another state store, %s, until now; from here on "
            "captures that have that one end. Ours is %s",
            found.get("about", "unknown"),
            about,
        )
    document = {"store": own["id"], "about": about, "since_ms": time.time_ns() // 1_000_000}
    storage.replace(LED_BY_FILE, sealed(document))
    _note(state, own, generation)


def _own(state: StateStore) -> dict[str, Any]:
    while True:
        found = state.get(STORE_KEY)
        if found is not None:
            return dict(found.value)
        try:
            state.put(STORE_KEY, {"id": secrets.token_hex(8)}, 0)
        except StateConflictError:
            continue


def _note(state: StateStore, own: dict[str, Any], generation: str) -> None:
    """After the file: whoever has the note has led."""
    if own.get("generation") != generation:
        state.put(STORE_KEY, {**own, "generation": generation}, None)


def _when(found: dict[str, Any]) -> str:
    seconds = int(found.get("since_ms", 0)) / 1000
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
