"""Log batches for tests of the event log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.schemas import SchemaStore
from tidelog.model.records import ChunkMeta, LogBatch, RecordKind, Resume
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.ports import SourceId

SOURCE = SourceId("postgres", "7412345678901234567", "shop", 1)


def table_schema(name: str = "orders", columns: int = 1) -> TableSchema:
    return TableSchema(
        table=TableName("public", name),
        relation_id=16384,
        columns=tuple(Column(f"c{i}", 23, -1, "integer", "int32") for i in range(columns)),
        key=("c0",),
        identity=("c0",),
        identity_kind="d",
        wire_format="pgoutput",
    )


def register(path: Path | str, *names: str) -> list[int]:
    store = SchemaStore(path)
    return [store.register(table_schema(name)).schema_id for name in names or ("orders",)]


def batch(
    payloads: Sequence[bytes],
    position: int,
    *,
    schema_id: int | Sequence[int] = 1,
    kind: int = RecordKind.INSERT,
    xid: int = 0,
    ordinal: int = 0,
) -> LogBatch:
    n = len(payloads)
    return LogBatch(
        kind=np.full(n, kind, np.uint8),
        schema_id=np.broadcast_to(np.array(schema_id, np.int32), n).copy(),
        position=np.full(n, position, np.int64),
        ordinal=np.arange(ordinal, ordinal + n, dtype=np.int64),
        xid=np.full(n, xid, np.int64),
        commit_ts=np.full(n, 1_700_000_000_000_000, np.int64),
        payload_offsets=np.cumsum([0, *map(len, payloads)]).astype(np.int32),
        payload=np.frombuffer(b"".join(payloads), np.uint8),
        resume=Resume(position, position, ordinal + n - 1),
    )


def chunk(chunk_id: str = "1") -> ChunkMeta:
    return ChunkMeta("dump", "public.orders", chunk_id, None, ["9"], "low", "high", "1:1:", 2, 0)


def payloads(log: EventLog, start: int | None = None) -> list[tuple[int, bytes]]:
    """Every record as (offset, payload)."""
    start = log.head_offset if start is None else start
    result = []
    for ref in log.segments(start):
        table = log.read(ref, ["offset", "payload"])
        result += zip(table["offset"].to_pylist(), table["payload"].to_pylist(), strict=True)
    return result
