"""The state of a scan, which its kernel and the code for single events share, and its buffers."""

from __future__ import annotations

import numpy as np

from tidelog.codecs.mysql.binlog import kernels as kernel
from tidelog.codecs.mysql.binlog.events import HEADER_BYTES, EventType
from tidelog.codecs.mysql.binlog.items import (
    GtidSource,
    GtidsSeen,
    WatchedBinlogRow,
    pack_position,
    position_text,
)
from tidelog.errors import DecodeError
from tidelog.model.records import Int32s, Int64s, LogBatch, RecordKind, Resume, UInt8s

TORN = "is torn or malformed"
FAULTS = {
    kernel.MALFORMED: TORN,
    kernel.BAD_CHECKSUM: "does not match its checksum",
    kernel.OUT_OF_ORDER: "begins before the end of the previous one",
    kernel.NESTED: "is inside a transaction",
    kernel.OUTSIDE: "is outside a transaction",
    kernel.UNMAPPED: "is of a table without a table map",
    kernel.COLUMN_COUNT: "has another number of columns than its table map",
    kernel.TORN_ROW: "holds a row that does not fit its table map",
}


class ScanState:
    """The state of one scan.

    Attributes:
        slots: int64[STATE_SLOTS], shared with the kernel.
        xid: the XA transaction that the open group prepares.
        server_version: the version of the server that wrote the file, e.g. (8, 0, 36); empty if
            unknown.
    """

    def __init__(
        self,
        begin: Resume,
        checksum: bool,
        file_number: int,
        offset: int,
        server_version: tuple[int, ...],
    ) -> None:
        slots: Int64s = np.zeros(kernel.STATE_SLOTS, dtype=np.int64)
        slots[kernel.FILE] = pack_position(file_number, 0)
        slots[kernel.OFFSET] = offset
        slots[kernel.LAST_POSITION] = begin.position
        slots[kernel.LAST_ORDINAL] = begin.ordinal
        slots[kernel.CHECKSUM] = checksum
        slots[kernel.SOURCE] = -1
        self.slots = slots
        self.xid = b""
        self.server_version = server_version

    @property
    def in_transaction(self) -> bool:
        """True if a group of events is open."""
        return bool(self.slots[kernel.IN_GROUP])

    @property
    def position(self) -> int:
        """The packed end of the scanned events."""
        return int(self.slots[kernel.FILE] | self.slots[kernel.OFFSET])

    def open(self, commit_ts: int) -> None:
        """Begin a group at the current event."""
        state = self.slots
        state[kernel.IN_GROUP] = 1
        state[kernel.GROUP_START] = state[kernel.RECORD_POSITION] = self.event_start
        state[kernel.COMMIT_TS] = commit_ts
        for slot in (kernel.NEXT_ORDINAL, kernel.BEGUN, kernel.STANDALONE, kernel.HELD):
            state[slot] = 0

    def close(self) -> None:
        """End the group at the current event."""
        for slot in (kernel.IN_GROUP, kernel.BEGUN, kernel.STANDALONE, kernel.HELD):
            self.slots[slot] = 0
        self.xid = b""

    @property
    def last(self) -> tuple[int, int]:
        """(position, ordinal) of the last record counted."""
        return int(self.slots[kernel.LAST_POSITION]), int(self.slots[kernel.LAST_ORDINAL])

    @property
    def event_start(self) -> int:
        """The packed beginning of the current event."""
        return int(self.slots[kernel.FILE] | self.slots[kernel.EVENT_START])

    def where(self) -> str:
        """The beginning of the current event as text: the file's number and the offset in it."""
        state = self.slots
        at = position_text(int(state[kernel.FILE] | max(0, int(state[kernel.EVENT_START]))))
        if not self.in_transaction:
            return at
        group = position_text(int(state[kernel.GROUP_START]))
        return f"{at}, in the transaction at {group}, record {int(state[kernel.NEXT_ORDINAL])}"

    def fault(self, what: str) -> DecodeError:
        """The error for a fault of the stream, with its position."""
        return DecodeError(f"binlog: {what} (at {self.where()})")

    def stop_error(self, stopped: int, kind: int) -> DecodeError:
        """The error for an event of this type that stopped the kernel."""
        return self.fault(f"{name_of(kind)} event {FAULTS[stopped]}")


def name_of(kind: int) -> str:
    """The name of an event type."""
    try:
        return EventType(kind).name
    except ValueError:
        return f"type {kind}"


# The buffers to which the kernel writes records and GTIDs, and the batches made from them.

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
        """The single record that the kernel wrote of a watched table's event at ``start``."""
        return WatchedBinlogRow(
            int.from_bytes(
                data[start + HEADER_BYTES : start + HEADER_BYTES + 6].tobytes(), "little"
            ),
            RecordKind(int(self.kind[0])),
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
