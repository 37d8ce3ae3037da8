"""Binds the documents of the state store to one event log, and detects if either was set back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from tidelog.capture.capture_scope import RELATIONS_KEY, SCOPE_KEY
from tidelog.capture.catalogue_watch import SHAPES_KEY, VERSIONS_KEY
from tidelog.capture.dumps.automatic import DUMPED_KEY, JUDGED_KEY, UNLOGGED_KEY
from tidelog.capture.dumps.missing_rows import KEY_SETS, REFETCH_KEY
from tidelog.capture.dumps.store import DUMP_PREFIX
from tidelog.capture.unsupported_tables import REFUSED_KEY, UnsupportedTables
from tidelog.errors import PreflightError
from tidelog.ports import StateStore

GENERATION_KEY: Final = "log-generation"
logger = logging.getLogger(__name__)

STATUS_KEY: Final = "status"
CONSENT_KEY: Final = "log-gap-consent"
"""Set by a user who accepts a gap, for the next start only."""
GAP_KEY: Final = "log-gap"
"""Set while an accepted gap in the log waits for its dump."""
_OF_ONE_LOG: Final = (
    DUMP_PREFIX, REFETCH_KEY, KEY_SETS, SHAPES_KEY, VERSIONS_KEY, JUDGED_KEY, DUMPED_KEY, GAP_KEY,
    UNLOGGED_KEY, REFUSED_KEY, RELATIONS_KEY, SCOPE_KEY,
)  # fmt: skip


def check_lost(state: StateStore, place: str) -> bool:
    """Call it if there is no event log at ``place``. True: a new one may begin. Raises
    PreflightError if the state belongs to one, and no reset was requested.
    """
    known = state.get(GENERATION_KEY)
    if known is None or state.get(CONSENT_KEY) is not None:
        return True
    raise PreflightError(
        f"log.path: {place} holds no event log, but the state store knows one of generation "
        f"{known.value}. If it is on a file system of its own, mount that on this host, or "
        "correct log.path; the state is left as it is. If the log is lost: restore it from a "
        "backup (docs/how-to/restore.md), or begin a new one with `tidelog reset`, which dumps all "
        "tables again"
    )


class NotesRevision(Protocol):
    """The event log's writer, which notes in each segment how often the status was stored."""

    state_revision: int


class StatusStore:
    """Stores the leader's status and counts how often. Each segment notes the count that was
    durable before it, so a state store that was restored to an earlier state is noticed.
    """

    def __init__(self, state: StateStore, log: NotesRevision) -> None:
        stored = state.get(STATUS_KEY)
        self._log = log
        self._revision = 0 if stored is None else int(stored.value.get("revision", 0))

    def note_if_older(self, state: StateStore, begin: int) -> None:
        """Dump all tables again if the event log notes a status that the state store does not have:
        due dumps, left-out tables and keys to read again may be missing in the state, and the log
        was read past them. ``begin``: the log's next offset.
        """
        if self._log.state_revision <= self._revision:
            return
        logger.warning(
            "all tables are dumped again, because the state store is older than the event log: it "
            "was restored to an earlier state, or lost what was written last"
        )
        state.put(GAP_KEY, begin, None)

    def put(self, state: StateStore, status: dict[str, Any]) -> None:
        revision = max(self._log.state_revision, self._revision) + 1
        state.put(STATUS_KEY, {**status, "revision": revision}, None)
        self._log.state_revision = self._revision = revision


def note_lost_end(state: StateStore, holds: Callable[[int], bool], begin: int) -> None:
    """Dump all tables again if the stored state relies on more than the event log ``holds``: the
    lost part may have changed what is known of schemas and dumps. Call it before anything is
    stored. ``begin``: the log's next offset.
    """
    dumps = [document.value for key in state.keys(DUMP_PREFIX) if (document := state.get(key))]
    status = state.get(STATUS_KEY)
    rests_on = [int(dump.get("rests_on", 0)) for dump in dumps]
    if status is not None:
        rests_on.append(int((status.value.get("capture") or {}).get("next_offset", 0)))
    if dumps and not all(map(holds, rests_on)):
        logger.warning(
            "all tables are dumped again, because the event log does not hold all that the state "
            "store knows as done: it was restored to an earlier state, or lost its end"
        )
        state.put(GAP_KEY, begin, None)


def bind(state: StateStore, generation: str, unsupported: UnsupportedTables) -> None:
    """Delete state of another event log: its progress would hide rows that were never dumped."""
    stored = state.get(GENERATION_KEY)
    if stored is not None and stored.value == generation:
        return
    if stored is not None:
        for prefix in _OF_ONE_LOG:
            for key in state.keys(prefix):
                state.delete(key)
        unsupported.clear()
    state.put(GENERATION_KEY, generation, None)
