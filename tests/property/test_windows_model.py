"""All that can happen around a window, on a small model of PostgreSQL, in random order.

The model has what makes the published algorithm wrong: a transaction is logged first and becomes
visible later. Transactions lock the keys they write until they are visible, a truncate locks the
table, and a chunk's SELECT takes its snapshot under a lock against truncates. The engine reads the
log as late as it likes and may restart at any moment.

Checked: no key goes back in time (invariant 2 of docs/INVARIANTS.md), and replay from the dump's
first record gives the source's rows, all columns (invariant 3).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support import pgoutput_messages as messages

from tidelog.capture.windows import ClosedWindow, VoidedWindow, VoidReason, Window, Windows
from tidelog.codecs.postgres.tuples import PgoutputKeys, absent_rows
from tidelog.model.records import LogBatch, RecordKind, Resume, in_ranges, ranges_of
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.ports import ChunkRows, WatermarkSeen
from tidelog.sources.postgres.chunks.watermarks import PgSnapshot

KEYS = ("0", "1", "2", "3")
TABLE = TableName("public", "t")
SCHEMA = TableSchema(
    table=TABLE,
    relation_id=1,
    columns=tuple(Column(name, 20, -1, "bigint", "int64") for name in ("id", "a", "b")),
    key=("id",),
    identity=("id",),
    identity_kind="d",
    wire_format="pgoutput",
    schema_id=1,
)
UNCHANGED = messages.UNCHANGED
Row = tuple[int, int]  # versions of columns a (changes with every write) and b (with full ones)


@dataclass
class Write:
    op: RecordKind
    key: str = ""
    row: Row = (0, 0)
    partial: bool = False
    old_key: str | None = None
    version: int = 0

    def payload(self) -> bytes:
        new = (self.key, str(self.row[0]), UNCHANGED if self.partial else str(self.row[1]))
        if self.op is RecordKind.INSERT:
            return messages.insert(1, new)
        if self.op is RecordKind.UPDATE:
            old = None if self.old_key is None else (self.old_key, None, None)
            return messages.update(1, new, key=old)
        if self.op is RecordKind.DELETE:
            return messages.delete(1, key=(self.key, None, None))
        return messages.truncate(1)


@dataclass
class Transaction:
    xid: int
    writes: list[Write] = field(default_factory=list)
    rows: dict[str, Row] = field(default_factory=dict)  # as the transaction sees them
    logged: bool = False

    @property
    def locks(self) -> set[str]:
        locks = {w.key for w in self.writes} | {w.old_key for w in self.writes if w.old_key}
        return set(KEYS) if any(w.op is RecordKind.TRUNCATE for w in self.writes) else locks

    @property
    def truncates(self) -> bool:
        return any(w.op is RecordKind.TRUNCATE for w in self.writes)


def apply(rows: dict[str, Row], write: Write) -> None:
    if write.op is RecordKind.TRUNCATE:
        rows.clear()
        return
    if write.old_key is not None:
        rows.pop(write.old_key, None)
    if write.op is RecordKind.DELETE:
        rows.pop(write.key, None)
    else:
        rows[write.key] = write.row


def batch_of(kind: list[int], payloads: list[bytes], xid: int, position: int) -> LogBatch:
    data, offsets = messages.packed(payloads)
    n = len(kind)
    return LogBatch(
        kind=np.array(kind, np.uint8),
        schema_id=np.ones(n, np.int32),
        position=np.full(n, position, np.int64),
        ordinal=np.arange(n, dtype=np.int64),
        xid=np.full(n, xid, np.int64),
        commit_ts=np.zeros(n, np.int64),
        payload_offsets=offsets.astype(np.int32),
        payload=data,
        resume=Resume(position, position, n),
    )


@dataclass
class Emitted:
    """One event of the event log: writes of the log, or rows of a chunk (None: absent)."""

    writes: list[Write] = field(default_factory=list)
    xid: int = 0
    chunk: list[tuple[str, Row | None]] = field(default_factory=list)


class Model:
    """Source, log, engine and one dump of two chunks (keys 0–1 and 2–3) with key chunks."""

    def __init__(self, windows_class: type[Windows], watermarks: bool) -> None:
        self.writes_watermarks = watermarks
        self.windows_class = windows_class
        self.extractor = PgoutputKeys()
        self.visible_rows: dict[str, Row] = {}
        self.latest: dict[str, Row] = {}
        self.active: dict[int, Transaction] = {}
        self.next_xid = 10
        self.version = 0
        self.log: list[Transaction | str] = []
        self.read_to = 0
        self.events: list[Emitted] = []
        self.emitted: dict[int, LogBatch] = {}
        self.dump_from: int | None = None
        self.chunks_left: list[tuple[str, ...]] = [KEYS[:2], KEYS[2:]]
        self.refetches: dict[str, None] = {}
        self.open: dict[str, list[object]] = {}  # low watermark → [window, keys, state, is refetch]
        self.watermarks = 0
        self.voided = 0
        self.start_engine()

    def start_engine(self) -> None:
        self.windows = self.windows_class(self.extractor, lambda _id: SCHEMA)

    # -------------------------------------------------------- source

    def locked(self) -> set[str]:
        return set().union(*(t.locks for t in self.active.values()), set())

    def begin(self, code: int) -> None:
        """A transaction of one or two writes on unlocked keys."""
        rows = dict(self.latest)
        locked = self.locked()
        transaction = Transaction(self.next_xid)
        for part in (code, code // 41)[: 1 + code % 2]:
            key = KEYS[part % 4]
            other = KEYS[(part // 4) % 4]
            kind = (part // 16) % 8
            self.version += 1
            write: Write | None = None
            if kind == 7:
                if not locked and not transaction.writes:
                    write = Write(RecordKind.TRUNCATE, version=self.version)
            elif key in locked:
                continue
            elif key not in rows:
                row = (self.version, self.version)
                write = Write(RecordKind.INSERT, key, row, version=self.version)
            elif kind <= 1:
                row = (self.version, self.version)
                write = Write(RecordKind.UPDATE, key, row, version=self.version)
            elif kind <= 3:
                row = (self.version, rows[key][1])
                write = Write(RecordKind.UPDATE, key, row, partial=True, version=self.version)
            elif kind == 4 or other in locked or other in rows:
                write = Write(RecordKind.DELETE, key, version=self.version)
            else:
                row = (self.version, rows[key][1])
                write = Write(
                    RecordKind.UPDATE,
                    other,
                    row,
                    partial=kind == 5,
                    old_key=key,
                    version=self.version,
                )
                if kind == 6:
                    write.row = (self.version, self.version)
            if write is not None:
                transaction.writes.append(write)
                apply(rows, write)
        if transaction.writes:
            transaction.rows = rows
            self.active[transaction.xid] = transaction
            self.next_xid += 1
            for write in transaction.writes:
                apply(self.latest, write)

    def commit(self, code: int) -> None:
        waiting = [t for t in self.active.values() if not t.logged]
        if waiting:
            transaction = waiting[code % len(waiting)]
            transaction.logged = True
            self.log.append(transaction)

    def show(self, code: int) -> None:
        waiting = [t for t in self.active.values() if t.logged]
        if waiting:
            transaction = waiting[code % len(waiting)]
            del self.active[transaction.xid]
            for write in transaction.writes:
                apply(self.visible_rows, write)

    def snapshot(self) -> PgSnapshot:
        running = sorted(self.active)
        # as PostgreSQL: xmax follows the latest *completed* transaction
        done = [xid for xid in range(10, self.next_xid) if xid not in self.active]
        xmax = max(done, default=9) + 1
        xip = [xid for xid in running if xid < xmax]
        return PgSnapshot(min([*xip, xmax]), xmax, np.array(xip, np.int64))

    # -------------------------------------------------------- engine

    def read_log(self) -> None:
        for outcome in self.windows.close_due(self.read_to + 1):
            self.end_window(outcome)
        if self.read_to == len(self.log):
            return
        entry = self.log[self.read_to]
        self.read_to += 1
        if isinstance(entry, Transaction):
            batch = batch_of(
                [w.op for w in entry.writes],
                [w.payload() for w in entry.writes],
                entry.xid,
                self.read_to,
            )
            for moved in self.windows.on_batch(batch):
                self.refetch(moved.keys)
            self.emitted[entry.xid] = batch
            self.events.append(Emitted(writes=entry.writes, xid=entry.xid))
            return
        self.end_window(self.windows.on_watermark(WatermarkSeen(entry, self.read_to, 0)))

    def end_window(self, outcome: ClosedWindow | VoidedWindow | None) -> None:
        if isinstance(outcome, ClosedWindow):
            _window, keys, rows, is_refetch = self.open.pop(outcome.window.low_watermark)
            kept = self.extractor.keys(
                outcome.rows, np.arange(len(outcome.rows), dtype=np.int32), SCHEMA
            )
            texts = [self.extractor.texts(kept.key(i), SCHEMA)[0] for i in range(len(kept))]
            self.events.append(Emitted(chunk=[(key, rows.get(key)) for key in texts]))
            again = [self.extractor.texts(key, SCHEMA)[0] for key in outcome.refetch]
            if is_refetch:
                for key in keys:
                    if key not in again:
                        self.refetches.pop(key, None)
            self.refetches.update(dict.fromkeys(again))
        elif isinstance(outcome, VoidedWindow):
            self.void(outcome)

    def void(self, voided: VoidedWindow) -> None:
        self.voided += 1
        _window, keys, _rows, is_refetch = self.open.pop(voided.window.low_watermark)
        if not is_refetch:
            self.chunks_left.append(keys)
        if voided.reason is VoidReason.KEYS_NOT_HELD:
            batches = [self.emitted[xid] for xid in sorted(voided.unseen_xids)]
            found = self.windows.keys_of(batches)
            assert found is not None
            self.windows.seed_keys(TABLE, set(voided.unseen_xids), found)

    def refetch(self, keys: tuple[bytes, ...]) -> None:
        self.refetches.update((self.extractor.texts(key, SCHEMA)[0], None) for key in keys)

    def restart(self) -> None:
        """Windows are lost; the log goes on where it was read to."""
        for _window, keys, _rows, is_refetch in self.open.values():
            if not is_refetch:
                self.chunks_left.append(keys)
        self.open.clear()
        self.start_engine()

    # -------------------------------------------------------- dump

    def open_window(self) -> None:
        if self.dump_from is None:
            self.dump_from = len(self.events)
            snapshot = self.snapshot()
            for number, event in reversed(list(enumerate(self.events))):
                if event.xid and not snapshot.visible(np.array([event.xid]))[0]:
                    self.dump_from = number
        if self.refetches:
            keys, is_refetch = tuple(self.refetches), True
        elif self.chunks_left:
            keys, is_refetch = self.chunks_left.pop(0), False
        else:
            return
        if not self.windows.journal.complete:
            snapshot = self.snapshot()
            unseen = snapshot.invisible_ranges(max(self.emitted, default=0))
            emitted = np.array(sorted(self.emitted), np.int64)
            changed = {int(xid): {1} for xid in emitted[in_ranges(unseen, emitted)]}
            self.windows.journal.seed(changed, max(self.emitted, default=0))
        self.watermarks += 1
        window = Window(
            f"c{self.watermarks}", TABLE, f"{self.watermarks}:low", f"{self.watermarks}:high"
        )
        self.windows.register(window)
        self.open[window.low_watermark] = [window, keys, None, is_refetch]
        if self.writes_watermarks:
            self.log.append(window.low_watermark)

    def read_chunk(self, code: int) -> None:
        unread = [entry for entry in self.open.values() if entry[2] is None]
        if not unread or any(t.truncates for t in self.active.values()):
            return  # the lock against DDL is not to be had now
        entry = unread[code % len(unread)]
        window, keys, _, is_refetch = entry
        rows: dict[str, Row | None] = {
            key: self.visible_rows[key] for key in keys if key in self.visible_rows
        }
        snapshot = self.snapshot()
        emit_at = None if self.writes_watermarks else len(self.log) + 1
        payloads = [messages.insert(1, (k, str(r[0]), str(r[1]))) for k, r in rows.items() if r]
        batch = batch_of([RecordKind.DUMP_ROW] * len(payloads), payloads, 0, 0)
        missing = [key for key in keys if key not in rows]
        if is_refetch and missing:
            if len(batch):
                parts = [p.tobytes() for p in np.split(batch.payload, batch.payload_offsets[1:-1])]
            else:
                parts = []
            absent = absent_rows([(key,) for key in missing], SCHEMA)
            parts += [p.tobytes() for p in np.split(absent.payload, absent.payload_offsets[1:-1])]
            kinds = [RecordKind.DUMP_ROW] * len(payloads) + [RecordKind.ABSENT] * len(missing)
            batch = batch_of(kinds, parts, 0, 0)
            rows.update(dict.fromkeys(missing))
        entry[2] = rows
        self.windows.deliver(window, ChunkRows(SCHEMA, batch, snapshot, None, True, emit_at))

    def write_high(self, code: int) -> None:
        if not self.writes_watermarks:
            return
        read = [
            e
            for e in self.open.values()
            if e[2] is not None and e[0].high_watermark not in self.log
        ]
        if read:
            self.log.append(read[code % len(read)][0].high_watermark)

    def finish(self) -> None:
        for _ in range(40):
            while any(not t.logged for t in self.active.values()):
                self.commit(0)
            while self.active:
                self.show(0)
            self.open_window()
            self.read_chunk(0)
            while self.writes_watermarks and any(
                e[2] is not None and e[0].high_watermark not in self.log for e in self.open.values()
            ):
                self.write_high(0)
            while self.read_to < len(self.log):
                self.read_log()
            self.read_log()  # comes to the end
            if not (self.chunks_left or self.refetches or self.open):
                return
        raise AssertionError("the dump does not come to an end")

    # -------------------------------------------------------- oracle

    def check(self) -> None:
        newest: dict[str, int] = {}
        for event in self.events:
            for write in event.writes:
                if write.op is RecordKind.TRUNCATE:
                    newest.update(dict.fromkeys(KEYS, write.version))
                else:
                    newest[write.key] = write.version
                    if write.old_key is not None:
                        newest[write.old_key] = write.version
            for key, row in event.chunk:
                if row is not None:
                    assert row[0] >= newest.get(key, 0), f"key {key} went back in time"
                    newest[key] = row[0]
        assert self.dump_from is not None
        state: dict[str, tuple[int, int | None]] = {}
        for event in self.events[self.dump_from :]:
            for write in event.writes:
                before = state.get(write.old_key or write.key)
                if write.op is RecordKind.TRUNCATE:
                    state.clear()
                    continue
                if write.old_key is not None:
                    state.pop(write.old_key, None)
                if write.op is RecordKind.DELETE:
                    state.pop(write.key, None)
                elif not write.partial:
                    state[write.key] = write.row
                elif write.old_key is None and before is not None:
                    state[write.key] = (write.row[0], before[1])
                # else: not complete, not inserted; a key chunk brings the row
            for key, row in event.chunk:
                if row is None:
                    state.pop(key, None)
                else:
                    state[key] = row
        assert state == self.latest, "replay does not give the table"


ACTIONS = ["begin", "commit", "show", "open_window", "read_chunk", "restart"]
OFTEN = ["read_log"] * 6 + ["write_high"] * 4 + ACTIONS[:-1] * 2
STEPS = st.lists(st.tuples(st.sampled_from([*OFTEN, "restart"]), st.integers(0, 5000)), max_size=60)


def run(
    steps: list[tuple[str, int]], windows_class: type[Windows] = Windows, *, watermarks: bool = True
) -> Model:
    model = Model(windows_class, watermarks)
    for action, code in steps:
        method = getattr(model, action)
        if action in ("begin", "commit", "show", "read_chunk", "write_high"):
            method(code)
        else:
            method()
    model.finish()
    model.check()
    return model


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.booleans())
def test_no_interleaving_goes_back_in_time_or_loses_a_row(
    steps: list[tuple[str, int]], watermarks: bool
) -> None:
    """Invariants 2 and 3, with watermarks in the log and with positions alone."""
    run(steps, watermarks=watermarks)


def test_batch_is_cut_where_a_transaction_begins_and_never_inside_one() -> None:
    """Rows of one transaction stay together (invariant 1), whatever is due among them."""
    windows = Windows(PgoutputKeys(), lambda _id: SCHEMA)
    payloads = [messages.insert(1, (str(n), "0", "0")) for n in range(5)]
    batch = batch_of([RecordKind.INSERT] * 5, payloads, 10, 0)
    batch.position = np.array([100, 100, 200, 200, 300], np.int64)
    assert windows.due(batch) is None
    assert [windows.due(batch, at) for at in (0, 50, 100)] == [0, 0, 0]
    assert [windows.due(batch, at) for at in (101, 200, 201, 300, 301)] == [2, 2, 4, 4, None]
    windows.on_batch(batch.slice(0, 1))  # the first transaction is half-way through
    assert windows.due(batch.slice(1, 5), 50) == 1


class PaperWindows(Windows):
    """Algorithm 1 as published: only what stands between the two watermarks supersedes."""

    def register(self, window: Window) -> None:
        super().register(window)
        self._since = getattr(self, "_since", {})
        self._since[window.low_watermark] = None

    def on_watermark(self, seen: WatermarkSeen) -> ClosedWindow | VoidedWindow | None:
        window = self._by_low.get(seen.watermark)
        if window is not None:
            self._since[seen.watermark] = self.sequence
        high = self._by_high.get(seen.watermark)
        if (
            high is not None
            and high.rows is not None
            and self._since[high.low_watermark] is not None
        ):
            # everything after low is taken for unseen, everything before for seen
            high.rows.snapshot = _AfterLow(self, self._since[high.low_watermark])
        return super().on_watermark(seen)

    def on_batch(self, batch: LogBatch) -> list:
        self.numbers = getattr(self, "numbers", {})
        for xid in np.unique(batch.xid):
            self.numbers[int(xid)] = self.sequence + 1
        return super().on_batch(batch)


class _AfterLow:
    def __init__(self, windows: PaperWindows, low: int) -> None:
        self._windows, self._low = windows, low

    def visible(self, xid: np.ndarray) -> np.ndarray:
        numbers = getattr(self._windows, "numbers", {})
        return np.array([numbers.get(int(x), 0) <= self._low for x in xid], np.bool_)

    def invisible_ranges(self, upto_xid: int) -> np.ndarray:
        return ranges_of([])

    def to_text(self) -> str:
        return "paper"


STALE_READ = [
    ("begin", 0),  # xid 10 inserts key 0
    ("commit", 0),
    ("show", 0),
    ("begin", 0),  # xid 11 updates key 0 …
    ("commit", 0),  # … and is logged, but not visible
    ("open_window", 0),  # low
    ("read_chunk", 0),  # the SELECT returns the old row
    ("write_high", 0),
]


def test_stale_read_is_superseded() -> None:
    model = run(STALE_READ)
    assert not any(row == (1, 1) for event in model.events for _key, row in event.chunk)


def test_stale_read_breaks_the_published_algorithm() -> None:
    """The model is strong enough to show what the docs say of the paper's rule."""
    with pytest.raises(AssertionError, match="went back in time"):
        run(STALE_READ, PaperWindows)


EMITTED_BEFORE = [
    *STALE_READ[:5],
    ("read_log", 0),
    ("read_log", 0),  # both are emitted, one of them not visible yet
    *STALE_READ[5:],
]


def test_a_transaction_emitted_before_the_window_and_not_visible_supersedes() -> None:
    """Invariant 2: the keys that it changed are asked for, and the chunk is read again."""
    assert run(EMITTED_BEFORE).voided == 1


PARTIAL_RECORD = [
    *STALE_READ[:3],
    ("read_log", 0),
    ("begin", 32),  # xid 11 updates key 0; its record lacks a column
    *STALE_READ[4:],
]


def test_a_key_whose_superseding_record_lacks_columns_is_read_again() -> None:
    """Invariant 3: neither the record nor the chunk has the whole row."""
    chunks = [event.chunk for event in run(PARTIAL_RECORD).events if event.chunk]
    assert [row for chunk in chunks for key, row in chunk if key == "0"] == [(2, 1)]
