"""Ways to break dumps. An oracle that one of them gets past is none: `test_oracle_catches`.

`apply` runs in the process of a capture, before it starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.campaign import mutations as of_campaign
from tests.integration.windows import mutations as of_windows

from tidelog.capture import pauses, windows
from tidelog.capture.dumps import chunk_planner, chunk_results, chunk_task, coordinator, store
from tidelog.capture.dumps import state as dump_state
from tidelog.capture.dumps.state import DumpStatus
from tidelog.capture.session import loop
from tidelog.model.records import RecordKind

Patch = pytest.MonkeyPatch


def apply(name: str) -> None:
    """Break this process's Tidelog for good."""
    MUTATIONS[name](Patch())


def nothing_superseded(patch: Patch) -> None:
    """A chunk's rows are all emitted, whatever the log holds."""
    from tidelog.capture import windows

    patch.setattr(windows.KeyHistory, "invisible", lambda self, snapshot: None)


def ends_anyway(patch: Patch) -> None:
    """With another: a table counts as read although its ranges don't join."""
    patch.setattr(dump_state.TableProgress, "complete", property(lambda self: True))


def planner_off_by_one(patch: Patch) -> None:
    """A planned chunk begins one key behind the end of the one before."""
    ends_anyway(patch)
    planned, plan = chunk_planner.ChunkQueue.add_planned, chunk_task.KeyPlanner._plan
    beyond: dict[Any, Any] = {}

    def planning(self: Any, reader: Any, cursor: Any, request: Any, count: int) -> None:
        class Reader:
            def boundaries(self, wanted: Any, number: int) -> Any:
                ends = reader.boundaries(wanted, number)
                for end in ends:
                    further = reader.boundaries(replace(wanted, after=end, limit_rows=1), 1)
                    beyond[end] = further[0] if further else end
                return ends

        plan(self, Reader(), cursor, request, count)  # type: ignore[arg-type]

    def skipping(self: Any, cursor: Any, *arguments: Any, **options: Any) -> None:
        planned(self, cursor, *arguments, **options)
        for task in cursor.planned:
            after = task.request.after
            task.request = replace(task.request, after=beyond.get(after, after))

    patch.setattr(chunk_task.KeyPlanner, "_plan", planning)
    patch.setattr(chunk_planner.ChunkQueue, "add_planned", skipping)


def planner_overlaps(patch: Patch) -> None:
    """A planned chunk begins where the one before began."""
    ends_anyway(patch)
    planned = chunk_planner.ChunkQueue.add_planned

    def overlapping(self: Any, cursor: Any, *arguments: Any, **options: Any) -> None:
        planned(self, cursor, *arguments, **options)
        if len(cursor.planned) > 1:
            last, before = cursor.planned[-1], cursor.planned[-2]
            last.request = replace(last.request, after=before.request.after)

    patch.setattr(chunk_planner.ChunkQueue, "add_planned", overlapping)


def rest_skipped(patch: Patch) -> None:
    """What a full chunk left of its range is taken for read."""
    patch.setattr(chunk_planner.ChunkQueue, "put_rest", lambda self, task, after: None)
    ends_anyway(patch)


def log_pause_released_early(patch: Patch) -> None:
    """The log goes on as soon as a blocking dump's snapshot is taken."""
    move = pauses.BlockingDumpPause.set_position

    def moving(self: pauses.BlockingDumpPause, at: int) -> None:
        move(self, at)
        self._paused_at = at
        self.release()

    def appending(self: loop.CaptureLoop) -> None:
        while self._appends:
            with self._lock:
                self._put(self._appends.popleft())

    patch.setattr(pauses.BlockingDumpPause, "set_position", moving)
    patch.setattr(loop.CaptureLoop, "_append_waiting", appending)


def log_pause_moved_short(patch: Patch) -> None:
    """The log is held where it stood, not where the snapshot was taken."""
    move = pauses.BlockingDumpPause.set_position

    def moving(self: pauses.BlockingDumpPause, _at: int) -> None:
        move(self, self._at)

    patch.setattr(pauses.BlockingDumpPause, "set_position", moving)


def due_one_early(patch: Patch) -> None:
    """A window without watermarks closes before the last transaction that it can see."""
    deliver = windows.Windows.deliver

    def delivering(self: windows.Windows, window: Any, rows: Any) -> None:
        if rows.emit_at is not None:
            rows = replace(rows, emit_at=min(rows.emit_at, self._last_position))
        deliver(self, window, rows)

    patch.setattr(windows.Windows, "deliver", delivering)


