"""Encodes and decodes segments: log batches, metadata, records, checksums.

The format is described in docs/reference/event-log-format.md. Each record batch has CRC-32 sums of
its columns (uncompressed), because Arrow's file format has none: a torn page in a file with a valid
footer would otherwise decode to wrong values. So does the metadata: damaged, it could make capture
resume at a wrong position, or a reader skip a part of the log.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.errors import EventLogError, ForeignSegmentError, SegmentCorruptError
from tidelog.eventlog.storage_port import Storage
from tidelog.model.records import ChunkMeta, Int32s, Int64s, LogBatch, RecordKind, Resume, UInt8s
from tidelog.ports import SourceId
from tidelog.system.version import check_format

# The layout: the records' Arrow schema, the metadata, names and offsets.

FORMAT: Final = 1  # that we write; `tidelog.system.version.FORMAT` is the greatest that we read
METADATA_KEY: Final = b"tidelog"
CHECKSUM_KEY: Final = b"tidelog:crc32"

RECORD_SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("kind", pa.uint8(), nullable=False),
        pa.field("schema_id", pa.int32(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("ordinal", pa.int64(), nullable=False),
        pa.field("xid", pa.int64(), nullable=False),
        pa.field("commit_ts", pa.int64(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)

SEGMENT_KINDS: Final = ("log", "chunk", "fence", "position", "control")

_SEGMENT_NAME = re.compile(r"\d{20}\.arrow")


def segment_name(first: int) -> str:
    """The file name of the segment whose first offset is ``first``."""
    return f"{first:020d}.arrow"


def is_segment_name(name: str) -> bool:
    """Is it a segment's name, and not that of a temporary file, ``log.json`` or the like?"""
    return _SEGMENT_NAME.fullmatch(name) is not None


def first_offset_of(name: str) -> int:
    """The inverse of `segment_name`."""
    return int(name[:20])


def record_offsets(first: int, kind: UInt8s, payload_offsets: Int32s) -> tuple[Int64s, int]:
    """The offsets of records that start at ``first``: int64[n], and the offset after them.

    A record advances the offset by its payload's bytes, at least 1; a dump row by 1, because it
    always is one row (docs/reference/event-log-format.md).
    """
    steps = np.maximum(np.diff(payload_offsets), 1).astype(np.int64)
    steps[(kind == RecordKind.DUMP_ROW) | (kind == RecordKind.ABSENT)] = 1
    ends = np.cumsum(steps)
    total = int(ends[-1]) if len(ends) else 0
    ends += first
    ends -= steps
    return ends, first + total


@dataclass(frozen=True, slots=True)
class Identity:
    """Identifies a segment: a freed name may be used again, the triple never is."""

    name: str
    epoch: int
    nonce: str


