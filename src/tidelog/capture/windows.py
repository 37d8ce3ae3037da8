"""The windows between watermarks: which rows of a chunk may follow which records of the log.

Pure: log records, watermarks and chunk rows come in as arguments; what to append is returned in
order. It implements Algorithm 1 of the DBLog paper (docs/PAPER_MAP.md maps its steps) with one
different rule (docs/explanation/watermarks.md): a record supersedes a chunk row if its transaction
is *not visible in the snapshot* of the chunk, wherever the record is before the emission point.

PostgreSQL logs a commit before the commit is visible, so a record may precede a chunk's low
watermark and still be invisible to its SELECT. Hence two histories of emitted records:
`UnseenTransactions`, which transactions changed which tables, kept always; and `KeyHistory`, which
keys they changed, kept for tables that are being dumped.

The states of a window are a table, `WINDOWS`; an input without a row voids the window. A strategy
that writes no watermarks delivers rows with a position instead (`ChunkRows.emit_at`), before which
everything that the chunk could see was committed. Then READ → CLOSED happens at the first boundary
between transactions at which the log has reached it (`Windows.due`, `Windows.close_due`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.model.records import (
    Bools,
    Int32s,
    Int64s,
    KeyEffect,
    KeyEntries,
    LogBatch,
    RecordKind,
    Snapshot,
    UInt8s,
)
from tidelog.model.schema import TableName, TableSchema
from tidelog.model.state_machine import Transition, Transitions
from tidelog.ports import ChunkRows, KeyExtractor, WatermarkSeen

# The recent part of the log that a chunk's snapshot is compared with.

COMPLETING = (int(KeyEffect.COMPLETE), int(KeyEffect.GONE))


class UnseenTransactions:
    """Emitted transactions that no snapshot has shown as visible yet, as (xid, schema id) pairs.

    At most ``limit_entries`` are kept. Beyond that the oldest are forgotten and `complete` becomes
    False: then the event log itself must be searched (`seed`), as after a restart.
    """

    def __init__(self, limit_entries: int) -> None:
        self._limit = limit_entries
        self._xid: list[Int64s] = []
        self._schema: list[Int32s] = []
        self._sequence: list[int] = []
        self._entries = 0
        self.max_xid = 0
        self.complete = False
        self.seeds = 0
        """Number of `seed` calls: a seed for one snapshot is not valid for older ones."""

    def __len__(self) -> int:
        return self._entries

    def add(self, batch: LogBatch, sequence: int) -> None:
        """Add a batch's transactions; ``sequence`` numbers batches in ascending order."""
        count = len(batch)
        if not count:
            return
        change = np.empty(count, np.bool_)
        change[0] = True
        np.not_equal(batch.xid[1:], batch.xid[:-1], out=change[1:])
        change[1:] |= batch.schema_id[1:] != batch.schema_id[:-1]
        xid, schema = batch.xid[change], batch.schema_id[change]
        self._append(xid, schema, sequence)
        self.max_xid = max(self.max_xid, int(xid.max()))
        while self._entries > self._limit and len(self._xid) > 1:
            self._entries -= len(self._xid.pop(0))
            self._schema.pop(0)
            self._sequence.pop(0)
            self.complete = False

    def _append(self, xid: Int64s, schema: Int32s, sequence: int) -> None:
        self._xid.append(xid)
        self._schema.append(schema)
        self._sequence.append(sequence)
        self._entries += len(xid)

    def seed(self, changed: dict[int, set[int]], max_xid: int) -> None:
        """Add transactions found in the event log: xid → schema ids. Sets `complete`."""
        pairs = [(xid, schema) for xid, schemas in changed.items() for schema in schemas]
        if pairs:
            columns = np.array(pairs, np.int64)
            self._xid.insert(0, columns[:, 0].copy())
            self._schema.insert(0, columns[:, 1].astype(np.int32))
            self._sequence.insert(0, -1)
            self._entries += len(pairs)
        self.max_xid = max(self.max_xid, max_xid)
        self.complete = True
        self.seeds += 1

    def forget_visible(self, snapshots: list[Snapshot]) -> None:
        """Forget what all of ``snapshots`` can see; later snapshots see it as well."""
        kept: list[tuple[Int64s, Int32s, int]] = []
        for xid, schema, sequence in zip(self._xid, self._schema, self._sequence, strict=True):
            visible = np.ones(len(xid), np.bool_)
            for snapshot in snapshots:
                visible &= snapshot.visible(xid)
            if not visible.all():
                kept.append((xid[~visible], schema[~visible], sequence))
        self._xid = [part[0] for part in kept]
        self._schema = [part[1] for part in kept]
        self._sequence = [part[2] for part in kept]
        self._entries = sum(len(xid) for xid in self._xid)

    def invisible(
        self, snapshot: Snapshot, is_table: Callable[[int], bool], before: int
    ) -> set[int]:
        """Xids in batches numbered below ``before`` that changed the table and are not visible."""
        xids: set[int] = set()
        for xid, schema, sequence in zip(self._xid, self._schema, self._sequence, strict=True):
            if sequence >= before:
                break
            unseen = ~snapshot.visible(xid)
            xids.update(
                int(x) for x, s in zip(xid[unseen], schema[unseen], strict=True) if is_table(int(s))
            )
        return xids


