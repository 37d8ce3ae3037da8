"""Statements that stand in the log instead of rows, and what they may have changed."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.integration.mysql.log_capture import LogCapture
from tests.integration.mysql.test_cascades import Source
from tests.support.mysql import MariaDbServer, MySqlFamilyServer, MySqlServer

from tidelog import app
from tidelog.capture.dumps.automatic import REST_FACTOR
from tidelog.system.processes import unix_ms

pytestmark = pytest.mark.integration

Make = Callable[..., LogCapture]
Session = Any  # PyMySQL's connection


def run(session: Session, *statements: str) -> None:
    with session.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@dataclass(frozen=True)
class Databases:
    """Two of one server: ``app`` has the captured tables t and u."""

    app: str
    other: str


@pytest.fixture
def databases(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, sql: Session
) -> Iterator[Databases]:
    found = Databases(mysql_family_database, f"{mysql_family_database}_other")
    app, other = found.app, found.other
    run(
        sql,
        f"CREATE DATABASE {other}",
        "CREATE TABLE t (a INT PRIMARY KEY)",
        "CREATE TABLE u (a INT PRIMARY KEY)",
        "CREATE TABLE loose (a INT PRIMARY KEY)",
        f"CREATE TABLE {other}.plain (a INT PRIMARY KEY, b VARCHAR(40))",
        f"CREATE TABLE {other}.firing (a INT PRIMARY KEY)",
        f"CREATE TRIGGER {other}.fires AFTER INSERT ON {other}.firing FOR EACH ROW "
        f"INSERT INTO {app}.t VALUES (NEW.a)",
        "CREATE TRIGGER t_gone AFTER DELETE ON t FOR EACH ROW INSERT INTO u VALUES (OLD.a)",
        f"CREATE VIEW {other}.v AS SELECT a FROM {app}.u",
        f"CREATE TABLE {other}.m (a INT) ENGINE = MyISAM",
        f"CREATE FUNCTION {other}.writes(x INT) RETURNS INT DETERMINISTIC MODIFIES SQL DATA "
        f"BEGIN INSERT INTO {app}.u VALUES (x); RETURN x; END",
        f"CREATE VIEW {other}.calls AS SELECT {other}.writes(7) AS a, 'x' AS b",
        "INSERT INTO t VALUES (1), (2)",
        "INSERT INTO loose VALUES (1), (2)",
        "INSERT INTO u VALUES (50)",
    )
    yield found
    run(sql, f"DROP DATABASE {other}")


REACHING = {
    "a trigger writes a captured table": ("INSERT INTO {other}.firing VALUES (8)",),
    "an INSERT through a view": ("INSERT INTO {other}.v VALUES (9)",),
    "an UPDATE through a view": ("UPDATE {other}.v SET a = 51 WHERE a = 50",),
    "a DELETE through a view": ("DELETE FROM {other}.v WHERE a = 50",),
    "a DELETE of all rows of a view": ("DELETE FROM {other}.v",),
    "a DELETE of all rows that a trigger follows": ("DELETE FROM t",),
    "a stored function": ("INSERT INTO {other}.plain (a) VALUES ({other}.writes(3))",),
    "a stored function without a table": ("DO {other}.writes(4)",),
    "a stored function by its view": ("INSERT INTO {other}.plain SELECT a, b FROM {other}.calls",),
    "several tables": (
        "INSERT INTO {other}.plain VALUES (1, 'x')",
        "UPDATE {other}.plain p, u SET u.a = 99, p.b = 'y' WHERE p.a = 1",
    ),
    "another default database": ("USE {other}", "INSERT INTO {app}.u VALUES (11)"),
    "a temporary table filled by a stored function": (
        "CREATE TEMPORARY TABLE s (a INT)",
        "INSERT INTO s VALUES ({other}.writes(6))",
    ),
    "a trigger that was dropped since": (
        "INSERT INTO {other}.firing VALUES (8)",
        "DROP TRIGGER {other}.fires",
    ),
}


# MySQL refuses these.
REACHING_ON_MARIADB = {
    "a table of a query with a stored function": (
        "CREATE TABLE {other}.s AS SELECT {other}.writes(5) AS a",
    ),
    "a temporary table of such a query": (
        "CREATE TEMPORARY TABLE s AS SELECT {other}.writes(5) AS a",
    ),
}
AGAIN = (
    "USE {app}",
    "DROP TEMPORARY TABLE IF EXISTS s",
    "SET SESSION binlog_format = ROW",  # newer MySQL refuses it beside temporary tables
    "TRUNCATE t",
    "TRUNCATE u",
    "INSERT INTO t VALUES (1), (2)",
    "INSERT INTO u VALUES (50)",
    "TRUNCATE {other}.firing",
    "TRUNCATE {other}.plain",
)


@pytest.mark.parametrize("form", ["STATEMENT", "MIXED"])
def test_each_table_that_a_statement_changed_is_reported_for_a_dump_and_the_log_continues(
    make_capture: Make, sql: Session, databases: Databases, form: str
) -> None:
    """Unless the server logged the rows, as it does in MIXED where it must."""
    names = {"app": databases.app, "other": databases.other}
    mariadb = make_capture().server.flavor == "mariadb"
    failed = []
    for case, statements in ((REACHING_ON_MARIADB if mariadb else {}) | REACHING).items():
        run(sql, *(statement.format(**names) for statement in AGAIN))
        capture = make_capture()
        capture.start()
        before = set(rows_of(sql, databases))
        run(sql, f"SET SESSION binlog_format = {form}")
        run(sql, *(statement.format(**names) for statement in statements))
        changed = {table for table, _ in before ^ set(rows_of(sql, databases))}
        assert changed, case
        run(sql, "SET SESSION binlog_format = ROW", f"INSERT INTO {databases.app}.loose VALUES (3)")
        run(sql, f"DELETE FROM {databases.app}.loose WHERE a = 3")
        capture.catch_up()
        shown = {row.table.split(".")[-1] for row in capture.rows}
        shown |= {event.table.name for event in capture.unlogged}
        if not {*changed, "loose"} <= shown or {row.kind for row in capture.rows} - set("IUD"):
            failed.append(f"{case}: {shown}")
        if any("as a statement" in e.reason and e.remedy is None for e in capture.unlogged):
            failed.append(f"{case}: no remedy")
        capture.reader.close()
    assert not failed


def rows_of(sql: Session, databases: Databases) -> list[Any]:
    with sql.cursor() as cursor:
        cursor.execute(
            f"SELECT 't', a FROM {databases.app}.t UNION ALL SELECT 'u', a FROM {databases.app}.u"
        )
        return sorted(cursor.fetchall())


HARMLESS = {
    "values": "INSERT INTO {other}.plain (a, b) VALUES (1, CONCAT('x', NOW()))",
    "other tables' rows": "REPLACE INTO {other}.plain SELECT a, 'x' FROM {app}.t",
    "an update": "UPDATE {other}.plain SET b = UPPER(b) WHERE a IN (1, 2)",
    "a delete": "DELETE FROM {other}.plain",
    "the same database": "INSERT INTO loose VALUES (7)",
    "a delete of all in the same database": "DELETE FROM loose",
}


def test_statements_that_can_have_changed_no_captured_table_are_passed_over(
    make_capture: Make, sql: Session, databases: Databases
) -> None:
    capture = make_capture(tables=(f"{databases.app}.t", f"{databases.app}.u"))
    capture.start()
    run(sql, "SET SESSION binlog_format = STATEMENT")
    names = {"app": databases.app, "other": databases.other}
    run(sql, *(statement.format(**names) for statement in HARMLESS.values()))
    run(sql, "SET SESSION binlog_format = ROW", "INSERT INTO t VALUES (5)")
    capture.catch_up()
    assert [(row.kind, row.new) for row in capture.rows] == [("I", {"a": 5})]
    assert not capture.unlogged


def test_an_account_that_sees_no_triggers_is_shown_the_grant(
    make_capture: Make, sql: Session, databases: Databases, mysql_family: MySqlFamilyServer
) -> None:
    """MySQL's log says which databases a statement used, so none is needed there."""
    user = f"few_{databases.app}"
    rights = ["REPLICATION SLAVE", "REPLICATION CLIENT"]
    url = mysql_family.create_user(user, "x", privileges=rights)
    run(sql, f"GRANT SELECT ON {databases.app}.* TO {user}")
    capture = make_capture(url=url)
    capture.start()
    run(sql, "SET SESSION binlog_format = STATEMENT")
    run(sql, f"INSERT INTO {databases.other}.plain VALUES (1, 'x')")
    try:
        capture.catch_up()
        reasons = {event.reason for event in capture.unlogged}
        if mysql_family.flavor == "mysql":
            assert not reasons
        else:
            (reason,) = reasons
            assert re.search(r"GRANT TRIGGER ON .*plain", reason)
    finally:
        run(sql, f"DROP USER {user}")


