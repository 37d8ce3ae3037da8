"""Dumps of whole tables under one snapshot: blocking dumps, and of tables without a key.

The snapshot's position in the log is known, so no window compares the rows with the log.

A blocking dump pauses the log first, because the snapshot's position is known only once it was
taken; then the log is read up to that position and paused until the last row is in the event log.
So the event log has all commits before the position, then the rows, then the rest.

A chunk's rows that the log changed in the meantime are dropped by their key. Without a key that
can't be done, so nothing of such a table may be doubtful: the snapshot shows exactly the commits
before its position. The log has been read up to there before the dump's first record is appended.
So each record of the table is known to be in the snapshot, or to come after it, by its offset: the
dump's ``first_offset`` parts them. The rows stand anywhere behind the first record; the log does
not wait. They carry the offset of the dump's first record as their ordinal. A dump that begins
again, after a crash or because it was paused, has another one: the rows of the former belong to no
dump that was completed.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from tidelog.capture.dump_gate import DumpGate
from tidelog.capture.dumps.chunk_planner import RowWidths
from tidelog.capture.dumps.chunk_results import LOSSES_A_FAILURE
from tidelog.capture.dumps.state import (
    FINISHED_TABLES,
    DumpState,
    DumpStatus,
    TableInput,
    TableProgress,
    TableRun,
    TableRunInput,
    TableStatus,
    completed_record,
    started_record,
)
from tidelog.capture.dumps.table_dump import DumpParts, DumpTables, is_unavailable
from tidelog.capture.dumps.throttle import Throttle
from tidelog.capture.pauses import BlockingDumpPause
from tidelog.capture.writer_thread import ChunkItem, item_bytes
from tidelog.errors import (
    ChunkBusyError,
    ChunkDeniedError,
    ChunkError,
    ChunkLostError,
    ChunkRefusedError,
    ChunkVoidError,
    ConnectionLostError,
    Policy,
    SourceBusyError,
    SourceError,
    UnsupportedTableError,
)
from tidelog.model.records import ChunkMeta
from tidelog.model.schema import TableName
from tidelog.ports import BlockingReader, ChunkRequest, ChunkRows
from tidelog.system import failpoints
from tidelog.system.backoff import Backoff

# The rows that such dumps append.


@dataclass(slots=True)
class AppendedRecord:
    """A control record; its ``offset`` is known once it is ``durable``."""

    durable: threading.Event = field(default_factory=threading.Event)
    offset: int = 0

    def done(self, offset: int) -> None:
        self.offset = offset
        self.durable.set()


class SnapshotRows:
    """Appends and counts the rows of dumps. Any thread may call it without the coordinator's lock,
    unless said otherwise.
    """

    def __init__(self, parts: DumpParts) -> None:
        self._decisions = parts.decisions
        self._store = parts.store
        self._notices = parts.notices

    def append_record(self, record: dict[str, Any]) -> AppendedRecord:
        """Append a control record after all that was emitted."""
        appended = AppendedRecord()
        self._decisions.loop.append_control(record, appended.done)
        return appended

    def append(
        self,
        dump: DumpState,
        progress: TableProgress,
        request: ChunkRequest | None,
        rows: ChunkRows,
        position: int,
        *,
        ordinal: int | None = None,
        while_paused: bool = False,
    ) -> threading.Event:
        """Append rows that were read under the snapshot at ``position``; the returned event is set
        when they are durable.

        The range of ``request`` is noted, if one is given. ``ordinal`` is given to each row: the
        offset of the dump's first record, if the table has no key. ``while_paused``: see
        `ChunkItem`.
        """
        chunk_id, count = uuid.uuid4().hex, len(rows.rows)
        low_key, high_key = None, None
        if request is not None:
            low_key = None if request.after is None else list(request.after)
            high_key = None if rows.exhausted or rows.last_key is None else list(rows.last_key)
        meta = ChunkMeta(
            dump_id=dump.dump_id,
            table=progress.table,
            chunk_id=chunk_id,
            low_key=low_key,
            high_key=high_key,
            low_watermark=str(position),
            high_watermark=str(position),
            snapshot=rows.snapshot.to_text(),
            rows_read=count,
            rows_superseded=0,
        )
        rows.rows.commit_ts = np.full(count, time.time_ns() // 1000, np.int64)
        if ordinal is not None:
            rows.rows.ordinal = np.full(count, ordinal, np.int64)
        durable = threading.Event()
        item = ChunkItem(rows.rows, meta, position, lambda _offset: durable.set(), while_paused)
        self._decisions.loop.append_chunk(item)
        with self._decisions.lock:
            self._store.note("read", chunk_id, progress.table, rows=count)
        return durable

    def count(self, dump: DumpState, progress: TableProgress, rows: ChunkRows) -> None:
        """Count rows that were read. Called under the coordinator's lock."""
        progress.chunks += 1
        progress.rows_read += len(rows.rows)
        self._store.counters.chunks += 1
        self._store.counters.rows += len(rows.rows)
        self._store.chunks_read.answered()
        self._notices.in_progress(dump, progress)


