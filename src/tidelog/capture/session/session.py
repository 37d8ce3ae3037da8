"""The work of one leadership: the capture loop, the dumps' thread and maintenance threads.

State-store calls are retried until they succeed or the lease expires. Documents of dumps and of the
catalogue watch do not delay the log. If an unavailable store ended the leadership, no other process
could lead until it is back, and the log would not be read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from tidelog.capture.activity import Activity
from tidelog.capture.catalogue_watch import CatalogueWatch
from tidelog.capture.dumps.automatic import AutomaticDumps
from tidelog.capture.dumps.coordinator import DumpCoordinator
from tidelog.capture.dumps.store import LogView
from tidelog.capture.leadership import Leader
from tidelog.capture.log_guard import LogGuard, note_given_up
from tidelog.capture.pauses import ReadingPause
from tidelog.capture.session.loop import CaptureLoop
from tidelog.capture.session.start import StartDumps, StartPlan, StatusStore, bind, note_lost_end
from tidelog.capture.source_monitor import SourceMonitor
from tidelog.capture.state_writes import RetryingStateStore
from tidelog.capture.unsupported_tables import UnsupportedTables
from tidelog.errors import (
    ConnectionLostError,
    GapError,
    IncompleteDumpError,
    LeaseLostError,
    LogInDangerError,
    SourceError,
    StateError,
    TidelogError,
)
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
    TableRenamed,
    UnsupportedTableSeen,
)
from tidelog.system.processes import unix_ms


class SessionLeadership(Protocol):
    """The lease and the event log of a session, and what its opener runs beside it."""

    @property
    def leader(self) -> Leader: ...

    @property
    def generation(self) -> str:
        """The generation of the event log."""
        ...

    @property
    def status_store(self) -> StatusStore: ...

    def chunks(self) -> Iterable[tuple[int, ChunkMeta]]:
        """Return the chunks in the event log, each with the first offset of its segment."""
        ...

    def holds(self, offset: int) -> bool:
        """See `LogView`."""
        ...

    def problems(self) -> dict[str, Any]:
        """Return parts of the status document: what does not work besides the log."""
        ...

    def forget_log(self) -> None:
        """Make the source keep no more log for capture, whose reader is closed."""
        ...

    def release_lease(self) -> None:
        """Release the lease; nothing may be written after it."""
        ...

    def close(self) -> None:
        """Close the event log, and end what runs beside the session."""
        ...


@dataclass(frozen=True, slots=True)
class SourceConnections:
    """The connections to the source that a session uses and closes.

    Attributes:
        log: reads the log.
        catalogue: knows the tables.
        chunks: returns the current snapshot.
        patterns: patterns of the captured tables.
    """

    log: LogReader
    catalogue: Catalogue
    chunks: ChunkReader
    patterns: Sequence[str]

    def close(self) -> None:
        for connection in (self.log, self.chunks, self.catalogue):
            connection.close()


@dataclass(slots=True)
class SessionMaintenance:
    """Work besides reading the log, and its parameters.

    Attributes:
        commands: receives signals and executes waiting commands; called in a thread of its own.
        maintain: runs rollup, retention and quarantine.
        on_status: called with the status document from time to time.
        activity: counts what is appended.
        poll_interval_s: see `tidelog.ports.StateBackend`.
    """

    commands: Callable[[], None]
    maintain: Callable[[], None]
    on_status: Callable[[dict[str, Any]], None]
    activity: Activity
    poll_interval_s: float = 0.0


logger = logging.getLogger(__name__)

TURN_S, SLOW_TURN_S = 0.1, 1.0
JOIN_S, STATUS_EVERY_S = 10.0, 1.0
END_S = 0.3
"""Time for other threads to end, and to store what they know, before the lease is released."""
ACT_S = 5.0
"""The same, while a command is executed."""
COMMANDS_THREAD = "tidelog-commands"
FINISHED_SHOWN = 20
POLL_EVERY_S = 5.0
POLL_SHARE = 0.01
"""Polling the catalogue may take this share of the time; with many tables it is polled less often,
at least every `MOST_POLL_INTERVALS` times `POLL_EVERY_S`."""
MOST_POLL_INTERVALS = 24
HINT_LEAST_S = 1.0
HINT_SHARE = 0.05
"""A hint polls the catalogue at once, but not sooner than `HINT_LEAST_S` after the last poll, and
such polls may take this share of the time: whoever gives hints must not load the source."""
UNSUPPORTED_POLLS_S = 60.0
"""For this time after a start, or after a table becomes unsupported, polls may take
`HINT_SHARE`.
"""
MAINTAIN_EVERY_S = 30.0
TRANSIENT: tuple[type[TidelogError], ...] = (SourceError,)
"""Errors that maintenance retries later, e.g. a lock of another session: the log is read on."""
WAITED_FOR: tuple[type[TidelogError], ...] = (SourceError, StateError)
"""The same for commands."""


class CaptureSession:
    """Runs loop, coordinator and maintenance until one of them ends."""

    def __init__(
        self,
        *,
        loop: CaptureLoop,
        coordinator: DumpCoordinator,
        leadership: SessionLeadership,
        source: SourceConnections,
        unsupported: UnsupportedTables,
        state: RetryingStateStore,
        maintenance: SessionMaintenance,
        watch: Callable[[Callable[[TableName, str], bool]], CatalogueWatch],
        at_start: StartPlan,
        reading_pause: ReadingPause,
        guard: LogGuard,
    ) -> None:
        self.loop = loop
        self.coordinator = coordinator
        self._leadership = leadership
        self._source = source
        self._unsupported = unsupported
        self._state = state
        self._maintenance = maintenance
        self._at_start = StartDumps(
            at_start,
            coordinator,
            source.catalogue,
            state,
            source.patterns,
            leadership.leader.epoch,
        )
        self._complete = self._acts = False
        self._reading_pause = reading_pause
        self._guard_log = guard
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._automatic = AutomaticDumps(
            coordinator=coordinator,
            catalogue=source.catalogue,
            state=state,
            watch=watch,
            snapshot=source.chunks.current_snapshot,
            reached=lambda: loop.reached,
            repeats=not at_start.then_end,
        )
        self._monitor = SourceMonitor()
        self._poll_soon = threading.Event()
        self._poll_often_until = time.monotonic() + UNSUPPORTED_POLLS_S
        self._turn_s = SLOW_TURN_S if maintenance.poll_interval_s else TURN_S
        self._publish_at = 0.0
        self._published: list[Any] = []  # a change of this is published at once

    def run(self, stop: threading.Event) -> bool:
        """Run until ``stop`` or the first failure of any part, which is raised; True if only the
        initial dump was wanted and it is done.
        """
        leadership = self._leadership
        bind(self._state, leadership.generation, self._unsupported)
        end = LogView(lambda: self.loop.progress().next_offset, leadership.holds)
        leadership.status_store.note_if_older(self._state, end.now())
        note_lost_end(self._state, end.holds, end.now())
        self.coordinator.recover(self.loop, leadership.chunks(), end)
        self._automatic.begin()
        self._at_start.request()
        self._state.retry_until(self._ended)
        threads = [
            threading.Thread(target=self._guard, args=(work,), name=name, daemon=True)
            for name, work in (
                ("tidelog-dumps", lambda: self.coordinator.run(self._ended)),
                (COMMANDS_THREAD, self._act_on_commands),
                ("tidelog-status", self._report_status),
                ("tidelog-source-polls", self._run_periodic_work),
                ("tidelog-maintenance", self._maintain),
                ("tidelog-stop", lambda: self._wait_for(stop)),
            )
        ]
        for thread in threads:
            thread.start()
        try:
            self.loop.run(self._ended, self)
        except BaseException as failure:  # noqa: BLE001 - raised by _end
            # After another part has ended the session, an unavailable store adds nothing.
            known = self._failure
            is_news = known is None or not isinstance(failure, StateError)
            if is_news and not isinstance(known, LogInDangerError):
                self._failure = failure
        return self._end(threads)

    def _end(self, threads: list[threading.Thread]) -> bool:
        """Release the lease, now that nothing more is appended; only then wait for threads that may
        themselves wait long for the source or the state store.
        """
        self._ended.set()
        with suppress(TidelogError):
            self._source.log.close()  # the next leader reads from where this one does
        _join(threads, END_S)
        if self._acts:  # else the next leader would execute the command again
            _join((each for each in threads if each.name == COMMANDS_THREAD), ACT_S)
        failure = self._failure
        try:
            if isinstance(failure, LogInDangerError):
                # Neither may replace the reason why capture stops: it would be restarted.
                with suppress(StateError):
                    self._publish_status()
                self._give_up_log()
            elif failure is None:
                self._publish_status()
        finally:
            self._leadership.release_lease()
            _join(threads, JOIN_S)  # these may find that the lease is lost
        if failure is not None:
            raise failure
        return self._complete

    def _give_up_log(self) -> None:
        """Let the source remove its log, if that is configured."""
        if not self._guard_log.drops_slot:
            return
        try:
            note_given_up(self._state)
            self._leadership.forget_log()
        except LeaseLostError:
            raise
        except TidelogError as error:
            logger.error("the slot could not be dropped, and the server keeps its log: %s", error)

    def end(self) -> None:
        """End as ``stop`` does, to let another process lead."""
        self._ended.set()

    def close(self) -> None:
        self._ended.set()
        self._source.close()
        self._leadership.close()

    def on_schema(self, seen: SchemaSeen) -> None:
        """Called by the loop, on its thread."""
        self._automatic.on_schema(seen)

    def on_unlogged(self, seen: Sequence[RowsUnlogged]) -> None:
        """Called by the loop, on its thread."""
        self._automatic.on_unlogged(seen)

    def on_catalogue(self, seen: RelationNamed | TableRenamed | CatalogueChanged) -> None:
        """Called by the loop, on its thread."""
        if isinstance(seen, RelationNamed):
            self._automatic.on_relation(seen)
        elif isinstance(seen, TableRenamed):
            self._automatic.on_renamed(seen)
        else:
            self._poll_soon.set()

    def on_unsupported(self, seen: UnsupportedTableSeen) -> None:
        """Called by the loop, on its thread. Stored before the log is read on: the changes that
        the log leaves out require a dump.
        """
        if self._unsupported.find_reason(seen.table) is None:
            self._poll_often_until = time.monotonic() + UNSUPPORTED_POLLS_S
            self._poll_soon.set()
        self._unsupported.require_dump(seen.table)
        self._unsupported.add("log", seen.table, seen.why)

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
        """Execute commands in a thread of their own: most need nothing from the source."""
        while not self._ended.wait(self._turn_s):
            self._acts = True
            try:
                self._maintenance.commands()
            except GapError:
                raise
            except WAITED_FOR as error:
                logger.info("commands wait: %s", error)
            finally:
                self._acts = False

    def _report_status(self) -> None:
        """Publish the status from memory, whether or not the source answers."""
        while not self._ended.is_set():
            self._publish_status()
            self._end_if_complete()
            self._ended.wait(STATUS_EVERY_S)

    def _end_if_complete(self) -> None:
        try:
            if not self._at_start.all_done():
                return
        except IncompleteDumpError as error:
            self._failure = self._failure or error
        self._complete = True
        self._ended.set()

    def _run_periodic_work(self) -> None:
        due = dict.fromkeys(("load", "catalogue"), 0.0)
        every = {"load": STATUS_EVERY_S, "catalogue": POLL_EVERY_S}
        hints_from = 0.0
        while not self._ended.wait(self._turn_s):
            try:
                self._automatic.request_due()
            except TRANSIENT as error:
                logger.info("dumps of tables that changed wait: %s", error)
            now = time.monotonic()
            if self._poll_soon.is_set() and now >= hints_from:
                self._poll_soon.clear()
                due["catalogue"] = now
            for work in [name for name, at in due.items() if now >= at]:
                due[work] = now + every[work]
                began = time.monotonic()
                try:
                    self._run_work(work)
                except (GapError, LogInDangerError):
                    raise  # the log must not be read on
                except TRANSIENT as error:
                    logger.warning("%s: %s", work, error)
                if work == "catalogue":
                    took_s = time.monotonic() - began
                    often = self._unsupported.any_left and now < self._poll_often_until
                    due[work] = now + poll_interval(took_s, HINT_SHARE if often else POLL_SHARE)
                    hints_from = now + max(HINT_LEAST_S, took_s / HINT_SHARE)

    def _run_work(self, work: str) -> None:
        if work == "load":
            self.loop.prune_journal(self._source.chunks.current_snapshot)
            self._refresh_source()
        else:
            self._automatic.watch.poll()

    def _refresh_source(self) -> None:
        progress = self.loop.progress()
        try:
            load = self._monitor.refresh(self._source.catalogue, progress.covered)
        except ConnectionLostError as error:
            if self._reading_pause.current is not None or self.loop.reads_slowly:
                # A server that shuts down waits for all who read its log until they have read it to
                # its end, which this process would reach much later or never.
                self._failure = self._failure or error
                self._ended.set()
            raise
        self.coordinator.observe(load.lag_bytes, load.replica_lag_s, load.commits)
        now, last_commit = time.monotonic(), progress.last_commit_ts
        self._guard_log.check(self._monitor.summary(now, progress.covered, last_commit))

    def _maintain(self) -> None:
        """Run maintenance in a thread of its own: rolling up thousands of segments takes long."""
        while not self._ended.is_set():
            try:
                self._maintenance.maintain()
            except (SourceError, StateError) as error:
                logger.warning("maintenance: %s", error)
            self._ended.wait(MAINTAIN_EVERY_S)

    # ------------------------------------------------------------ status

    def _publish_status(self) -> None:
        status = self.status()
        source = status["source"]
        lag_s = source["lag_s"] if source["error"] is None else None
        self._maintenance.activity.poll(time.time(), lag_s)
        now = time.monotonic()
        dumps = [(dump["dump_id"], dump["status"]) for dump in status["dumps"]]
        if now >= self._publish_at or dumps != self._published:
            with suppress(StateError):  # published later: the lease limits how long capture runs
                self._leadership.status_store.put(self._state.at_once, status)
                self._published = dumps
                self._publish_at = now + 2 * self._maintenance.poll_interval_s
        self._maintenance.on_status(status)

    def status(self) -> dict[str, Any]:
        """What `tidelog status` shows, as JSON."""
        progress = asdict(self.loop.progress())
        pause = self._reading_pause.current
        return {
            **asdict(self._leadership.leader),
            "updated_ms": unix_ms(),
            "lag_bytes": self._monitor.lag_bytes,
            "source": self._monitor.summary(
                time.monotonic(), progress["covered"], progress["last_commit_ts"]
            ),
            "capture": progress,
            "log_paused": None if pause is None else pause.to_json(),
            "log_guard": self._guard_log.summary(),
            "refused": self._unsupported.summary(),
            "drops": self._maintenance.activity.drops(),
            **self._leadership.problems(),
            **self._automatic.summary(),
            **self.coordinator.summary(finished=FINISHED_SHOWN),
        }


def _join(threads: Iterable[threading.Thread], within_s: float) -> None:
    """Join threads; ``within_s`` is for all together: several may wait for the same source."""
    deadline = time.monotonic() + within_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def poll_interval(took_s: float, share: float) -> float:
    """Seconds until the next poll of the catalogue, so that polls take this share of the time."""
    return min(max(POLL_EVERY_S, took_s / share), MOST_POLL_INTERVALS * POLL_EVERY_S)
