"""One table's rows as the log has them and as a SELECT shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pymysql
from tests.support.mysql import MySqlFamilyServer

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.binlog.items import TableMapSeen, parse_file_name
from tidelog.codecs.mysql.binlog.kernels import split_events
from tidelog.codecs.mysql.binlog.scanner import BinlogScanner
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.rows.dump_rows import ResultRows
from tidelog.codecs.mysql.types import WIRE_FORMAT, binlog_column
from tidelog.codecs.wire_formats import parse
from tidelog.eventlog.segments import RECORD_SCHEMA
from tidelog.model.records import LogBatch, RecordKind, Resume
from tidelog.model.schema import TableName, TableSchema
from tidelog.sources.mysql.chunks.sql import selected

_QUERY = 3
_COLLATIONS = {
    "mysql": "SELECT collation_name, id FROM information_schema.collations",
    "mariadb": "SELECT full_collation_name, id FROM "
    "information_schema.collation_character_set_applicability WHERE id IS NOT NULL",
}


@dataclass(frozen=True, slots=True)
class LoggedRow:
    """One row as the scanner gave it, with the table map it stands behind."""

    table: TableMapSeen
    kind: RecordKind
    payload: bytes


def logged_rows(
    server: MySqlFamilyServer,
    start: tuple[str, int],
    database: str,
    schema: TableSchema | None = None,
) -> list[LoggedRow]:
    """The rows of a database in one binlog file of the server, from an offset on. ``schema``: of
    its table, for what a table map does not tell.
    """
    name, offset = start
    data = np.fromfile(server.data_dir / name, dtype=np.uint8)[offset:]
    offsets = np.empty(len(data) // 19 + 2, dtype=np.int64)
    offsets = offsets[: split_events(data, offsets) + 1]
    scanner = BinlogScanner(
        Flavor(server.flavor),
        checksum=True,
        file_number=parse_file_name(name)[1],
        offset=offset,
        server_version=server.version,
    )
    seen: list[TableMapSeen] = []
    rows = []
    digits = enumerate(map(types.old_digits, schema.columns)) if schema is not None else ()
    old_digits = {i: count for i, count in digits if count}
    for item in scanner.feed(data, offsets):
        if isinstance(item, TableMapSeen):
            seen.append(item)
            mine = item.database == database
            scanner.bind(
                item.table_id, len(seen) if mine else 0, old_digits=old_digits if mine else None
            )
        elif isinstance(item, LogBatch):
            bounds = item.payload_offsets
            rows += [
                LoggedRow(
                    seen[int(item.schema_id[i]) - 1],
                    RecordKind(int(item.kind[i])),
                    item.payload[bounds[i] : bounds[i + 1]].tobytes(),
                )
                for i in range(len(item))
            ]
    return rows


@dataclass(slots=True)
class ValueTable:
    """The table ``t`` of a database, made by ``columns``; ``start``: where the log was then."""

    server: MySqlFamilyServer
    database: str
    session: pymysql.connections.Connection[Any]
    start: tuple[str, int] = field(default=("", 0), init=False)

    def create(self, columns: str, options: str = "") -> None:
        self.run("SET NAMES utf8mb4")
        self.run("SET time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES'")
        self.run("DROP TABLE IF EXISTS t")
        self.run(f"CREATE TABLE t ({columns}) {options}")
        self.start = self.server.binlog_end()

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        with self.session.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def schema(self) -> TableSchema:
        collations = dict(self.run(_COLLATIONS[self.server.flavor]))
        columns, key = [], []
        for name, kind, text, octets, collation, nullable, role in self.run(
            "SELECT column_name, data_type, column_type, character_octet_length, collation_name, "
            "is_nullable, column_key FROM information_schema.columns "
            f"WHERE table_schema = '{self.database}' AND table_name = 't' ORDER BY ordinal_position"
        ):
            columns.append(
                binlog_column(
                    name, kind, text, flavor=Flavor(self.server.flavor), octet_length=octets,
                    collation_id=collations.get(collation), nullable=nullable == "YES",
                )
            )  # fmt: skip
            if role == "PRI":
                key.append(name)
        names = tuple(column.name for column in columns)
        return TableSchema(
            TableName(self.database, "t"), 0, tuple(columns), tuple(key), names, "f", WIRE_FORMAT, 1
        )

    def logged(self) -> list[LoggedRow]:
        """The table's rows in the log since `create`."""
        return logged_rows(self.server, self.start, self.database, self.schema())

    def selected(self, schema: TableSchema, piece: int = 1 << 16) -> LogBatch:
        """The rows of a SELECT by key, received in pieces of so many bytes."""
        names = ", ".join(selected(each, each.name in schema.key) for each in schema.columns)
        with self.server.connect(self.database) as connection:
            with connection.cursor() as cursor:
                cursor.execute("SET NAMES utf8mb4")
            connection._execute_command(_QUERY, f"SELECT {names} FROM t ORDER BY id")
            columns = connection._read_packet().read_length_encoded_integer()
            for _ in range(columns + 1):
                connection._read_packet()
            rows = ResultRows(schema)
            while not rows.ended:
                rows.feed(connection._rfile.read1(piece))
            assert rows.rest == b""
        return rows.batch()


