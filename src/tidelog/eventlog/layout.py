"""The layout of a segment: the records' Arrow schema, the metadata, names and offsets.

The format is described in docs/reference/event-log-format.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidelog.model.records import ChunkMeta, Int32s, Int64s, Kind, Resume, UInt8s
from tidelog.ports import SourceId
from tidelog.system.version import check_format

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
    steps[(kind == Kind.DUMP_ROW) | (kind == Kind.ABSENT)] = 1
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
