"""The bytes that other tests build are those of a server, so that builders and scanner can't agree
on a mistake.

What no server at hand writes is not here: compressed transactions (MySQL 8.0.20) and tagged GTIDs
(8.3).
"""

from __future__ import annotations

import datetime as dt
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from tests.integration.mysql.value_rows import ValueTable
from tests.support import binlog_events as build
from tests.support import binlog_values as values
from tests.support.mysql import MySqlFamilyServer

from tidelog.model.schema import TableSchema

pytestmark = pytest.mark.integration

QUERY, ROTATE, XID, TABLE_MAP, GTID, XA_PREPARE, MARIADB_GTID = 2, 4, 16, 19, 33, 38, 162

COLUMNS: list[tuple[str, Any, str]] = [
    ("tinyint", -5, "-5"),
    ("smallint unsigned", 65_000, "65000"),
    ("mediumint", -(2**23), "-8388608"),
    ("int unsigned", 4_000_000_000, "4000000000"),
    ("bigint", -(2**63), "-9223372036854775808"),
    ("year", 2024, "2024"),
    ("float", 1.5, "1.5"),
    ("double", -0.1, "-0.1e0"),
    ("decimal(12,4)", Decimal("-1.2500"), "-1.25"),
    ("decimal(30,7)", Decimal("12345678901234567890.0000001"), "12345678901234567890.0000001"),
    ("date", dt.date(2024, 2, 29), "'2024-02-29'"),
    ("datetime(6)", dt.datetime(2024, 2, 3, 4, 5, 6, 789), "'2024-02-03 04:05:06.000789'"),
    ("datetime", dt.datetime(2024, 2, 3, 4, 5, 6), "'2024-02-03 04:05:06'"),
    ("timestamp(3) NULL", dt.datetime(2024, 2, 3, 4, 5, 6, 789_000), "'2024-02-03 04:05:06.789'"),
    ("time(2)", dt.timedelta(hours=-12, milliseconds=-340), "'-12:00:00.34'"),
    ("time", dt.timedelta(hours=838), "'838:00:00'"),
    ("bit(12)", 99, "99"),
    ("enum('a','b')", 2, "'b'"),
    ("set('a','b','c')", 5, "'a,c'"),
    ("varchar(40)", "héllo", "'héllo'"),
    ("varchar(300)", "x" * 260, "repeat('x', 260)"),
    ("char(4)", "é", "'é'"),
    ("char(100)", "é" * 99, "repeat('é', 99)"),
    ("binary(4)", b"a\0b", "X'610062'"),
    ("varbinary(8)", b"\0\xff", "X'00ff'"),
    ("text", "some text", "'some text'"),
    ("longblob", b"z" * 70_000, "repeat('z', 70000)"),
]
DOCUMENT = (
    "json",
    {"a": [1, -70_000, 2**40, True, None, 0.5, "x" * 200], "bb": {}, "c": 2**64 - 1},
    """'{"a": [1, -70000, 1099511627776, true, null, 0.5, "%s"], "bb": {}, """
    """"c": 18446744073709551615}'""" % ("x" * 200),
)


@pytest.fixture
def table(mysql_family: MySqlFamilyServer, mysql_family_database: str) -> Iterator[ValueTable]:
    with mysql_family.connect(mysql_family_database) as session:
        yield ValueTable(mysql_family, mysql_family_database, session)


def filled(table: ValueTable) -> list[tuple[dict[str, Any], ...]]:
    """Make the table and change rows; the images of each change."""
    columns = [*COLUMNS, *([DOCUMENT] if table.server.flavor == "mysql" else [])]
    names = [f"c{i}" for i in range(len(columns))]
    listed = ", ".join(f"{name} {kind}" for name, (kind, _, _) in zip(names, columns, strict=True))
    table.create(f"id int NOT NULL PRIMARY KEY, {listed}", "CHARACTER SET utf8mb4")
    row = {"id": 1} | {name: value for name, (_, value, _) in zip(names, columns, strict=True)}
    nulls = {"id": 2} | dict.fromkeys(names)
    changed = row | {"c0": None, "c3": 7, "c19": ""}
    table.run(f"INSERT INTO t VALUES (1, {', '.join(sql for _, _, sql in columns)})")
    table.run("INSERT INTO t (id) VALUES (2)")
    table.run("UPDATE t SET c0 = NULL, c3 = 7, c19 = '' WHERE id = 1")
    table.run("DELETE FROM t WHERE id = 2")
    table.run("SET SESSION binlog_row_image = 'minimal'")
    table.run("INSERT INTO t (id, c3) VALUES (3, 9)")
    table.run("UPDATE t SET c19 = 'x', c3 = 8 WHERE id = 3")
    table.run("DELETE FROM t WHERE id = 3")
    table.run("SET SESSION binlog_row_image = 'full'")
    return [
        (row,), (nulls,), (row, changed), (nulls,),
        ({"id": 3, "c3": 9},), ({"id": 3}, {"c3": 8, "c19": "x"}), ({"id": 3},),
    ]  # fmt: skip


