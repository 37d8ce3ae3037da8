"""The recent part of the log that a chunk's snapshot is compared with. Pure: no clock, no I/O.

PostgreSQL logs a commit before the commit is visible, so a record may precede a chunk's low
watermark and still be invisible to its SELECT (docs/explanation/watermarks.md). Hence two
histories of emitted records: `UnseenTransactions`, which transactions changed which tables, kept
always; and `KeyHistory`, which keys they changed, kept for tables that are being dumped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidelog.model.records import (
    Bools,
    Int32s,
    Int64s,
    KeyEffect,
    KeyEntries,
    LogBatch,
    Snapshot,
    UInt8s,
)

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