@pytest.mark.parametrize("rolled_back", [True, False])
def test_a_delete_of_all_rows_as_a_statement_has_the_table_dumped(
    make_capture: Make, sql: Session, databases: Databases, rolled_back: bool
) -> None:
    """It may have been rolled back to a savepoint, and is in the log all the same (MariaDB, and
    MySQL without GTIDs).
    """
    capture = make_capture()
    mixes = capture.server.flavor == "mariadb"
    if rolled_back and not mixes:
        pytest.skip("MySQL with GTIDs refuses transactions of tables with and without them")
    capture.start()
    run(
        sql,
        "SET SESSION binlog_format = STATEMENT",
        "BEGIN",
        "SAVEPOINT s",
        "DELETE FROM loose",
        *([f"INSERT INTO {databases.other}.m VALUES (2)"] if mixes else []),
        *(["ROLLBACK TO s"] if rolled_back else []),
        "COMMIT",
        "SET SESSION binlog_format = ROW",
        "INSERT INTO loose VALUES (9)",
    )
    capture.catch_up()
    assert [row.kind for row in capture.rows] == ["I"]
    assert {event.table.name for event in capture.unlogged} == {"loose"}
    with sql.cursor() as cursor:
        assert cursor.execute("SELECT a FROM loose") == (3 if rolled_back else 1)