@dataclass(slots=True)
class ChangedKeys:
    """Keys changed by records, in log order: ``key`` binary[m], effect uint8[m], xid int64[m];
    ``sequence`` int64[m]: the batch's number, -1 if read back from the event log.
    """

    key: pa.BinaryArray
    effect: UInt8s
    xid: Int64s
    sequence: Int64s

    def __len__(self) -> int:
        return len(self.effect)

    @property
    def bytes(self) -> int:
        return int(self.key.nbytes) + 25 * len(self)

    def completed(self) -> pa.BinaryArray:
        """The keys whose whole state is in the records: a record has all columns, or deletes the
        key, and no later partial record moves a row to the key.
        """
        completing = np.isin(self.effect, COMPLETING)
        if not (self.effect == KeyEffect.MOVED_PARTIAL).any():
            return self.key.filter(pa.array(completing))
        # Records read back from the event log have no order: there a partial record takes
        # precedence.
        rank = np.where(self.sequence >= 0, np.arange(len(self)) + 1, np.where(completing, -1, 0))
        order = np.argsort(rank, kind="stable")
        codes = self.key.dictionary_encode()
        code = codes.indices.to_numpy()
        complete, partial = np.full((2, len(codes.dictionary)), -2, np.int64)
        for ranks, wanted in (
            (complete, completing),
            (partial, self.effect == KeyEffect.MOVED_PARTIAL),
        ):
            mine = order[wanted[order]]
            ranks[code[mine]] = rank[mine]  # the last of equal keys
        return codes.dictionary.filter(pa.array(complete > partial))

    def filter(self, keep: Bools) -> ChangedKeys:
        return ChangedKeys(
            self.key.filter(pa.array(keep)), self.effect[keep], self.xid[keep], self.sequence[keep]
        )


class KeyHistory:
    """The keys of one table that records changed since `since`, until snapshots show them as
    visible.

    ``since``: number of the first batch that is retained as a whole; it increases when the oldest
    batches are dropped (`drop_oldest`). Keys read back from the event log (`seed`) are kept
    besides.
    """

    def __init__(self, since: int) -> None:
        self.since = since
        self._parts: list[ChangedKeys] = []
        self._bytes = 0
        self._truncates: list[int] = []
        self._seeded: set[int] = set()

    @property
    def bytes(self) -> int:
        return self._bytes

    def add(self, entries: KeyEntries, xid: Int64s, sequence: int) -> None:
        """Add the keys of one batch; ``xid`` int64[m] of the entries."""
        if not len(entries):
            return
        part = ChangedKeys(
            entries.keys(), entries.effect, xid, np.full(len(entries), sequence, np.int64)
        )
        self._parts.append(part)
        self._bytes += part.bytes

    def drop_oldest(self) -> None:
        """Drop the oldest batch to free memory."""
        oldest = self._parts.pop(0)
        self._bytes -= oldest.bytes
        self.since = max(self.since, int(oldest.sequence.max()) + 1)
        self._seeded.clear()

    def add_truncate(self, xid: int) -> None:
        self._truncates.append(xid)

    def seed(self, part: ChangedKeys | None, truncates: list[int], xids: set[int]) -> None:
        """Add the keys of earlier transactions, read back from the event log."""
        if part is not None and len(part):
            self._parts.insert(0, part)
            self._bytes += part.bytes
        self._truncates.extend(truncates)
        self._seeded |= xids

    def not_retained(self, xids: set[int]) -> set[int]:
        """Transactions of ``xids``, in batches before `since`, whose keys are not retained."""
        return xids - self._seeded

    def forget_visible(self, snapshots: list[Snapshot]) -> None:
        parts = []
        for part in self._parts:
            visible = np.ones(len(part), np.bool_)
            for snapshot in snapshots:
                visible &= snapshot.visible(part.xid)
            if not visible.any():
                parts.append(part)
            elif not visible.all():
                parts.append(part.filter(~visible))
        self._parts = parts
        self._bytes = sum(part.bytes for part in parts)
        self._truncates = [
            xid
            for xid in self._truncates
            if not all(bool(s.visible(np.array([xid]))[0]) for s in snapshots)
        ]

    def invisible(self, snapshot: Snapshot) -> ChangedKeys | None:
        """The keys changed by transactions that the snapshot can't see; None if there are none."""
        parts = []
        for part in self._parts:
            unseen = ~snapshot.visible(part.xid)
            if unseen.any():
                parts.append(part if unseen.all() else part.filter(unseen))
        if not parts:
            return None
        return ChangedKeys(
            pa.concat_arrays([part.key for part in parts]),
            np.concatenate([part.effect for part in parts]),
            np.concatenate([part.xid for part in parts]),
            np.concatenate([part.sequence for part in parts]),
        )

    def truncated_unseen(self, snapshot: Snapshot) -> bool:
        xids = np.array(self._truncates, np.int64)
        return bool(len(xids)) and not bool(snapshot.visible(xids).all())


