"""Statements of temporary tables do nothing to the captured tables that have their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.mysql.log_capture import LogCapture
from tests.support.mysql import MariaDbServer, MySqlFamilyServer, MySqlServer

from tidelog.ports import UnsupportedTableSeen
from tidelog.sources.mysql.stream import affected_tables
from tidelog.state.sqlite import SqliteState

pytestmark = pytest.mark.integration

Make = Callable[..., LogCapture]
Session = Any  # PyMySQL's connection
FORMATS = ["ROW", "MIXED", "STATEMENT"]


@pytest.fixture
def other(mysql_family: MySqlFamilyServer, mysql_family_database: str) -> Iterator[Session]:
    """A session that will have temporary tables."""
    connection = mysql_family.connect(mysql_family_database)
    yield connection
    if connection.open:
        connection.close()


def run(session: Session, *statements: str) -> None:
    with session.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def with_table(capture: LogCapture, sql: Session) -> LogCapture:
    run(
        sql,
        "CREATE TABLE orders (a INT PRIMARY KEY, b INT, KEY k (b))",
        "CREATE TABLE other (a INT PRIMARY KEY)",
    )
    capture.start()
    run(sql, "INSERT INTO orders VALUES (1, 1)")
    return capture


def changes(capture: LogCapture) -> list[tuple[str, str, Any]]:
    return [(row.table.split(".")[1], row.kind, row.new) for row in capture.rows]


@pytest.mark.parametrize("form", FORMATS)
def test_no_statement_of_a_temporary_table_is_one_of_the_table_of_its_name(
    capture: LogCapture, sql: Session, other: Session, form: str, mysql_family: MySqlFamilyServer
) -> None:
    with_table(capture, sql)
    run(
        other,
        f"SET SESSION binlog_format = {form}",
        "CREATE TEMPORARY TABLE orders (a INT PRIMARY KEY, b INT, c INT, KEY k (b))",
        "INSERT INTO orders VALUES (5, 5, 5)",
        "REPLACE INTO orders VALUES (5, 6, 6)",
        "UPDATE orders SET b = 7",
        "INSERT INTO orders SELECT a, a, a FROM other",
        "DELETE FROM orders",
        "TRUNCATE TABLE orders",
        "ALTER TABLE orders ADD d INT DEFAULT 1, DROP c",
        "CREATE INDEX d ON orders (d)",
        "DROP INDEX d ON orders",
        "ALTER TABLE orders RENAME TO scratch",
        "INSERT INTO scratch VALUES (1, 1, 1)",
        "ALTER TABLE scratch RENAME TO orders",
        "OPTIMIZE TABLE orders",
        "DROP TABLE orders",
        "CREATE TEMPORARY TABLE IF NOT EXISTS orders AS SELECT 1 AS a",
        "INSERT INTO orders VALUES (9)",
        "DROP TEMPORARY TABLE orders",
        "CREATE TEMPORARY TABLE orders LIKE other",
        "TRUNCATE orders",
    )
    run(sql, "INSERT INTO orders VALUES (2, 2)")
    other.close()  # the server drops what the session has
    run(sql, "UPDATE orders SET b = 3 WHERE a = 2")
    capture.catch_up()
    run(sql, "TRUNCATE TABLE orders", "INSERT INTO orders VALUES (3, 3)")
    capture.catch_up()
    assert changes(capture) == [
        ("orders", "I", {"a": 1, "b": 1}),
        ("orders", "I", {"a": 2, "b": 2}),
        ("orders", "U", {"a": 2, "b": 3}),
        ("orders", "T", None),
        ("orders", "I", {"a": 3, "b": 3}),
    ]
    assert not capture.unlogged
    assert len(capture.seen_schemas) == 1


def test_a_temporary_table_hides_a_table_from_its_session_alone(
    capture: LogCapture, sql: Session, other: Session
) -> None:
    with_table(capture, sql)
    run(
        other,
        "SET SESSION binlog_format = STATEMENT",
        "CREATE TEMPORARY TABLE orders LIKE other",
        "TRUNCATE TABLE orders",
    )
    run(sql, "TRUNCATE TABLE orders")
    run(other, "DROP TABLE orders", "TRUNCATE TABLE orders")
    capture.catch_up()
    assert [row.kind for row in capture.rows] == ["I", "T", "T"]
    run(other, "INSERT INTO orders VALUES (3, 3)")
    capture.catch_up()
    assert [(event.table.name, event.reason) for event in capture.unlogged] == [
        ("orders", "the log has a INSERT of it as a statement, not as rows")
    ]


@pytest.mark.parametrize("kept", [True, False], ids=["state", "no state"])
def test_temporary_tables_are_known_after_a_restart(
    make_capture: Make, sql: Session, other: Session, tmp_path: Path, kept: bool
) -> None:
    state = SqliteState(tmp_path / "state.db")
    capture = with_table(make_capture(state=state), sql)
    run(
        other,
        "SET SESSION binlog_format = STATEMENT",
        "CREATE TEMPORARY TABLE orders (a INT PRIMARY KEY, b INT)",
    )
    run(sql, "INSERT INTO orders VALUES (2, 2)")
    capture.catch_up()
    capture.reader.close()
    again = make_capture(
        state=state if kept else SqliteState(tmp_path / "another.db"), schemas=capture.schemas
    )
    again.start(capture.resumes[-1])
    run(other, "TRUNCATE TABLE orders", "ALTER TABLE orders ADD c INT DEFAULT 5")
    run(sql, "INSERT INTO orders VALUES (3, 3)")
    again.catch_up()
    assert changes(again) == [("orders", "I", {"a": 3, "b": 3})]
    assert not again.unlogged
    run(other, "INSERT INTO orders VALUES (1, 1, 1)")
    run(sql, "INSERT INTO orders VALUES (4, 4)")
    if kept:
        again.catch_up()
    else:  # whether it is of a temporary table can't be known
        run(other, "INSERT INTO orders VALUES (2, 2, 2)")
        again.catch_up()
        refused = [event for event in again.events if isinstance(event, UnsupportedTableSeen)]
        assert [event.table.name for event in refused] == ["orders", "orders"]
        assert refused[0] == refused[1]
        assert refused[0].why.remedy == affected_tables.ROW_FORMAT
    assert changes(again)[1:] == [("orders", "I", {"a": 4, "b": 4})]


def test_statements_met_again_after_a_restart_are_of_the_tables_that_there_were(
    make_capture: Make, sql: Session, other: Session, tmp_path: Path
) -> None:
    """The stream begins again before all of it, with a state that holds all of it."""
    state = SqliteState(tmp_path / "state.db")
    capture = with_table(make_capture(state=state), sql)
    capture.catch_up()
    before = capture.resumes[-1]
    run(
        other,
        "SET SESSION binlog_format = STATEMENT",
        "CREATE TEMPORARY TABLE orders (a INT PRIMARY KEY, b INT)",
        "INSERT INTO orders VALUES (7, 7)",
        "TRUNCATE TABLE orders",
        "DROP TABLE orders",
    )
    run(sql, "INSERT INTO orders VALUES (2, 2)", "TRUNCATE TABLE orders")
    capture.catch_up()
    capture.reader.close()
    again = make_capture(state=state, schemas=capture.schemas)
    again.start(before)
    again.catch_up()
    assert [row.kind for row in again.rows] == ["I", "T"] == [row.kind for row in capture.rows[1:]]


def test_ddl_of_a_temporary_table_ahead_of_the_stream_reshapes_nothing(
    make_capture: Make, sql: Session, other: Session
) -> None:
    capture = make_capture()
    capture.start()
    run(sql, "CREATE TABLE orders (a INT PRIMARY KEY, b INT)", "INSERT INTO orders VALUES (1, 1)")
    run(
        other,
        "SET SESSION binlog_format = STATEMENT",
        "CREATE TEMPORARY TABLE orders (a INT PRIMARY KEY)",
        "ALTER TABLE orders ADD c INT",
        "ALTER TABLE orders RENAME TO gone",
    )
    capture.catch_up()
    assert [row.new for row in capture.rows] == [{"a": 1, "b": 1}]
    assert not capture.unlogged


@pytest.mark.parametrize("form", FORMATS)
def test_mariadb_renames_temporary_tables_by_rename_table(
    mariadb_server: MariaDbServer, mariadb_database: str, form: str
) -> None:
    capture = LogCapture(mariadb_server, tables=(f"{mariadb_database}.*",))
    with mariadb_server.connect(mariadb_database) as sql:
        with_table(capture, sql)
        with mariadb_server.connect(mariadb_database) as other:
            run(
                other,
                f"SET SESSION binlog_format = {form}",
                "CREATE TEMPORARY TABLE orders (a INT)",
                "RENAME TABLE orders TO scratch",
                "TRUNCATE TABLE scratch",
                "TRUNCATE TABLE orders",  # the captured one
                "RENAME TABLE scratch TO orders",
                "INSERT INTO orders VALUES (7)",
            )
        run(sql, "INSERT INTO orders VALUES (2, 2)")
        capture.catch_up()
    capture.reader.close()
    assert [row.kind for row in capture.rows] == ["I", "T", "I"]
    # ROW: the log does not say that there was a temporary table, so the captured one is dumped.
    assert {event.table.name for event in capture.unlogged} == (
        {"orders", "scratch"} if form == "ROW" else set()
    )


def test_rows_before_mariadb_renames_a_temporary_table_are_read(
    mariadb_server: MariaDbServer, mariadb_database: str
) -> None:
    """Nobody noted the table's columns, and by the log it has another name now."""
    capture = LogCapture(mariadb_server, tables=(f"{mariadb_database}.*",))
    capture.start()
    with mariadb_server.connect(mariadb_database) as sql:
        run(
            sql,
            "CREATE TABLE orders (a INT PRIMARY KEY, b INT)",
            "INSERT INTO orders VALUES (1, 1)",
            "SET SESSION binlog_format = ROW",
            "CREATE TEMPORARY TABLE orders (a INT)",
            "RENAME TABLE orders TO scratch",
            "INSERT INTO orders VALUES (2, 2)",
        )
        capture.catch_up()
    capture.reader.close()
    assert [row.new for row in capture.rows] == [{"a": 1, "b": 1}, {"a": 2, "b": 2}]
    assert not [event for event in capture.events if isinstance(event, UnsupportedTableSeen)]