def due_amid_a_transaction(patch: Patch) -> None:
    """A window without watermarks closes between two changes of one transaction."""

    def due(self: windows.Windows, batch: Any, also_at: int | None = None) -> int | None:
        points = [w.rows.emit_at for w in self._by_position if w.rows and w.rows.emit_at]
        return 1 if points and len(batch) > 1 and batch.position[-1] >= min(points) else None

    patch.setattr(windows.Windows, "due", due)


def progress_before_durable(patch: Patch) -> None:
    """A chunk counts as done when its window closes, and is stored before its rows are."""
    closed = chunk_task.ChunkReading.on_window_closed

    def closing(self: Any, outcome: Any) -> Any:
        task = self._queue.find(outcome.window.chunk_id)
        item = closed(self, outcome)
        if item is not None and task.progress is not None and task.request.keys is None:
            task.progress.add_range(task.request.after, task.request.upto, task.order)
            self._store.store(task.dump)
            time.sleep(0.02)  # as a slow disk would take
        return item

    patch.setattr(chunk_task.ChunkReading, "on_window_closed", closing)


def progress_never_stored(patch: Patch) -> None:
    """After a crash nothing of what was read is known."""
    patch.setattr(store.DumpStore, "reconcile", lambda self, chunks, end=None: None)
    patch.setattr(store.DumpStore, "store_changed", lambda self, now: None)


def log_not_asked_at_start(patch: Patch) -> None:
    """Chunks that were durable when the process died, and not stored, are read again."""
    patch.setattr(store.DumpStore, "reconcile", lambda self, chunks, end=None: None)


def retried_with_whole_range(patch: Patch) -> None:
    """A voided chunk is read again with its first, longer range."""
    advance = chunk_planner.ChunkQueue.advance

    def advancing(self: Any, task: Any, rows: Any) -> None:
        upto = task.request.upto
        advance(self, task, rows)
        task.request = replace(task.request, upto=upto)

    patch.setattr(chunk_planner.ChunkQueue, "advance", advancing)


def pause_ignored(patch: Patch) -> None:
    """A paused dump is noted as paused, and read on."""
    next_task = coordinator.DumpCoordinator._next_task

    def next_even_so(self: Any, now: float, readers: int) -> Any:
        paused = [d for d in self._store.all() if d.status is DumpStatus.PAUSED]
        for dump in paused:
            dump.status = DumpStatus.RUNNING
        try:
            return next_task(self, now, readers)
        finally:
            for dump in paused:
                if dump.status is DumpStatus.RUNNING:
                    dump.status = DumpStatus.PAUSED

    patch.setattr(coordinator.DumpCoordinator, "_next_task", next_even_so)


def pause_forgotten(patch: Patch) -> None:
    """A paused dump goes on after a restart."""
    load = store.DumpStore.load

    def loading(self: Any) -> None:
        load(self)
        for dump in self._dumps.values():
            if dump.status is DumpStatus.PAUSED:
                dump.status = DumpStatus.RUNNING
                self.store(dump)

    patch.setattr(store.DumpStore, "load", loading)


def finalized_too_early(patch: Patch) -> None:
    """A table is said to be final before its last record."""
    from tidelog.capture.dumps import table_dump as dump_tables

    done = dump_tables.DumpTables.complete
    patch.setattr(
        dump_tables.DumpTables,
        "complete",
        lambda self, dump, progress, offset: done(self, dump, progress, offset - 1),
    )


def refetches_dropped(patch: Patch) -> None:
    """Keys whose superseding records lack columns are not read again."""
    patch.setattr(coordinator.DumpCoordinator, "refetch", lambda self, schema, keys: None)


def absent_not_listed(patch: Patch) -> None:
    """Keys that the table lacks are left out of the list."""
    durable = chunk_results.ChunkResults.on_durable
    patch.setattr(
        chunk_results.ChunkResults,
        "on_durable",
        lambda self, task, closed, absent: durable(self, task, closed, absent[1:]),
    )


def absent_lost(patch: Patch) -> None:
    """No record tells of keys that the table lacks: harmless to a replay that begins empty."""
    closed = chunk_task.ChunkReading.on_window_closed

    def closing(self: Any, outcome: Any) -> Any:
        outcome.rows = outcome.rows.filter(outcome.rows.kind != RecordKind.ABSENT)
        return closed(self, outcome)

    patch.setattr(chunk_task.ChunkReading, "on_window_closed", closing)


def acknowledged_before_durable(patch: Patch) -> None:
    """The source is told that what was read is consumed."""
    emit = loop.CaptureLoop._emit

    def emitting(self: Any, batch: Any) -> None:
        emit(self, batch)
        if batch.resume.acknowledge:
            self._reader.acknowledge(batch.resume.acknowledge)

    patch.setattr(loop.CaptureLoop, "_emit", emitting)


# ---------------------------------------------------------------- MySQL and MariaDB


