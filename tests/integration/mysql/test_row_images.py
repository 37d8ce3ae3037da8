"""Rows of MariaDB whose records lack columns that changed: they are read again, or refused.

MariaDB's `binlog_row_image` MINIMAL and NOBLOB log no virtual columns with an update, and none that
REPLACE or ON DUPLICATE KEY UPDATE sets back to its default; MySQL logs both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.integration.mysql.log_capture import LogCapture
from tests.integration.mysql.test_hidden_columns import refused
from tests.integration.mysql.test_preflight import check, faults, setting
from tests.support.engines import until
from tests.support.make_engine import MakeEngine
from tests.support.mysql import MariaDbServer, MySqlFamilyServer

from tidelog.engine.events import Event
from tidelog.ports import RowsUnlogged

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

ALL_SHORT = {"MINIMAL", "NOBLOB"}
COLUMNS = (
    "id INT PRIMARY KEY, v INT, w INT AS (v + 1) VIRTUAL, s INT AS (v * 2) STORED, "
    "t TEXT AS (CONCAT('t', v)) VIRTUAL, d INT DEFAULT 7, k INT UNIQUE, b TEXT"
)
STATEMENTS = (
    "UPDATE t SET v = 10 WHERE id = 1",
    "REPLACE INTO t (id, v) VALUES (2, 20)",
    "REPLACE INTO t (id, v, k) VALUES (50, 50, 3)",
    "REPLACE INTO t (id, v, k) VALUES (4, 51, 4)",
    "INSERT INTO t (id, v, k) VALUES (6, 60, 5) ON DUPLICATE KEY UPDATE v = 61",
    "INSERT INTO t (id, k) VALUES (6, 6) ON DUPLICATE KEY UPDATE v = DEFAULT, d = DEFAULT(d)",
    "INSERT INTO t (id, k) VALUES (6, 7) ON DUPLICATE KEY UPDATE b = DEFAULT(b), v = 3",
    "UPDATE t SET d = DEFAULT, v = NULL WHERE id = 8",
    "DELETE FROM t WHERE id = 9",
    "REPLACE INTO t (id) VALUES (10)",
)


@pytest.fixture(scope="module", params=["10.11", "11.4"])
def server(request: pytest.FixtureRequest) -> Iterator[MariaDbServer]:
    if request.param == "10.11":
        yield request.getfixturevalue("mariadb_server")
        return
    with MariaDbServer(request.param) as server:
        yield server


@pytest.fixture
def database(server: MariaDbServer) -> Iterator[str]:
    server.create_database("images")
    yield "images"
    server.drop_database("images")


@pytest.mark.parametrize("image", sorted(ALL_SHORT))
def test_rows_whose_records_lack_changed_columns_are_read_again(
    server: MariaDbServer, database: str, make_engine: MakeEngine, image: str
) -> None:
    server.execute(f"CREATE TABLE t ({COLUMNS})", database)
    listed = ", ".join(f"({i}, {i}, 9, {i}, 'x')" for i in range(1, 10))
    server.execute(f"INSERT INTO t (id, v, d, k, b) VALUES {listed}", database)
    rows: dict[int, dict[str, Any]] = {}

    def take(event: Event) -> None:
        key = event.key["id"]
        if event.op == "d":
            rows.pop(key, None)
            return
        assert event.after is not None
        told = {n: v for n, v in dict(event.after).items() if n not in event.missing}
        rows[key] = rows.get(key, {}) | told

    def shown() -> dict[int, dict[str, Any]]:
        names = ("id", "v", "w", "s", "t", "d", "k", "b")
        found = server.execute(f"SELECT {', '.join(names)} FROM t", database)
        return {row[0]: dict(zip(names, row, strict=True)) for row in found}

    make_engine.of(kind="mariadb", url=server.dsn(), tables=[f"{database}.t"])
    with make_engine(consumer=take):
        until(lambda: rows == shown(), "the dump")
        with server.connect(database) as session, session.cursor() as cursor:
            cursor.execute(f"SET SESSION binlog_row_image = {image}")
            for statement in STATEMENTS:
                cursor.execute(statement)
                until(lambda: rows == shown(), f"the rows after {statement}", 20)
            for statement in reversed(STATEMENTS):  # all at once
                cursor.execute(statement)
        until(lambda: rows == shown(), "the rows after all of them", 20)


REFUSED = {
    "key with a default": (
        "id INT DEFAULT 3, tenant INT NOT NULL DEFAULT 0, v INT, PRIMARY KEY (tenant, id)",
        {"MINIMAL"},
        "a column of its key has a constant default",
    ),
    "key with a default in quotes": (
        "id INT, name VARCHAR(9) DEFAULT 'x', v INT, PRIMARY KEY (name, id)",
        {"MINIMAL"},
        "a column of its key has a constant default",
    ),
    "key made by the server": (
        "id INT, name VARCHAR(40) DEFAULT UUID(), n INT DEFAULT (1 + 2), v INT, "
        "PRIMARY KEY (id, n, name)",
        set(),
        "",
    ),
    "key that counts": ("id INT, n INT AUTO_INCREMENT PRIMARY KEY, v INT", set(), ""),
    "virtual column": (
        "id INT PRIMARY KEY, v INT, w INT AS (v + 1) VIRTUAL",
        {"FULL_NODUP"},
        "its virtual columns",
    ),
    "virtual column, no key": (
        "id INT, v INT, w INT AS (v + 1) VIRTUAL",
        {"MINIMAL", "NOBLOB", "FULL_NODUP"},
        "its virtual columns",
    ),
    "unique key alone": (
        "id INT UNIQUE, v INT, d INT DEFAULT 7",
        {"MINIMAL", "NOBLOB"},
        "it has no primary key",
    ),
    "no key": ("id INT, v INT", set(), ""),
    "primary key": ("id INT PRIMARY KEY, v INT DEFAULT 3, UNIQUE (v)", set(), ""),
}


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB", "FULL_NODUP"])
def test_tables_whose_changes_short_images_do_not_tell_are_refused_by_name(
    server: MariaDbServer, database: str, image: str
) -> None:
    if image == "FULL_NODUP" and server.version < (11, 4):
        pytest.skip("this version does not have it")
    for number, (columns, _, _) in enumerate(REFUSED.values()):
        server.execute(f"CREATE TABLE t{number} ({columns})", database)
    wanted = {
        f"t{number}": reason
        for number, (_, images, reason) in enumerate(REFUSED.values())
        if image in images
    }
    with setting(server, "binlog_row_image", image):
        found = faults(check(server, database))
        failed = {name: f for name, f in found.items() if f.level == "error"}
        assert set(failed) == {f"table {database}.{name}" for name in wanted}
        for name, reason in wanted.items():
            fault = failed[f"table {database}.{name}"]
            assert reason in fault.message
            assert fault.fix == "SET GLOBAL binlog_row_image = 'FULL';"
        assert ("row image" in found) == (image != "FULL_NODUP")
        capture = LogCapture(server, tables=(f"{database}.*",))
        capture.start()
        for number in range(len(REFUSED)):
            server.execute(f"INSERT INTO t{number} (id, v) VALUES (1, 1)", database)
        capture.catch_up()
        assert len(refused(capture)) == len(wanted)
        tables = {row.table.partition(".")[2] for row in capture.rows}
        assert tables == {f"t{number}" for number in range(len(REFUSED))} - set(wanted)
        capture.reader.close()


def test_key_that_inserts_do_not_log_refuses_its_table_alone_on_mysql(
    mysql_server: MySqlFamilyServer, mysql_database: str
) -> None:
    mysql_server.execute("CREATE TABLE t (id INT PRIMARY KEY DEFAULT 3, v INT)", mysql_database)
    mysql_server.execute("CREATE TABLE u (id INT PRIMARY KEY, v INT)", mysql_database)
    with setting(mysql_server, "binlog_row_image", "MINIMAL"):
        found = faults(check(mysql_server, mysql_database))
        assert (
            "a column of its key has a constant default"
            in found[f"table {mysql_database}.t"].message
        )
        capture = LogCapture(mysql_server, tables=(f"{mysql_database}.*",))
        capture.start()
        mysql_server.execute("INSERT INTO t (v) VALUES (1)", mysql_database)
        mysql_server.execute("INSERT INTO u VALUES (1, 1)", mysql_database)
        capture.catch_up()
        assert len(refused(capture)) == 1
        assert [row.new for row in capture.rows] == [{"id": 1, "v": 1}]
        capture.reader.close()


OTHER_KEYS = {
    "two": ("a INT NOT NULL UNIQUE, b INT NOT NULL UNIQUE, v INT", ("b",), {"MINIMAL"}),
    "text": ("a INT NOT NULL UNIQUE, b TEXT NOT NULL, v INT, UNIQUE (b(9))", ("b",), ALL_SHORT),
    "own": ("a INT NOT NULL UNIQUE, b INT NOT NULL UNIQUE, v INT", ("a",), set()),
    "nullable": ("b INT UNIQUE, a INT UNIQUE, v INT", ("b",), set()),
    "primary": ("a INT PRIMARY KEY, b INT NOT NULL UNIQUE, v INT", ("b",), set()),
}


@pytest.mark.parametrize("image", sorted(ALL_SHORT))
def test_keys_that_short_images_do_not_log_are_refused_by_name(
    mysql_server: MySqlFamilyServer, mysql_database: str, image: str
) -> None:
    keys = {}
    for name, (columns, key, _) in OTHER_KEYS.items():
        mysql_server.execute(f"CREATE TABLE `{name}` ({columns})", mysql_database)
        mysql_server.execute(f"INSERT INTO `{name}` (a, b) VALUES (1, 1)", mysql_database)
        keys[f"{mysql_database}.{name}"] = key
    wanted = {name for name, (_, _, images) in OTHER_KEYS.items() if image in images}
    with setting(mysql_server, "binlog_row_image", image):
        found = faults(check(mysql_server, mysql_database, keys=keys))
        for name in OTHER_KEYS:
            message = getattr(found.get(f"table {mysql_database}.{name}"), "message", "")
            assert ("do not log b, of its key in source.keys" in message) == (name in wanted)
        capture = LogCapture(mysql_server, tables=(f"{mysql_database}.*",), options={"keys": keys})
        capture.start()
        for name in OTHER_KEYS:
            mysql_server.execute(f"UPDATE `{name}` SET v = 2", mysql_database)
        capture.catch_up()
        assert {r.table.partition(".")[2] for r in capture.rows} == OTHER_KEYS.keys() - wanted
        assert len(refused(capture)) == len(wanted)
        assert not [each for each in capture.events if isinstance(each, RowsUnlogged)]
        capture.reader.close()


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_row_whose_key_is_not_logged_is_found_by_a_dump_of_its_table_alone(
    request: pytest.FixtureRequest, make_engine: MakeEngine, kind: str
) -> None:
    """A session that is not strict may leave out a key that has no default at all."""
    server: MySqlFamilyServer = request.getfixturevalue(f"{kind}_server")
    server.create_database("keyless")
    try:
        server.execute("CREATE TABLE t (n INT NOT NULL, id INT PRIMARY KEY, v INT)", "keyless")
        server.execute("CREATE TABLE u (id INT PRIMARY KEY, v INT)", "keyless")
        server.execute("INSERT INTO t VALUES (5, 5, 5)", "keyless")
        rows: dict[tuple[str, int], int] = {}

        def take(event: Event) -> None:
            key = event.table.name, event.key["id"]
            if event.op == "d":
                rows.pop(key, None)
            elif event.after is not None and "v" not in event.missing:
                rows[key] = event.after["v"]

        make_engine.of(kind=kind, url=server.dsn(), tables=["keyless.*"])
        with make_engine(consumer=take):
            until(lambda: rows == {("t", 5): 5}, "the dump")
            with server.connect("keyless") as session, session.cursor() as cursor:
                cursor.execute("SET SESSION binlog_row_image = MINIMAL, sql_mode = ''")
                cursor.execute("BEGIN")
                cursor.execute("INSERT INTO u VALUES (1, 1)")
                cursor.execute("INSERT INTO t (v) VALUES (7)")
                cursor.execute("INSERT INTO t (id, v) VALUES (8, 8)")
                cursor.execute("COMMIT")
                cursor.execute("UPDATE t SET v = 9 WHERE id = 5")
            wanted = {("u", 1): 1, ("t", 0): 7, ("t", 5): 9, ("t", 8): 8}
            until(lambda: rows == wanted, "the row whose key was not logged", 20)
    finally:
        server.drop_database("keyless")
