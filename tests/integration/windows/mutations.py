"""Ways to break each rule of the windows. A test that no mutation fails proves nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.property.test_windows_model import PaperWindows

from tidelog.app.capture import run as capture_run
from tidelog.capture import catalogue_watch, windows
from tidelog.capture.capture_scope import RelationNames
from tidelog.capture.dumps import automatic, chunk_task, refetch_queue
from tidelog.capture.dumps import state as dump_state
from tidelog.capture.session import loop, session
from tidelog.errors import ChunkError, ConnectionLostError
from tidelog.eventlog.reader import EmittedTransactions
from tidelog.model.records import KeyEffect, RecordKind
from tidelog.ports import TableShape
from tidelog.sources.postgres.catalogue import publication, storage
from tidelog.sources.postgres.catalogue.tables import PostgresCatalogue
from tidelog.sources.postgres.chunks.reader import PostgresChunkReader
from tidelog.sources.postgres.chunks.watermarks import PgSnapshot

Patch = pytest.MonkeyPatch


# ---------------------------------------------------------------- stale reads


def published_rule(patch: Patch) -> None:
    """Algorithm 1 as published: only what stands between the watermarks supersedes."""
    patch.setattr(capture_run, "Windows", PaperWindows)


def keys_taken_for_held(patch: Patch) -> None:
    """A chunk is used although an unseen transaction's keys are not known."""
    patch.setattr(windows.KeyHistory, "not_retained", lambda self, xids: set())


def event_log_not_asked(patch: Patch) -> None:
    """After a restart no transaction is taken for emitted."""
    patch.setattr(EmittedTransactions, "changed_by", lambda self, xids: {})


def replay_begins_at_request(patch: Patch) -> None:
    """The dump's first record stays behind records that its chunks can't see."""
    patch.setattr(loop.CaptureLoop, "first_unseen", lambda self, snapshot, table: None)


def dropped_keys_not_noticed(patch: Patch) -> None:
    """The history gives keys up for lack of room and does not say so."""
    drop = windows.KeyHistory.drop_oldest

    def dropping(self: windows.KeyHistory) -> None:
        since = self.since
        drop(self)
        self.since = since

    patch.setattr(windows.KeyHistory, "drop_oldest", dropping)


def dropped_transactions_not_noticed(patch: Patch) -> None:
    """The journal forgets transactions for lack of room and does not say so."""
    add = windows.UnseenTransactions.add

    def adding(self: windows.UnseenTransactions, *arguments: Any) -> None:
        complete = self.complete
        add(self, *arguments)
        self.complete = complete

    patch.setattr(windows.UnseenTransactions, "add", adding)


def visible_to_one_is_forgotten(patch: Patch) -> None:
    """What the newest snapshot sees is forgotten, whatever older windows see."""

    def forgetting(self: windows.Windows, snapshot: Any) -> None:
        self.journal.forget_visible([snapshot])
        for held in self._histories.values():
            held.forget_visible([snapshot])

    patch.setattr(windows.Windows, "forget_visible", forgetting)


# ---------------------------------------------------------------- keys


def _superseding(patch: Patch, keep: Callable[[windows.ChangedKeys], Any]) -> None:
    invisible = windows.KeyHistory.invisible

    def filtered(self: windows.KeyHistory, snapshot: Any) -> windows.ChangedKeys | None:
        changed = invisible(self, snapshot)
        return None if changed is None else changed.filter(keep(changed))

    patch.setattr(windows.KeyHistory, "invisible", filtered)


def old_keys_ignored(patch: Patch) -> None:
    """A deleted key, or the old one of a key change, supersedes nothing."""
    _superseding(patch, lambda changed: changed.effect != KeyEffect.GONE)


def new_keys_ignored(patch: Patch) -> None:
    """Only keys that went supersede."""
    _superseding(patch, lambda changed: changed.effect == KeyEffect.GONE)


def order_of_changes_ignored(patch: Patch) -> None:
    """A key that went needs nothing, though a row that lacks columns has taken it since."""

    def completed(self: windows.ChangedKeys) -> Any:
        return self.key.filter(pa.array(np.isin(self.effect, windows.COMPLETING)))

    patch.setattr(windows.ChangedKeys, "completed", completed)


def partial_rows_ignored(patch: Patch) -> None:
    """A record that lacks columns supersedes nothing."""
    partial = [KeyEffect.PARTIAL, KeyEffect.MOVED_PARTIAL]
    _superseding(patch, lambda changed: ~np.isin(changed.effect, partial))


def absent_keys_always_emitted(patch: Patch) -> None:
    """An absent key is reported although its row was inserted meanwhile."""
    close = windows.Windows._close

    def closing(self: Any, window: Any, chunk: Any, low: int, high: int) -> Any:
        absent = chunk.rows.filter(chunk.rows.kind == RecordKind.ABSENT)
        closed = close(self, window, chunk, low, high)
        if isinstance(closed, windows.ClosedWindow) and len(absent) and not len(closed.rows):
            closed.rows = absent
        return closed

    patch.setattr(windows.Windows, "_close", closing)