def create_child(sql: Session, databases: Databases) -> None:
    """``child`` with a row that goes with its parent's, in the other database."""
    run(
        sql,
        f"CREATE TABLE child (a INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES "
        f"{databases.other}.plain (a) ON DELETE CASCADE)",
        f"INSERT INTO {databases.other}.plain VALUES (1, 'x')",
        "INSERT INTO child VALUES (1, 1)",
    )


def test_a_foreign_keys_child_is_dumped_with_a_statement_of_its_parent(
    make_capture: Make, sql: Session, databases: Databases
) -> None:
    create_child(sql, databases)
    capture = make_capture()
    capture.start()
    run(
        sql,
        "SET SESSION binlog_format = STATEMENT",
        f"DELETE FROM {databases.other}.plain WHERE a = 1",
    )
    capture.catch_up()
    assert {event.table.name for event in capture.unlogged} == {"child"}
    run(sql, "DROP TABLE child")


def test_only_the_table_that_a_statement_names_is_reported(
    make_capture: Make, sql: Session, databases: Databases
) -> None:
    capture = make_capture()
    capture.start()
    run(sql, "SET SESSION binlog_format = STATEMENT", "UPDATE loose SET a = 7 WHERE a = 2")
    run(sql, "SET SESSION binlog_format = ROW", "INSERT INTO loose VALUES (9)")
    capture.catch_up()
    assert [(str(e.table.name), e.reason) for e in capture.unlogged] == [
        ("loose", "the log has a UPDATE of it as a statement, not as rows")
    ]
    assert [row.new for row in capture.rows] == [{"a": 9}]


def test_many_statements_do_not_have_the_catalogue_read_each_time(
    make_capture: Make, sql: Session, databases: Databases
) -> None:
    """But once for those before, and once for those after a table is created."""
    capture = make_capture()
    capture.start()
    unclear = "UPDATE loose x SET x.a = 3 WHERE x.a = 3"
    other = f"UPDATE {databases.other}.plain SET b = 'y'"
    run(sql, "SET SESSION binlog_format = STATEMENT", *[unclear, other] * 100)
    run(sql, "CREATE TABLE later (a INT PRIMARY KEY)", unclear)
    before = queries(sql)
    capture.catch_up()
    assert queries(sql) - before < 100
    changed = [event.table.name for event in capture.unlogged]
    assert changed.count("t") == 101
    assert "later" in changed
    run(sql, "DROP TABLE later")


def queries(sql: Session) -> int:
    with sql.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Questions'")
        return int(cursor.fetchall()[0][1])


def test_a_child_is_dumped_whose_parents_database_is_not_captured(
    make_capture: Make, sql: Session, databases: Databases
) -> None:
    """MySQL lists the databases of a statement without those of foreign keys."""
    create_child(sql, databases)
    capture = make_capture(tables=(f"{databases.app}.child",))
    capture.start()
    run(
        sql,
        "SET SESSION binlog_format = STATEMENT",
        f"USE {databases.other}",
        "DELETE FROM plain WHERE a = 1",
        f"USE {databases.app}",
    )
    capture.catch_up()
    assert {event.table.name for event in capture.unlogged} == {"child"}
    run(sql, "DROP TABLE child")