@dataclass(frozen=True, slots=True)
class SegmentMeta:
    """A segment's metadata, stored as JSON under the Arrow schema's key ``tidelog``.

    Attributes:
        kind: one of `SEGMENT_KINDS`; a rolled-up segment of several kinds is a ``log`` segment.
        epoch, nonce: identity of the writer instance; a rolled-up segment has its own nonce.
        pred: segment before it; None in a log's first segment.
        tail: what the successor's ``pred`` names: the segment itself, or the last one rolled up
            into it.
        first, next: offsets, ``next`` exclusive.
        first_position, last_position: positions of its log records; None if there are none.
        resume: where capture resumes once this segment is durable; None before the first position.
        min_xid, max_xid: range over records that have an xid; None if there are none.
        rows_by_table, rows_by_schema: records by table name and by schema id (0: control).
        chunks: its chunks, in order.
        merged: segments that a rolled-up segment replaced.
        unused: ranges ``[first, next)`` of offsets that no record has, but that an event log from
            which this one was restored may have issued (docs/adr/0034).
        state_revision: how often leaders had stored their status when this was appended (0: not
            known): a state store with a lower number was restored to an earlier state.
    """

    kind: str
    generation: str
    source: SourceId
    epoch: int
    nonce: str
    pred: Identity | None
    tail: Identity
    first: int
    next: int
    first_position: int | None
    last_position: int | None
    resume: Resume | None
    min_xid: int | None
    max_xid: int | None
    rows: int
    rows_by_table: Mapping[str, int]
    rows_by_schema: Mapping[int, int]
    payload_bytes: int
    chunks: tuple[ChunkMeta, ...]
    created_ms: int
    merged: tuple[Identity, ...] = ()
    unused: tuple[tuple[int, int], ...] = ()
    state_revision: int = 0

    @property
    def name(self) -> str:
        return segment_name(self.first)

    @property
    def identity(self) -> Identity:
        return Identity(self.name, self.epoch, self.nonce)

    def to_bytes(self) -> bytes:
        data: dict[str, Any] = {
            "format": FORMAT,
            "kind": self.kind,
            "generation": self.generation,
            "source": self.source.to_json(),
            "epoch": self.epoch,
            "nonce": self.nonce,
            "pred": None
            if self.pred is None
            else {"name": self.pred.name, "epoch": self.pred.epoch, "nonce": self.pred.nonce},
            "tail_name": self.tail.name,
            "tail_epoch": self.tail.epoch,
            "tail_nonce": self.tail.nonce,
            "first": self.first,
            "next": self.next,
            "first_position": self.first_position,
            "last_position": self.last_position,
            "resume": None if self.resume is None else self.resume.to_json(),
            "gtids": None if self.resume is None else [self.resume.executed, self.resume.begun],
            "min_xid": self.min_xid,
            "max_xid": self.max_xid,
            "rows": self.rows,
            "rows_by_table": dict(self.rows_by_table),
            "rows_by_schema": {str(key): rows for key, rows in self.rows_by_schema.items()},
            "payload_bytes": self.payload_bytes,
            "chunks": [chunk.to_json() for chunk in self.chunks],
            "created_ms": self.created_ms,
        }
        if self.unused:
            data["unused"] = [list(each) for each in self.unused]
        if self.state_revision:
            data["state_revision"] = self.state_revision
        if self.merged:
            # Many segments, few writers: first offsets are grouped by (epoch, nonce).
            groups: dict[tuple[int, str], list[int]] = {}
            for identity in self.merged:
                groups.setdefault((identity.epoch, identity.nonce), []).append(
                    first_offset_of(identity.name)
                )
            data["merged"] = [[epoch, nonce, firsts] for (epoch, nonce), firsts in groups.items()]
        return json.dumps(data, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, raw: bytes, what: str) -> SegmentMeta:
        """Decode the metadata of a segment, ``what`` in messages.

        Raises:
            NewerFormatError: if a newer version wrote it.
            ValueError, KeyError, TypeError: if ``raw`` is not a segment's metadata.
        """
        data = json.loads(raw)
        check_format(data["format"], what)
        pred = data["pred"]
        resume = data["resume"]
        return cls(
            kind=data["kind"],
            generation=data["generation"],
            source=SourceId(**data["source"]),
            epoch=data["epoch"],
            nonce=data["nonce"],
            pred=None if pred is None else Identity(**pred),
            tail=Identity(data["tail_name"], data["tail_epoch"], data["tail_nonce"]),
            first=data["first"],
            next=data["next"],
            first_position=data["first_position"],
            last_position=data["last_position"],
            resume=None if resume is None else Resume(*resume, *(data.get("gtids") or ())),
            min_xid=data["min_xid"],
            max_xid=data["max_xid"],
            rows=data["rows"],
            rows_by_table=data["rows_by_table"],
            rows_by_schema={int(key): rows for key, rows in data["rows_by_schema"].items()},
            payload_bytes=data["payload_bytes"],
            chunks=tuple(ChunkMeta(**chunk) for chunk in data["chunks"]),
            created_ms=data["created_ms"],
            merged=tuple(
                Identity(segment_name(first), epoch, nonce)
                for epoch, nonce, firsts in data.get("merged", ())
                for first in firsts
            ),
            unused=tuple((first, following) for first, following in data.get("unused", ())),
            state_revision=data.get("state_revision", 0),
        )


# Encoding and decoding.

# LZ4's acceleration: measured on 4 MiB of 174-byte rows, -10 takes two thirds of the default's time
# for 3 % more bytes.
_LZ4_LEVEL: Final = -10
# Small adjacent batches are merged into one record batch: each costs a reader about 0.1 ms.
_SMALL_BATCH_BYTES: Final = 256 << 10
_BATCH_BYTES: Final = 8 << 20


