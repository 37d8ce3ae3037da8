"""Builds pgoutput payloads of one table and record batches, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
from tests.support import pgoutput_messages as messages

from tidelog.model.records import RecordKind
from tidelog.model.schema import Column, TableName, TableSchema

UNCHANGED = messages.UNCHANGED
Cell = messages.Value
Row = Sequence[Cell]
_RELATION_ID = 16385


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
        relation_id=_RELATION_ID,
        columns=shape,
        key=tuple(key),
        identity=tuple(identity),
        identity_kind=identity_kind,
        wire_format="pgoutput",
        schema_id=schema_id,
    )


def insert(row: Row) -> bytes:
    """An Insert message."""
    return messages.insert(_RELATION_ID, row)


def update(row: Row, old: Row | None = None, old_kind: bytes = b"K") -> bytes:
    """An Update message; ``old_kind`` K (identity only) or O (full) says what ``old`` is."""
    image = {"key": old} if old_kind == b"K" else {"old": old}
    return messages.update(_RELATION_ID, row, **image)


def delete(old: Row, old_kind: bytes = b"K") -> bytes:
    """A Delete message; ``old_kind`` as in `update`."""
    image = {"key": old} if old_kind == b"K" else {"old": old}
    return messages.delete(_RELATION_ID, **image)


def truncate() -> bytes:
    """A Truncate message."""
    return messages.truncate(_RELATION_ID)


def record_batch(
    records: Sequence[tuple[RecordKind, bytes]], schema_id: int = 1, first_offset: int = 1000
) -> pa.RecordBatch:
    """The records in the event log's layout, offsets as the log numbers them."""
    advances = [
        1 if kind in (RecordKind.DUMP_ROW, RecordKind.ABSENT) else max(1, len(payload))
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
