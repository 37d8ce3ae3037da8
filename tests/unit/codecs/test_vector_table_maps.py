"""Table maps of MySQL 9's VECTOR, and table maps that can't be read.

``vector_events.json`` holds the bytes of a real MySQL 9.7.4, recorded by

    TIDELOG_MYSQLD=<its mysqld> python -m tests.unit.codecs.test_vector_table_maps

(``tools/debian_mysql.py`` gets one): each table of `TABLES` is made, and written by `WRITES`, under
both values of ``binlog_row_metadata``. Kept are where each transaction begins, and its events.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from tests.integration.mysql.value_rows import LoggedRow, log_batch, texts
from tests.support.binlog_events import BinlogBytes
from tests.support.mysql import MySqlServer

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.binlog.items import TableMapSeen
from tidelog.codecs.mysql.binlog.kernels import split_events
from tidelog.codecs.mysql.binlog.scanner import BinlogScanner, parse_table_map
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.types import WIRE_FORMAT, binlog_column
from tidelog.errors import DecodeError
from tidelog.model.records import LogBatch, RecordKind
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.sources.mysql.catalogue.schemas import MySqlSchemaFinder, mismatch

RECORDED = Path(__file__).with_name("vector_events.json")
TABLES = {
    "one": "id int primary key, v vector(3), t varchar(9)",
    "many": (
        "id int primary key, code varchar(9) character set latin1, embedding vector(3), "
        "name varchar(9), city varchar(9), note text"
    ),
    "bytes": "id int primary key, b varbinary(9), v vector(2), w vector(16383), c blob, t text",
}
WRITES = {
    "one": "insert into one values (1, to_vector('[1,-2,0.5]'), 'é'), (2, null, 'b')",
    "many": "insert into many values (1, 'é', to_vector('[1,2,3]'), 'ä', 'ß', '漢'), "
    "(2, 'x', null, 'y', null, 'z')",
    "bytes": "insert into bytes values (1, x'ff', to_vector('[1,2]'), null, x'00', '漢')",
}
LATIN1, UTF8, BINARY = 8, 255, types.BINARY_COLLATION
CASES = [(metadata, table) for metadata in ("FULL", "MINIMAL") for table in TABLES]


def record() -> None:
    """Write `RECORDED`."""
    found: dict[str, object] = {"recorded by": "python -m tests.unit.codecs.test_vector_table_maps"}
    with MySqlServer() as server:
        server.create_database("d")
        found["version"] = server.installation.version
        for metadata, table in CASES:
            server.execute(f"SET GLOBAL binlog_row_metadata = {metadata}")
            server.execute(f"DROP TABLE IF EXISTS {table}", "d")
            server.execute(f"CREATE TABLE {table} ({TABLES[table]}) CHARACTER SET utf8mb4", "d")
            name, offset = server.binlog_end()
            server.execute(WRITES[table], "d")
            data = (server.data_dir / name).read_bytes()
            found[f"{metadata} {table}"] = [offset, data[offset:].hex()]
    RECORDED.write_text(json.dumps(found, indent=1) + "\n")


def scanned(metadata: str, table: str) -> list[LoggedRow]:
    """The recorded rows of a table, with its table map."""
    found = json.loads(RECORDED.read_text())
    offset, events = found[f"{metadata} {table}"]
    scanner = BinlogScanner(
        Flavor.MYSQL, checksum=True, file_number=1, offset=offset, server_version=(9, 7, 4)
    )
    data = np.frombuffer(bytes.fromhex(events), dtype=np.uint8)
    offsets = np.empty(len(data) // 19 + 2, dtype=np.int64)
    rows, maps = [], []
    for item in scanner.feed(data, offsets[: split_events(data, offsets) + 1]):
        if isinstance(item, TableMapSeen):
            maps.append(item)
            scanner.bind(item.table_id, 1)
        elif isinstance(item, LogBatch):
            bounds = item.payload_offsets
            for i in range(len(item)):
                payload = item.payload[bounds[i] : bounds[i + 1]].tobytes()
                rows.append(LoggedRow(maps[-1], RecordKind(int(item.kind[i])), payload))
    return rows


def in_catalogue(table: str) -> TableSchema:
    """The table as ``information_schema`` has it."""
    columns: list[Column] = []
    octets = {"vector(3)": 12, "vector(2)": 8, "vector(16383)": 65532}
    for line in TABLES[table].split(", "):
        name, kind = line.split(" ")[:2]
        base = kind.partition("(")[0]
        collation = LATIN1 if "latin1" in line else UTF8 if base in ("varchar", "text") else None
        width = 4 if collation == UTF8 else 1
        size = octets.get(kind, 9 * width if base.startswith("var") else None)
        columns.append(
            binlog_column(
                name, base, kind, flavor=Flavor.MYSQL, octet_length=size, collation_id=collation,
                nullable=name != "id",
            )
        )  # fmt: skip
    names = tuple(column.name for column in columns)
    return TableSchema(
        TableName("d", table), 0, tuple(columns), ("id",), names, "f", WIRE_FORMAT, 0
    )


def floats(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


ROWS = {
    "one": [
        {"id": b"1", "v": floats(1, -2, 0.5), "t": "é".encode()},
        {"id": b"2", "v": None, "t": b"b"},
    ],
    "many": [
        {
            "id": b"1", "code": "é".encode(), "embedding": floats(1, 2, 3), "name": "ä".encode(),
            "city": "ß".encode(), "note": "漢".encode(),
        },
        {"id": b"2", "code": b"x", "embedding": None, "name": b"y", "city": None, "note": b"z"},
    ],
    "bytes": [
        {"id": b"1", "b": b"\xff", "v": floats(1, 2), "w": None, "c": b"\0", "t": "漢".encode()}
    ],
}  # fmt: skip


@pytest.mark.parametrize(("metadata", "table"), CASES)
def test_vectors_beside_texts_leave_these_their_character_sets(metadata: str, table: str) -> None:
    rows = scanned(metadata, table)
    seen, schema = rows[0].table, in_catalogue(table)
    assert seen.malformed is None
    assert seen.metadata.collations is not None
    expected = {types.VECTOR: BINARY}
    for column, collation in zip(schema.columns, seen.metadata.collations, strict=True):
        wanted = expected.get(column.type_id, types.collation(column) or None)
        assert collation == wanted, column
    assert mismatch(schema, seen) is None
    if metadata == "FULL":
        assert MySqlSchemaFinder().schema_of_map(seen, Flavor.MYSQL, None) == schema
    assert texts(log_batch(rows), schema) == ROWS[table]


def recorded_map(metadata: str, table: str) -> bytes:
    """The body of a recorded table map."""
    _, events = json.loads(RECORDED.read_text())[f"{metadata} {table}"]
    data = bytes.fromhex(events)
    at = 0
    while data[at + 4] != 19:
        at += int.from_bytes(data[at + 9 : at + 13], "little")
    return data[at + 19 : at + int.from_bytes(data[at + 9 : at + 13], "little") - 4]


@pytest.mark.parametrize(("metadata", "table"), CASES)
def test_whatever_stands_behind_the_types_of_columns_is_a_fault_of_the_table_alone(
    metadata: str, table: str
) -> None:
    body = recorded_map(metadata, table)
    count = len(in_catalogue(table).columns)
    behind = body.index(b"\0", 10 + body[8]) + 2 + count
    faults = set()
    for at in range(behind, len(body)):
        others = {0, 1, 63, 250, 251, 252, 253, 254, 255, body[at] ^ 1}
        for changed in [body[:at], *(body[:at] + bytes([b]) + body[at + 1 :] for b in others)]:
            seen = parse_table_map(changed, 0, Flavor.MYSQL, (9, 7, 4))
            assert (seen.database, seen.table, len(seen.metas)) == ("d", table, count)
            assert seen.has_readable_rows or seen.malformed is not None
            faults.add(seen.malformed)
    assert {None, "what its columns are", "the metadata of its columns"} < faults
    assert any("character sets" in str(fault) for fault in faults)


@pytest.mark.parametrize(
    ("metas", "optional", "malformed", "counted"),
    [
        (b"\x50\x00\x02", b"\3\1\x2d", "the optional metadata (character sets)", 2),
        (b"\x50\x00\x02", b"\3\x09\x2d", "the optional metadata (where fields begin)", 2),
        (b"\x50\x00\x09", b"", "the metadata of its columns", 1),
        (b"\x50\x00", b"", "the metadata of its columns", 1),
    ],
)
def test_malformed_table_map_of_a_table_that_is_not_captured_ends_nothing(
    metas: bytes, optional: bytes, malformed: str, counted: int
) -> None:
    """``counted``: the rows of the event that is passed over, or the event if it can't be cut."""
    log = BinlogBytes()
    log.format_description("9.9.0")
    log.gtid(1)
    log.query("BEGIN")
    log.table_map(5, bytes([3]), table="captured")
    log.table_map(6, bytes([3, 15, 252]), metas, table="other", optional=optional)
    log.rows(30, 6, 3, (b"\xf8" + struct.pack("<i", 1) + b"\1a\1\0b") * 2)
    log.rows(30, 5, 1, b"\xfe" + struct.pack("<i", 7))
    log.xid()

    def scan(other: int) -> tuple[list[int], list[str | None]]:
        scanner = BinlogScanner(Flavor.MYSQL, checksum=True, file_number=1, offset=4)
        ordinals: list[int] = []
        faults = []
        for item in scanner.feed(*log.arrays(0, len(log.events))):
            if isinstance(item, TableMapSeen):
                faults.append(item.malformed)
                scanner.bind(item.table_id, 1 if item.table == "captured" else other)
            elif isinstance(item, LogBatch):
                ordinals += item.ordinal.tolist()
        return ordinals, faults

    assert scan(0) == ([counted], [None, malformed])
    with pytest.raises(DecodeError, match=r"shop\.other"):
        scan(2)


if __name__ == "__main__":
    record()
