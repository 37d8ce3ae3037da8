"""The documents of the state that belong to one event log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from tidelog.capture.catalogue.capture_scope import SCOPE_KEY
from tidelog.capture.catalogue.catalogue_watch import SHAPES_KEY, VERSIONS_KEY
from tidelog.capture.catalogue.relation_names import RELATIONS_KEY
from tidelog.capture.catalogue.unsupported_tables import REFUSED_KEY, UnsupportedTables
from tidelog.capture.dumps.automatic import DUMPED_KEY, JUDGED_KEY, UNLOGGED_KEY
from tidelog.capture.dumps.coordinator import DUMP_PREFIX, REFETCH_KEY
from tidelog.capture.dumps.key_sets import KEY_SETS
from tidelog.errors import PreflightError
from tidelog.ports import StateStore

GENERATION_KEY: Final = "log-generation"
logger = logging.getLogger(__name__)

STATUS_KEY: Final = "status"
CONSENT_KEY: Final = "log-gap-consent"
"""Set by a person who consents to a gap, once, for the next start."""
GAP_KEY: Final = "log-gap"
"""Set while a gap in the log, that the user consented to, waits for its dump."""
_OF_ONE_LOG: Final = (
    DUMP_PREFIX, REFETCH_KEY, KEY_SETS, SHAPES_KEY, VERSIONS_KEY, JUDGED_KEY, DUMPED_KEY, GAP_KEY,
    UNLOGGED_KEY, REFUSED_KEY, RELATIONS_KEY, SCOPE_KEY,
)  # fmt: skip


def check_lost(state: StateStore, place: str) -> bool:
    """Where there is no event log at ``place``: True, one may begin. Raises PreflightError if the
    state knows one, and no reset says that another is to begin.
    """
    known = state.get(GENERATION_KEY)
    if known is None or state.get(CONSENT_KEY) is not None:
        return True
    raise PreflightError(
        f"log.path: {place} holds no event log, but the state store knows one of generation "
        f"{known.value}. If it lies on a file system of its own, mount that on this host, or "
        "correct log.path; the state is left as it is. If the log is lost: put it back from a "
        "backup (docs/how-to/restore.md), or begin a new one with `tidelog reset`, which dumps all "
        "tables again"
    )


class NotesRevision(Protocol):
    """The event log's writer: notes in each segment how often the status was stored by then."""

    state_revision: int


class StatusStore:
    """Stores the leader's status, and counts how often. Each segment notes the count that was
    durable before it, so a state store that was put back to an earlier state is noticed.
    """

    def __init__(self, state: StateStore, log: NotesRevision) -> None:
        stored = state.get(STATUS_KEY)
        self._log = log
        self._revision = 0 if stored is None else int(stored.value.get("revision", 0))

    def note_if_older(self, state: StateStore, begin: int) -> None:
        """Where the event log notes a status that the state store does not have, all tables are
        dumped again: dumps that were due, tables that were left out and keys to be read again may
        be missing in the state, and the log was read past them. ``begin``: the log's next offset.
        """
        if self._log.state_revision <= self._revision:
            return
        logger.warning(
            "all tables are dumped again, because the state store is older than the event log: it "
            "was put back to an earlier state, or lost what was written last"
        )
        state.put(GAP_KEY, begin, None)

    def put(self, state: StateStore, status: dict[str, Any]) -> None:
        revision = max(self._log.state_revision, self._revision) + 1
        state.put(STATUS_KEY, {**status, "revision": revision}, None)
        self._log.state_revision = self._revision = revision


def note_lost_end(state: StateStore, holds: Callable[[int], bool], begin: int) -> None:
    """Where the state, as it was stored, rests on more than the event log ``holds``, all tables are
    dumped again: what is known of their schemas and dumps may stand in what is lost. Before
    anything is stored anew. ``begin``: the log's next offset.
    """
    dumps = [found.value for key in state.keys(DUMP_PREFIX) if (found := state.get(key))]
    status = state.get(STATUS_KEY)
    rests_on = [int(dump.get("rests_on", 0)) for dump in dumps]
    if status is not None:
        rests_on.append(int((status.value.get("capture") or {}).get("next_offset", 0)))
    if dumps and not all(map(holds, rests_on)):
        logger.warning(
            "all tables are dumped again, because the event log does not hold all that the state "
            "store knows as done: it was put back to an earlier state, or lost its end"
        )
        state.put(GAP_KEY, begin, None)


def bind(state: StateStore, generation: str, refused: UnsupportedTables) -> None:
    """Progress belongs to one event log: with another one it would hide rows never dumped."""
    stored = state.get(GENERATION_KEY)
    if stored is not None and stored.value == generation:
        return
    if stored is not None:
        for prefix in _OF_ONE_LOG:
            for key in state.keys(prefix):
                state.delete(key)
        refused.clear()
    state.put(GENERATION_KEY, generation, None)
