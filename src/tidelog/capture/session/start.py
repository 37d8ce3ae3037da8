"""What a leadership begins with: the state checked against the event log, and dumps requested."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tidelog.capture.capture_scope import RELATIONS_KEY, SCOPE_KEY
from tidelog.capture.catalogue_watch import SHAPES_KEY, VERSIONS_KEY
from tidelog.capture.dumps.automatic import DUMPED_KEY, JUDGED_KEY, UNLOGGED_KEY, tables_failed
from tidelog.capture.dumps.coordinator import DumpCoordinator, tables_in_order
from tidelog.capture.dumps.refetch_queue import KEY_SETS, REFETCH_KEY
from tidelog.capture.dumps.store import DUMP_PREFIX
from tidelog.capture.unsupported_tables import REFUSED_KEY, UnsupportedTables
from tidelog.errors import IncompleteDumpError, PreflightError
from tidelog.model.dump_options import DumpMode
from tidelog.ports import Catalogue, StateStore
from tidelog.system.processes import unix_ms

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
        "backup (docs/how-to/restore.md), or begin a new one with `tidelog reset CONFIG`, which "
        "dumps all tables again"
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


INITIAL_DUMP = "initial"
START_DUMP = "start-"
GAP_DUMP = "gap-"


@dataclass(frozen=True, slots=True)
class StartPlan:
    """What is dumped at start.

    Attributes:
        dump: returns the id of a dump of all tables to request, or None; its arguments: whether one
            was ever requested at a start, and whether one is unfinished. The id is `INITIAL_DUMP`,
            or begins with `START_DUMP`; the same id again is the same dump.
        then_end: whether capture ends when all dumps are done.
        mode: mode of the dump.
    """

    dump: Callable[[bool, bool], str | None] = lambda begun, unfinished: INITIAL_DUMP
    then_end: bool = False
    mode: DumpMode = "incremental"


class StartDumps:
    """Requests these dumps, and checks whether they are done.

    Args:
        at_start: the plan.
        coordinator: coordinator of the dumps.
        catalogue: the source's.
        state: store in which a gap is noted.
        patterns: patterns of the captured tables.
        epoch: epoch of this leadership.
    """

    def __init__(
        self,
        at_start: StartPlan,
        coordinator: DumpCoordinator,
        catalogue: Catalogue,
        state: StateStore,
        patterns: Sequence[str],
        epoch: int,
    ) -> None:
        self._at_start = at_start
        self._coordinator = coordinator
        self._catalogue = catalogue
        self._state = state
        self._patterns = patterns
        self._epoch = epoch

    def request(self) -> None:
        """Request a dump of every captured table, as planned, and one after a gap."""
        at_start, now_ms = self._at_start, unix_ms()
        wanted = []
        gap = self._state.get(GAP_KEY)
        starts = [dump for dump in self._coordinator.dumps() if _is_start_dump(dump.dump_id)]
        begun = any(dump.dump_id == INITIAL_DUMP for dump in starts)
        start_id = at_start.dump(begun, not all(dump.finished for dump in starts))
        if gap is not None and (begun or start_id != INITIAL_DUMP):
            wanted.append((f"{GAP_DUMP}{gap.value}", "the source no longer had all of the log"))
        if start_id == INITIAL_DUMP:
            wanted.insert(0, (INITIAL_DUMP, "initial"))
        elif start_id is not None:
            self._cancel_earlier(start_id)
            ours = [dump for dump in starts if dump.dump_id.startswith(start_id)]
            if ours and (ours[-1].status != "aborted" or ours[-1] is starts[-1]):
                start_id = ours[-1].dump_id  # it is resumed, is done, or was cancelled by a user
            elif ours:
                start_id += f"-{self._epoch}"  # another capture led in between, and cancelled it
            wanted.append((start_id, "every start dumps"))
        tables = self._catalogue.tables(self._patterns)
        known = {dump.dump_id for dump in self._coordinator.dumps()}
        if any(dump_id not in known for dump_id, _ in wanted):
            tables = tables_in_order(tables, self._catalogue.estimated_rows)
        for dump_id, reason in wanted if tables else ():
            self._coordinator.request(
                dump_id, tables, mode=at_start.mode, reason=reason, now_ms=now_ms
            )
        if gap is not None and tables:
            self._state.delete(GAP_KEY)

    def _cancel_earlier(self, start_id: str) -> None:
        """Cancel dumps of earlier starts: the new dump includes their tables."""
        for dump in self._coordinator.dumps():
            if _is_start_dump(dump.dump_id) and not dump.dump_id.startswith(start_id):
                self._coordinator.cancel(dump.dump_id)

    def all_done(self) -> bool:
        """Is all done, if capture was to end after its dumps?

        Raises:
            IncompleteDumpError: if all dumps have ended and tables are missing.
        """
        if not self._at_start.then_end:
            return False
        dumps = self._coordinator.dumps()
        if not all(dump.finished for dump in dumps):
            return False
        self._coordinator.flush()  # otherwise they would be resumed after a restart
        starts = [dump for dump in dumps if _is_start_dump(dump.dump_id)][-1:]
        gaps = [dump for dump in dumps if dump.dump_id.startswith(GAP_DUMP)]
        counted = [*starts, *(gap for gap in gaps if not starts or gap.number > starts[0].number)]
        tables = ", ".join(tables_failed(counted))
        if tables:
            initial, dump = f"the initial dump lacks {tables}", counted[-1].dump_id
            raise IncompleteDumpError(
                initial if dump == INITIAL_DUMP else f"dump {dump} lacks {tables}"
            )
        return True


def _is_start_dump(dump_id: str) -> bool:
    return dump_id == INITIAL_DUMP or dump_id.startswith(START_DUMP)
