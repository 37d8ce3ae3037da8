"""A log reader of a MySQL or MariaDB server, and what it has seen, as plain values."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.mysql import MySqlFamilyServer

from tidelog.codecs.mysql import types
from tidelog.model.records import LogBatch, RecordKind, Resume
from tidelog.model.schema import Column
from tidelog.ports import (
    IdleAt,
    LogEvent,
    NullRegistry,
    RowsUnlogged,
    SchemaSeen,
    SignalSeen,
    WatermarkSeen,
)
from tidelog.sources.mysql.catalogue.schemas import MySqlSchemaFinder
from tidelog.sources.mysql.stream.log_reader import MySqlLogReader
from tidelog.sources.mysql.stream.positions import log_end

_SIGNED = {types.TINY: 1, types.SHORT: 2, types.INT24: 3, types.LONG: 4, types.LONGLONG: 8}
ABSENT = "(absent)"


@dataclass(frozen=True)
class Row:
    """A record, decoded the slow and obvious way: integers and texts only."""

    table: str
    kind: str
    position: int
    ordinal: int
    xid: int
    new: dict[str, Any] | None = None
    old: dict[str, Any] | None = None


def cell(column: Column, data: bytes, at: int) -> tuple[Any, int]:
    if column.type_id in _SIGNED:
        size = _SIGNED[column.type_id]
        signed = not types.is_unsigned(column)
        return int.from_bytes(data[at : at + size], "little", signed=signed), at + size
    meta = types.metadata(column)
    width = {
        types.VARCHAR: 1 if meta < 256 else 2,
        types.STRING: 1 if types.string_bytes(meta) < 256 else 2,
        types.BLOB: meta,
    }[column.type_id]
    size = int.from_bytes(data[at : at + width], "little")
    return data[at + width : at + width + size].decode(), at + width + size


def image(columns: Sequence[Column], data: bytes, at: int) -> tuple[dict[str, Any], int]:
    size = (len(columns) + 7) // 8
    bitmap = data[at : at + size]
    at += size
    present = [c for i, c in enumerate(columns) if bitmap[i // 8] >> i % 8 & 1]
    nulls = data[at : at + (len(present) + 7) // 8]
    at += len(nulls)
    found = {column.name: ABSENT for column in columns}
    for i, column in enumerate(present):
        if nulls[i // 8] >> i % 8 & 1:
            found[column.name] = None
        else:
            found[column.name], at = cell(column, data, at)
    return found, at


def rows_of(batch: LogBatch, schemas: NullRegistry) -> list[Row]:
    rows = []
    for i in range(len(batch)):
        schema = schemas.get(int(batch.schema_id[i]))
        data = batch.payload[batch.payload_offsets[i] : batch.payload_offsets[i + 1]].tobytes()
        kind = RecordKind(int(batch.kind[i]))
        new = old = None
        if kind is not RecordKind.TRUNCATE:
            assert data[0] == 1
            assert int.from_bytes(data[2:4], "little") == len(schema.columns)
            at = 4
            if data[1] & 1:
                old, at = image(schema.columns, data, at)
            if data[1] & 2:
                new, at = image(schema.columns, data, at)
            assert at == len(data)
        rows.append(
            Row(
                str(schema.table),
                chr(kind),
                int(batch.position[i]),
                int(batch.ordinal[i]),
                int(batch.xid[i]),
                new,
                old,
            )
        )
    return rows


@dataclass
class LogCapture:
    """A log reader and everything that it gave."""

    server: MySqlFamilyServer
    tables: Sequence[str] = ("*.*",)
    schemas: NullRegistry = field(default_factory=NullRegistry)
    options: dict[str, Any] = field(default_factory=dict)
    url: str = ""
    rows: list[Row] = field(default_factory=list)
    events: list[LogEvent] = field(default_factory=list)
    resumes: list[Resume] = field(default_factory=list)
    keep_rows: bool = True
    keep_batches: bool = False
    count: int = 0
    reader: MySqlLogReader = field(init=False)

    def __post_init__(self) -> None:
        options = dict(self.options)
        finder = MySqlSchemaFinder(options.pop("keys", None))
        self.reader = MySqlLogReader(
            self.url or self.server.url,
            self.schemas,
            tables=self.tables,
            finder=finder,
            **options,
        )

    def start(self, resume: Resume | None = None) -> Resume:
        return self.reader.start(resume)

    def poll(self, timeout_s: float = 0.2) -> None:
        for event in self.reader.poll(timeout_s):
            if isinstance(event, LogBatch):
                assert len(event)
                self.count += len(event)
                if self.keep_batches or self.keep_rows:
                    self.events.append(event)
                if self.keep_rows:
                    self.rows += rows_of(event, self.schemas)
                self.resumes.append(event.resume)
                continue
            self.events.append(event)
            if isinstance(event, IdleAt):
                self.resumes.append(event.resume)

    def until(self, condition: Callable[[], bool], timeout_s: float = 30) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"timed out; last events {self.events[-3:]}"
            self.poll()

    def catch_up(self) -> list[Row]:
        """Poll until everything up to now has been seen; all rows so far."""
        end = self.end
        self.until(lambda: bool(self.resumes) and self.resumes[-1].acknowledge >= end)
        return self.rows

    @property
    def end(self) -> int:
        """Where the server's log ends."""
        return log_end(self.reader._get_connection()).position

    @property
    def watermarks(self) -> list[str]:
        return [event.watermark for event in self.events if isinstance(event, WatermarkSeen)]

    @property
    def signals(self) -> list[SignalSeen]:
        return [event for event in self.events if isinstance(event, SignalSeen)]

    @property
    def unlogged(self) -> list[RowsUnlogged]:
        return [event for event in self.events if isinstance(event, RowsUnlogged)]

    @property
    def seen_schemas(self) -> list[SchemaSeen]:
        return [event for event in self.events if isinstance(event, SchemaSeen)]

    def brief(self) -> list[tuple[Any, ...]]:
        return [(row.kind, row.old, row.new) for row in self.rows]

    @property
    def places(self) -> list[tuple[int, int]]:
        return [(row.position, row.ordinal) for row in self.rows]
