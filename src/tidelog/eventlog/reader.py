"""Reads the event log by offsets, never by file names alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from tidelog.errors import EventLogError, OffsetGoneError
from tidelog.eventlog import unused_offsets
from tidelog.eventlog.chain import Chain, ChainReader
from tidelog.eventlog.layout import RECORD_SCHEMA, SegmentMeta
from tidelog.eventlog.log_files import LOG_FILE, load_log
from tidelog.eventlog.log_poller import LogPoller
from tidelog.eventlog.schemas import SchemaStore
from tidelog.eventlog.segments import SegmentFile, select_records
from tidelog.eventlog.storage.opening import storage_at
from tidelog.eventlog.storage.port import Storage
from tidelog.model.records import ChunkMeta, Kind, XidRanges, in_ranges, overlap
from tidelog.ports import LastTransaction, SourceId

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
        """Raises EventLogError if there is no event log at ``path``."""
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
        """The newest transaction of the source that the log has records of; None if there is
        none.
        """
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
            of_dump = np.isin(batch.column("kind").to_numpy(), (Kind.DUMP_ROW, Kind.ABSENT))
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
        unused_offsets.check_offsets(self._reader, offsets, who)

    def holds(self, offset: int) -> bool:
        """Does the log have what is before ``offset``? For a caller that knows the log to its
        end.
        """
        return unused_offsets.diverges_at(self.chain(), offset) is None

    def bytes_between(self, start: int, end: int) -> int:
        """The number of bytes of the log between these offsets."""
        return max(0, end - start - unused_offsets.count_unused(self.chain(end), start, end))

    def _check_range(self, chain: Chain, start: int, end: int | None) -> Chain:
        """The checked chain, which may have grown."""
        if start < chain.head:
            raise OffsetGoneError(
                f"{self.storage!r}: offset {start} was asked for, but retention removed everything "
                f"before {chain.head}. Rebuild this consumer from a new dump, and register it or "
                "raise log.retention so that it does not happen again."
            )
        asked = (start,) if end is None else (start, end)
        if any(unused_offsets.diverges_at(chain, offset) is not None for offset in asked):
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
