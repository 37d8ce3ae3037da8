"""Reads the event log by offsets, never by file names alone, and keeps offsets unique.

A leader does not know what was appended after the end that it finds: the log, together with its
state, may have been restored from a backup. So its fence skips all offsets that can have been
issued since that end was written (docs/adr/0034-offsets-are-never-issued-twice.md). A reader whose
offset is inside the skipped range has read records that the log does not have any more.

After a restart, or when its history of a table's keys is too short, capture must know which of the
transactions that a snapshot can't see it has emitted, and which keys they changed
(docs/explanation/watermarks.md, "What this takes"): it looks them up here.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from tidelog.errors import EventLogError, OffsetAheadError, OffsetGoneError
from tidelog.eventlog.chain import Chain, ChainReader
from tidelog.eventlog.log_files import LOG_FILE, load_log
from tidelog.eventlog.log_poller import LogPoller
from tidelog.eventlog.schemas import SchemaStore
from tidelog.eventlog.segments import RECORD_SCHEMA, SegmentFile, SegmentMeta, select_records
from tidelog.eventlog.storage import storage_at
from tidelog.eventlog.storage_port import Storage
from tidelog.model.records import (
    ChunkMeta,
    LogBatch,
    RecordKind,
    Resume,
    XidRanges,
    in_ranges,
    overlap,
)
from tidelog.model.schema import TableName
from tidelog.ports import LastTransaction, SourceId
from tidelog.system.processes import unix_ms

# Unused offsets, which a leader skipped.

ISSUED_PER_MS: Final = 1 << 20
"""More offsets than any capture issues in a millisecond: 1 GiB of payload in a second."""
LEAST_SKIPPED: Final = 1 << 36
"""Offsets skipped at every start, for hosts whose clocks differ, by a minute or two at most."""
_LONGEST_MS: Final = 1 << 35
"""About a year: a clock that is wrong by decades must not use up the offsets."""
_LATE_LISTING_S: Final = 2.0
_RETRY_S: Final = 0.2
_SEEN_MARGIN: Final = 1 << 40


def first_offset_after(tail: SegmentMeta, seen: int | None) -> int:
    """The offset at which a leader that finds ``tail`` begins.

    ``seen``: other processes know that offsets below it were issued. None: begin at ``tail``, for a
    caller that knows that nothing followed it.
    """
    if seen is None:
        return tail.next
    passed_ms = min(max(0, unix_ms() - tail.created_ms), _LONGEST_MS)
    begin = tail.next + LEAST_SKIPPED + passed_ms * ISSUED_PER_MS
    return begin if seen <= tail.next else max(begin, seen + _SEEN_MARGIN)


def diverges_at(chain: Chain, offset: int) -> int | None:
    """Where this log diverges from one that had ``offset``; None: they are equal up to there."""
    if offset > chain.next:
        return chain.next
    segment = chain.covering(offset)
    for first, following in () if segment is None else segment.unused:
        if first < offset < following:
            return first
    return None


def refuse_unused_offsets(reader: ChainReader, offsets: Sequence[int], who: str) -> None:
    """Raise OffsetAheadError if `diverges_at` finds one of these offsets. A listing may be late:
    it is repeated for some time, and each time what would follow is requested.
    """
    chain = reader.refresh(max(offsets, default=None))
    deadline = time.monotonic() + _LATE_LISTING_S
    for offset in offsets:
        while offset > chain.next and time.monotonic() < deadline:
            time.sleep(_RETRY_S)
            chain = reader.refresh()
        if diverges_at(chain, offset) is None:
            continue
        chain = reader.walk()
        parted = diverges_at(chain, offset)
        if parted is not None:
            raise _ahead_error(reader.storage, chain, offset, parted, who)


def _ahead_error(
    storage: Storage, chain: Chain, offset: int, end: int, who: str
) -> OffsetAheadError:
    """The error for a reader at ``offset`` whose log diverged from this one at ``end``."""
    ends = "ends" if end == chain.next else "ended when it was restored"
    return OffsetAheadError(
        f"{storage!r}: {who} stands at offset {offset}, but the event log {ends} at {end}: "
        "it was restored to an earlier state, or lost its end. What was read from there on is not "
        "in the log. Give an output a new name and an empty place: a copy would keep rows that are "
        "not in the log, and events would be delivered twice. Any other reader can resume at "
        f"offset {end}: docs/how-to/restore.md"
    )


def count_unused(chain: Chain, start: int, end: int) -> int:
    """The number of offsets in ``[start, end)`` that a leader skipped."""
    return sum(
        max(0, min(end, following) - max(start, first))
        for segment in chain.between(start, end)
        for first, following in segment.unused
    )


# The reader.

_RESOLVE_ATTEMPTS: Final = 50
# Read-ahead: a worker holds at most this much in memory besides what it decodes.
_AHEAD_BYTES: Final = 32 << 20
_AHEAD_SEGMENTS: Final = 16


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """A run of offsets ``[start, end)`` inside one segment. Small and picklable.

    ``name``, ``epoch`` and ``nonce`` are a hint that saves walking the chain: if the file has
    changed, the offsets are resolved again. ``rows`` and ``payload_bytes`` are those of the whole
    segment, for planning.
    """

    start: int
    end: int
    name: str
    epoch: int
    nonce: str
    kind: str
    rows: int
    payload_bytes: int


class EventLog:
    """A reader of the event log. Thread-safe. Cheap to open: the chain is walked on demand."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.info = load_log(storage)
        self.schemas = SchemaStore(storage)
        self._reader = ChainReader(storage, self.info)
        self._poller = LogPoller(self._reader)
        self._durable: str | None = None

    @classmethod
    def open(cls, path: str | Path) -> EventLog:
        """Raise EventLogError if there is no event log at ``path``."""
        return cls(storage_at(path))

    @staticmethod
    def exists(path: str | Path) -> bool:
        return storage_at(path).tag(LOG_FILE) is not None

    @property
    def generation(self) -> str:
        """Changes when the log is recreated; outputs reject one they don't know."""
        return self.info.generation

    @property
    def source(self) -> SourceId:
        return self.info.source

    @property
    def captured_from(self) -> SourceId:
        """`source`, on the timeline of its newest position: a promotion begins another timeline.

        Fences do not count: their leader has not checked yet whether that timeline has all of the
        log.
        """
        for meta in reversed(self.chain().segments):
            if meta.kind != "fence" and meta.resume is not None:
                return meta.source
        return self.source

    @property
    def resume(self) -> Resume | None:
        """Where capture resumes; None if the log has no position yet."""
        metas = reversed(self.chain().segments)
        return next((each.resume for each in metas if each.resume is not None), None)

    def chain(self, upto: int | None = None) -> Chain:
        """The current segments. ``upto``: the caller knows that the log reaches this offset and
        needs only what is before it: if requests are paid, the result may be some seconds old.
        """
        return self._reader.refresh(upto)

    def poll(self, offset: int, wait_s: float = 0.0) -> bool:
        """May there be more to read than up to ``offset``? For repeated calls: on an object store
        it costs one request in two seconds, or none. Waits there up to ``wait_s``.
        """
        return self._poller.poll(offset, wait_s)

    @property
    def head_offset(self) -> int:
        """The oldest offset that can be read."""
        return self.chain().head

    @property
    def tail(self) -> SegmentMeta | None:
        """The newest segment."""
        return self.chain().tail

    def newest(self) -> SegmentMeta | None:
        """`tail`, without walking the chain."""
        return self._reader.newest()

    @property
    def is_known(self) -> bool:
        """Is the chain cached, so that `chain` costs little?"""
        return self._reader.known is not None

    def tail_unchanged(self) -> bool:
        """Is the newest known segment unchanged?"""
        return self._reader.tail_unchanged()

    def chain_reader(self) -> ChainReader:
        """Another reader or writer of the chain, with this one's cache."""
        return self._reader.clone()

    def latest_offset(self, durable: bool = True, after: int | None = None) -> int:
        """The log's end: the offset of the next record. ``after``: the caller knows that the log
        continues after this offset; if requests are paid, a known end beyond it is good enough.

        ``durable``: the returned end survives a power failure (visible is not durable:
        docs/explanation/architecture.md). Required if the offset is stored, e.g. by Spark.
        """
        for _ in range(_RESOLVE_ATTEMPTS):
            chain = self.chain(None if after is None else after + 1)
            tail = chain.tail
            if tail is None or not durable or tail.nonce + tail.name == self._durable:
                return chain.next
            try:
                self.storage.make_durable(tail.name)
            except FileNotFoundError:
                continue  # rolled up: a newer tail exists
            self._durable = tail.nonce + tail.name
            return chain.next
        raise EventLogError(f"{self.storage!r}: the newest segment vanishes while it is read.")

    def segments(
        self, start: int, end: int | None = None, *, tables: Collection[str] | None = None
    ) -> list[SegmentRef]:
        """The parts of segments to read for offsets ``[start, end)``, in order.

        Args:
            start: an offset at or above the head.
            end: exclusive; None: the current end of the log.
            tables: skip segments without records of these tables; segments with control records
                are kept.

        Raises:
            OffsetGoneError: if ``start`` is below the head.
            OffsetAheadError: if the log does not have the offsets: the caller read what it lost.
        """
        chain = self._check_range(self.chain(end), start, end)
        end = chain.next if end is None else end
        return [
            SegmentRef(
                start=max(start, meta.first),
                end=min(end, meta.next),
                name=meta.name,
                epoch=meta.epoch,
                nonce=meta.nonce,
                kind=meta.kind,
                rows=meta.rows,
                payload_bytes=meta.payload_bytes,
            )
            for meta in chain.between(start, end)
            if meta.rows
            and (
                tables is None
                or 0 in meta.rows_by_schema
                or not meta.rows_by_table.keys().isdisjoint(tables)
            )
        ]

    def read_ahead(self, refs: Sequence[SegmentRef]) -> None:
        """Fetch the first of these segments ahead: `batches` is called for them next."""
        names: list[str] = []
        waiting = 0
        for ref in refs:
            waiting += ref.payload_bytes
            if names and waiting > _AHEAD_BYTES:
                break
            names.append(ref.name)
            if len(names) == _AHEAD_SEGMENTS:
                break
        self.storage.fetch_ahead(names)

    def read(
        self,
        ref: SegmentRef,
        columns: Sequence[str] | None = None,
        *,
        tables: Collection[str] | None = None,
        schema_ids: Collection[int] | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> pa.Table:
        """The records of `batches`, as one table."""
        batches = self.batches(
            ref, columns, tables=tables, schema_ids=schema_ids, start=start, end=end
        )
        return pa.Table.from_batches(batches, schema=_projection(columns))

    def batches(
        self,
        ref: SegmentRef,
        columns: Sequence[str] | None = None,
        *,
        tables: Collection[str] | None = None,
        schema_ids: Collection[int] | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The records of ``ref`` in order; they may be slices (with a non-zero Arrow offset).

        Args:
            ref: a result of `segments`.
            columns: columns of `RECORD_SCHEMA`, in this order; all by default. Others are not
                decompressed.
            tables: only records of these tables (all their schema versions); no control records.
            schema_ids: only records of these schemas; 0 is control.
            start: narrows ``ref`` further.
            end: likewise, exclusive.

        Raises:
            OffsetGoneError: if retention removed the offsets.
            SegmentCorruptError, ForeignSegmentError: as their messages say.
        """
        start = ref.start if start is None else max(start, ref.start)
        end = ref.end if end is None else min(end, ref.end)
        wanted = None if schema_ids is None else frozenset(schema_ids)
        needed = None if columns is None else {*columns, "offset", "schema_id"}
        if start >= end:
            return
        for segment in self._open(ref, start, end, needed):
            present = frozenset(segment.meta.rows_by_schema)
            chosen = present if wanted is None else present & wanted
            if tables is not None:
                chosen = frozenset(i for i in chosen if i and self._is_of_table(i, tables))
            if present and not chosen:
                continue
            for batch in segment.batches():
                batch = select_records(batch, start, end, None if chosen == present else chosen)
                if batch.num_rows:
                    yield batch if columns is None else batch.select(list(columns))

    def records_with_xids(
        self, xids: XidRanges, *, down_to: int | None = None
    ) -> dict[int, frozenset[int]]:
        """The tables that emitted transactions changed: xid → schema ids of their records.

        Searches from the newest segment back, down to ``down_to`` or the head; a transaction
        without records is not in the result.
        """
        schema_ids: dict[int, set[int]] = {}
        if not len(xids):
            return {}
        for _ in range(_RESOLVE_ATTEMPTS):
            try:
                chain = self.chain()
                for meta in reversed(chain.segments):
                    if down_to is not None and meta.next <= down_to:
                        break
                    if meta.min_xid is None or meta.max_xid is None:
                        continue
                    if not overlap(xids, meta.min_xid, meta.max_xid):
                        continue
                    segment = SegmentFile(self.storage, meta.name, ("xid", "schema_id"))
                    if segment.meta.nonce != meta.nonce:
                        raise FileNotFoundError(meta.name)
                    for batch in segment.batches():
                        xid = batch.column("xid").to_numpy()
                        hits = in_ranges(xids, xid)
                        ids = batch.column("schema_id").to_numpy()[hits]
                        for pair in set(zip(xid[hits].tolist(), ids.tolist(), strict=True)):
                            schema_ids.setdefault(pair[0], set()).add(pair[1])
                return {xid: frozenset(ids) for xid, ids in schema_ids.items()}
            except FileNotFoundError:
                continue  # rolled up or deleted in the meantime; earlier results remain valid
        raise EventLogError(f"{self.storage!r}: segments vanish while they are read.")

    def last_transaction(self) -> LastTransaction | None:
        """The newest transaction of the source with records in the log; None: there is none."""
        for _ in range(_RESOLVE_ATTEMPTS):
            try:
                for meta in reversed(self.chain().segments):
                    if meta.max_xid is None:
                        continue
                    last = self._last_transaction(meta)
                    if last is not None:
                        return last
                return None
            except FileNotFoundError:
                continue  # rolled up or deleted in the meantime
        raise EventLogError(f"{self.storage!r}: segments vanish while they are read.")

    def _last_transaction(self, meta: SegmentMeta) -> LastTransaction | None:
        columns = ("kind", "position", "xid", "commit_ts")
        segment = SegmentFile(self.storage, meta.name, columns)
        if segment.meta.nonce != meta.nonce:
            raise FileNotFoundError(meta.name)
        last: LastTransaction | None = None
        for batch in segment.batches():
            position, xid, commit_ts = (batch.column(name).to_numpy() for name in columns[1:])
            of_dump = np.isin(
                batch.column("kind").to_numpy(), (RecordKind.DUMP_ROW, RecordKind.ABSENT)
            )
            rows = np.flatnonzero((xid > 0) & ~of_dump)
            if len(rows):
                i = rows[-1]
                last = LastTransaction(int(position[i]), int(xid[i]), int(commit_ts[i]))
        return last

    def chunks(self, start: int | None = None) -> Iterator[tuple[SegmentMeta, ChunkMeta]]:
        """The chunks from offset ``start`` on, in order, from metadata only."""
        chain = self.chain()
        for meta in chain.between(chain.head if start is None else start, chain.next):
            for chunk in meta.chunks:
                yield meta, chunk

    def _is_of_table(self, schema_id: int, tables: Collection[str]) -> bool:
        return str(self.schemas.get(schema_id).table) in tables

    def check_offsets(self, *offsets: int, who: str = "this reader") -> None:
        """Check offsets that ``who`` has read up to. Raises OffsetAheadError if this log does not
        have what was read: an older copy of the log was restored, or its end was lost.
        """
        refuse_unused_offsets(self._reader, offsets, who)

    def holds(self, offset: int) -> bool:
        """Does the log have what is before ``offset``? For a caller that knows the log to its
        end.
        """
        return diverges_at(self.chain(), offset) is None

    def bytes_between(self, start: int, end: int) -> int:
        """The number of bytes of the log between these offsets."""
        return max(0, end - start - count_unused(self.chain(end), start, end))

    def _check_range(self, chain: Chain, start: int, end: int | None) -> Chain:
        """The checked chain, which may have grown."""
        if start < chain.head:
            raise OffsetGoneError(
                f"{self.storage!r}: offset {start} was asked for, but retention removed everything "
                f"before {chain.head}. Rebuild this consumer from a new dump, and register it or "
                "raise log.retention so that it does not happen again."
            )
        asked = (start,) if end is None else (start, end)
        if any(diverges_at(chain, offset) is not None for offset in asked):
            self.check_offsets(*asked)
            return self.chain()
        return chain

    def _open(
        self, ref: SegmentRef, start: int, end: int, columns: Collection[str] | None
    ) -> Iterator[SegmentFile]:
        """The files that together contain ``[start, end)``: one, or several after a roll-up."""
        names = None if columns is None else tuple(columns)
        try:
            segment = SegmentFile(self.storage, ref.name, names)
            meta = segment.meta
            identity = (self.generation, ref.epoch, ref.nonce)
            if (meta.generation, meta.epoch, meta.nonce) == identity:
                yield segment
                return
        except FileNotFoundError:
            pass
        except EventLogError:
            # Damaged: if it is on the chain, the walk below reports it; otherwise it is irrelevant.
            pass
        for _ in range(_RESOLVE_ATTEMPTS):
            chain = self._check_range(self._reader.walk(), start, end)
            files = []
            try:
                for meta in chain.between(start, end):
                    file = SegmentFile(self.storage, meta.name, names)
                    if file.meta.nonce != meta.nonce:
                        raise FileNotFoundError(meta.name)
                    files.append(file)
            except FileNotFoundError:
                continue
            yield from files
            return
        raise EventLogError(f"{self.storage!r}: segments vanish while they are read.")


def _projection(columns: Sequence[str] | None) -> pa.Schema:
    if columns is None:
        return RECORD_SCHEMA
    return pa.schema([RECORD_SCHEMA.field(name) for name in columns])


# Transactions that capture emitted.


class EmittedTransactions:
    """`tidelog.capture.session.loop.EmittedTransactionsLog` over an event log. Thread-safe."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def max_xid(self) -> int:
        return max((meta.max_xid or 0 for meta in self._log.chain().segments), default=0)

    def changed_by(self, xids: XidRanges) -> dict[int, set[int]]:
        schema_ids = self._log.records_with_xids(xids)
        return {xid: set(ids) for xid, ids in schema_ids.items()}

    def first_offset_of(self, xids: XidRanges, table: TableName) -> int | None:
        for meta in self._segments(xids):
            try:
                first = next(self._records(meta, xids, table), None)
            except OffsetGoneError:
                continue  # retention removed it in the meantime
            if first is not None:
                return int(first.column("offset")[0].as_py())
        return None

    def records_of(self, xids: XidRanges, table: TableName) -> Iterator[LogBatch]:
        for meta in self._segments(xids):
            yield from map(_log_batch, self._records(meta, xids, table))

    def _segments(self, xids: XidRanges) -> Iterator[SegmentMeta]:
        """The segments that may have records of ``xids``, in log order."""
        if not len(xids):
            return
        for meta in self._log.chain().segments:
            if meta.max_xid is None or meta.min_xid is None:
                continue
            if overlap(xids, meta.min_xid, meta.max_xid):
                yield meta

    def _records(
        self, meta: SegmentMeta, xids: XidRanges, table: TableName
    ) -> Iterator[pa.RecordBatch]:
        """The records of ``xids`` on ``table`` in the segment. Raises OffsetGoneError."""
        for ref in self._log.segments(meta.first, meta.next, tables=[str(table)]):
            for batch in self._log.batches(ref, tables=[str(table)]):
                hits = in_ranges(xids, batch.column("xid").to_numpy())
                if hits.any():
                    yield batch.filter(pa.array(hits))


def _log_batch(batch: pa.RecordBatch) -> LogBatch:
    columns = {
        name: batch.column(name).to_numpy()
        for name in ("kind", "schema_id", "position", "ordinal", "xid", "commit_ts")
    }
    payload = pa.concat_arrays([batch.column("payload")])  # offsets from 0
    buffers = payload.buffers()
    offsets = np.frombuffer(buffers[1], np.int32, len(payload) + 1, payload.offset * 4)
    data = np.frombuffer(buffers[2], np.uint8) if buffers[2] else np.empty(0, np.uint8)
    data = data[offsets[0] : offsets[-1]]
    return LogBatch(
        **columns,
        payload_offsets=(offsets - offsets[0]).astype(np.int32),
        payload=data,
        resume=Resume(0, 0, -1),
    )
