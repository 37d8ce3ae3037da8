"""A capture over a fresh database, and what it has seen, as plain values."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psycopg
import pytest
from tests.support.postgres_parts import log_reader

from tidelog.model.records import LogBatch, RecordKind, Resume
from tidelog.model.schema import TableName
from tidelog.ports import IdleAt, LogEvent, NullRegistry, SchemaSeen, WatermarkSeen
from tidelog.sources.postgres.connect import lsn_value
from tidelog.sources.postgres.stream.log_reader import PostgresLogReader

PATIENCE_S = 60.0
"""For what must come: however busy the machine is. A wait ends as soon as it has."""


@dataclass(frozen=True)
class Row:
    """A record, decoded the slow and obvious way."""

    table: str
    kind: str
    position: int
    ordinal: int
    xid: int
    new: dict[str, str | None] | None = None
    old: dict[str, str | None] | None = None


UNCHANGED = "(unchanged)"


def tuple_values(payload: bytes, at: int) -> tuple[list[str | None], int]:
    count = int.from_bytes(payload[at : at + 2], "big")
    at += 2
    values: list[str | None] = []
    for _ in range(count):
        tag = payload[at : at + 1]
        at += 1
        if tag == b"n":
            values.append(None)
        elif tag == b"u":
            values.append(UNCHANGED)
        else:
            size = int.from_bytes(payload[at : at + 4], "big")
            values.append(payload[at + 4 : at + 4 + size].decode("utf-8", "surrogateescape"))
            at += 4 + size
    return values, at


def rows_of(batch: LogBatch, schemas: NullRegistry) -> list[Row]:
    rows = []
    for i in range(len(batch)):
        if batch.kind[i] == RecordKind.MESSAGE:
            continue
        schema = schemas.get(int(batch.schema_id[i]))
        payload = batch.payload[batch.payload_offsets[i] : batch.payload_offsets[i + 1]].tobytes()
        kind = RecordKind(int(batch.kind[i]))
        images: dict[str, dict[str, str | None]] = {}
        if kind is not RecordKind.TRUNCATE:
            at = 5
            while at < len(payload):
                tag = payload[at : at + 1].decode()
                values, at = tuple_values(payload, at + 1)
                image = dict(zip(schema.column_names, values, strict=True))
                if tag == "K":
                    image = {name: image[name] for name in schema.identity}
                images["new" if tag == "N" else "old"] = image
        rows.append(
            Row(
                str(schema.table),
                chr(kind),
                int(batch.position[i]),
                int(batch.ordinal[i]),
                int(batch.xid[i]),
                images.get("new"),
                images.get("old"),
            )
        )
    return rows


@dataclass
class Capture:
    """A log reader and everything that it gave."""

    dsn: str
    tables: Sequence[str] = ("*.*",)
    schemas: NullRegistry = field(default_factory=NullRegistry)
    options: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    events: list[LogEvent] = field(default_factory=list)
    resumes: list[Resume] = field(default_factory=list)
    reader: PostgresLogReader = field(init=False)

    def __post_init__(self) -> None:
        self.reader = log_reader(
            self.dsn, self.schemas, slot=self.slot, tables=self.tables, **self.options
        )

    @property
    def slot(self) -> str:
        return "slot_" + self.dsn.rsplit("/", 1)[1]

    def start(self, resume: Resume | None = None) -> Resume:
        return self.reader.start(resume)

    def publish(self) -> list[TableName]:
        """Publish tables that match by now, as capture does at each look; the new ones."""
        return self.reader._publications.sync(self.reader._get_connection())

    def poll(self, timeout_s: float = 0.2) -> None:
        for event in self.reader.poll(timeout_s):
            self.events.append(event)
            if isinstance(event, LogBatch):
                assert len(event)
                self.rows += rows_of(event, self.schemas)
                self.resumes.append(event.resume)
            elif isinstance(event, IdleAt):
                self.resumes.append(event.resume)

    def until(self, condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"timed out; last events {self.events[-3:]}"
            self.poll()

    def catch_up(self, connection: psycopg.Connection[Any]) -> list[Row]:
        """Poll until everything up to now has been seen; all rows so far."""
        row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        # A record of ours behind `now`, so that the server has something to send.
        connection.execute("SELECT pg_logical_emit_message(true, 'test', 'catch up')")
        now = lsn_value(row[0])
        self.until(lambda: bool(self.resumes) and self.resumes[-1].acknowledge >= now)
        return self.rows

    @property
    def watermarks(self) -> list[str]:
        return [event.watermark for event in self.events if isinstance(event, WatermarkSeen)]

    @property
    def messages(self) -> list[tuple[str, bytes, bool]]:
        """Prefix, content and whether transactional; without those of `catch_up`."""
        return [
            (m["prefix"], base64.b64decode(m["content"]), m["transactional"])
            for m in self.message_documents
        ]

    @property
    def message_documents(self) -> list[dict[str, Any]]:
        """The same as they are recorded."""
        found = []
        for batch in (event for event in self.events if isinstance(event, LogBatch)):
            for i in np.flatnonzero(batch.kind == RecordKind.MESSAGE):
                begin, end = batch.payload_offsets[i : i + 2]
                found.append(json.loads(batch.payload[begin:end].tobytes()))
        return [document for document in found if document["prefix"] != "test"]

    @property
    def seen_schemas(self) -> list[SchemaSeen]:
        return [event for event in self.events if isinstance(event, SchemaSeen)]

    def brief(self) -> list[tuple[Any, ...]]:
        return [(row.kind, row.table, row.old, row.new) for row in self.rows]


@pytest.fixture
def sql(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def capture(database: str) -> Iterator[Capture]:
    capture = Capture(database)
    yield capture
    capture.reader.close()


@pytest.fixture
def make_capture(database: str) -> Iterator[Callable[..., Capture]]:
    made: list[Capture] = []

    def make(**options: Any) -> Capture:
        names = {"tables", "schemas", "dsn"}
        plain = {name: options.pop(name) for name in names & set(options)}
        made.append(Capture(**{"dsn": database, **plain}, options=options))
        return made[-1]

    yield make
    for capture in made:
        capture.reader.close()


def positions(rows: Sequence[Row]) -> np.ndarray[Any, Any]:
    return np.array([(row.position, row.ordinal) for row in rows])