def filled_up(
    data: bytes, at: int, schema: TableSchema, *images: Mapping[str, Any], apart: bool = False
) -> bytes:
    """``data`` with ones for spare bits, which are zeros by some servers. The first image begins at
    ``at``; ``apart``: bitmaps of the columns stand before all images.
    """
    found = bytearray(data)

    def fill(bits: int) -> int:
        size = (bits + 7) // 8
        if bits % 8:
            found[at + size - 1] |= 0xFF << bits % 8 & 0xFF
        return at + size

    for _ in images if apart else ():
        at = fill(len(schema.columns))
    for each in images:
        at = at if apart else fill(len(schema.columns))
        begin = at
        fill(len(each))
        at = begin + len(values.image(schema, each))
    assert at == len(data)
    return bytes(found)


def test_payloads_are_those_that_the_scanner_makes_of_a_servers_rows(table: ValueTable) -> None:
    changes = filled(table)
    schema = table.schema()
    made = [values.insert, values.insert, values.update, values.delete]
    made += [values.insert, values.update, values.delete]
    logged = table.logged()
    for row, make, images in zip(logged, made, changes, strict=True):
        assert filled_up(row.payload, 4, schema, *images) == make(schema, *images)
    codes, metas = values.map_of(schema)
    seen = logged[0].table
    assert seen.types == codes
    assert seen.metas == built_map(codes, metas)


def built_map(codes: bytes, metas: bytes) -> tuple[int, ...]:
    """The metadata as numbers, read apart from the scanner."""
    found, at = [], 0
    for code in codes:
        size = {254: 2, 246: 2, 15: 2, 16: 2, 4: 1, 5: 1, 17: 1, 18: 1, 19: 1, 245: 1, 252: 1}
        order = "big" if code in (254, 246) else "little"
        found.append(int.from_bytes(metas[at : at + size.get(code, 0)], order))  # type: ignore[arg-type]
        at += size.get(code, 0)
    assert at == len(metas)
    return tuple(found)


def events(server: MySqlFamilyServer, start: tuple[str, int]) -> list[tuple[int, bytes]]:
    """(type, body) of each event of the binlog file from an offset on."""
    data, found = (server.data_dir / start[0]).read_bytes(), []
    at = start[1]
    while at < len(data):
        kind, _, size, after = struct.unpack_from("<BIII", data, at + 4)
        assert after == at + size
        bare = data[at : at + size - 4]
        assert struct.unpack_from("<I", data, at + size - 4) == (zlib.crc32(bare),)
        timestamp, server_id, flags = (
            struct.unpack_from("<I", data, at)[0],
            *(struct.unpack_from("<I8xH", data, at + 5)),
        )
        made = build.event(kind, bare[19:], timestamp, server_id, after, flags, checksum=True)
        assert made == data[at : at + size]
        found.append((kind, bare[19:]))
        at += size
    return found


