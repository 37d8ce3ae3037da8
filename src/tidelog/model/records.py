"""Batches of records between a source's log and the event log, column-wise.

A *position* is a place in the source's log as one int64 (PostgreSQL: the commit record's LSN);
``(position, ordinal)`` orders every record of a source. ``ordinal`` is the record's index in its
transaction, as counted on the wire before our filters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

UInt8s = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]


def binary_array(offsets: Int32s, data: UInt8s) -> pa.BinaryArray:
    """Return ``n`` binary values as an Arrow array over the given memory (offsets int32[n + 1])."""
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def bitmap(flags: Bools) -> pa.Buffer:
    """Return bool[n] in Arrow's form for validity and booleans."""
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def readonly(array: np.ndarray, dtype: type[np.generic] | None = None) -> np.ndarray:
    """Return the array in the form the kernels are compiled for: contiguous and read-only.

    ``dtype``: by default the array's own.
    """
    view = np.ascontiguousarray(array, dtype=dtype).view()
    view.flags.writeable = False
    return view


class RecordKind(IntEnum):
    """The kind of a record of the event log; the number is stored."""

    INSERT = ord("I")
    UPDATE = ord("U")
    DELETE = ord("D")
    TRUNCATE = ord("T")
    MESSAGE = ord("M")  # a logical message of the source
    DUMP_ROW = ord("r")  # payload: an insert's
    ABSENT = ord("a")  # a requested key that is not in the table; payload: a delete's
    CONTROL = ord("c")  # Tidelog's: JSON about a dump, schema_id 0


@dataclass(frozen=True, slots=True)
class Resume:
    """Where capture resumes after a restart.

    ``acknowledge``: the source may forget everything before this position (a commit's end). A
    record is already durable, and is skipped, if its ``(position, ordinal)`` is not above
    ``(position, ordinal)``.

    Positions are of one server. If transactions have names that are valid on all servers (GTIDs of
    MySQL and MariaDB), these are for another server: ``executed`` are those before ``acknowledge``
    and before the one at ``position``; ``begun`` is that one if it may not be durable as a whole.
    Empty: they are not known.
    """

    acknowledge: int
    position: int
    ordinal: int
    executed: str = ""
    begun: str = ""

    def to_json(self) -> list[int]:
        """Return the positions."""
        return [self.acknowledge, self.position, self.ordinal]


@dataclass(slots=True)
class LogBatch:
    """``n`` records in log order.

    Attributes:
        kind: uint8[n], `RecordKind` codes.
        schema_id: int32[n].
        position: int64[n]; ordinal: int64[n]; xid: int64[n], widened to 64 bits.
        commit_ts: int64[n], microseconds since 1970 UTC.
        payload_offsets: int32[n + 1] into ``payload``, starting at 0.
        payload: uint8[...], the wire payloads back to back.
        resume: where a restart resumes once this batch and all before it are durable.
        behind_s: the age of its last commit when the source sent it, by the source's own clock; 0
            if that is not known.
    """

    kind: UInt8s
    schema_id: Int32s
    position: Int64s
    ordinal: Int64s
    xid: Int64s
    commit_ts: Int64s
    payload_offsets: Int32s
    payload: UInt8s
    resume: Resume
    behind_s: float = 0.0

    @classmethod
    def of_transaction(
        cls,
        kind: RecordKind,
        records: Sequence[tuple[int, int, bytes]],
        *,
        position: int,
        xid: int,
        commit_ts: int,
        resume: Resume,
    ) -> LogBatch:
        """Return records of one kind and one transaction: (schema id, ordinal, payload) of each."""
        count = len(records)
        sizes = [len(payload) for _, _, payload in records]
        return cls(
            kind=np.full(count, kind, np.uint8),
            schema_id=np.array([schema_id for schema_id, _, _ in records], np.int32),
            position=np.full(count, position, np.int64),
            ordinal=np.array([ordinal for _, ordinal, _ in records], np.int64),
            xid=np.full(count, xid, np.int64),
            commit_ts=np.full(count, commit_ts, np.int64),
            payload_offsets=np.cumsum([0, *sizes], dtype=np.int32),
            payload=np.frombuffer(b"".join(payload for _, _, payload in records), np.uint8),
            resume=resume,
        )

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def payload_bytes(self) -> int:
        return int(self.payload_offsets[-1])

    def slice(self, start: int, stop: int) -> LogBatch:
        """Return records ``start`` to ``stop``, over the same memory. Unless it ends where the
        batch does, it resumes after its last record.
        """
        offsets = self.payload_offsets[start : stop + 1]
        resume = self.resume
        if stop < len(self):
            last = stop - 1
            resume = Resume(0, int(self.position[last]), int(self.ordinal[last]))
        return LogBatch(
            kind=self.kind[start:stop],
            schema_id=self.schema_id[start:stop],
            position=self.position[start:stop],
            ordinal=self.ordinal[start:stop],
            xid=self.xid[start:stop],
            commit_ts=self.commit_ts[start:stop],
            payload_offsets=offsets - offsets[0],
            payload=self.payload[offsets[0] : offsets[-1]],
            resume=resume,
            behind_s=self.behind_s,
        )

    def filter(self, keep: Bools) -> LogBatch:
        """Return the records where ``keep`` (bool[n]) is true, in order, in their own memory."""
        payloads = binary_array(self.payload_offsets, self.payload).filter(pa.array(keep))
        offsets = np.frombuffer(payloads.buffers()[1], np.int32, len(payloads) + 1)
        data = payloads.buffers()[2]
        return LogBatch(
            kind=self.kind[keep],
            schema_id=self.schema_id[keep],
            position=self.position[keep],
            ordinal=self.ordinal[keep],
            xid=self.xid[keep],
            commit_ts=self.commit_ts[keep],
            payload_offsets=offsets,
            payload=np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8),
            resume=self.resume,
        )


