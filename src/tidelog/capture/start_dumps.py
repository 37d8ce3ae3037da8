"""The dumps that capture requests when it starts: of all tables, and after a gap."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidelog.capture.dumps.automatic import tables_failed
from tidelog.capture.dumps.coordinator import DumpCoordinator, tables_in_order
from tidelog.capture.dumps.state import Mode
from tidelog.capture.generation import GAP_KEY
from tidelog.errors import IncompleteDumpError
from tidelog.ports import Catalogue, StateStore

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
    mode: Mode = "incremental"


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
        at_start, now_ms = self._at_start, int(time.time() * 1000)
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
