"""The windows between watermarks: which rows of a chunk may follow which records of the log.

Pure: log records, watermarks and chunk rows come in as arguments; what to append is returned in
order. It implements Algorithm 1 of the DBLog paper (docs/PAPER_MAP.md maps its steps) with one
different rule (docs/explanation/watermarks.md): a record supersedes a chunk row if its transaction
is *not visible in the snapshot* of the chunk, wherever the record is before the emission point.

The states of a window are a table, `tidelog.capture.windows.state_machine.WINDOWS`.

A strategy that writes no watermarks delivers rows with a position instead (`ChunkRows.emit_at`),
before which everything that the chunk could see was committed. Then READ → CLOSED happens at the
first boundary between transactions at which the log has reached it (`due`, `close_due`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.capture.windows.history import ChangedKeys, KeyHistory, UnseenTransactions
from tidelog.capture.windows.state_machine import WINDOWS, VoidReason, WindowInput, WindowStatus
from tidelog.model.records import KeyEffect, Kind, LogBatch, Snapshot
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import ChunkRows, KeyExtractor, WatermarkSeen

READ_BACK_BYTES = 64 << 20
"""Most bytes of keys read back from the event log for one chunk. With more, the chunk waits until
the transactions that changed them are visible.
"""


@dataclass(slots=True)
class Window:
    """One chunk's window on the log."""

    chunk_id: str
    table: TableName
    low_watermark: str
    high_watermark: str
    low_position: int | None = None
    rows: ChunkRows | None = None
    registered_at: int = 0
    """The position that the log had reached when the window was registered."""
    schema_seen: int | None = None
    """The last version of the table that the log showed since the low watermark, or, if no
    watermark is written, since the window was registered.
    """
    schema_shown: int | None = None
    seeds: int = 0
    """The journal's number of seeds when the window was registered: the journal has what this
    window can't see.
    """
    floor: Snapshot | None = None
    """A snapshot taken before the window was registered: the window's own sees at least as much."""
    status: WindowStatus = WINDOWS.start

    def transition(self, event: WindowInput) -> None:
        self.status = WINDOWS.after(self.status, event)


@dataclass(slots=True)
class ClosedWindow:
    """A window that closed: append ``rows`` here, before any later record.

    ``refetch``: encoded keys whose superseding records lack columns, so that a key chunk must
    complete them.
    """

    window: Window
    rows: LogBatch
    snapshot: Snapshot
    schema: TableSchema
    rows_read: int
    rows_superseded: int
    low_position: int
    high_position: int
    refetch: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class VoidedWindow:
    """A window that can't be used; ``unseen_xids``: read their keys from the event log."""

    window: Window
    reason: VoidReason
    unseen_xids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ChangedKeysToRead:
    """Match keys that partial records moved rows to: a key chunk completes them."""

    schema: TableSchema
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class KeysReadBack:
    """The changes of transactions that were read back: changed keys, and xids of truncates."""

    changed: ChangedKeys | None
    truncates: list[int]


