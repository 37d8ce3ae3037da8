"""Coordinates dumps: which chunk is read next, what its result was, and durable progress.

One thread (`DumpCoordinator.run`) decides; reader threads read chunks through the steps of
Algorithm 1, each over its own connection; with more than one reader, the planner walks the keys
ahead of them. Windows close on the loop's thread. Progress is stored after the chunk's segment is
durable, and reconciled at start with the chunk metadata in the event log, so no completed chunk is
read again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from tidelog.capture.dump_gate import DumpGate
from tidelog.capture.dumps.chunk_planner import REFETCH_KEYS, ChunkQueue, ChunkTask
from tidelog.capture.dumps.chunk_results import ChunkResults
from tidelog.capture.dumps.chunk_task import ChunkReaders, ChunkReading, KeyPlanner
from tidelog.capture.dumps.dump_notifications import DumpNotices
from tidelog.capture.dumps.refetch_queue import RefetchQueue
from tidelog.capture.dumps.snapshot_dumps import BlockingDumps, KeylessDumps
from tidelog.capture.dumps.state import DumpState, Missing, Rejected, TableProgress
from tidelog.capture.dumps.store import DumpStore, LogView
from tidelog.capture.dumps.table_dump import SMALL_TABLE_ROWS, DumpParts, DumpTables
from tidelog.capture.dumps.thread_messages import DecisionQueue, DumpLog
from tidelog.capture.dumps.throttle import Throttle, ThrottleSettings
from tidelog.capture.notifications import Notify
from tidelog.capture.unsupported_tables import UnsupportedTables
from tidelog.capture.windows import ChangedKeysToRead, ClosedWindow, VoidedWindow
from tidelog.capture.writer_thread import ChunkItem
from tidelog.errors import ChunkError, ConnectionLostError, SourceError, UsageError
from tidelog.model.dump_options import DumpMode, DumpOptions
from tidelog.model.records import ChunkMeta
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import BlockingReader, Catalogue, ChunkReader, KeyExtractor, StateStore

# The order of tables within a dump, and the turns of dumps. Pure.

logger = logging.getLogger(__name__)


def tables_in_order(
    tables: Sequence[TableName],
    estimates: Callable[[Sequence[TableName]], Mapping[TableName, int]],
) -> list[TableName]:
    """Apply `smallest_first` to ``estimates``; if these fail, return the given order. Raises
    ConnectionLostError.
    """
    if len(tables) < 2:
        return list(tables)
    try:
        return smallest_first(tables, estimates(tables))
    except ConnectionLostError:
        raise
    except SourceError as error:
        logger.info("tables are dumped in the order given: %s", error)
        return list(tables)


def smallest_first(
    tables: Iterable[TableName], estimated_rows: Mapping[TableName, int]
) -> list[TableName]:
    """The tables by size, so that most are done soon and none waits for one that takes hours.
    Tables of similar size (less than twice as large, or less than `SMALL_TABLE_ROWS` rows) keep
    their order; those without statistics come last.
    """

    def size(table: TableName) -> tuple[bool, int]:
        rows = estimated_rows.get(table)
        return rows is None, max(rows or 0, SMALL_TABLE_ROWS - 1).bit_length()

    return sorted(tables, key=size)


OTHERS_EVERY = 4
"""One of this many chunks is taken from a less urgent dump, so that no dump waits for ever."""


class DumpTurns:
    """The turns of dumps: the most urgent come first; equally urgent ones take turns."""

    def __init__(self) -> None:
        self._most = 0
        self._after = {True: 0, False: 0}  # by urgency: number of the last dump that had its turn
        self._given = 0

    def order(self, dumps: Sequence[DumpState]) -> list[DumpState]:
        """The dumps in the order of their turns; the later ones are used if the first have no chunk
        now.
        """
        self._most = max((dump.priority for dump in dumps), default=0)
        others_first = self._given % OTHERS_EVERY == OTHERS_EVERY - 1

        def turn(dump: DumpState) -> tuple[bool, bool, int]:
            urgent = self._is_urgent(dump)
            return urgent == others_first, dump.number <= self._after[urgent], dump.number

        return sorted(dumps, key=turn)

    def took_turn(self, dump: DumpState) -> None:
        """Note that a chunk of this dump is read next."""
        self._after[self._is_urgent(dump)] = dump.number
        self._given += 1

    def _is_urgent(self, dump: DumpState) -> bool:
        return dump.priority == self._most


# The coordinator.

TURN_S = 0.05


class DumpCoordinator:
    """Runs dumps. Public methods may be called from any thread.

    The loop's thread calls its ``on_…`` methods and ``refetch`` while it holds its own lock:
    these do not take the coordinator's, under which nothing waits for the loop's.

    Args:
        open_reader: returns a reader of chunks; each thread opens its own.
        open_blocking: returns a reader for a blocking dump of these tables.
        open_keyless: returns a reader for a table without a key.
        catalogue, keys, state: ports.
        unsupported: registry of unsupported tables, for dumps that capture itself needs.
        options: how chunks are read; options set at run time take precedence.
        notify: receives notifications about dumps.
        gate: blocks new chunks.
    """

    def __init__(
        self,
        *,
        open_reader: Callable[[], ChunkReader],
        open_blocking: Callable[[Sequence[TableName]], BlockingReader],
        open_keyless: Callable[[], BlockingReader],
        catalogue: Catalogue,
        unsupported: UnsupportedTables,
        keys: KeyExtractor,
        state: StateStore,
        options: DumpOptions,
        notify: Notify,
        gate: DumpGate,
    ) -> None:
        self._gate = gate
        self._control = open_reader()
        self._refetch_queue = RefetchQueue(keys, state)
        self._store = DumpStore(state, options)
        self._decisions = DecisionQueue(self.flush)
        self._lock = self._decisions.lock
        self._queue = ChunkQueue()
        self._notices = DumpNotices(lambda sent: self._store.after(lambda: notify(sent)))
        self._throttle = Throttle(ThrottleSettings.of(options))
        parts = DumpParts(
            catalogue=catalogue,
            keys=keys,
            decisions=self._decisions,
            store=self._store,
            queue=self._queue,
            refetch_queue=self._refetch_queue,
            notices=self._notices,
        )
        self._tables = DumpTables(parts, self._control.current_snapshot, unsupported)
        self._results = ChunkResults(parts, self._tables)
        self._reading = ChunkReading(parts, self._results, self._throttle)
        self._planner = KeyPlanner(parts, open_reader, self._tables, self._results)
        self._readers = ChunkReaders(open_reader, self._reading.read)
        self._blocking = BlockingDumps(parts, open_blocking, self._tables)
        self._keyless = KeylessDumps(parts, open_keyless, self._tables, self._throttle, gate)
        self._turns = DumpTurns()
        self._refetch_turn = True

    # ------------------------------------------------------------ start, commands

    def recover(
        self, log: DumpLog, chunks: Iterable[tuple[int, ChunkMeta]], end: LogView | None = None
    ) -> None:
        """Load the stored dumps, and compare them with the event log: see `DumpStore.reconcile`.
        ``log``: the loop; ``chunks``: (first offset, metadata) of the chunk segments on the
        chain.
        """
        self._store.load()
        self._refetch_queue.load()
        with self._lock:
            self._decisions.connect(log)
            self._throttle.change(ThrottleSettings.of(self._store.options))
            self._store.reconcile(chunks, end)
        self.flush()

    def request(
        self,
        dump_id: str,
        tables: list[TableName],
        *,
        where: str | None = None,
        conditions: Mapping[TableName, str] | None = None,
        named_by: Callable[[str], tuple[str, ...]] | None = None,
        key_set: str | None = None,
        key_count: int = 0,
        key_columns: tuple[str, ...] | None = None,
        missing: Missing = "delete",
        mode: DumpMode = "incremental",
        priority: int = 0,
        reason: str = "requested",
        rejected: Sequence[Rejected] = (),
        now_ms: int,
    ) -> DumpState:
        """Queue a dump, or return the existing one of that id.

        Args:
            dump_id: id of the dump.
            tables: without patterns; one that can't be dumped does not delay the others.
            where: SQL condition on the rows of each table that ``conditions`` does not name.
            conditions: SQL conditions by table.
            named_by: returns the columns that a condition names, if the source is to check that
                its author may use them; None: the operator gave it.
            key_set: keys of the one table, stored in `KeySets`.
            key_count: number of these keys.
            key_columns: the columns of these keys, in order; None: the table's key.
            missing: what to do with keys that the table does not have.
            mode: incremental or blocking.
            priority: dumps of a higher one are read first.
            reason: ``initial``, ``requested`` or why it is due.
            rejected: names in a signal that can't be dumped; reported with the dump.
            now_ms: milliseconds since 1970.
        """
        if not tables and not rejected:
            raise UsageError("no captured table matches the requested dump; see source.tables")
        if key_set is not None and len(tables) != 1:
            raise UsageError("--keys needs exactly one table")
        conditions = conditions or {}
        wheres = {table: conditions.get(table, where) for table in dict.fromkeys(tables)}
        progress = [
            TableProgress(
                str(table),
                where=condition,
                where_names=named_by(condition) if named_by and condition else None,
                key_set=key_set,
                key_count=key_count,
                key_columns=key_columns,
                missing=missing,
            )
            for table, condition in wheres.items()
        ]
        if mode == "blocking" and key_set is not None:
            raise UsageError("a blocking dump reads whole tables: no keys")
        with self._decisions.commanded():
            return self._store.request(
                dump_id, progress, mode=mode, reason=reason, now_ms=now_ms,
                rejected=rejected, priority=priority,
            )  # fmt: skip

    def request_due(self, table: TableName, reason: str, now_ms: int) -> str:
        """Request a dump of the whole table for capture itself: join a queued dump that has not
        begun to read it, or queue another; returns the dump's id.
        """
        with self._decisions.commanded():
            return self._store.request_due(str(table), reason, now_ms)

    def pause(self, dump_id: str | None, by: str, now_ms: int) -> list[str]:
        """Start no more chunks of a dump, or of all unfinished ones; current reads end. ``by``: the
        requester, for status; ``now_ms``: milliseconds since 1970.
        """
        with self._decisions.commanded():
            paused = self._store.pause(dump_id, by, now_ms)
            for dump in paused:
                self._notices.paused(dump)
            return [dump.dump_id for dump in paused]

    def resume(self, dump_id: str | None) -> list[str]:
        with self._decisions.commanded():
            resumed = self._store.resume(dump_id)
            for dump in resumed:
                self._notices.resumed(dump)
            return [dump.dump_id for dump in resumed]

    def cancel(self, dump_id: str | None, tables: list[str] | None = None) -> list[str]:
        """Stop a dump, or only some of its tables; rows already delivered stay valid."""
        with self._decisions.commanded():
            return self._tables.cancel(dump_id, tables)

    def to_read(self) -> set[str]:
        """The tables of which dumps, or keys to read again, are not done."""
        with self._lock:
            dumps = [dump for dump in self._store.all() if not dump.finished]
        return {t.table for dump in dumps for t in dump.tables} | self._refetch_queue.tables()

    def leave_out(self, tables: Collection[str]) -> None:
        """Read nothing more of these tables: they are no longer captured."""
        with self._decisions.commanded():
            self._tables.cancel(None, tables, left_out=True)
        self._refetch_queue.leave_out(tables)
        self._refetch_queue.flush()

    def set_options(self, **changes: int) -> DumpOptions:
        """Change how chunks are read, durably."""
        with self._decisions.commanded():
            options = self._store.set_options(**changes)
            self._throttle.change(ThrottleSettings.of(options))
            return options

    def observe(
        self, lag_bytes: int | None, replica_lag_s: float | None, commits: int | None = None
    ) -> None:
        """Update the source's load for the throttle, about once a second."""
        with self._lock:
            self._throttle.observe(time.monotonic(), lag_bytes, replica_lag_s, commits)

    def dumps(self) -> list[DumpState]:
        with self._lock:
            return self._store.all()

    def flush(self) -> None:
        """Make durable what `dumps` returned before. Calls the state store: never under a lock."""
        self._refetch_queue.flush()
        self._store.flush()

    def summary(self, finished: int) -> dict[str, Any]:
        """For status: options, throttle, counters, windows, chunk events, the unfinished dumps and
        the last ``finished``.
        """
        with self._lock:
            return {
                **self._store.summary(finished),
                "throttle": self._throttle.to_json(),
                "dumps_held": self._gate.summary(),
                "readers_busy": self._readers.busy,
                "windows": self._reading.windows(),
                "events": list(self._store.events),
            }

    # ------------------------------------------------------------ from the loop's thread

    def on_window_closed(self, closed: ClosedWindow) -> ChunkItem | None:
        """Handle a closed window: returns what to append. Stores keys to read again first."""
        again = self._reading.keys_to_request(closed)
        if again:
            self.refetch(closed.schema, again)
        return self._reading.on_window_closed(closed)

    def on_window_voided(self, voided: VoidedWindow) -> None:
        self._decisions.post(lambda: self._results.on_void(voided))

    def on_keys_changed(self, moved: ChangedKeysToRead) -> None:
        """Store keys that got rows with missing columns, before the records are appended."""
        self.refetch(moved.schema, list(moved.keys))

    def refetch(self, schema: TableSchema, keys: list[bytes]) -> None:
        """Request that these match keys are read by a key chunk, also after a crash."""
        self._refetch_queue.add(schema, keys)
        self._decisions.wake()

    # ------------------------------------------------------------ the coordinator's thread

    def run(self, stop: threading.Event) -> None:
        """Read chunks until ``stop``. Raises errors that are not a single chunk's."""
        self._planner.start()
        try:
            wait_s = 0.0
            while not stop.is_set():
                self._decisions.run_decisions(wait_s)
                self._raise_failures()
                now = time.monotonic()
                with self._lock:
                    self._store.store_changed(now)
                self.flush()
                self._reading.void_overdue()
                self._refetch_queue.fetch(REFETCH_KEYS)
                blocking = self._next_blocking()
                if blocking is not None:
                    self._blocking.run(blocking, stop)
                elif self._start_next_chunk(now):
                    wait_s = 0.0
                    self._decisions.run_effects()
                    continue
                self._decisions.run_effects()
                wait_s = TURN_S
        finally:
            self._readers.close()
            self._keyless.close()
            self._planner.close()
            self._control.close()
            with self._lock:
                self._store.store_changed(float("inf"))
            self.flush()

    def _start_next_chunk(self, now: float) -> bool:
        """Give the next chunk to a reader if there is one and it may begin."""
        if self._gate.blocks_all:
            return False
        with self._lock:
            wanted = self._store.options.parallelism
            allowed = self._throttle.parallelism(wanted)
            self._readers.shrink(wanted)
            if self._readers.busy >= allowed or not self._reading.room(wanted):
                return False
            if self._throttle.wait_s(now) > 0:
                return False
        if not self._resolve_unseen():
            return False
        with self._lock:
            task = self._next_task(now, wanted)
            if task is None:
                return False
            self._queue.give(task)
            self._throttle.on_chunk_start(now)
        self._readers.give(task)
        return True

    def _resolve_unseen(self) -> bool:
        """Resolve which emitted transactions a snapshot can't see, before any chunk is read."""
        if self._decisions.loop.unseen_known:
            return True
        with self._lock:
            if not any(d.active for d in self._store.all()) and not self._refetch_queue.wanted:
                return False
        try:
            snapshot = self._control.current_snapshot()
        except (ChunkError, ConnectionLostError) as error:
            with self._lock:
                self._store.chunks_read.failed(error)
            return False
        self._decisions.loop.resolve_unseen(snapshot)
        return True

    def _next_task(self, now: float, readers: int) -> ChunkTask | None:
        if self._gate.blocks_dumps:
            refetched = self._queue.next_retry(now, of_dumps=False)
            return refetched or self._queue.next_refetch(self._refetch_queue, now)
        task = self._queue.next_retry(now)
        # Missing rows and dumps take turns: either may never run out.
        if task is None and self._refetch_turn:
            task = self._queue.next_refetch(self._refetch_queue, now)
        if task is None:
            task = self._next_dump_task(readers) or self._queue.next_refetch(
                self._refetch_queue, now
            )
        if task is not None:
            self._refetch_turn = task.dump is not None
        return task

    def _next_dump_task(self, readers: int) -> ChunkTask | None:
        """The next task, from each dump in turn, so that several share the readers; the most urgent
        dumps first.
        """
        dumps = [dump for dump in self._store.all() if dump.active and dump.mode == "incremental"]
        for dump in self._turns.order(dumps):
            task = self._tables.next_task(dump, readers)
            if task is not None:
                self._turns.took_turn(dump)
                return task
        return None

    def _next_blocking(self) -> DumpState | None:
        if self._gate.blocks_dumps:
            return None
        with self._lock:
            waiting = [d for d in self._store.all() if d.mode == "blocking" and d.active]
        return max(waiting, key=lambda dump: dump.priority, default=None)  # the first of equals

    def _raise_failures(self) -> None:
        for failure in (self._readers.failure, self._planner.failure, self._keyless.failure):
            if failure is not None:
                raise failure