def truncate_ignored(patch: Patch) -> None:
    """Rows of a chunk outlive a truncate that it can't see."""
    patch.setattr(windows.KeyHistory, "truncated_unseen", lambda self, snapshot: False)


def key_columns_ignored(patch: Patch) -> None:
    """Keys to read again are looked for in the primary key."""
    read = PostgresChunkReader.read
    patch.setattr(
        PostgresChunkReader,
        "read",
        lambda self, request: read(self, dataclasses.replace(request, key_columns=None)),
    )


# ---------------------------------------------------------------- partial rows


def partial_rows_complete(patch: Patch) -> None:
    """A record that lacks columns is taken for a whole row."""
    patch.setattr(windows.ChangedKeys, "completed", lambda self: self.key)


def refetches_not_stored(patch: Patch) -> None:
    """Keys to read again are known in memory only."""
    patch.setattr(
        refetch_queue.RefetchQueue, "_store", lambda self, name, refetch_table, keys: None
    )


def moved_keys_ignored(patch: Patch) -> None:
    """A key change that lacks columns is left as it is."""
    patch.setattr(windows.Windows, "_keys_moved_to", lambda self, batch: [])


# ---------------------------------------------------------------- DDL


def snapshot_before_lock(patch: Patch) -> None:
    """A rewrite may commit between the snapshot and the lock; then the table looks empty."""

    def beginning(self: Any, connection: Any, table: Any) -> Any:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
        connection.execute(f"LOCK TABLE {table} IN ACCESS SHARE MODE".encode())
        found = self._finder.find(connection, table)
        return found, PgSnapshot.from_text(row[0])

    patch.setattr(PostgresChunkReader, "_begin", beginning)


def schema_changes_ignored(patch: Patch) -> None:
    """A chunk read under another schema than the log's is used."""
    patch.setattr(windows.Windows, "on_schema", lambda self, schema: None)


def storage_ignored(patch: Patch) -> None:
    """What changes rows without row events is not noticed."""
    shapes = PostgresCatalogue._shapes

    def shapeless(self: PostgresCatalogue, tables: Any) -> Any:
        read = shapes(self, tables)
        replaced = {
            table: dataclasses.replace(shape, storage="")
            for table, shape in read.items()
            if isinstance(shape, TableShape)
        }
        return read | replaced

    patch.setattr(PostgresCatalogue, "_shapes", shapeless)
    patch.setattr(automatic, "changes_rows", lambda seen: None)


def absent_rows_stay(patch: Patch) -> None:
    """Outputs are not told to delete what a whole dump did not find."""
    patch.setattr(dump_state, "whole_table", lambda progress: False)


def new_tables_dumped_at_once(patch: Patch) -> None:
    """A new table is read while transactions run whose changes are not published."""
    patch.setattr(catalogue_watch.CatalogueWatch, "_is_settled", lambda self, name, found: True)


def names_not_known(patch: Patch) -> None:
    """A relation is what the log calls it."""
    patch.setattr(RelationNames, "find_wrong_rows", lambda self, named: [])


def traces_not_looked_at(patch: Patch) -> None:
    """Partitions that are the same ones count as unchanged."""
    query = storage._LEAVES.replace("i.xmin::text", "''")
    patch.setattr(storage, "_LEAVES", query)


def refused_look_ends_capture(patch: Patch) -> None:
    """A lock that the publication can't have stops the log."""
    patch.setattr(publication, "publishing_refused", lambda *_: None)
    patch.setattr(session, "TRANSIENT", (ConnectionLostError, ChunkError))


# ---------------------------------------------------------------- watermarks


def watermarks_wait_for_standby(patch: Patch) -> None:
    """Watermarks commit as the server's default says."""
    init = PostgresChunkReader.__init__

    def making(self: Any, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        self._watermark_settings |= {"synchronous_commit": "on", "statement_timeout": "3000"}

    patch.setattr(PostgresChunkReader, "__init__", making)


def order_not_checked(patch: Patch) -> None:
    """A high watermark whose low watermark was not seen is passed over."""
    on_watermark = windows.Windows.on_watermark

    def passing(self: windows.Windows, seen: Any) -> Any:
        outcome = on_watermark(self, seen)
        order = (
            isinstance(outcome, windows.VoidedWindow) and outcome.reason is windows.VoidReason.ORDER
        )
        return None if order else outcome

    patch.setattr(windows.Windows, "on_watermark", passing)


def windows_never_time_out(patch: Patch) -> None:
    """A window whose high watermark is lost stays open for ever."""
    patch.setattr(chunk_task.ChunkReading, "void_overdue", lambda self: None)
