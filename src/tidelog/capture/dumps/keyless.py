"""Dumps of tables without a key: each under one snapshot whose position in the log is known.

A chunk's rows that the log changed in the meantime are dropped by their key. Without a key that
can't be done, so nothing of such a table may be doubtful: the snapshot shows exactly the commits
before its position. The log has been read up to there before the dump's first record is appended.
So each record of the table is known to be in the snapshot, or to come after it, by its offset: the
dump's ``first_offset`` parts them. The rows stand anywhere behind the first record; the log does
not wait.

Rows carry the offset of the dump's first record as their ordinal. A dump that begins again, after a
crash or because it was paused, has another one: the rows of the former belong to no dump that was
completed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from tidelog.capture.buffer import item_bytes
from tidelog.capture.dumps.chunk_ends import RowWidths
from tidelog.capture.dumps.dump_notifications import DumpNotices
from tidelog.capture.dumps.snapshot_rows import SnapshotRows
from tidelog.capture.dumps.state import DumpState, TableRun, completed_record
from tidelog.capture.dumps.state_machine import (
    FINISHED,
    DumpStatus,
    TableInput,
    TableRunInput,
    TableStatus,
)
from tidelog.capture.dumps.store import DumpStore
from tidelog.capture.dumps.table_dump import DumpTables
from tidelog.capture.dumps.thread_messages import Actions
from tidelog.capture.dumps.throttle import Throttle
from tidelog.capture.limits.dump_gate import DumpGate
from tidelog.errors import (
    ChunkBusyError,
    ChunkDeniedError,
    ChunkLostError,
    ChunkRefusedError,
    ChunkVoidError,
    Policy,
    SourceError,
    TableRefusedError,
)
from tidelog.model.schema import TableName
from tidelog.ports import BlockingReader, Catalogue, ChunkRequest, ChunkRows
from tidelog.system import failpoints

logger = logging.getLogger(__name__)

SNAPSHOT_S = 60.0
LOG_WAIT_S = 60.0
"""How long a snapshot is kept while the log is read up to its position."""
ATTEMPTS = 3
LOSSES_A_FAILURE = 3
"""A read fails each time its connection was lost this often."""
LONGEST_WAIT_S = 10.0
ALTERED_WAIT_S = 0.5
TURN_S = 0.05
ROWS_UNDER_WAY = 2
"""Number of appended chunks that need not be durable before the next one is read."""
CLOSE_S = 10.0


class _StoppedError(Exception):
    """Nothing more of the table is to be read now: capture stops, or its dump was paused, cancelled
    or has failed.
    """


@dataclass(slots=True)
class _Keyless:
    """A table to read, and how often it was tried."""

    run: TableRun
    tries: int = 0
    failures: int = 0
    losses: int = 0
    not_before: float = 0.0

    def fails(self, error: SourceError) -> bool:
        """Note the error; True: the table can't be read. Otherwise it is read again, later."""
        lost = isinstance(error, ChunkLostError)
        self.losses += lost
        passes = lost or isinstance(error, ChunkBusyError) or error.policy is Policy.RETRY
        self.failures += not passes or (lost and self.losses % LOSSES_A_FAILURE == 0)
        self.tries += 1
        self.not_before = time.monotonic() + min(LONGEST_WAIT_S, 0.25 * 2 ** min(self.tries, 8))
        return isinstance(error, ChunkRefusedError) or self.failures == ATTEMPTS