# The states of a window.


class WindowStatus(Enum):
    """The state of a window."""

    REGISTERED = auto()
    OPEN = auto()
    READ_EARLY = auto()
    READ = auto()
    CLOSED = auto()
    VOID = auto()
    DISCARDED = auto()


class WindowInput(Enum):
    """An event in the life of a window."""

    LOW = "the log shows its low watermark"
    ROWS = "the rows of its SELECT were delivered"
    ROWS_WITH_POSITION = (
        "the same, with the position at which the window closes: no watermark is written"
    )
    HIGH = "the log shows its high watermark, or has reached its position"
    DOUBT = "the same, but the schema changed, or it is not known which rows are stale"
    DISCARD = "its chunk failed, or its high watermark does not come"


class VoidReason(Enum):
    """Why a chunk can't be used and is read again."""

    ORDER = "watermarks out of order"
    SCHEMA = "the table's schema changed inside the window"
    KEYS_NOT_HELD = "an unseen transaction changed the table and its keys are not retained"
    UNDECIDED = "transactions emitted before the start are not known yet"
    DISCARDED = "discarded"


_Window = Transition[WindowStatus, WindowInput]
_IS, _GETS = WindowStatus, WindowInput
WINDOWS = Transitions(
    "window",
    "From before the low watermark is written until its rows, except superseded ones, are "
    "appended. A chunk whose window is void is read again.",
    WindowStatus.REGISTERED,
    (
        _Window(_IS.REGISTERED, _GETS.LOW, _IS.OPEN),
        _Window(_IS.REGISTERED, _GETS.ROWS, _IS.READ_EARLY, "wait for the low watermark"),
        _Window(_IS.REGISTERED, _GETS.ROWS_WITH_POSITION, _IS.READ),
        _Window(_IS.READ_EARLY, _GETS.LOW, _IS.READ),
        _Window(_IS.OPEN, _GETS.ROWS, _IS.READ),
        _Window(_IS.READ, _GETS.HIGH, _IS.CLOSED, "append the rows except superseded ones"),
        _Window(_IS.READ, _GETS.DOUBT, _IS.VOID, "fail closed"),
        *(
            _Window(status, _GETS.HIGH, _IS.VOID, "watermarks out of order")
            for status in (_IS.REGISTERED, _IS.OPEN, _IS.READ_EARLY)
        ),
        *(
            _Window(status, _GETS.DISCARD, _IS.DISCARDED)
            for status in (_IS.REGISTERED, _IS.OPEN, _IS.READ_EARLY, _IS.READ)
        ),
    ),
    stays=tuple(
        (status, (_GETS.ROWS, _GETS.ROWS_WITH_POSITION, _GETS.DISCARD))
        for status in (_IS.CLOSED, _IS.VOID, _IS.DISCARDED)
    ),
)


# The windows.

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
    """A window that closed: append ``rows`` here, before any later record. ``refetch``: encoded
    keys whose superseding records lack columns, so that a key chunk must complete them.
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
    """All open windows on one log, and the history of the log that they need. Not thread-safe: the
    loop calls it under its lock. The log never waits for a window.
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
                truncated = records[batch.kind[records] == RecordKind.TRUNCATE]
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
                for xid in batch.xid[records[batch.kind[records] == RecordKind.TRUNCATE]]:
                    history.add_truncate(int(xid))
                if schema.match_key:
                    entries = self._keys.keys(batch, records, schema)
                    history.add(entries, batch.xid[entries.record], self.sequence)
            while self.retained_bytes > self._retain_bytes:
                max(self._histories.values(), key=lambda history: history.bytes).drop_oldest()
        return self._keys_moved_to(batch)

    def _keys_moved_to(self, batch: LogBatch) -> list[ChangedKeysToRead]:
        records = self._keys.key_changes(batch)
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
        """Handle a watermark in the log; returns None for a low one, or of no open window."""
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
        not_retained = history.not_retained(unseen)
        if not_retained:
            return VoidedWindow(window, VoidReason.KEYS_NOT_HELD, frozenset(not_retained))

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
