"""Looks up transactions that capture emitted earlier in the event log.

Why: docs/explanation/watermarks.md, "What this takes".

After a restart, or when its history of a table's keys is too short, capture must know which of the
transactions that a snapshot can't see it has emitted, and which keys they changed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tidelog.errors import OffsetGoneError
from tidelog.eventlog.layout import SegmentMeta
from tidelog.eventlog.reader import EventLog
from tidelog.model.records import LogBatch, Resume, XidRanges, in_ranges, overlap
from tidelog.model.schema import TableName


class EmittedTransactions:
    """`tidelog.capture.engine.EmittedTransactionsLog` over an event log. Thread-safe."""

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