class Windows:
    """All open windows on one log, and the history of the log that they need.

    Not thread-safe: the engine calls it under its lock. The log never waits for a window.
    """

    def __init__(
        self,
        keys: KeyExtractor,
        schema_of: Callable[[int], TableSchema],
        *,
        retain_bytes: int = 64 << 20,
        journal_entries: int = 500_000,
    ) -> None:
        self._keys = keys
        self._schema_of = schema_of
        self._retain_bytes = retain_bytes
        self.journal = UnseenTransactions(journal_entries)
        self._histories: dict[TableName, KeyHistory] = {}
        self._by_low: dict[str, Window] = {}
        self._by_high: dict[str, Window] = {}
        self._by_position: list[Window] = []
        self._latest: Snapshot | None = None
        self._last_position = 0
        self.sequence = 0

    # ------------------------------------------------------------ dumps

    @property
    def open_count(self) -> int:
        return len(self._by_high)

    @property
    def retained_bytes(self) -> int:
        return sum(history.bytes for history in self._histories.values())

    def retain(self, table: TableName) -> None:
        """Retain the keys of the table's records from now on; before its first low watermark."""
        if table not in self._histories:
            self._histories[table] = KeyHistory(self.sequence + 1)

    def forget(self, table: TableName) -> None:
        """Drop the table's history: its dump is over."""
        self._histories.pop(table, None)

    def register(self, window: Window) -> None:
        """Register a window. Must precede the writing of its low watermark."""
        self.retain(window.table)
        window.floor = self._latest
        window.seeds = self.journal.seeds if self.journal.complete else -1
        window.registered_at = self._last_position
        self._by_low[window.low_watermark] = window
        self._by_high[window.high_watermark] = window

    def deliver(self, window: Window, rows: ChunkRows) -> None:
        """Take over the rows of the window's SELECT, before its high watermark is written."""
        marked = rows.emit_at is None
        window.transition(WindowInput.ROWS if marked else WindowInput.ROWS_WITH_POSITION)
        window.rows = rows
        self._latest = rows.snapshot
        if rows.emit_at is not None and window.high_watermark in self._by_high:
            self._by_low.pop(window.low_watermark, None)
            window.low_position = window.registered_at
            window.schema_seen = window.schema_shown
            self._by_position.append(window)

    def discard(self, window: Window) -> None:
        """Drop the window: its chunk is not needed."""
        window.transition(WindowInput.DISCARD)
        self._forget(window)

    def _forget(self, window: Window) -> None:
        self._by_low.pop(window.low_watermark, None)
        self._by_high.pop(window.high_watermark, None)
        self._by_position = [w for w in self._by_position if w is not window]

    def keys_of(self, batches: Iterable[LogBatch]) -> KeysReadBack | None:
        """The keys of records read back from the event log; None if they exceed `READ_BACK_BYTES`.
        Needs no lock.
        """
        truncates: list[int] = []
        parts: list[ChangedKeys] = []
        size = 0
        for batch in batches:
            for schema_id in np.unique(batch.schema_id):
                records = np.flatnonzero(batch.schema_id == schema_id).astype(np.int32)
                truncated = records[batch.kind[records] == Kind.TRUNCATE]
                truncates.extend(int(xid) for xid in batch.xid[truncated])
                entries = self._keys.keys(batch, records, self._schema_of(int(schema_id)))
                parts.append(
                    ChangedKeys(
                        entries.keys(),
                        entries.effect,
                        batch.xid[entries.record],
                        np.full(len(entries), -1, np.int64),
                    )
                )
                size += parts[-1].bytes
            if size > READ_BACK_BYTES:
                return None
        merged = None
        if parts:
            merged = ChangedKeys(
                pa.concat_arrays([part.key for part in parts]),
                np.concatenate([part.effect for part in parts]),
                np.concatenate([part.xid for part in parts]),
                np.concatenate([part.sequence for part in parts]),
            )
        return KeysReadBack(merged, truncates)

    def seed_keys(self, table: TableName, xids: set[int], found: KeysReadBack) -> None:
        """Retain the keys of ``xids``: the result of `keys_of` for their records."""
        history = self._histories.get(table)
        if history is not None:
            history.seed(found.changed, found.truncates, xids)

    def forget_visible(self, snapshot: Snapshot) -> None:
        """Forget transactions that ``snapshot``, just taken, and every open window's snapshot can
        see: they can supersede nothing any more. A window not read yet counts with its floor.
        """
        snapshots = [snapshot]
        for window in self._by_high.values():
            seen = window.rows.snapshot if window.rows is not None else window.floor
            if seen is None:
                return
            snapshots.append(seen)
        self.journal.forget_visible(snapshots)
        for history in self._histories.values():
            history.forget_visible(snapshots)

    # ------------------------------------------------------------ the log

    def due(self, batch: LogBatch, also_at: int | None = None) -> int | None:
        """Where ``batch`` must be cut: the index of its first record that begins a transaction at
        which a window without watermarks is due, or that is not before position ``also_at``.
        """
        points = [
            w.rows.emit_at for w in self._by_position if w.rows and w.rows.emit_at is not None
        ]
        if also_at is not None:
            points.append(also_at)
        if not points or not len(batch):
            return None
        at = int(np.searchsorted(batch.position, min(points)))
        before = self._last_position if at == 0 else int(batch.position[at - 1])
        while at < len(batch) and batch.position[at] == before:  # within a transaction
            at += 1
        return at if at < len(batch) else None

    def close_due(self, position: int) -> list[ClosedWindow | VoidedWindow]:
        """Close due windows without watermarks; all before ``position`` was read, and no
        transaction is incomplete.
        """
        due = [
            window
            for window in self._by_position
            if window.rows and window.rows.emit_at is not None and window.rows.emit_at <= position
        ]
        outcomes: list[ClosedWindow | VoidedWindow] = []
        for window in due:
            assert window.rows is not None
            assert window.rows.emit_at is not None
            assert window.low_position is not None
            self._forget(window)
            outcomes.append(
                self._end(window, window.rows, window.low_position, window.rows.emit_at)
            )
        return outcomes

    def on_batch(self, batch: LogBatch) -> list[ChangedKeysToRead]:
        """Note records that are about to be appended. While no dump runs, no key is decoded."""
        self.sequence += 1
        if len(batch):
            self._last_position = int(batch.position[-1])
        self.journal.add(batch, self.sequence)
        if self._histories:
            for schema_id in np.unique(batch.schema_id):
                if not schema_id:  # a logical message
                    continue
                schema = self._schema_of(int(schema_id))
                history = self._histories.get(schema.table)
                if history is None:
                    continue
                records = np.flatnonzero(batch.schema_id == schema_id).astype(np.int32)
                for xid in batch.xid[records[batch.kind[records] == Kind.TRUNCATE]]:
                    history.add_truncate(int(xid))
                if schema.match_key:
                    entries = self._keys.keys(batch, records, schema)
                    history.add(entries, batch.xid[entries.record], self.sequence)
            while self.retained_bytes > self._retain_bytes:
                max(self._histories.values(), key=lambda history: history.bytes).drop_oldest()
        return self._keys_moved_to(batch)

    def _keys_moved_to(self, batch: LogBatch) -> list[ChangedKeysToRead]:
        records = self._keys.moved(batch)
        moved: list[ChangedKeysToRead] = []
        for schema_id in np.unique(batch.schema_id[records]):
            schema = self._schema_of(int(schema_id))
            if self._keys.full_rows_fill_gaps and schema.identity_kind == "f":
                continue  # the old row has the columns that the new one lacks
            mine = records[batch.schema_id[records] == schema_id]
            entries = self._keys.keys(batch, mine, schema)
            lacking = np.flatnonzero(entries.effect == KeyEffect.MOVED_PARTIAL)
            if len(lacking):
                keys = entries.keys().take(pa.array(lacking)).unique()
                moved.append(ChangedKeysToRead(schema, tuple(keys.to_pylist())))
        return moved

    def on_schema(self, schema: TableSchema) -> None:
        """Set the table's version from here on: a chunk read under another one will be void."""
        for window in self._by_high.values():
            if window.table != schema.table:
                continue
            window.schema_shown = schema.schema_id
            if window.low_position is not None:
                window.schema_seen = schema.schema_id

    def on_watermark(self, seen: WatermarkSeen) -> ClosedWindow | VoidedWindow | None:
        """Handle a watermark in the log; returns None for a low watermark, or one of no open
        window.
        """
        low = self._by_low.pop(seen.watermark, None)
        if low is not None:
            low.transition(WindowInput.LOW)
            low.low_position = seen.position
            return None
        window = self._by_high.pop(seen.watermark, None)
        if window is None:
            return None
        if window.low_position is None or window.rows is None:
            window.transition(WindowInput.HIGH)
            self._by_low.pop(window.low_watermark, None)
            return VoidedWindow(window, VoidReason.ORDER)
        return self._end(window, window.rows, window.low_position, seen.position)

    def _end(
        self, window: Window, chunk: ChunkRows, low: int, high: int
    ) -> ClosedWindow | VoidedWindow:
        outcome = self._close(window, chunk, low, high)
        window.transition(
            WindowInput.HIGH if isinstance(outcome, ClosedWindow) else WindowInput.DOUBT
        )
        return outcome

    def _close(
        self, window: Window, chunk: ChunkRows, low_position: int, high_position: int
    ) -> ClosedWindow | VoidedWindow:
        history = self._histories.get(window.table)
        if history is None:
            return VoidedWindow(window, VoidReason.DISCARDED)
        if window.schema_seen not in (None, chunk.schema.schema_id):
            return VoidedWindow(window, VoidReason.SCHEMA)
        if not self.journal.complete or self.journal.seeds != window.seeds:
            return VoidedWindow(window, VoidReason.UNDECIDED)
        snapshot = chunk.snapshot
        unseen = self.journal.invisible(
            snapshot,
            lambda schema_id: bool(schema_id) and self._schema_of(schema_id).table == window.table,
            before=history.since,
        )
        not_held = history.not_retained(unseen)
        if not_held:
            return VoidedWindow(window, VoidReason.KEYS_NOT_HELD, frozenset(not_held))

        rows = chunk.rows
        refetch: list[bytes] = []
        read = len(rows)
        if history.truncated_unseen(snapshot):
            rows = rows.filter(np.zeros(read, np.bool_))
        changed = history.invisible(snapshot)
        if changed is not None and len(rows):
            everything = np.arange(len(rows), dtype=np.int32)
            keys = self._keys.keys(rows, everything, chunk.schema).keys()
            superseded = pc.is_in(keys, value_set=changed.key)
            lacking = pc.and_not(superseded, pc.is_in(keys, value_set=changed.completed()))
            refetch = [key.as_py() for key in keys.filter(lacking)]
            if superseded.true_count:
                keep = ~superseded.to_numpy(zero_copy_only=False)
                rows = rows.filter(keep)
        self.forget_visible(snapshot)
        return ClosedWindow(
            window=window,
            rows=rows,
            snapshot=snapshot,
            schema=chunk.schema,
            rows_read=read,
            rows_superseded=read - len(rows),
            low_position=low_position,
            high_position=high_position,
            refetch=refetch,
        )