# Blocking dumps.

logger = logging.getLogger(__name__)

PAUSE_S = 60.0  # for the log to reach a boundary between transactions, or the snapshot
SNAPSHOT_S = 60.0
BLOCKING_ATTEMPTS = 3
_RETRY_S = Backoff(first=0.5, longest=10.0)
TURN_S = 0.05
STORE_WAIT_S, MOST_TIMES = 5.0, 5
"""How long the snapshot is kept while the state store does not answer: the log and DDL of the
tables wait for it. Each restart of the dump for this reason adds as much again, up to this many
times: where the store is always slow, the dump must still progress.
"""


class BlockingDumps:
    """Runs blocking dumps one after the other on the coordinator's thread."""

    def __init__(
        self,
        parts: DumpParts,
        open_reader: Callable[[Sequence[TableName]], BlockingReader],
        tables: DumpTables,
    ) -> None:
        self._open_reader = open_reader
        self._decisions = parts.decisions
        self._store = parts.store
        self._tables = tables
        self._rows = SnapshotRows(parts)
        self._storing: Future[None] | None = None
        self._given_up = 0
        """How often the snapshot was released because of the state store."""

    def run(self, dump: DumpState, stop: threading.Event) -> None:
        """Run until every table of the dump has ended. The log is resumed in any case."""
        error: SourceError | None = None
        attempt = self._given_up = 0
        while attempt < BLOCKING_ATTEMPTS:
            try:
                self._wait_for_store()
                waiting = self._begin(dump)
                if not waiting or stop.is_set():
                    return
                self._read(dump, waiting, stop)
                return
            except (ChunkError, ConnectionLostError, SourceBusyError) as failure:
                if stop.is_set():  # it restarts with the next session
                    return
                error = failure
                with self._decisions.lock:
                    self._store.chunks_read.failed(failure)
                logger.warning("blocking dump %s: %s", dump.dump_id, failure)
                if self._storing is not None:  # the store's failure, not the dump's
                    self._given_up += 1
                    continue
                attempt += 1
                if attempt < BLOCKING_ATTEMPTS:
                    stop.wait(_RETRY_S.after(attempt))
        with self._decisions.lock:
            for progress in self._unfinished(dump):
                self._tables.fail(dump, progress, str(error))

    def _begin(self, dump: DumpState) -> list[TableProgress]:
        """The tables that can be dumped, each from the beginning, even if an earlier attempt has
        read it: all are read under one snapshot.
        """
        waiting = []
        with self._decisions.lock:
            self._tables.begin(dump)
            for progress in dump.tables:
                if progress.status in (TableStatus.DONE, TableStatus.RUNNING):
                    progress.transition(TableInput.RESTART)
                    progress.finalized_until = None
            unfinished = self._unfinished(dump)
            for progress in unfinished:
                progress.forget_reading()
        for progress in unfinished:
            result = self._tables.look_up(progress)
            if isinstance(result, SourceError) and is_unavailable(result):
                raise result
            with self._decisions.lock:
                if self._tables.admit(dump, progress, result):
                    if progress.status is TableStatus.PENDING:
                        progress.transition(TableInput.BEGIN)
                    waiting.append(progress)
        with self._decisions.lock:
            self._store.store(dump)
        self._decisions.run_effects()
        return waiting

    def _read(self, dump: DumpState, waiting: list[TableProgress], stop: threading.Event) -> None:
        reader = self._open_reader([TableName.parse(p.table) for p in waiting])
        log_pause = self._decisions.loop.pause_log()
        try:
            self._wait_for_pause(log_pause, stop)
            failpoints.hit("blocking.held")
            position = reader.begin(SNAPSHOT_S)
            log_pause.set_position(position)
            self._wait_for_pause(log_pause, stop)
            for progress in waiting:
                if stop.is_set() or progress.status in FINISHED_TABLES:
                    continue
                try:
                    self._read_table(dump, progress, reader, position, stop)
                except ChunkLostError:
                    raise  # the snapshot was lost with the connection
                except ChunkError as error:
                    if stop.is_set():
                        raise
                    with self._decisions.lock:  # the snapshot is kept for the other tables
                        self._tables.fail(dump, progress, str(error))
        finally:
            log_pause.release()
            reader.close()

    def _read_table(
        self,
        dump: DumpState,
        progress: TableProgress,
        reader: BlockingReader,
        position: int,
        stop: threading.Event,
    ) -> None:
        started = started_record(dump, progress)
        offset = self._append_control(started, stop)
        progress.first_offset = offset
        request = progress.request(self._store.options.chunk_rows)
        waits: list[threading.Event] = []
        widths = RowWidths()
        while progress.status not in FINISHED_TABLES and not stop.is_set():
            options = self._store.options
            most = widths.rows(request.table, options.chunk_rows, options.chunk_bytes)
            request = replace(request, limit_rows=most, limit_bytes=options.chunk_bytes)
            rows = _read(reader, request, stop)
            widths.note(request.table, len(rows.rows), item_bytes(rows.rows))
            failpoints.hit("blocking.read")
            upto = None if rows.exhausted else rows.last_key
            if len(rows.rows):
                ordinal = None if progress.key_columns else progress.first_offset
                durable = self._rows.append(
                    dump, progress, request, rows, position, ordinal=ordinal, while_paused=True
                )
                waits.append(durable)
            with self._decisions.lock:
                self._rows.count(dump, progress, rows)
            self._run_effects()
            while len(waits) > 2:
                self._wait(waits.pop(0), stop)
            if upto is None:
                break
            request = replace(request, after=upto)
        if progress.status in FINISHED_TABLES or stop.is_set():
            return
        completed = completed_record(dump, progress, None if progress.key_columns else offset)
        offset = self._append_control(completed, stop)
        with self._decisions.lock:
            self._tables.complete(dump, progress, offset)
        self._run_effects()

    def _append_control(self, record: dict[str, Any], stop: threading.Event) -> int:
        appended = self._rows.append_record(record)
        self._wait(appended.durable, stop)
        return appended.offset

    def _run_effects(self) -> None:
        """Run effects, but no longer than a snapshot may be kept. Raises ChunkBusyError."""
        done: Future[None] = Future()

        def run() -> None:
            try:
                self._decisions.run_effects()
            except BaseException as failure:  # noqa: BLE001 - raised where the dump runs
                done.set_exception(failure)
            else:
                done.set_result(None)

        threading.Thread(target=run, name="tidelog-blocking-effects", daemon=True).start()
        wait_s = STORE_WAIT_S * (1 + min(self._given_up, MOST_TIMES))
        try:
            done.result(wait_s)
        except TimeoutError:
            if done.done():
                raise
            self._storing = done
            raise ChunkBusyError(
                f"the state store has not answered for {wait_s:.0f} s: the dump restarts once it "
                "does, so that neither the log nor DDL waits for it"
            ) from None

    def _wait_for_store(self) -> None:
        """Wait until the last attempt's writes to the state store are done."""
        storing, self._storing = self._storing, None
        if storing is not None:
            storing.result()

    def _wait_for_pause(self, log_pause: BlockingDumpPause, stop: threading.Event) -> None:
        """Wait until the log is paused at the requested position."""
        deadline = time.monotonic() + PAUSE_S
        while not log_pause.wait(TURN_S):
            self._run_effects()
            if stop.is_set():
                raise ChunkError("capture stops")
            if time.monotonic() > deadline:
                raise ChunkError(
                    f"the log did not reach the dump's position within {PAUSE_S:.0f} s: it is "
                    "far behind, or a large transaction is in progress"
                )

    def _wait(self, event: threading.Event, stop: threading.Event) -> None:
        while not event.is_set():
            self._decisions.run_decisions(0.0)
            self._run_effects()
            if stop.is_set():
                raise ChunkError("capture stops")
            event.wait(TURN_S)

    @staticmethod
    def _unfinished(dump: DumpState) -> list[TableProgress]:
        return [progress for progress in dump.tables if progress.status not in FINISHED_TABLES]


