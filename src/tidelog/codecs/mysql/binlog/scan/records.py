"""The buffers to which the kernel writes records and GTIDs, and the batches made from them."""

from __future__ import annotations

import numpy as np

from tidelog.codecs.mysql.binlog.events.header import HEADER_BYTES
from tidelog.codecs.mysql.binlog.items import GtidSource, GtidsSeen, WatchedBinlogRow
from tidelog.model.records import Int32s, Int64s, Kind, LogBatch, Resume, UInt8s

BATCH_BYTES = 8 << 20
"""Approximate limit of a batch's payload, in bytes."""

BATCH_RECORDS = 1 << 17
BATCH_GTIDS = 1 << 15


class ScannedRecords:
    """The columns of one scan's batches, which its kernel fills."""

    def __init__(self) -> None:
        self.kind: UInt8s = np.empty(BATCH_RECORDS, dtype=np.uint8)
        self.schema_id: Int32s = np.empty(BATCH_RECORDS, dtype=np.int32)
        self.position: Int64s = np.empty(BATCH_RECORDS, dtype=np.int64)
        self.ordinal: Int64s = np.empty(BATCH_RECORDS, dtype=np.int64)
        self.commit_ts: Int64s = np.empty(BATCH_RECORDS, dtype=np.int64)
        self.payload_offsets: Int32s = np.empty(BATCH_RECORDS + 1, dtype=np.int32)
        self.payload: UInt8s = np.empty(BATCH_BYTES, dtype=np.uint8)
        self.gtid_position: Int64s = np.empty(BATCH_GTIDS, dtype=np.int64)
        self.gtid_number: Int64s = np.empty(BATCH_GTIDS, dtype=np.int64)
        self.gtid_source: Int32s = np.empty(BATCH_GTIDS, dtype=np.int32)

    def batch(self, records: int, payload_bytes: int, resume: Resume) -> LogBatch:
        """Copy the first records."""
        position = self.position[:records].copy()
        batch = LogBatch(
            kind=self.kind[:records].copy(),
            schema_id=self.schema_id[:records].copy(),
            position=position,
            ordinal=self.ordinal[:records].copy(),
            xid=position,
            commit_ts=self.commit_ts[:records].copy(),
            payload_offsets=self.payload_offsets[: records + 1].copy(),
            payload=self.payload[:payload_bytes].copy(),
            resume=resume,
        )
        if len(self.payload) > BATCH_BYTES:
            self.payload = np.empty(BATCH_BYTES, dtype=np.uint8)
        return batch

    def row_of(self, data: UInt8s, start: int) -> WatchedBinlogRow:
        """The single record that the kernel wrote of a watched table, from the event at
        ``start``.
        """
        return WatchedBinlogRow(
            int.from_bytes(
                data[start + HEADER_BYTES : start + HEADER_BYTES + 6].tobytes(), "little"
            ),
            Kind(int(self.kind[0])),
            self.payload[: self.payload_offsets[1]].tobytes(),
            int(self.position[0]),
            int(self.ordinal[0]),
            int(self.commit_ts[0]),
        )

    def gtids(self, count: int, sources: tuple[GtidSource, ...]) -> GtidsSeen:
        """Copy the first GTIDs, of these sources."""
        return GtidsSeen(
            self.gtid_position[:count].copy(),
            self.gtid_number[:count].copy(),
            self.gtid_source[:count].copy(),
            sources,
        )

    def grow(self, payload_bytes: int) -> None:
        """Make room for a row that is larger than a usual batch."""
        self.payload = np.empty(payload_bytes, dtype=np.uint8)
