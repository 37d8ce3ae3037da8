"""Blocking dumps: read all tables under one snapshot while the log is paused at its position.

The log is paused first, because the snapshot's position is known only once it was taken; then the
log is read up to that position and paused until the last row is in the event log. So the event log
has all commits before the position, then the rows, then the rest: no window is needed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from tidelog.capture.buffer import item_bytes
from tidelog.capture.dumps.chunk_ends import RowWidths
from tidelog.capture.dumps.dump_notifications import DumpNotices
from tidelog.capture.dumps.snapshot_rows import SnapshotRows
from tidelog.capture.dumps.state import DumpState, TableProgress, completed_record
from tidelog.capture.dumps.state_machine import FINISHED, TableInput, TableStatus
from tidelog.capture.dumps.store import DumpStore
from tidelog.capture.dumps.table_dump import DumpTables, is_unavailable
from tidelog.capture.dumps.thread_messages import Actions
from tidelog.capture.limits.log_pause import LogPause
from tidelog.errors import (
    ChunkBusyError,
    ChunkError,
    ChunkLostError,
    ChunkRefusedError,
    ChunkVoidError,
    ConnectionLostError,
    SourceBusyError,
    SourceError,
)
from tidelog.model.schema import TableName
from tidelog.ports import BlockingReader, ChunkRequest, ChunkRows
from tidelog.system import failpoints

logger = logging.getLogger(__name__)

PAUSE_S = 60.0  # for the log to reach a boundary between transactions, or the snapshot
SNAPSHOT_S = 60.0
ATTEMPTS = 3
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
        open_reader: Callable[[Sequence[TableName]], BlockingReader],
        actions: Actions,
        store: DumpStore,
        tables: DumpTables,
        notices: DumpNotices,
    ) -> None:
        self._open_reader = open_reader
        self._actions = actions
        self._store = store
        self._tables = tables
        self._rows = SnapshotRows(actions, store, notices)
        self._storing: Future[None] | None = None
        self._given_up = 0
        """How often the snapshot was released because of the state store."""

    def run(self, dump: DumpState, stop: threading.Event) -> None:
        """Run until every table of the dump has ended. The log is resumed in any case."""
        error: SourceError | None = None
        attempt = self._given_up = 0
        while attempt < ATTEMPTS:
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
                with self._actions.lock:
                    self._store.chunks_read.failed(failure)
                logger.warning("blocking dump %s: %s", dump.dump_id, failure)
                if self._storing is not None:  # the store's failure, not the dump's
                    self._given_up += 1
                    continue
                attempt += 1
                if attempt < ATTEMPTS:
                    stop.wait(0.5 * 2 ** (attempt - 1))
        with self._actions.lock:
            for progress in self._unfinished(dump):
                self._tables.fail(dump, progress, str(error))

    def _begin(self, dump: DumpState) -> list[TableProgress]:
        """The tables that can be dumped, each from the beginning, even if an earlier attempt has
        read it: all are read under one snapshot.
        """
        waiting = []
        with self._actions.lock:
            self._tables.begin(dump)
            for progress in dump.tables:
                if progress.status in (TableStatus.DONE, TableStatus.RUNNING):
                    progress.transition(TableInput.BEGIN_ANEW)
                    progress.finalized_until = None
            unfinished = self._unfinished(dump)
            for progress in unfinished:
                progress.forget_reading()
        for progress in unfinished:
            result = self._tables.look_up(progress)
            if isinstance(result, SourceError) and is_unavailable(result):
                raise result
            with self._actions.lock:
                if self._tables.admit(dump, progress, result):
                    if progress.status is TableStatus.PENDING:
                        progress.transition(TableInput.BEGIN)
                    waiting.append(progress)
        with self._actions.lock:
            self._store.store(dump)
        self._actions.run_effects()
        return waiting

    def _read(self, dump: DumpState, waiting: list[TableProgress], stop: threading.Event) -> None:
        reader = self._open_reader([TableName.parse(p.table) for p in waiting])
        log_pause = self._actions.engine.pause_log()
        try:
            self._wait_for_pause(log_pause, stop)
            failpoints.hit("blocking.held")
            position = reader.begin(SNAPSHOT_S)
            log_pause.move(position)
            self._wait_for_pause(log_pause, stop)
            for progress in waiting:
                if stop.is_set() or progress.status in FINISHED:
                    continue
                try:
                    self._read_table(dump, progress, reader, position, stop)
                except ChunkLostError:
                    raise  # the snapshot was lost with the connection
                except ChunkError as error:
                    if stop.is_set():
                        raise
                    with self._actions.lock:  # the snapshot is kept for the other tables
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
        started = {"type": "dump-started", "dump_id": dump.dump_id, "table": progress.table}
        offset = self._append_control(started, stop)
        progress.first_offset = offset
        request = progress.request(self._store.options.chunk_rows)
        waits: list[threading.Event] = []
        widths = RowWidths()
        while progress.status not in FINISHED and not stop.is_set():
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
            with self._actions.lock:
                self._rows.count(dump, progress, rows)
            self._run_effects()
            while len(waits) > 2:
                self._wait(waits.pop(0), stop)
            if upto is None:
                break
            request = replace(request, after=upto)
        if progress.status in FINISHED or stop.is_set():
            return
        completed = completed_record(dump, progress, None if progress.key_columns else offset)
        offset = self._append_control(completed, stop)
        with self._actions.lock:
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
                self._actions.run_effects()
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

    def _wait_for_pause(self, log_pause: LogPause, stop: threading.Event) -> None:
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
            self._actions.run_decisions(0.0)
            self._run_effects()
            if stop.is_set():
                raise ChunkError("capture stops")
            event.wait(TURN_S)

    @staticmethod
    def _unfinished(dump: DumpState) -> list[TableProgress]:
        return [progress for progress in dump.tables if progress.status not in FINISHED]


def _read(reader: BlockingReader, request: ChunkRequest, stop: threading.Event) -> ChunkRows:
    """Read a chunk, again under the same snapshot if a retry may help."""
    for attempt in range(ATTEMPTS):
        try:
            return reader.read(request)
        except (ChunkLostError, ChunkRefusedError, ChunkVoidError):
            raise
        except ChunkError:
            if attempt + 1 == ATTEMPTS or stop.wait(0.2 * 2**attempt):
                raise
    raise AssertionError("unreachable")