def test_mysql_renames_the_table_below_a_temporary_one(
    mysql_server: MySqlServer, mysql_database: str
) -> None:
    capture = LogCapture(mysql_server, tables=(f"{mysql_database}.*",))
    with mysql_server.connect(mysql_database) as sql:
        with_table(capture, sql)
        run(
            sql,
            "SET SESSION binlog_format = STATEMENT",
            "CREATE TEMPORARY TABLE orders (a INT)",
            "RENAME TABLE orders TO moved",
            "TRUNCATE TABLE orders",
            "TRUNCATE TABLE moved",
        )
        capture.catch_up()
    capture.reader.close()
    assert [(row.table.split(".")[1], row.kind) for row in capture.rows] == [
        ("orders", "I"),
        ("moved", "T"),
    ]


@pytest.mark.parametrize("family", [MySqlServer, MariaDbServer], ids=["mysql", "mariadb"])
def test_a_replica_distinguishes_the_sessions_of_its_source(
    family: type[MySqlFamilyServer],
) -> None:
    with family() as primary, family.replica_of(primary) as replica:
        primary.execute("CREATE DATABASE shop")
        replica.caught_up()
        capture = LogCapture(replica, tables=("shop.*",))
        with primary.connect("shop") as sql, primary.connect("shop") as other:
            run(sql, "CREATE TABLE orders (a INT PRIMARY KEY, b INT)")
            replica.caught_up()
            capture.start()
            run(
                other,
                "SET SESSION binlog_format = STATEMENT",
                "CREATE TEMPORARY TABLE orders (a INT PRIMARY KEY)",
                "INSERT INTO orders VALUES (1)",
            )
            run(sql, "INSERT INTO orders VALUES (2, 2)", "TRUNCATE TABLE orders")
            run(other, "TRUNCATE TABLE orders")
            run(sql, "INSERT INTO orders VALUES (3, 3)")
            replica.caught_up()
            capture.catch_up()
        capture.reader.close()
    assert [row.kind for row in capture.rows] == ["I", "T", "I"]