def to_record_batches(batches: Sequence[LogBatch], first: int) -> tuple[list[pa.RecordBatch], int]:
    """Number the records of ``batches`` from ``first``; returns also the offset after them. A
    batch's arrays are used without copying, unless it is small.
    """
    result = []
    for batch in _coalesce(batches):
        offsets, first = record_offsets(first, batch.kind, batch.payload_offsets)
        result.append(
            pa.RecordBatch.from_arrays(
                [
                    pa.array(offsets),
                    pa.array(batch.kind),
                    pa.array(batch.schema_id),
                    pa.array(batch.position),
                    pa.array(batch.ordinal),
                    pa.array(batch.xid),
                    pa.array(batch.commit_ts),
                    pa.Array.from_buffers(
                        pa.binary(),
                        len(batch),
                        [
                            None,
                            pa.py_buffer(np.ascontiguousarray(batch.payload_offsets)),
                            pa.py_buffer(np.ascontiguousarray(batch.payload)),
                        ],
                    ),
                ],
                schema=RECORD_SCHEMA,
            )
        )
    return result, first


def _coalesce(batches: Sequence[LogBatch]) -> Iterator[LogBatch]:
    small: list[LogBatch] = []
    small_bytes = 0
    for batch in batches:
        if not len(batch):
            continue
        if batch.payload_bytes >= _SMALL_BATCH_BYTES:
            if small:
                yield _concatenate(small)
                small, small_bytes = [], 0
            yield batch
            continue
        small.append(batch)
        small_bytes += batch.payload_bytes
        if small_bytes >= _BATCH_BYTES:
            yield _concatenate(small)
            small, small_bytes = [], 0
    if small:
        yield _concatenate(small)


def _concatenate(batches: list[LogBatch]) -> LogBatch:
    if len(batches) == 1:
        return batches[0]
    starts = np.cumsum([0] + [batch.payload_bytes for batch in batches])
    return LogBatch(
        kind=np.concatenate([batch.kind for batch in batches]),
        schema_id=np.concatenate([batch.schema_id for batch in batches]),
        position=np.concatenate([batch.position for batch in batches]),
        ordinal=np.concatenate([batch.ordinal for batch in batches]),
        xid=np.concatenate([batch.xid for batch in batches]),
        commit_ts=np.concatenate([batch.commit_ts for batch in batches]),
        payload_offsets=np.concatenate(
            [np.zeros(1, np.int32)]
            + [
                batch.payload_offsets[1:] + np.int32(start)
                for batch, start in zip(batches, starts, strict=False)
            ]
        ),
        payload=np.concatenate([batch.payload[: batch.payload_bytes] for batch in batches]),
        resume=batches[-1].resume,
    )


