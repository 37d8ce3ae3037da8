"""Builds pgoutput payloads and record batches, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from tidelog.model.records import Kind
from tidelog.model.schema import Column, TableName, TableSchema


class Unchanged:
    """A cell that an update does not carry (TOAST)."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()
Cell = str | bytes | None | Unchanged
Row = Sequence[Cell]


def table_schema(
    columns: Iterable[tuple[str, str]],
    key: Sequence[str] = (),
    identity: Sequence[str] | None = None,
    identity_kind: str = "d",
    schema_id: int = 1,
) -> TableSchema:
    """``public.t`` with columns ``(name, logical type)``; identity defaults to the key."""
    shape = tuple(Column(name, 0, -1, logical, logical) for name, logical in columns)
    if identity is None:
        identity = [c.name for c in shape] if identity_kind == "f" else key
    return TableSchema(
        table=TableName("public", "t"),
        relation_id=16385,
        columns=shape,
        key=tuple(key),
        identity=tuple(identity),
        identity_kind=identity_kind,
        wire_format="pgoutput",
        schema_id=schema_id,
    )


def tuple_data(row: Row) -> bytes:
    """TupleData of a row."""
    parts = [len(row).to_bytes(2, "big")]
    for cell in row:
        if cell is None:
            parts.append(b"n")
        elif isinstance(cell, Unchanged):
            parts.append(b"u")
        else:
            value = cell.encode() if isinstance(cell, str) else cell
            parts += [b"t", len(value).to_bytes(4, "big"), value]
    return b"".join(parts)


def insert(row: Row, relation_id: int = 16385) -> bytes:
    """An Insert message."""
    return b"I" + relation_id.to_bytes(4, "big") + b"N" + tuple_data(row)


def update(
    row: Row, old: Row | None = None, old_kind: bytes = b"K", relation_id: int = 16385
) -> bytes:
    """An Update message; ``old_kind`` K (identity only) or O (full) says what ``old`` is."""
    before = b"" if old is None else old_kind + tuple_data(old)
    return b"U" + relation_id.to_bytes(4, "big") + before + b"N" + tuple_data(row)


def delete(old: Row, old_kind: bytes = b"K", relation_id: int = 16385) -> bytes:
    """A Delete message; ``old_kind`` as in `update`."""
    return b"D" + relation_id.to_bytes(4, "big") + old_kind + tuple_data(old)


def truncate(relation_id: int = 16385) -> bytes:
    """A Truncate message of one table."""
    return b"T" + (1).to_bytes(4, "big") + b"\0" + relation_id.to_bytes(4, "big")


def record_batch(
    records: Sequence[tuple[Kind, bytes]], schema_id: int = 1, first_offset: int = 1000
) -> pa.RecordBatch:
    """The records in the event log's layout, offsets as the log numbers them."""
    advances = [
        1 if kind in (Kind.DUMP_ROW, Kind.ABSENT) else max(1, len(payload))
        for kind, payload in records
    ]
    n = len(records)
    offsets = first_offset + np.concatenate([[0], np.cumsum(advances, dtype=np.int64)])[:n]
    return pa.record_batch(
        {
            "offset": offsets.astype(np.int64),
            "kind": np.array([kind for kind, _ in records], dtype=np.uint8),
            "schema_id": np.full(n, schema_id, dtype=np.int32),
            "position": np.arange(n, dtype=np.int64) + 5_000_000,
            "ordinal": np.arange(n, dtype=np.int64),
            "xid": np.full(n, 700, dtype=np.int64),
            "commit_ts": np.full(n, 1_700_000_000_000_000, dtype=np.int64),
            "payload": pa.array([payload for _, payload in records], pa.binary()),
        }
    )