def test_memory_tables_that_mysql_empties_at_a_restart_do_not_end_capture() -> None:
    """The server itself writes a DELETE of each; the account sees no triggers of theirs."""
    with MySqlServer() as server:
        for database in ("app", "other"):
            server.create_database(database)
            server.execute(f"CREATE TABLE {database}.mem (a INT PRIMARY KEY) ENGINE = MEMORY")
        url = server.create_user("few", "x", privileges=["REPLICATION SLAVE", "REPLICATION CLIENT"])
        server.execute("GRANT SELECT ON app.* TO few")
        capture = LogCapture(server, ("app.*",), url=url)
        capture.start()
        server.execute("INSERT INTO app.mem VALUES (1)")
        capture.catch_up()
        begin = capture.resumes[-1]
        capture.reader.close()
        server.restart()
        server.execute("SELECT * FROM app.mem, other.mem")
        again = LogCapture(server, ("app.*",), url=url, schemas=capture.schemas)
        again.start(begin)
        again.catch_up()
        again.reader.close()
    # 8.0.12 logs DELETE FROM, which has no rows; newer servers log TRUNCATE TABLE.
    emptied = [str(event.table) for event in again.unlogged] + [row.table for row in again.rows]
    assert emptied == ["app.mem"]
    assert {row.kind for row in again.rows} <= {"T"}


def test_a_copy_follows_statements_and_its_dumps_rest_and_status_names_the_remedy(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, tmp_path: Path
) -> None:
    source = Source(mysql_family, mysql_family_database, tmp_path)
    source.do("CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE b (id INT PRIMARY KEY)")
    source.configure()
    capture = source.start()
    try:
        source.wait_equal("a", "b")
        source.wait_settled()
        begun_ms = unix_ms()
        dumps: dict[str, Any] = {}  # since then, of `a`: status shows only the last ones

        def status() -> Any:
            found = app.status(source.config)
            for dump in found.document["dumps"]:
                if dump["requested_ms"] >= begun_ms:
                    dumps[dump["dump_id"]] = dump["tables"][0]
            return found

        with mysql_family.connect(mysql_family_database) as session:
            run(session, "SET SESSION binlog_format = STATEMENT")
            for number in range(30):
                run(
                    session,
                    f"INSERT INTO a VALUES ({number})",
                    f"DELETE FROM a WHERE id < {number}",
                )
                source.do(f"INSERT INTO b VALUES ({number})")
                status()
                time.sleep(0.1)
        source.wait_for(lambda: status() and source.replayed("a") == source.rows("a"))
        source.wait_equal("b")
        assert [row["id"] for row in source.rows("a")] == ["29"]
        source.wait_for(lambda: status().document["unlogged"][0]["dumped"])
        (entry,) = status().document["unlogged"]
        assert entry["table"] == f"{mysql_family_database}.a"
        assert "binlog_format = 'ROW'" in entry["remedy"]
        problems = {each.kind: each for each in status().overview.problems}
        assert "as a statement, not as rows" in problems["rows-unlogged"].sentence
        assert len(dumps) > 1
        for earlier, later in itertools.pairwise(dumps.values()):
            took = earlier["finished_ms"] - earlier["started_ms"]
            assert later["started_ms"] >= earlier["finished_ms"] + REST_FACTOR * took, dumps
        assert capture.stop() == 0
    finally:
        if not capture.died:
            capture.kill()
        mysql_family.execute(f"DROP DATABASE IF EXISTS marks_{mysql_family_database}")


def test_rollbacks_that_the_log_holds_one_after_the_other_are_few_dumps(
    mariadb_server: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    """As it does of a transaction that creates a temporary table."""
    source = Source(mariadb_server, mariadb_database, tmp_path)
    source.do("CREATE TABLE a (id INT PRIMARY KEY)")
    source.configure()
    capture = source.start()
    try:
        source.wait_equal("a")
        source.wait_settled()
        begun_ms, dumps = unix_ms(), set[str]()

        def status() -> Any:
            found = app.status(source.config)  # it shows only the last dumps
            for dump in found.document["dumps"]:
                if dump["requested_ms"] >= begun_ms:
                    dumps.add(dump["dump_id"])
            return found

        with mariadb_server.connect(mariadb_database) as session:
            for number in range(1, 61):
                run(session, "BEGIN", f"INSERT INTO a VALUES ({number})")
                run(session, f"CREATE TEMPORARY TABLE t{number} (id INT)", "ROLLBACK")
                status()
                time.sleep(0.2)
            run(session, "INSERT INTO a VALUES (0)")
        source.wait_for(lambda: source.replayed("a") == source.rows("a"))
        assert [row["id"] for row in source.rows("a")] == ["0"]
        found = status()
        assert 1 <= len(dumps) <= 3
        [problem] = [each for each in found.overview.problems if each.kind == "rows-unlogged"]
        assert "was rolled back" in problem.sentence
        assert "ENGINE = InnoDB" in problem.remedy
        assert capture.stop() == 0
    finally:
        if not capture.died:
            capture.kill()
        mariadb_server.execute(f"DROP DATABASE IF EXISTS marks_{mariadb_database}")
