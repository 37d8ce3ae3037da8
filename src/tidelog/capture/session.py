"""One leadership's work: the engine's loop, the dumps' thread and the housekeeping beside them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tidelog.capture.catalogue_watch import SHAPES_KEY, VERSIONS_KEY, CatalogueWatch
from tidelog.capture.dumps.automatic import DUMPED_KEY, JUDGED_KEY, UNLOGGED_KEY, AutomaticDumps
from tidelog.capture.dumps.coordinator import DUMP_PREFIX, REFETCH_KEY, DumpCoordinator
from tidelog.capture.dumps.state import Mode
from tidelog.capture.dumps.store import KEY_SETS
from tidelog.capture.engine import CaptureEngine
from tidelog.capture.failed_dumps import lacking
from tidelog.capture.leadership import Leader
from tidelog.capture.refused_tables import REFUSED_KEY, RefusedTables
from tidelog.capture.relation_names import RELATIONS_KEY
from tidelog.capture.source_watch import SourceWatch
from tidelog.errors import GapError, IncompleteDumpError, SourceError, TidelogError
from tidelog.model.records import ChunkMeta
from tidelog.model.schema import TableName
from tidelog.ports import (
    Catalogue,
    CatalogueChanged,
    ChunkReader,
    LogReader,
    RelationNamed,
    RowsUnlogged,
    SchemaSeen,
    StateStore,
    TableRefused,
)

logger = logging.getLogger(__name__)

INITIAL_DUMP = "initial"
START_DUMP = "start-"
GAP_DUMP = "gap-"
STATUS_KEY = "status"
GENERATION_KEY = "log-generation"
GAP_KEY = "log-gap"
"""Set while a gap in the log, that the user consented to, waits for its dump."""
CONSENT_KEY = "log-gap-consent"
"""Set by a person who consents to a gap, once, for the next start."""
TURN_S, SLOW_TURN_S = 0.1, 1.0
JOIN_S = 10.0
STATUS_EVERY_S = 1.0
FINISHED_SHOWN = 20
LOOK_EVERY_S = 5.0
LOOK_SHARE = 0.01
"""Looking at the catalogue may take so much of the time; of many tables it is looked at less often,
down to every `LOOKS_LEFT_OUT` times `LOOK_EVERY_S`."""
LOOKS_LEFT_OUT = 24
HINT_LEAST_S = 1.0
HINT_SHARE = 0.05
"""Looks that somebody hints at come at once, but not sooner after another than `HINT_LEAST_S`, and
may take so much of the time: whoever may give hints must not load the source with looks."""
MAINTAIN_EVERY_S = 30.0
_OF_ONE_LOG = (
    DUMP_PREFIX, REFETCH_KEY, KEY_SETS, SHAPES_KEY, VERSIONS_KEY, JUDGED_KEY, DUMPED_KEY, GAP_KEY,
    UNLOGGED_KEY, REFUSED_KEY, RELATIONS_KEY,
)  # fmt: skip
TRANSIENT: tuple[type[TidelogError], ...] = (SourceError,)
"""What housekeeping tries again later, e.g. a lock that another session holds: the log goes on."""


@dataclass(slots=True)
class Housekeeping:
    """What is done beside the log.

    Attributes:
        commands: take signals in and act on commands that wait; on a thread of their own.
        maintain: roll up, retain, quarantine.
        on_status: told the status document now and then.
        look_every_s: see `tidelog.ports.StateBackend`.
    """

    commands: Callable[[], None]
    maintain: Callable[[], None]
    on_status: Callable[[dict[str, Any]], None]
    look_every_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AtStart:
    """What is dumped at start.

    Attributes:
        dump: the id of a dump of everything that is asked for, None: there is none; given whether
            one was ever asked for at a start, and whether one is not done. `INITIAL_DUMP`, or one
            that begins with `START_DUMP`; the same again is the same dump.
        then_end: capture ends when all dumps are done.
        mode: how it is read.
    """

    dump: Callable[[bool, bool], str | None] = lambda begun, unfinished: INITIAL_DUMP
    then_end: bool = False
    mode: Mode = "incremental"


class CaptureSession:
    """Runs engine, coordinator and housekeeping until one of them ends."""

    def __init__(
        self,
        *,
        engine: CaptureEngine,
        coordinator: DumpCoordinator,
        reader: LogReader,
        catalogue: Catalogue,
        snapshot_reader: ChunkReader,
        refused: RefusedTables,
        state: StateStore,
        housekeeping: Housekeeping,
        watch: Callable[[Callable[[TableName, str], bool]], CatalogueWatch],
        patterns: Sequence[str],
        chunks: Iterable[tuple[int, ChunkMeta]],
        at_start: AtStart,
        leader: Leader,
        generation: str,
        close_log: Callable[[], None],
    ) -> None:
        self.engine = engine
        self.coordinator = coordinator
        self._reader = reader
        self._catalogue = catalogue
        self._snapshot_reader = snapshot_reader
        self._refused = refused
        self._state = state
        self._housekeeping = housekeeping
        self._patterns = patterns
        self._chunks = chunks
        self._at_start = at_start
        self._complete = False
        self._leader = leader
        self._generation = generation
        self._close_log = close_log
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._automatic = AutomaticDumps(
            coordinator=coordinator,
            catalogue=catalogue,
            state=state,
            watch=watch,
            snapshot=snapshot_reader.current_snapshot,
            reached=lambda: engine.reached,
            repeats=not at_start.then_end,
        )
        self._source = SourceWatch()
        self._look_soon = threading.Event()
        self._turn_s = SLOW_TURN_S if housekeeping.look_every_s else TURN_S
        self._publish_at = 0.0
        self._published: list[Any] = []  # what is told at once

    def run(self, stop: threading.Event) -> bool:
        """Until ``stop`` or the first failure of any part, which is raised; True once all is done
        that was wanted, where that is only the first dump.
        """
        self._bind_state()
        self.coordinator.recover(self.engine, self._chunks)
        self._automatic.watch.begin()
        self._request_at_start()
        threads = [
            threading.Thread(target=self._guard, args=(work,), name=name, daemon=True)
            for name, work in (
                ("tidelog-dumps", lambda: self.coordinator.run(self._ended)),
                ("tidelog-commands", self._act_on_commands),
                ("tidelog-status", self._tell_status),
                ("tidelog-housekeeping", self._keep_house),
                ("tidelog-maintenance", self._maintain),
                ("tidelog-stop", lambda: self._wait_for(stop)),
            )
        ]
        for thread in threads:
            thread.start()
        try:
            self.engine.run(self._ended)
        finally:
            self._ended.set()
            deadline = time.monotonic() + JOIN_S  # of all: several may wait for the same source
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
        if self._failure is not None:
            raise self._failure
        self._publish_status()
        return self._complete

    def _bind_state(self) -> None:
        """Progress belongs to one event log: with another one it would hide rows never dumped."""
        stored = self._state.get(GENERATION_KEY)
        if stored is not None and stored.value == self._generation:
            return
        if stored is not None:
            for prefix in _OF_ONE_LOG:
                for key in self._state.keys(prefix):
                    self._state.delete(key)
            self._refused.clear()
        self._state.put(GENERATION_KEY, self._generation, None)

    def end(self) -> None:
        """As ``stop`` does, to let another lead."""
        self._ended.set()

    def close(self) -> None:
        self._ended.set()
        for part in (self._reader, self._snapshot_reader, self._catalogue):
            part.close()
        self._close_log()

    def on_schema(self, seen: SchemaSeen) -> None:
        """Told by the engine, on its thread."""
        self._automatic.on_schema(seen)

    def on_unlogged(self, seen: RowsUnlogged | RelationNamed | CatalogueChanged) -> None:
        """Told by the engine, on its thread."""
        if isinstance(seen, RowsUnlogged):
            self._automatic.on_unlogged(seen)
        elif isinstance(seen, RelationNamed):
            self._automatic.on_relation(seen)
        else:
            self._look_soon.set()

    def on_refused(self, seen: TableRefused) -> None:
        """Told by the engine, on its thread. Stored before the log goes on: what is left out of it
        has to be dumped.
        """
        self._refused.owe(seen.table)
        self._refused.refuse("log", seen.table, seen.refusal)

    # ------------------------------------------------------------ threads

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as failure:  # noqa: BLE001 - raised by run
            if self._failure is None:
                self._failure = failure
            self._ended.set()

    def _wait_for(self, stop: threading.Event) -> None:
        while not self._ended.is_set():
            if stop.wait(0.05):
                self._ended.set()

    def _act_on_commands(self) -> None:
        """Apart from the rest: most ask the source nothing, and must not wait for it."""
        while not self._ended.wait(self._turn_s):
            try:
                self._housekeeping.commands()
            except GapError:
                raise
            except TRANSIENT as error:
                logger.info("commands wait: %s", error)

    def _tell_status(self) -> None:
        """From memory, whether or not the source answers."""
        while not self._ended.is_set():
            self._publish_status()
            self._end_if_complete()
            self._ended.wait(STATUS_EVERY_S)

    def _keep_house(self) -> None:
        due = dict.fromkeys(("load", "look"), 0.0)
        every = {"load": STATUS_EVERY_S, "look": LOOK_EVERY_S}
        hints_from = 0.0
        while not self._ended.wait(self._turn_s):
            try:
                self._automatic.act()
            except TRANSIENT as error:
                logger.info("dumps of tables that changed wait: %s", error)
            now = time.monotonic()
            if self._look_soon.is_set() and now >= hints_from:
                self._look_soon.clear()
                due["look"] = now
            for work in [name for name, at in due.items() if now >= at]:
                due[work] = now + every[work]
                began = time.monotonic()
                try:
                    self._do(work)
                except GapError:
                    raise  # the log must not go on
                except TRANSIENT as error:
                    logger.warning("%s: %s", work, error)
                if work == "look":
                    took_s = time.monotonic() - began
                    due[work] = now + look_pause(took_s)
                    hints_from = now + max(HINT_LEAST_S, took_s / HINT_SHARE)

    def _do(self, work: str) -> None:
        if work == "load":
            self.engine.prune_journal(self._snapshot_reader.current_snapshot)
            load = self._source.ask(self._catalogue, self.engine.progress().covered)
            self.coordinator.observe(load.lag_bytes, load.replica_lag_s, load.commits)
        else:
            self._automatic.watch.look()

    def _maintain(self) -> None:
        """Apart from the rest: rolling up thousands of segments takes its time."""
        while not self._ended.is_set():
            try:
                self._housekeeping.maintain()
            except TRANSIENT as error:
                logger.warning("maintenance: %s", error)
            self._ended.wait(MAINTAIN_EVERY_S)

    # ------------------------------------------------------------ dumps of our own

    def _request_at_start(self) -> None:
        """Dump every captured table, as the mode says, and behind a gap."""
        at_start, now_ms = self._at_start, int(time.time() * 1000)
        wanted = []
        gap = self._state.get(GAP_KEY)
        if gap is not None:
            wanted.append((f"{GAP_DUMP}{gap.value}", "the source could not give what was missed"))
        starts = [dump for dump in self.coordinator.dumps() if _of_a_start(dump.dump_id)]
        begun = any(dump.dump_id == INITIAL_DUMP for dump in starts)
        asked = at_start.dump(begun, not all(dump.finished for dump in starts))
        if asked == INITIAL_DUMP:
            wanted.insert(0, (INITIAL_DUMP, "initial"))
        elif asked is not None:
            self._cancel_earlier_starts(asked)
            ours = [dump for dump in starts if dump.dump_id.startswith(asked)]
            if ours and (ours[-1].status != "aborted" or ours[-1] is starts[-1]):
                asked = ours[-1].dump_id  # it goes on, is done, or somebody cancelled it
            elif ours:
                asked += f"-{self._leader.epoch}"  # another capture led meanwhile, and cancelled it
            wanted.append((asked, "every start dumps"))
        tables = self._catalogue.tables(self._patterns)
        for dump_id, reason in wanted if tables else ():
            self.coordinator.request(
                dump_id, tables, mode=at_start.mode, reason=reason, now_ms=now_ms
            )
        if gap is not None and tables:
            self._state.delete(GAP_KEY)

    def _cancel_earlier_starts(self, start_id: str) -> None:
        """What an earlier start began to dump is dumped by this one."""
        for dump in self.coordinator.dumps():
            if _of_a_start(dump.dump_id) and not dump.dump_id.startswith(start_id):
                self.coordinator.cancel(dump.dump_id)

    def _end_if_complete(self) -> None:
        if not self._at_start.then_end:
            return
        dumps = self.coordinator.dumps()
        if not all(dump.finished for dump in dumps):
            return
        starts = [dump for dump in dumps if _of_a_start(dump.dump_id)][-1:]
        gaps = [dump for dump in dumps if dump.dump_id.startswith(GAP_DUMP)]
        counted = [*starts, *(gap for gap in gaps if not starts or gap.number > starts[0].number)]
        tables = ", ".join(lacking(counted))
        if tables and self._failure is None:
            initial, dump = f"the initial dump lacks {tables}", counted[-1].dump_id
            self._failure = IncompleteDumpError(
                initial if dump == INITIAL_DUMP else f"dump {dump} lacks {tables}"
            )
        self._complete = True
        self._ended.set()

    # ------------------------------------------------------------ status

    def _publish_status(self) -> None:
        status = self.status()
        now = time.monotonic()
        dumps = [(dump["dump_id"], dump["status"]) for dump in status["dumps"]]
        if now >= self._publish_at or dumps != self._published:
            self._published = dumps
            self._publish_at = now + 2 * self._housekeeping.look_every_s
            self._state.put(STATUS_KEY, status, None)
        self._housekeeping.on_status(status)

    def status(self) -> dict[str, Any]:
        """What `tidelog status` shows, as JSON."""
        progress = asdict(self.engine.progress())
        return {
            **asdict(self._leader),
            "updated_ms": int(time.time() * 1000),
            "lag_bytes": self._source.lag_bytes,
            "source": self._source.summary(
                time.monotonic(), progress["covered"], progress["last_commit_ts"]
            ),
            "capture": progress,
            "refused": self._refused.summary(),
            **self._automatic.summary(),
            **self.coordinator.summary(finished=FINISHED_SHOWN),
        }


def _of_a_start(dump_id: str) -> bool:
    return dump_id == INITIAL_DUMP or dump_id.startswith(START_DUMP)


def look_pause(took_s: float) -> float:
    """How long until the next look at the catalogue, after one that took so long."""
    return min(max(LOOK_EVERY_S, took_s / LOOK_SHARE), LOOKS_LEFT_OUT * LOOK_EVERY_S)
