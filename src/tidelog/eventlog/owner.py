"""The state store that owns an event log: ``led-by.json``.

Captures coordinate through their state store. Two that are configured with different ones by
mistake would both lead: fences protect the log, but each would shut the other out again and again,
and neither would know of the other's dumps.

A store that never led this log may have replaced a lost one, so its capture takes over, and logs
that. A store that led it before finds that another one did since: its capture ends. So one of two
remains.
"""

from __future__ import annotations

import logging
import secrets
import time
from typing import Any, Final

from tidelog.errors import PreflightError, StateConflictError
from tidelog.eventlog.log_files import from_checksummed_json, to_checksummed_json
from tidelog.eventlog.storage.port import Storage
from tidelog.ports import StateStore

logger = logging.getLogger(__name__)

LED_BY_FILE: Final = "led-by.json"
STORE_KEY: Final = "event-log-led"
"""The document in the state store: its ``id``, and the ``generation`` that it led. A copy of the
store gets another id: the original must not be used any more."""


def claim(storage: Storage, generation: str, state: StateStore, about: str) -> None:
    """Register this state store as the owner of the log of this generation.

    Args:
        storage: the event log's storage.
        generation: the event log's generation.
        state: the store.
        about: names of store and host, for people; no secrets.

    Raises PreflightError: if another store's capture has led the log since this one's did.
    """
    own = _own(state)
    try:
        owner = from_checksummed_json(storage.read(LED_BY_FILE), f"{storage!r} {LED_BY_FILE}")
    except (FileNotFoundError, ValueError):  # a new log
        owner = {}
    if owner.get("store") == own["id"]:
        _note(state, own, generation)
        return
    if owner and own.get("generation") == generation:
        raise PreflightError(
            f"this event log is led through another state store since "
            f"{_when(owner)}: {owner.get('about', 'unknown')}; ours is {about}. Captures of one "
            "event log need one state.url. Correct it here, or stop those captures, delete "
            f"{LED_BY_FILE} of the event log and start this one again"
        )
    if owner:
        logger.warning(
            "the event log was led through another state store, %s, until now; from here on "
            "captures that use that one stop. Ours is %s",
            owner.get("about", "unknown"),
            about,
        )
    document = {"store": own["id"], "about": about, "since_ms": time.time_ns() // 1_000_000}
    storage.replace(LED_BY_FILE, to_checksummed_json(document))
    _note(state, own, generation)


def _own(state: StateStore) -> dict[str, Any]:
    while True:
        document = state.get(STORE_KEY)
        if document is not None:
            return dict(document.value)
        try:
            state.put(STORE_KEY, {"id": secrets.token_hex(8)}, 0)
        except StateConflictError:
            continue


def _note(state: StateStore, own: dict[str, Any], generation: str) -> None:
    """Note the generation, after the file was written: a store with the note has led the log."""
    if own.get("generation") != generation:
        state.put(STORE_KEY, {**own, "generation": generation}, None)


def _when(found: dict[str, Any]) -> str:
    seconds = int(found.get("since_ms", 0)) / 1000
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
