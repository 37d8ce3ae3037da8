"""Columns that the rows of the log hold and the catalogue hides: the columns of the catalogue are
delivered, and no table is refused for the others.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.integration.mysql.log_capture import ABSENT, LogCapture
from tests.integration.mysql.test_preflight import check, faults
from tests.integration.mysql.value_rows import texts
from tests.support.mysql import MariaDbServer, MySqlFamilyServer

from tidelog.model.records import LogBatch, RecordKind, Resume
from tidelog.ports import UnsupportedTableSeen

pytestmark = pytest.mark.integration

HASHES = {
    "long_key": "id INT PRIMARY KEY, url TEXT, v INT, UNIQUE (url)",
    "using_hash": "id INT PRIMARY KEY, url VARCHAR(19), v INT, UNIQUE (url) USING HASH",
    "two_keys": "id INT PRIMARY KEY, url TEXT, b TEXT, v INT, UNIQUE (url), UNIQUE (b, v)",
    "number_at_the_end": (
        "id INT PRIMARY KEY, url TEXT, v INT, n BIGINT UNSIGNED NULL, m BIGINT UNSIGNED NULL, "
        "UNIQUE (url)"
    ),
    "generated": (
        "id INT PRIMARY KEY, url TEXT, v INT, g TEXT AS (CONCAT(url, v)) STORED, "
        "w INT AS (v + 1) VIRTUAL, UNIQUE (g), UNIQUE (url, w) USING HASH"
    ),
    "eight_columns": (
        "id INT PRIMARY KEY, a INT, b INT, c INT, d INT, e INT, v INT, url TEXT, UNIQUE (url)"
    ),
    "nine_columns": (
        "a INT, b INT, c INT, d INT, e INT, f INT, v INT, url TEXT, id INT PRIMARY KEY, "
        "UNIQUE (url)"
    ),
    "invisible": "id INT PRIMARY KEY, h INT INVISIBLE DEFAULT 5, url TEXT, v INT, UNIQUE (url)",
}
SIBLINGS = {
    "application_time": (
        "id INT, v INT, a DATE, b DATE, PERIOD FOR p (a, b), PRIMARY KEY (id, p WITHOUT OVERLAPS)",
        [
            "INSERT INTO t VALUES (1, 1, '2024-01-01', '2025-01-01'), "
            "(2, 2, '2024-01-01', '2025-01-01')",
            "UPDATE t FOR PORTION OF p FROM '2024-03-01' TO '2024-04-01' SET v = 5",
            "DELETE FROM t FOR PORTION OF p FROM '2024-05-01' TO '2024-06-01' WHERE id = 1",
        ],
    ),
    "application_time_without_key": (
        "id INT, v INT, a DATE, b DATE, PERIOD FOR p (a, b)",
        [
            "INSERT INTO t VALUES (1, 1, '2024-01-01', '2025-01-01')",
            "DELETE FROM t FOR PORTION OF p FROM '2024-05-01' TO '2024-06-01'",
        ],
    ),
    "invisible": (
        "id INT PRIMARY KEY, h INT INVISIBLE DEFAULT 5, v INT",
        [
            "INSERT INTO t (id, v) VALUES (1, 1), (2, 2)",
            "UPDATE t SET h = NULL, v = 7 WHERE id = 1",
            "DELETE FROM t WHERE id = 2",
        ],
    ),
    "generated": (
        "id INT PRIMARY KEY, v INT, s VARCHAR(20) AS (CONCAT('s', v)) STORED, "
        "w BIGINT UNSIGNED AS (v + 1) VIRTUAL, b INT, x INT AS (v * 2) VIRTUAL, UNIQUE (x)",
        [
            "INSERT INTO t (id, v) VALUES (1, 1), (2, 2), (3, NULL)",
            "UPDATE t SET v = 9 WHERE id = 1",
            "UPDATE t SET b = 4",
            "DELETE FROM t WHERE id = 2",
        ],
    ),
}


@pytest.fixture(scope="module", params=["10.11", "11.4"])
def server(request: pytest.FixtureRequest) -> Iterator[MariaDbServer]:
    if request.param == "10.11":
        yield request.getfixturevalue("mariadb_server")
        return
    with MariaDbServer(request.param) as server:
        yield server


@pytest.fixture(params=["NO_LOG", "MINIMAL", "FULL"])
def metadata(request: pytest.FixtureRequest, server: MariaDbServer) -> Iterator[str]:
    server.execute(f"SET GLOBAL binlog_row_metadata = {request.param}")
    yield request.param
    server.execute("SET GLOBAL binlog_row_metadata = MINIMAL")


@pytest.fixture
def database(server: MariaDbServer) -> Iterator[str]:
    server.create_database("hidden")
    yield "hidden"
    server.drop_database("hidden")


def refused(capture: LogCapture) -> list[str]:
    return [event.why.reason for event in capture.events if isinstance(event, UnsupportedTableSeen)]


def columns_of(server: MySqlFamilyServer, database: str, table: str) -> list[str]:
    return [
        row[0]
        for row in server.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = %s "
            "AND table_name = %s ORDER BY ordinal_position",
            arguments=(database, table),
        )
    ]


def replayed(capture: LogCapture, database: str, table: str) -> dict[int, dict[str, Any]]:
    """The table as the records make it."""
    rows: dict[int, dict[str, Any]] = {}
    for row in capture.rows:
        if row.table != f"{database}.{table}":
            continue
        old = rows.pop(row.old["id"], {}) if row.old is not None else {}
        if row.new is not None:
            new = {name: old.get(name) if v is ABSENT else v for name, v in row.new.items()}
            rows[new["id"]] = new
    return rows


def selected(server: MySqlFamilyServer, database: str, table: str) -> dict[int, dict[str, Any]]:
    names = columns_of(server, database, table)
    listed = ", ".join(names)
    rows = server.execute(f"SELECT {listed} FROM {table}", database)
    return {row[names.index("id")]: dict(zip(names, row, strict=True)) for row in rows}


def write(server: MySqlFamilyServer, database: str, table: str, chance: random.Random) -> None:
    """Some inserts, updates and deletes, with NULLs in the long key."""
    for number in range(6):
        value = "NULL" if chance.random() < 0.3 else f"'{chance.getrandbits(30)}'"
        server.execute(
            f"INSERT INTO {table} (id, url, v) VALUES ({number}, {value}, {number})", database
        )
    image = chance.choice(["FULL", "MINIMAL", "NOBLOB"]) if table != "generated" else "FULL"
    with server.connect(database) as session, session.cursor() as cursor:
        cursor.execute(f"SET SESSION binlog_row_image = {image}")
        cursor.execute(f"UPDATE {table} SET url = 'x', v = v + 10 WHERE id = 1")
        cursor.execute(f"UPDATE {table} SET v = NULL WHERE id = 2")
        cursor.execute(f"UPDATE {table} SET id = 30 WHERE id = 3")
        cursor.execute(f"DELETE FROM {table} WHERE id = 4")


def test_hashes_of_long_unique_keys_are_no_columns(
    server: MariaDbServer, database: str, metadata: str
) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    for table, columns in HASHES.items():
        server.execute(f"CREATE TABLE {table} ({columns})", database)
    assert [name for name in faults(check(server, database)) if name.startswith("table ")] == []
    capture = LogCapture(server, tables=(f"{database}.*",))
    capture.start()
    for table in HASHES:
        write(server, database, table, chance)
    capture.catch_up()
    assert refused(capture) == []
    assert capture.unlogged == []
    for table in HASHES:
        assert replayed(capture, database, table) == selected(server, database, table), table
    named = {event.schema.table.name: event.schema.column_names for event in capture.seen_schemas}
    assert named == {table: tuple(columns_of(server, database, table)) for table in HASHES}
    capture.reader.close()


def test_tables_with_hashes_may_change_while_capture_is_away(
    server: MariaDbServer, database: str, metadata: str
) -> None:
    """Rows of before and after an ALTER, each with the columns of their time."""
    server.execute("CREATE TABLE t (id INT PRIMARY KEY, url TEXT, v INT, UNIQUE (url))", database)
    capture = LogCapture(server, tables=(f"{database}.*",))
    capture.start()
    server.execute("INSERT INTO t VALUES (1, 'a', 1)", database)
    capture.catch_up()
    resume: Resume = capture.resumes[-1]
    capture.reader.close()
    statements: Sequence[str] = (
        "INSERT INTO t VALUES (2, 'b', 2)",
        "ALTER TABLE t ADD COLUMN n BIGINT UNSIGNED NULL",
        "INSERT INTO t VALUES (3, 'c', 3, 3)",
        "ALTER TABLE t DROP INDEX url",
        "INSERT INTO t VALUES (4, 'c', 4, 4)",
        "DELETE FROM t WHERE id = 3",
        "ALTER TABLE t ADD UNIQUE (url), ADD UNIQUE (v, url)",
        "INSERT INTO t VALUES (5, 'd', 5, 5)",
    )
    for statement in statements:
        server.execute(statement, database)
    again = LogCapture(server, tables=(f"{database}.*",), schemas=capture.schemas)
    again.start(resume)
    again.catch_up()
    found = {row.new["id"]: row.new for row in again.rows if row.new is not None}
    assert found[5] == {"id": 5, "url": "d", "v": 5, "n": 5}
    if metadata == "FULL":
        assert refused(again) == []
        assert found[2] == {"id": 2, "url": "b", "v": 2}
        assert found[4] == {"id": 4, "url": "c", "v": 4, "n": 4}
    else:  # what is not known for certain is left out, and the table is dumped
        assert all("DB_ROW_HASH" not in name for row in found.values() for name in row)
        assert again.unlogged
    again.reader.close()


def test_a_column_that_bears_the_name_of_a_hash_is_delivered(
    server: MariaDbServer, database: str, metadata: str
) -> None:
    server.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, url TEXT, UNIQUE (url), "
        "DB_ROW_HASH_7 BIGINT UNSIGNED NULL)",
        database,
    )
    server.execute(
        "CREATE TABLE u (id INT PRIMARY KEY, DB_ROW_HASH_1 BIGINT UNSIGNED NULL)", database
    )
    capture = LogCapture(server, tables=(f"{database}.*",))
    capture.start()
    server.execute("INSERT INTO t VALUES (1, 'a', 17)", database)
    server.execute("INSERT INTO u VALUES (1, 18)", database)
    capture.catch_up()
    assert [row.new for row in capture.rows] == [
        {"id": 1, "url": "a", "DB_ROW_HASH_7": 17},
        {"id": 1, "DB_ROW_HASH_1": 18},
    ]
    assert refused(capture) == []
    capture.reader.close()


def state_of(capture: LogCapture) -> Counter[tuple[str | None, ...]]:
    """The rows of the only table, as the records with whole images make them."""
    rows: Counter[tuple[str | None, ...]] = Counter()
    for batch in capture.events:
        if not isinstance(batch, LogBatch):
            continue
        schema = capture.schemas.get(int(batch.schema_id[0]))
        has_old = any(kind != RecordKind.INSERT for kind in batch.kind.tolist())
        new = texts(batch, schema)
        old = texts(batch, schema, old=True) if has_old else new
        for kind, before, after in zip(batch.kind.tolist(), old, new, strict=True):
            rows.subtract([tuple(before.values())] if kind != RecordKind.INSERT else [])
            rows.update([tuple(after.values())] if kind != RecordKind.DELETE else [])
    return +rows


def assert_delivered(
    server: MySqlFamilyServer, database: str, columns: str, statements: Sequence[str]
) -> None:
    server.execute("DROP TABLE IF EXISTS t", database)
    server.execute(f"CREATE TABLE t ({columns})", database)
    found = faults(check(server, database))
    capture = LogCapture(server, tables=(f"{database}.t",), keep_rows=False, keep_batches=True)
    capture.start()
    for statement in statements:
        server.execute(statement, database)
    capture.catch_up()
    assert refused(capture) == []
    assert [fault for fault in found.values() if fault.level == "error"] == []
    names = columns_of(server, database, "t")
    (seen,) = capture.seen_schemas
    assert list(seen.schema.column_names) == names
    shown = server.execute(f"SELECT {', '.join(names)} FROM t", database)
    rows = [tuple(None if v is None else str(v).encode() for v in row) for row in shown]
    assert state_of(capture) == Counter(rows)
    capture.reader.close()


@pytest.mark.parametrize("table", SIBLINGS)
def test_columns_of_other_kinds_are_delivered_as_the_catalogue_shows_them(
    server: MariaDbServer, database: str, metadata: str, table: str
) -> None:
    assert_delivered(server, database, *SIBLINGS[table])


@pytest.mark.parametrize("metadata", ["MINIMAL", "FULL"])
def test_columns_that_mysql_hides_or_generates_are_delivered(
    mysql_server: MySqlFamilyServer, mysql_database: str, metadata: str
) -> None:
    mysql_server.execute(f"SET GLOBAL binlog_row_metadata = {metadata}")
    try:
        assert_delivered(mysql_server, mysql_database, *SIBLINGS["generated"])
        if mysql_server.version >= (8, 0, 23):
            assert_delivered(mysql_server, mysql_database, *SIBLINGS["invisible"])
        if mysql_server.version >= (8, 0, 30):
            mysql_server.execute("SET GLOBAL sql_generate_invisible_primary_key = ON")
            statements = [
                "INSERT INTO t (v, s) VALUES (1, 'a'), (2, NULL)",
                "UPDATE t SET v = 3 WHERE v = 2",
                "DELETE FROM t WHERE v = 1",
            ]
            assert_delivered(mysql_server, mysql_database, "v INT, s TEXT", statements)
    finally:
        mysql_server.execute("SET GLOBAL binlog_row_metadata = MINIMAL")
        if mysql_server.version >= (8, 0, 30):
            mysql_server.execute("SET GLOBAL sql_generate_invisible_primary_key = OFF")