def _read(reader: BlockingReader, request: ChunkRequest, stop: threading.Event) -> ChunkRows:
    """Read a chunk, again under the same snapshot if a retry may help."""
    for attempt in range(BLOCKING_ATTEMPTS):
        try:
            return reader.read(request)
        except (ChunkLostError, ChunkRefusedError, ChunkVoidError):
            raise
        except ChunkError:
            if attempt + 1 == BLOCKING_ATTEMPTS or stop.wait(_RETRY_S.after(attempt + 1)):
                raise
    raise AssertionError("unreachable")


# Dumps of tables without a key.

LOG_WAIT_S = 60.0
"""How long a snapshot is kept while the log is read up to its position."""
ALTERED_WAIT_S = 0.5
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
        self.not_before = time.monotonic() + _RETRY_S.after(self.tries)
        return isinstance(error, ChunkRefusedError) or self.failures == BLOCKING_ATTEMPTS


class KeylessDumps:
    """Reads tables without a key, one after the other, on a thread of its own."""

    def __init__(
        self,
        parts: DumpParts,
        open_reader: Callable[[], BlockingReader],
        tables: DumpTables,
        throttle: Throttle,
        gate: DumpGate,
    ) -> None:
        self._open_reader = open_reader
        self._catalogue = parts.catalogue
        self._decisions = parts.decisions
        self._store = parts.store
        self._tables = tables
        self._rows = SnapshotRows(parts)
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
            self._decisions.wake()

    # ------------------------------------------------------------ one table

    def _dump(self, table: _Keyless) -> bool:
        """Read the table; False: not done, it is to be tried again."""
        run = table.run
        if self._must_wait(run.dump) or time.monotonic() < table.not_before:
            return False
        try:
            self._read(run)
        except _StoppedError:
            return False
        except ChunkVoidError as error:
            self._note(run, error)
            self._stop.wait(ALTERED_WAIT_S)
            # It may have a key now.
            self._decisions.post(partial(run.transition, TableRunInput.ALTERED))
        except SourceError as error:
            if error.policy not in (Policy.RETRY, Policy.VOID):
                raise
            self._note(run, error)
            if not table.fails(error):
                return False
            found = self._tables.look_up(run.progress)
            refused = found if isinstance(found, UnsupportedTableError) else error
            self._decisions.post(partial(self._give_up, run, refused))
        return True

    def _note(self, run: TableRun, error: SourceError) -> None:
        with self._decisions.lock:
            self._store.chunks_read.failed(error)
            self._store.counters.failed += 1
        logger.warning("%s is read again from its first row: %s", run.progress.table, error)

    def _give_up(self, run: TableRun, error: SourceError) -> None:
        if isinstance(error, (ChunkDeniedError, UnsupportedTableError)):
            self._tables.refuse(run.dump, run.progress, error)
        else:
            self._tables.fail(run.dump, run.progress, str(error))

    def _must_wait(self, dump: DumpState) -> bool:
        return dump.status is DumpStatus.PAUSED or self._gate.blocks_dumps

    def _read(self, run: TableRun) -> None:
        """Append the table's rows between the dump's first record and its last."""
        dump, progress = run.dump, run.progress
        loop, table = self._decisions.loop, TableName.parse(progress.table)
        # First: a snapshot is not to be kept while a log that is far behind is read.
        self._wait_for_log(run, self._catalogue.position(), None)
        reader, due = self._open_reader(), progress.due
        try:
            position = reader.begin(SNAPSHOT_S)
            self._wait_for_log(run, position, time.monotonic() + LOG_WAIT_S)
            failpoints.hit("keyless.begun")
            started = started_record(dump, progress)
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
                    unseen = loop.first_unseen(rows.snapshot, table)
                    first = offset if unseen is None else min(offset, unseen)
                    self._begin(run, offset, due)
                failpoints.hit("keyless.read")
                if len(rows.rows):
                    durable = self._rows.append(
                        dump, progress, None, rows, position, ordinal=offset
                    )
                    waits.append(durable)
                with self._decisions.lock:
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
        self._decisions.post(partial(self._complete, run, first, last))

    def _begin(self, run: TableRun, offset: int, due: str) -> None:
        """Begin the table. Raises ChunkVoidError if capture joined the dump since it was ``due``:
        for a change that the snapshot may not show.
        """
        with self._decisions.lock:
            progress = run.progress
            if run.ended:
                return
            if progress.due != due:
                raise ChunkVoidError(f"{progress.table} changed without row events in the meantime")
            begun = progress.status is TableStatus.RUNNING
            progress.transition(TableInput.RESTART if begun else TableInput.BEGIN)
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
            with self._decisions.lock:
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
            with self._decisions.lock:
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
        while self._decisions.loop.reached < position:
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
        if (
            self._stop.is_set()
            or run.progress.status in FINISHED_TABLES
            or self._must_wait(run.dump)
        ):
            raise _StoppedError
