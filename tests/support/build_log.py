"""Builds event logs record by record, for tests and benchmarks of what reads them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.support import pgoutput_messages as messages
from tests.support.pgoutput_messages import Value

from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.segments import SegmentMeta
from tidelog.eventlog.writer import EventLogWriter
from tidelog.model.records import ChunkMeta, LogBatch, RecordKind, Resume
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.ports import SourceId

SOURCE = SourceId("postgres", "7400000000000000001", "shop", 1)


class BuiltLog:
    """An event log under construction. Records gather until `flush` makes them a segment.

    Each record is a transaction of its own, a microsecond after the one before.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        start_offset: int = 0,
        source: SourceId = SOURCE,
        position: int = 1000,
    ) -> None:
        self.path = str(path)
        self.writer = EventLogWriter.create(path, source, 1, start_offset=start_offset)
        self._position = position
        self._ordinal = 0
        self._kinds: list[int] = []
        self._ids: list[int] = []
        self._payloads: list[bytes] = []

    @property
    def log(self) -> EventLog:
        return EventLog.open(self.path)

    def table(
        self,
        name: str | TableName,
        columns: Mapping[str, str],
        key: Sequence[str] = ("id",),
        *,
        relation_id: int = 1,
        identity_kind: str = "d",
        identity: Sequence[str] | None = None,
    ) -> TableSchema:
        """Register ``namespace.name`` with columns name → logical type."""
        if isinstance(name, str):
            namespace, _, bare = name.partition(".")
            name = TableName(namespace, bare)
        schema = TableSchema(
            table=name,
            relation_id=relation_id,
            columns=tuple(
                Column(column, 25, -1, logical, logical, column not in key)
                for column, logical in columns.items()
            ),
            key=tuple(key),
            identity=tuple(key if identity is None else identity),
            identity_kind=identity_kind,
            wire_format="pgoutput",
        )
        return self.writer.schemas.register(schema)

    def insert(self, schema: TableSchema, *values: Value) -> None:
        self.add(RecordKind.INSERT, schema, messages.insert(schema.relation_id, values))

    def update(
        self, schema: TableSchema, *values: Value, key: Sequence[Value] | None = None
    ) -> None:
        """``key``: the values of the old key's columns, if the update changes the key."""
        image = None if key is None else self._key_tuple(schema, key)
        self.add(RecordKind.UPDATE, schema, messages.update(schema.relation_id, values, key=image))

    def delete(self, schema: TableSchema, *key: Value) -> None:
        image = self._key_tuple(schema, key)
        self.add(RecordKind.DELETE, schema, messages.delete(schema.relation_id, key=image))

    def truncate(self, schema: TableSchema) -> None:
        self.add(RecordKind.TRUNCATE, schema, messages.truncate(schema.relation_id))

    def add(self, kind: RecordKind, schema: TableSchema, payload: bytes) -> None:
        self._kinds.append(int(kind))
        self._ids.append(schema.schema_id)
        self._payloads.append(payload)

    def transaction(self) -> int:
        """A transaction to `flush` records of, in one segment or in several after one another."""
        self._position += 1
        return self._position

    def flush(self, transaction: int | None = None, *, whole: bool = True) -> SegmentMeta:
        """Append what was gathered as one segment: of ``transaction``, which is complete with it if
        ``whole``.
        """
        batch = self._batch()
        if transaction is not None:
            n = len(batch)
            batch.position = np.full(n, transaction, np.int64)
            batch.xid = batch.position + 700
            batch.ordinal = np.arange(self._ordinal, self._ordinal + n, dtype=np.int64)
            batch.commit_ts = batch.position + 1_700_000_000_000_000
            self._ordinal += n
            self._position = max(transaction, self._position - n)
            end = transaction + whole
            batch.resume = Resume(end, transaction, self._ordinal - 1)
        return self.writer.append_log([batch])

    def chunk(
        self,
        schema: TableSchema,
        rows: Sequence[Sequence[Value]],
        *,
        absent: Sequence[Sequence[Value]] = (),
        dump_id: str = "d1",
        ordinal: int = 0,
    ) -> SegmentMeta:
        """Append a chunk segment of dump rows (and absent keys)."""
        assert not self._kinds, "flush first"
        for values in rows:
            self.add(RecordKind.DUMP_ROW, schema, messages.insert(schema.relation_id, values))
        for key in absent:
            image = self._key_tuple(schema, key)
            self.add(RecordKind.ABSENT, schema, messages.delete(schema.relation_id, key=image))
        batch = self._batch(dumped=True)
        batch.ordinal[:] = ordinal
        meta = ChunkMeta(
            dump_id=dump_id,
            table=str(schema.table),
            chunk_id="c1",
            low_key=None,
            high_key=None,
            low_watermark="low",
            high_watermark="high",
            snapshot="1:1:",
            rows_read=len(batch),
            rows_superseded=0,
        )
        return self.writer.append_chunk(batch, meta, self._position)

    def dump_started(self, table: TableName | str, *, dump_id: str = "d1") -> SegmentMeta:
        return self.control({"type": "dump-started", "dump_id": dump_id, "table": str(table)})

    def dump_completed(
        self, table: TableName | str, first_offset: int, *, dump_id: str = "d1"
    ) -> SegmentMeta:
        """The dump of the whole table that began at ``first_offset`` is complete."""
        record = {"type": "dump-completed", "dump_id": dump_id, "table": str(table)}
        return self.control({**record, "first_offset": first_offset, "delete_absent": True})

    def keyless_dump_completed(
        self, table: TableName | str, first_offset: int, ordinal: int
    ) -> SegmentMeta:
        """A dump of a table without a key is complete; its rows have the ordinal."""
        record = {"type": "dump-completed", "dump_id": "d1", "table": str(table)}
        numbers = {"first_offset": first_offset, "rows_ordinal": ordinal}
        return self.control({**record, **numbers, "delete_absent": False})

    def message(self, prefix: str, content: bytes) -> None:
        """A logical message of a transaction of its own."""
        self._kinds.append(RecordKind.MESSAGE)
        self._ids.append(0)
        document = {
            "type": "message",
            "transactional": True,
            "xid": 735,
            "prefix": prefix,
            "content": base64.b64encode(content).decode(),
        }
        self._payloads.append(json.dumps(document).encode())

    def control(self, message: Any) -> SegmentMeta:
        return self.writer.append_control(message)

    def _key_tuple(self, schema: TableSchema, key: Sequence[Value]) -> list[Value]:
        given = dict(zip(schema.match_key, key, strict=True))
        return [given.get(name) for name in schema.column_names]

    def _batch(self, dumped: bool = False) -> LogBatch:
        n = len(self._kinds)
        offsets = np.zeros(n + 1, np.int32)
        np.cumsum([len(payload) for payload in self._payloads], out=offsets[1:])
        positions = np.arange(self._position + 1, self._position + 1 + n, dtype=np.int64)
        if not dumped:
            self._position += n
        batch = LogBatch(
            kind=np.array(self._kinds, np.uint8),
            schema_id=np.array(self._ids, np.int32),
            position=positions,
            ordinal=np.zeros(n, np.int64),
            xid=np.zeros(n, np.int64) if dumped else positions + 700,
            commit_ts=positions + 1_700_000_000_000_000,
            payload_offsets=offsets,
            payload=np.frombuffer(b"".join(self._payloads), np.uint8),
            resume=Resume(self._position + 1, self._position, 0),
        )
        self._kinds, self._ids, self._payloads = [], [], []
        return batch