def test_events_are_those_of_a_server(table: ValueTable) -> None:
    mysql = table.server.flavor == "mysql"
    changes = filled(table)
    schema = table.schema()
    count = len(schema.columns)
    table.run("XA START 'global', 'branch'")
    table.run("INSERT INTO t (id) VALUES (9)")
    table.run("XA END 'global', 'branch'")
    table.run("XA PREPARE 'global', 'branch'")
    table.run("XA COMMIT 'global', 'branch'")
    changes.append((dict.fromkeys(schema.column_names) | {"id": 9},))
    base, number = table.start[0].rsplit(".", 1)
    newer = f"{base}.{int(number) + 1:06}"
    table.run("FLUSH BINARY LOGS")
    found = events(table.server, table.start)

    maps = [body for kind, body in found if kind == TABLE_MAP]
    table_id = int.from_bytes(maps[0][:6], "little")
    nullable = bytes(((1 << count) - 2).to_bytes((count + 7) // 8, "little"))
    told = build.table_map_body(
        table_id, *values.map_of(schema), table.database, "t", nullable=nullable
    )
    assert len(maps) == len(changes)
    for body in maps:
        assert body.startswith(told)

    rows = [(kind, body) for kind, body in found if kind in (23, 24, 25, 30, 31, 32)]
    for (kind, body), images in zip(rows, changes, strict=True):
        # A flag of MySQL 9.6 and later: foreign keys are the server's own, not the engine's.
        body = body[:6] + bytes([body[6] & ~0x10]) + body[7:]
        made = rows_of(kind, body, schema, images)
        begin = len(made) - sum(len(values.image(schema, each)) for each in images)
        begin -= len(images) * ((count + 7) // 8)
        assert filled_up(body, begin, schema, *images, apart=True) == made

    for kind, body in found:
        if kind == QUERY:
            status = body[13 : 13 + int.from_bytes(body[11:13], "little")]
            sql = body[13 + len(status) + body[8] + 1 :].decode()
            made = build.query_body(sql, body[13 + len(status) :][: body[8]].decode(), status)
            assert made[8:] == body[8:]
    begins = [body for kind, body in found if kind == QUERY and body.endswith(b"BEGIN")]
    assert len(begins) == (len(changes) - 1 if mysql else 0)  # MariaDB's GTID events tell it
    assert {len(body) for kind, body in found if kind == XID} == {8}
    assert found[-1] == (ROTATE, struct.pack("<Q", 4) + newer.encode())
    (prepared,) = [body for kind, body in found if kind == XA_PREPARE]
    assert prepared == build.xa_prepare_body(b"global", b"branch")
    groups = [body for kind, body in found if kind in (GTID, MARIADB_GTID)]
    if mysql:
        executed = table.run("SELECT @@gtid_executed")[0][0]
        uuid, last = UUID(executed.split(":")[0]), int(executed.split("-")[-1])
        for number, body in enumerate(reversed(groups)):
            commit_us = int.from_bytes(body[42:49], "little") & (1 << 55) - 1
            assert abs(commit_us / 1e6 - time.time()) < 600
            made = build.gtid_body(uuid, last - number, commit_us)
            assert (made[1:26], made[42:]) == (body[1:26], body[42:49])
    else:
        domain, _, last = table.run("SELECT @@gtid_binlog_pos")[0][0].split("-")
        for number, body in enumerate(reversed(groups)):
            made = build.mariadb_gtid_body(int(last) - number, int(domain), body[12], body[13:])
            assert made == body


def rows_of(
    kind: int, body: bytes, schema: TableSchema, images: tuple[dict[str, Any], ...]
) -> bytes:
    """A rows event's body of these images, of the table of ``body``."""
    bits: list[bytes | int] = [values.present(schema, each) for each in images]
    before, after = (-1, bits[0]) if kind in (23, 30) else (bits[0], bits[-1])
    return build.rows_body(
        kind,
        int.from_bytes(body[:6], "little"),
        len(schema.columns),
        b"".join(values.image(schema, each) for each in images),
        before=before,
        after=after,
    )


def test_compressed_events_are_those_of_a_server(
    mariadb_server: MySqlFamilyServer, mariadb_database: str
) -> None:
    with mariadb_server.connect(mariadb_database) as session:
        table = ValueTable(mariadb_server, mariadb_database, session)
        table.create("id int NOT NULL PRIMARY KEY, v varchar(1000)", "CHARACTER SET utf8mb4")
        schema = table.schema()
        table.run("SET GLOBAL log_bin_compress_min_len = 30")
        table.run("SET GLOBAL log_bin_compress = ON")
        try:
            table.run("INSERT INTO t VALUES (1, repeat('é', 500))")
            table.run("UPDATE t SET v = repeat('x', 999)")
            table.run("DELETE FROM t")
            table.run("ALTER TABLE t ADD a_rather_long_name_of_a_column int")
        finally:
            table.run("SET GLOBAL log_bin_compress = OFF")
            table.run("SET GLOBAL log_bin_compress_min_len = DEFAULT")
        found = events(mariadb_server, table.start)
    old, new = {"id": 1, "v": "é" * 500}, {"id": 1, "v": "x" * 999}
    images = {166: (old,), 167: (old, new), 168: (new,)}
    rows = {kind: body for kind, body in found if kind in images}
    assert rows.keys() == images.keys()
    for kind, body in rows.items():
        made = rows_of(kind - 143, body, schema, images[kind])
        begin = len(made) - sum(len(values.image(schema, each)) for each in images[kind])
        plain = body[:begin] + inflated(body[begin:])
        assert (
            filled_up(plain, begin - len(images[kind]), schema, *images[kind], apart=True) == made
        )
        size = 1 + (body[begin] & 7)
        assert body[begin:][:size] == build.deflated(plain[begin:])[:size]
    (ddl,) = [body for kind, body in found if kind == 165]
    begin = 13 + int.from_bytes(ddl[11:13], "little") + ddl[8] + 1
    assert ddl[8:9] + ddl[begin - 1 : begin] == bytes([len(mariadb_database), 0])
    assert inflated(ddl[begin:]) == b"ALTER TABLE t ADD a_rather_long_name_of_a_column int"


def inflated(data: bytes) -> bytes:
    assert data[0] & 0xF8 == 0x80
    size = data[0] & 7
    plain = zlib.decompress(data[1 + size :])
    assert int.from_bytes(data[1 : 1 + size], "big") == len(plain)
    return plain