def encode_segment(meta: SegmentMeta, batches: Iterable[pa.RecordBatch]) -> pa.Buffer:
    """The segment's file as one buffer."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("lz4", _LZ4_LEVEL))
    raw = meta.to_bytes()
    schema = RECORD_SCHEMA.with_metadata({METADATA_KEY: raw, CHECKSUM_KEY: b"%d" % zlib.crc32(raw)})
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        for batch in batches:
            sums = {name: _checksum(batch.column(name)) for name in RECORD_SCHEMA.names}
            writer.write_batch(
                batch.replace_schema_metadata(None),
                custom_metadata={CHECKSUM_KEY: json.dumps(sums).encode()},
            )
    return sink.getvalue()


def _checksum(column: pa.Array) -> int:
    """CRC-32 of the values (for ``payload``: of the lengths, then of the bytes)."""
    if pa.types.is_binary(column.type):
        offsets = payload_offsets(column)
        data = memoryview(column.buffers()[2] or b"").cast("B")
        lengths = np.ascontiguousarray(np.diff(offsets)).data
        return zlib.crc32(data[int(offsets[0]) : int(offsets[-1])], zlib.crc32(lengths))
    return zlib.crc32(np.ascontiguousarray(column.to_numpy(zero_copy_only=True)).data)


def payload_offsets(column: pa.Array) -> npt.NDArray[np.int32]:
    """int32[n + 1]: where values of the binary ``column`` start in its data buffer; no copy."""
    if not len(column):
        return np.zeros(1, np.int32)
    return np.frombuffer(
        column.buffers()[1], np.int32, count=len(column) + 1, offset=4 * column.offset
    )


def payload_bytes(batch: pa.RecordBatch) -> int:
    """The size of the payloads of ``batch``, which may be a slice."""
    offsets = payload_offsets(batch.column("payload"))
    return int(offsets[-1]) - int(offsets[0])


class SegmentFile:
    """An open segment. Raises FileNotFoundError, SegmentCorruptError or ForeignSegmentError."""

    def __init__(self, storage: Storage, name: str, columns: Sequence[str] | None = None) -> None:
        self._where = f"{storage!r} segment {name}"
        self._names = [n for n in RECORD_SCHEMA.names if columns is None or n in columns]
        options = pa.ipc.IpcReadOptions(
            included_fields=[RECORD_SCHEMA.names.index(n) for n in self._names]
        )
        try:
            source = storage.open(name, footer=not self._names)
            self._reader = pa.ipc.open_file(source, options=options)
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise self._corrupt("it is not a whole Arrow file") from error
        self.meta = self._read_meta(name)

    def _read_meta(self, name: str) -> SegmentMeta:
        metadata = self._reader.schema.metadata or {}
        raw, checksum = metadata.get(METADATA_KEY), metadata.get(CHECKSUM_KEY)
        if raw is None and checksum is None:
            raise ForeignSegmentError(
                f"{self._where} was not written by Tidelog (its Arrow schema has no 'tidelog' "
                "metadata). Move the file out of the event log's directory."
            )
        if raw is None or checksum != b"%d" % zlib.crc32(raw):
            raise self._corrupt("its metadata does not match its checksum")
        try:
            meta = SegmentMeta.from_bytes(raw, self._where)
        except (ValueError, KeyError, TypeError) as error:
            raise ForeignSegmentError(
                f"{self._where} has metadata that this Tidelog can't read ({error}). Move the "
                "file out of the event log's directory, or restore it from a backup."
            ) from error
        if meta.name != name:
            raise ForeignSegmentError(
                f"{self._where} says that it is {meta.name}: the file was renamed. "
                "Move it out of the event log's directory, or give it its name back."
            )
        return meta

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The records. Each batch's bytes are verified against their checksums; what the values
        mean is checked elsewhere.
        """
        rows = 0
        expected = pa.schema([RECORD_SCHEMA.field(name) for name in self._names])
        for index in range(self._reader.num_record_batches):
            try:
                read = self._reader.get_batch_with_custom_metadata(index)
                batch = read.batch
                sums = json.loads(read.custom_metadata[CHECKSUM_KEY])
                sound = batch.schema.equals(expected) and all(
                    not batch.column(n).null_count and _checksum(batch.column(n)) == sums[n]
                    for n in self._names
                )
            except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
                raise self._corrupt(f"record batch {index} cannot be read") from error
            if not sound:
                raise self._corrupt(f"record batch {index} does not match its checksum")
            rows += batch.num_rows
            yield batch
        if rows != self.meta.rows:
            raise self._corrupt(f"it has {rows} records where {self.meta.rows} were written")

    def _corrupt(self, what: str) -> EventLogError:
        return SegmentCorruptError(
            f"{self._where} is damaged: {what}. Restore the file from a backup or a replica; "
            "without one, recreate the event log with a new dump. It is never skipped silently."
        )


def select_records(
    batch: pa.RecordBatch, start: int, end: int, schema_ids: frozenset[int] | None
) -> pa.RecordBatch:
    """The records in ``[start, end)``, only of these schemas; None: of all."""
    batch = batch.replace_schema_metadata(None)
    offsets = batch.column("offset").to_numpy()
    low, high = np.searchsorted(offsets, (start, end)).tolist()
    if high - low < batch.num_rows:
        batch = batch.slice(low, high - low)
    if schema_ids is not None:
        mask = np.isin(batch.column("schema_id").to_numpy(), np.array(sorted(schema_ids), np.int32))
        if not mask.all():
            batch = batch.filter(pa.array(mask))
    return batch