class KeyEffect(IntEnum):
    """What a record does to a key."""

    COMPLETE = 0  # the record has the key's whole new state
    PARTIAL = 1  # the key's new state, columns missing (unchanged TOAST)
    GONE = 2  # the key is deleted, or was moved to another key
    MOVED_PARTIAL = 3  # the new key of a key change; no earlier record has its missing columns


@dataclass(slots=True)
class KeyEntries:
    """The keys of a batch's records of one table: ``m`` entries in record order.

    An update that changes its key has two (old key GONE, then the new key).

    Attributes:
        record: int32[m], index of the record in its batch.
        hash: uint64[m], of the encoded key (equal keys have equal hashes; not the reverse).
        effect: uint8[m], `KeyEffect`.
        offsets: int32[m + 1] into ``data``; data: uint8[...], the encoded keys: per key column a
            big-endian int32 length (-1: NULL) and the value's bytes.
    """

    record: Int32s
    hash: UInt64s
    effect: UInt8s
    offsets: Int32s
    data: UInt8s

    def __len__(self) -> int:
        return len(self.record)

    def key(self, index: int) -> bytes:
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes()

    def keys(self) -> pa.BinaryArray:
        return binary_array(self.offsets, self.data)


XidRanges = Int64s
"""int64[k, 2]: half-open ranges ``[from, to)`` of transaction ids, sorted and disjoint."""


def ranges_of(xids: Iterable[int]) -> XidRanges:
    """Return ranges of exactly these ids."""
    ids = np.array(sorted(set(xids)), np.int64)
    return np.stack([ids, ids + 1], axis=1)


def in_ranges(ranges: XidRanges, xid: Int64s) -> Bools:
    """Return bool[n]: which of ``xid`` are in the ranges."""
    if not len(ranges):
        return np.zeros(len(xid), np.bool_)
    place = np.searchsorted(ranges[:, 0], xid, "right") - 1
    inside: Bools = (place >= 0) & (xid < ranges[np.maximum(place, 0), 1])
    return inside


def overlap(ranges: XidRanges, lowest: int, highest: int) -> bool:
    """Return whether an id from ``lowest`` to ``highest`` is in the ranges."""
    place = int(np.searchsorted(ranges[:, 1], lowest, "right"))
    return place < len(ranges) and int(ranges[place, 0]) <= highest


class Snapshot(Protocol):
    """The transactions that a chunk's SELECT could see."""

    def visible(self, xid: Int64s) -> Bools:
        """Return bool[n]: whether the transaction's effect was visible to the SELECT."""
        ...

    def invisible_ranges(self, upto_xid: int) -> XidRanges:
        """Return the xids up to ``upto_xid`` that are not visible."""
        ...

    def follows(self, earlier: Self) -> bool:
        """Return whether all transactions have ended that were open when ``earlier`` was taken."""
        ...

    def to_text(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ChunkMeta:
    """A segment's metadata of its chunk, as JSON.

    ``low_key``/``high_key`` are the encoded key bounds ``(lo, hi]`` as lists of texts, None where
    open; both None for a key chunk, which has ``keys_requested`` > 0.
    """

    dump_id: str
    table: str
    chunk_id: str
    low_key: list[str | None] | None
    high_key: list[str | None] | None
    low_watermark: str
    high_watermark: str
    snapshot: str
    rows_read: int
    rows_superseded: int
    keys_requested: int = 0
    order: float = 0.0
    """Ranges of one dump and table have this order by key."""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}