def log_batch(rows: Sequence[LoggedRow]) -> LogBatch:
    n = len(rows)
    offsets = np.zeros(n + 1, dtype=np.int32)
    offsets[1:] = np.cumsum([len(row.payload) for row in rows])
    zeros = np.zeros(n, dtype=np.int64)
    return LogBatch(
        kind=np.array([row.kind for row in rows], dtype=np.uint8),
        schema_id=np.ones(n, dtype=np.int32),
        position=zeros,
        ordinal=np.arange(n, dtype=np.int64),
        xid=zeros,
        commit_ts=zeros,
        payload_offsets=offsets,
        payload=np.frombuffer(b"".join(row.payload for row in rows), dtype=np.uint8),
        resume=Resume(0, 0, 0),
    )


def records(batch: LogBatch) -> pa.RecordBatch:
    """A batch in the event log's layout."""
    n = len(batch)
    bounds = batch.payload_offsets
    payloads = [batch.payload[bounds[i] : bounds[i + 1]].tobytes() for i in range(n)]
    values = {
        "offset": range(1, n + 1),
        "kind": batch.kind,
        "schema_id": batch.schema_id,
        "payload": payloads,
    }
    arrays = [pa.array(list(values.get(f.name, range(n))), f.type) for f in RECORD_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


def texts(
    batch: LogBatch, schema: TableSchema, *, old: bool = False
) -> list[dict[str, bytes | None]]:
    """The canonical texts of each record's new (or old) row; columns that are missing left out."""
    cells = parse(records(batch), schema, range(len(schema.columns)), old=True)
    image = cells.old if old else cells.new
    assert image is not None
    rows = []
    for i in range(len(batch)):
        row: dict[str, bytes | None] = {}
        for c, name in enumerate(schema.column_names):
            start, length = int(image.start[c, i]), int(image.length[c, i])
            if length != -2:
                row[name] = cells.data[start : start + length].tobytes() if length >= 0 else None
        rows.append(row)
    return rows


def normal(rows: list[dict[str, bytes | None]], schema: TableSchema) -> list[dict[str, Any]]:
    """Floating-point texts as numbers: a SELECT spells them differently, outside keys."""
    floats = [c.name for c in schema.columns if c.logical.startswith("float")]
    return [
        row | {n: float(row[n]) for n in floats if row.get(n) is not None}  # type: ignore[arg-type]
        for row in rows
    ]


def kinds(rows: Sequence[LoggedRow]) -> list[RecordKind]:
    return [row.kind for row in rows]


def keeps_surrogates(server: MySqlFamilyServer) -> bool:
    """MySQL 9 refuses them in utf32."""
    try:
        server.execute("SELECT HEX(_utf32 X'0000D800')")
    except pymysql.OperationalError:
        return False
    return True