def bound_read_late(patch: Patch) -> None:
    """Everything that the binlog holds after a chunk's SELECT is taken for visible to it."""
    from tidelog.sources.mysql.chunks.reader import MySqlChunkReader
    from tidelog.sources.mysql.chunks.watermarks import BinlogSnapshot, binlog_end

    read = MySqlChunkReader.read

    def reading(self: MySqlChunkReader, request: Any) -> Any:
        rows = read(self, request)
        time.sleep(0.02)
        rows.snapshot = BinlogSnapshot(binlog_end(self._watermark_connection()))
        return rows

    patch.setattr(MySqlChunkReader, "read", reading)


def emitted_at_prepare(patch: Patch) -> None:
    """Rows of an XA transaction come with its first phase."""
    from tidelog.codecs.mysql.binlog.items import XaState
    from tidelog.sources.mysql.stream.prepared_transactions import XaRows

    decided = XaRows.take

    def seen_at(self: Any, scanner: Any, seen: Any, idle_at: int) -> Any:
        if seen.state is XaState.PREPARED:
            yield from decided(self, scanner, replace(seen, state=XaState.ONE_PHASE), idle_at)
        elif seen.state is XaState.ONE_PHASE:
            yield from decided(self, scanner, seen, idle_at)

    patch.setattr(XaRows, "take", seen_at)


def prepared_before_start_lost(patch: Patch) -> None:
    """After a restart nothing is held back for a prepared transaction, nor looked for."""
    from tidelog.codecs.mysql.binlog.scanner import BinlogScanner
    from tidelog.sources.mysql.stream.prepared_transactions import XaRows

    take, committed = XaRows.take, XaRows._committed

    def seen_at(self: Any, scanner: Any, seen: Any, idle_at: int) -> Any:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(
                "tidelog.sources.mysql.stream.prepared_transactions.find_prepared",
                lambda *_, **__: (None, None),
            )
            yield from take(self, scanner, seen, idle_at)

    def known_only(self: Any, *arguments: Any, known: bool) -> Any:
        if known:
            yield from committed(self, *arguments, known=known)

    patch.setattr(BinlogScanner, "oldest_prepared", property(lambda self: None))
    patch.setattr(XaRows, "take", seen_at)
    patch.setattr(XaRows, "_committed", known_only)


def ordinals_after_filters(patch: Patch) -> None:
    """Records of a transaction are counted without those of tables that are not captured."""
    from tidelog.codecs.mysql.binlog.scan_state import ScannedRecords

    batch_of = ScannedRecords.batch

    def counted(self: Any, records: int, payload_bytes: int, resume: Any) -> Any:
        batch = batch_of(self, records, payload_bytes, resume)
        at, last = getattr(self, "_counted", (0, -1))
        for index, position in enumerate(batch.position.tolist()):
            at, last = position, last + 1 if position == at else 0
            batch.ordinal[index] = last
        self._counted = at, last
        batch.resume = replace(batch.resume, ordinal=last)
        return batch

    patch.setattr(ScannedRecords, "batch", counted)


def unlogged_rows_ignored(patch: Patch) -> None:
    """A table is not dumped again where its rows changed without row events."""
    from tidelog.sources.mysql.stream.affected_tables import LogStatements

    patch.setattr(LogStatements, "_unlogged", lambda self, effect, position: None)


MUTATIONS: dict[str, Callable[[Patch], None]] = {
    mutation.__name__: mutation
    for mutation in (
        nothing_superseded,
        planner_off_by_one,
        planner_overlaps,
        rest_skipped,
        log_pause_released_early,
        log_pause_moved_short,
        due_one_early,
        due_amid_a_transaction,
        progress_before_durable,
        progress_never_stored,
        log_not_asked_at_start,
        retried_with_whole_range,
        pause_ignored,
        pause_forgotten,
        finalized_too_early,
        refetches_dropped,
        absent_not_listed,
        absent_lost,
        acknowledged_before_durable,
        bound_read_late,
        emitted_at_prepare,
        prepared_before_start_lost,
        ordinals_after_filters,
        unlogged_rows_ignored,
        of_windows.published_rule,
        of_windows.old_keys_ignored,
        of_windows.new_keys_ignored,
        of_windows.truncate_ignored,
        of_windows.schema_changes_ignored,
        of_windows.moved_keys_ignored,
        of_windows.absent_rows_stay,
        of_campaign.appends_to_a_bucket_overwrite,
        of_campaign.offsets_issued_again,
        of_campaign.tables_left_out_are_forgotten,
        of_campaign.late_appends_overwrite,
        of_campaign.no_lease_check_before_an_append,
        of_campaign.no_fence,
        of_campaign.epoch_not_raised,
        of_campaign.progress_written_without_epoch,
        of_campaign.state_written_after_the_deadline,
    )
}