class KeylessDumps:
    """Reads tables without a key, one after the other, on a thread of its own."""

    def __init__(
        self,
        open_reader: Callable[[], BlockingReader],
        catalogue: Catalogue,
        actions: Actions,
        store: DumpStore,
        tables: DumpTables,
        notices: DumpNotices,
        throttle: Throttle,
        gate: DumpGate,
    ) -> None:
        self._open_reader = open_reader
        self._catalogue = catalogue
        self._actions = actions
        self._store = store
        self._tables = tables
        self._rows = SnapshotRows(actions, store, notices)
        self._throttle = throttle
        self._gate = gate
        self._waiting: SimpleQueue[_Keyless] = SimpleQueue()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure: BaseException | None = None
        tables.read_keyless = self.give

    def give(self, run: TableRun) -> None:
        """Read the table when it is its turn. Takes no time."""
        self._waiting.put(_Keyless(run))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="tidelog-keyless", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the current read, and read no more."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    table = self._waiting.get(timeout=TURN_S)
                except Empty:
                    continue
                if not table.run.ended and not self._dump(table):
                    self._waiting.put(table)  # the others may be read first
                    self._stop.wait(TURN_S)
        except BaseException as failure:  # noqa: BLE001 - raised by the coordinator
            self.failure = failure
        finally:
            self._actions.wake()

    # ------------------------------------------------------------ one table

    def _dump(self, table: _Keyless) -> bool:
        """Read the table; False: not done, it is to be tried again."""
        run = table.run
        if self._is_held(run.dump) or time.monotonic() < table.not_before:
            return False
        try:
            self._read(run)
        except _StoppedError:
            return False
        except ChunkVoidError as error:
            self._note(run, error)
            self._stop.wait(ALTERED_WAIT_S)
            self._actions.post(partial(run.transition, TableRunInput.ALTERED))  # it may have a key
        except SourceError as error:
            if error.policy not in (Policy.RETRY, Policy.VOID):
                raise
            self._note(run, error)
            if not table.fails(error):
                return False
            found = self._tables.look_up(run.progress)
            refused = found if isinstance(found, TableRefusedError) else error
            self._actions.post(partial(self._give_up, run, refused))
        return True

    def _note(self, run: TableRun, error: SourceError) -> None:
        with self._actions.lock:
            self._store.chunks_read.failed(error)
            self._store.counters.failed += 1
        logger.warning("%s is read again from its first row: %s", run.progress.table, error)

    def _give_up(self, run: TableRun, error: SourceError) -> None:
        if isinstance(error, (ChunkDeniedError, TableRefusedError)):
            self._tables.refuse(run.dump, run.progress, error)
        else:
            self._tables.fail(run.dump, run.progress, str(error))

    def _is_held(self, dump: DumpState) -> bool:
        return dump.status is DumpStatus.PAUSED or self._gate.blocks_dumps

    def _read(self, run: TableRun) -> None:
        """Append the table's rows between the dump's first record and its last."""
        dump, progress = run.dump, run.progress
        engine, table = self._actions.engine, TableName.parse(progress.table)
        # First: a snapshot is not to be kept while a log that is far behind is read.
        self._wait_for_log(run, self._catalogue.position(), None)
        reader, due = self._open_reader(), progress.due
        try:
            position = reader.begin(SNAPSHOT_S)
            self._wait_for_log(run, position, time.monotonic() + LOG_WAIT_S)
            failpoints.hit("keyless.begun")
            started = {"type": "dump-started", "dump_id": dump.dump_id, "table": progress.table}
            offset = self._append_control(run, started)
            request = progress.request(self._store.options.chunk_rows)
            first: int | None = None
            waits: list[threading.Event] = []
            widths = RowWidths()
            while True:
                rows = self._read_chunk(run, reader, request, widths)
                if not rows.schema.keyless:  # behind later changes they would replace newer rows
                    raise ChunkVoidError(f"{table} got a key before it was read")
                if first is None:
                    unseen = engine.first_unseen(rows.snapshot, table)
                    first = offset if unseen is None else min(offset, unseen)
                    self._begin(run, offset, due)
                failpoints.hit("keyless.read")
                if len(rows.rows):
                    durable = self._rows.append(
                        dump, progress, None, rows, position, ordinal=offset
                    )
                    waits.append(durable)
                with self._actions.lock:
                    self._rows.count(dump, progress, rows)
                    self._store.store_soon(dump)
                while len(waits) > ROWS_UNDER_WAY:
                    self._wait(run, waits.pop(0))
                if rows.exhausted:
                    break
                request = replace(request, after=rows.last_key)
        finally:
            reader.close()
        completed = {**completed_record(dump, progress, offset), "first_offset": first}
        last = self._append_control(run, completed)
        self._actions.post(partial(self._complete, run, first, last))

    def _begin(self, run: TableRun, offset: int, due: str) -> None:
        """Begin the table. Raises ChunkVoidError if capture joined the dump since it was ``due``:
        for a change that the snapshot may not show.
        """
        with self._actions.lock:
            progress = run.progress
            if run.ended:
                return
            if progress.due != due:
                raise ChunkVoidError(f"{progress.table} changed without row events meanwhile")
            begun = progress.status is TableStatus.RUNNING
            progress.transition(TableInput.BEGIN_ANEW if begun else TableInput.BEGIN)
            progress.begun_offset, progress.first_offset = offset, None
            progress.key_columns = None
            progress.forget_reading()
            self._store.store(run.dump)

    def _complete(self, run: TableRun, first: int, last: int) -> None:
        if not run.ended:
            run.progress.first_offset = first
            self._tables.complete(run.dump, run.progress, last)

    def _read_chunk(
        self, run: TableRun, reader: BlockingReader, request: ChunkRequest, widths: RowWidths
    ) -> ChunkRows:
        """Read the next rows once the throttle allows it."""
        while True:
            self._check(run)
            with self._actions.lock:
                now = time.monotonic()
                wait_s = self._throttle.wait_s(now)
                if not wait_s:
                    self._throttle.on_chunk_start(now)
                    break
            self._stop.wait(min(wait_s, TURN_S))
        options = self._store.options
        most = widths.rows(request.table, options.chunk_rows, options.chunk_bytes)
        count, seconds, begun = 0, 0.0, time.monotonic()
        try:
            rows = reader.read(replace(request, limit_rows=most, limit_bytes=options.chunk_bytes))
            count, seconds = len(rows.rows), time.monotonic() - begun
            widths.note(request.table, count, item_bytes(rows.rows))
            return rows
        finally:
            with self._actions.lock:
                self._throttle.on_chunk_read(time.monotonic(), count, seconds)

    def _append_control(self, run: TableRun, record: dict[str, Any]) -> int:
        appended = self._rows.append_record(record)
        self._wait(run, appended.durable)
        return appended.offset

    # ------------------------------------------------------------ waiting

    def _wait_for_log(self, run: TableRun, position: int, deadline: float | None) -> None:
        """Wait until all commits before ``position`` were read. Raises ChunkBusyError at the
        deadline.
        """
        while self._actions.engine.reached < position:
            self._check(run)
            if deadline is not None and time.monotonic() > deadline:
                raise ChunkBusyError(
                    f"the log did not reach the snapshot's position within {LOG_WAIT_S:.0f} s"
                )
            self._stop.wait(TURN_S)

    def _wait(self, run: TableRun, event: threading.Event) -> None:
        while not event.wait(TURN_S):
            self._check(run)

    def _check(self, run: TableRun) -> None:
        if self._stop.is_set() or run.progress.status in FINISHED or self._is_held(run.dump):
            raise _StoppedError
