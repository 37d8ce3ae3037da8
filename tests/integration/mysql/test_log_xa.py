"""XA transactions: rows come with the decision, at the decision's place, and survive restarts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pymysql
import pytest
from pymysql.constants import ER
from tests.integration.mysql.log_capture import LogCapture
from tests.integration.mysql.test_log_reader import run
from tests.support.mysql import MySqlFamilyServer

from tidelog.model.records import RecordKind
from tidelog.sources.mysql.stream import prepared_transactions

pytestmark = pytest.mark.integration

Make = Callable[..., LogCapture]
Sql = Any


@pytest.fixture
def other(mysql_family: MySqlFamilyServer, mysql_family_database: str) -> Any:
    connection = mysql_family.connect(mysql_family_database)
    yield connection
    if connection.open:
        connection.close()


def prepare(sql: Sql, xid: str, *statements: str) -> None:
    run(sql, f"XA START '{xid}'", *statements, f"XA END '{xid}'", f"XA PREPARE '{xid}'")


def finish(server: MySqlFamilyServer, sql: Sql, statement: str) -> None:
    """Decide from another session, as a transaction manager does after a crash."""
    sql.close()
    for _ in range(100):
        try:
            server.execute(statement)
            return
        except Exception as error:
            if error.args[0] != 1397:  # the session has not let go of it yet
                raise
    raise AssertionError


def keys(capture: LogCapture) -> list[int]:
    return [row.new["a"] for row in capture.rows if row.new]


def test_rows_of_a_prepared_transaction_come_when_it_commits(
    capture: LogCapture, sql: Sql, other: Sql, mysql_family: MySqlFamilyServer
) -> None:
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY)")
    begin = capture.start()
    prepare(other, "x1", "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
    run(sql, "INSERT INTO t VALUES (3)")
    capture.until(lambda: keys(capture) == [3])
    assert all(resume.acknowledge <= begin.acknowledge for resume in capture.resumes)
    finish(mysql_family, other, "XA COMMIT 'x1'")
    run(sql, "INSERT INTO t VALUES (4)")
    capture.catch_up()
    assert keys(capture) == [3, 1, 2, 4]
    assert capture.places == sorted(set(capture.places))
    assert capture.rows[1].position == capture.rows[2].position > capture.rows[0].position
    assert [row.ordinal for row in capture.rows] == [0, 0, 1, 0]


def test_rolled_back_rows_never_come(
    capture: LogCapture, sql: Sql, other: Sql, mysql_family: MySqlFamilyServer
) -> None:
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY)")
    begin = capture.start()
    prepare(other, "x2", "INSERT INTO t VALUES (1)")
    finish(mysql_family, other, "XA ROLLBACK 'x2'")
    run(sql, "INSERT INTO t VALUES (3)")
    capture.catch_up()
    assert keys(capture) == [3]
    assert capture.resumes[-1].acknowledge > begin.acknowledge


def test_a_prepared_transaction_survives_restarts_of_capture(
    make_capture: Make, sql: Sql, other: Sql, mysql_family: MySqlFamilyServer
) -> None:
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY)")
    first = make_capture()
    first.start()
    prepare(other, "x3", "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
    run(sql, "INSERT INTO t VALUES (3)", "FLUSH BINARY LOGS")
    first.until(lambda: keys(first) == [3])
    resume = first.resumes[-1]
    first.reader.close()
    finish(mysql_family, other, "XA COMMIT 'x3'")
    second = make_capture(schemas=first.schemas)
    second.start(resume)
    second.catch_up()
    second.reader.close()
    assert keys(second) == [1, 2]
    # and when it stops in the midst of the rows
    row = second.rows[0]
    third = make_capture(schemas=first.schemas)
    stopped = next(r for r in second.resumes if (r.position, r.ordinal) >= (row.position, 0))
    assert stopped.acknowledge <= resume.acknowledge
    third.start(type(stopped)(stopped.acknowledge, row.position, row.ordinal))
    third.catch_up()
    assert keys(third) == [2]


def test_a_transaction_prepared_before_capture_began_is_found(
    capture: LogCapture, sql: Sql, other: Sql, mysql_family: MySqlFamilyServer
) -> None:
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY)", "INSERT INTO t VALUES (9)")
    prepare(other, "x4", "INSERT INTO t VALUES (1)")
    run(sql, "INSERT INTO t VALUES (8)", "FLUSH BINARY LOGS")
    begin = capture.start()
    finish(mysql_family, other, "XA COMMIT 'x4'")
    run(sql, "INSERT INTO t VALUES (2)")
    capture.catch_up()
    assert keys(capture) == [1, 2]
    acknowledged = [begin.acknowledge, *(resume.acknowledge for resume in capture.resumes)]
    assert acknowledged == sorted(acknowledged)


def test_a_statement_of_a_prepared_transaction_has_its_table_dumped_after_the_commit(
    make_capture: Make, sql: Sql, other: Sql, mysql_family: MySqlFamilyServer
) -> None:
    """A dump between the two would not see what it changed."""
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY)", "CREATE TABLE u (a INT PRIMARY KEY)")
    first = make_capture()
    first.start()
    run(other, "SET SESSION binlog_format = STATEMENT")
    prepare(other, "x6", "INSERT INTO t VALUES (1)")
    run(sql, "INSERT INTO u VALUES (3)", "FLUSH BINARY LOGS")
    first.until(lambda: keys(first) == [3])
    late = make_capture(schemas=first.schemas, name="late")
    late.start()  # after it was prepared
    commit = first.end
    finish(mysql_family, other, "XA COMMIT 'x6'")
    for each in (first, late):
        each.catch_up()
        assert each.unlogged[-1].table.name == "t"
        assert (each.unlogged[-1].xid or 0) >= commit
        each.reader.close()
    again = make_capture(schemas=first.schemas)
    again.start(first.resumes[-1])  # its stream begins at the last row
    run(sql, "INSERT INTO u VALUES (4)")
    again.catch_up()
    assert keys(again) == [4]
    assert not again.unlogged


def test_one_phase_commit(capture: LogCapture, sql: Sql, other: Sql) -> None:
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY)")
    capture.start()
    run(
        other,
        "XA START 'x5'",
        "INSERT INTO t VALUES (1), (2)",
        "XA END 'x5'",
        "XA COMMIT 'x5' ONE PHASE",
        "INSERT INTO t VALUES (3)",
    )
    capture.catch_up()
    assert keys(capture) == [1, 2, 3]


def changes_while_prepared(sql: Sql, *statements: str) -> bool:
    """Whether the server lets them: MySQL 8.0.12 does once the connection is gone; others hold the
    table's lock until the transaction ends.
    """
    run(sql, "SET SESSION lock_wait_timeout = 1, innodb_lock_wait_timeout = 1")
    try:
        run(sql, *statements)
    except pymysql.err.OperationalError as error:
        if error.args[0] != ER.LOCK_WAIT_TIMEOUT:
            raise
        return False
    return True


def replayed(capture: LogCapture) -> set[int]:
    found: set[int] = set()
    for row in capture.rows:
        if row.kind == chr(RecordKind.TRUNCATE):
            found.clear()
        elif row.new:
            found.add(row.new["a"])
    return found


def stored(sql: Sql) -> set[int]:
    with sql.cursor() as cursor:
        cursor.execute("SELECT a FROM t")
        return {a for (a,) in cursor.fetchall()}


@pytest.fixture
def detached(mysql_family: MySqlFamilyServer, sql: Sql, other: Sql) -> Callable[[str], None]:
    """Prepares a transaction that inserts 2 and 3, and ends its connection."""

    def prepared(xid: str) -> None:
        prepare(other, xid, "INSERT INTO t VALUES (2)", "INSERT INTO t VALUES (3)")
        thread = other.thread_id()
        other.close()
        while any(row[0] == thread for row in mysql_family.execute("SHOW PROCESSLIST")):
            time.sleep(0.05)

    return prepared


def test_rows_that_a_truncate_removed_before_their_commit_do_not_come_back(
    make_capture: Make,
    sql: Sql,
    mysql_family: MySqlFamilyServer,
    detached: Callable[[str], None],
) -> None:
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY)", "CREATE TABLE u (a INT PRIMARY KEY)")
    first = make_capture()
    begin = first.start()
    run(sql, "INSERT INTO t VALUES (1)")
    detached("x8")
    changed = changes_while_prepared(sql, "TRUNCATE t", "INSERT INTO t VALUES (4)")
    first.until(lambda: len(first.rows) == (3 if changed else 1))
    first.reader.close()
    mysql_family.execute("XA COMMIT 'x8'")
    run(sql, "INSERT INTO t VALUES (5)")
    again = make_capture(schemas=first.schemas)
    again.start(begin)
    again.catch_up()
    assert replayed(again) == stored(sql)
    assert not again.unlogged


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param(["TRUNCATE t"], id="truncate"),
        pytest.param(["DROP TABLE t", "CREATE TABLE t (a INT PRIMARY KEY)"], id="drop"),
    ],
)
def test_a_table_that_changed_before_a_commit_of_its_rows_is_dumped_after_it(
    make_capture: Make,
    sql: Sql,
    mysql_family: MySqlFamilyServer,
    detached: Callable[[str], None],
    statements: Sequence[str],
) -> None:
    """Where capture began between the two, and where a table was dropped."""
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY)")
    first = make_capture()
    first.start()
    detached("x9")
    changed = changes_while_prepared(sql, *statements)
    run(sql, "FLUSH BINARY LOGS")
    late = make_capture(name="late")
    late.start()
    commit = first.end
    mysql_family.execute("XA COMMIT 'x9'")
    for capture in (late, first):
        capture.catch_up()
        capture.reader.close()
        after = [each for each in capture.unlogged if (each.xid or 0) >= commit]
        dumped = changed and (capture is late or statements != ["TRUNCATE t"])
        assert [each.table.name for each in after] == ["t"] * dumped


def connections(server: MySqlFamilyServer) -> int:
    return int(server.execute("SHOW GLOBAL STATUS LIKE 'Connections'")[0][1])


def test_a_small_group_is_not_read_again(
    capture: LogCapture, sql: Sql, mysql_family: MySqlFamilyServer
) -> None:
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY)")
    capture.start()
    for number in range(20):
        prepare(sql, f"s{number}", f"INSERT INTO t VALUES ({number}), ({100 + number})")
        run(sql, f"XA COMMIT 's{number}'")
    before = connections(mysql_family)
    capture.catch_up()
    assert keys(capture) == [key for n in range(20) for key in (n, 100 + n)]
    assert capture.places == sorted(set(capture.places))
    # The two that count, and what may have been cut in two by how the bytes came.
    assert connections(mysql_family) - before <= 3
    assert capture.reader._prepared._kept == 0


def test_kept_groups_outlive_a_change_of_checksums_and_files(
    capture: LogCapture, sql: Sql, other: Sql, mysql_family: MySqlFamilyServer
) -> None:
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY)")
    capture.start()
    prepare(other, "c1", "INSERT INTO t VALUES (1)")
    try:
        run(sql, "SET GLOBAL binlog_checksum = NONE", "INSERT INTO t VALUES (2)")
        capture.until(lambda: keys(capture) == [2])
        finish(mysql_family, other, "XA COMMIT 'c1'")
        prepare(sql, "c2", "INSERT INTO t VALUES (3)")
        run(sql, "XA COMMIT 'c2'")
        capture.until(lambda: keys(capture) == [2, 1, 3])
    finally:
        run(sql, "SET GLOBAL binlog_checksum = CRC32")
    prepare(sql, "c3", "INSERT INTO t VALUES (4)")
    run(sql, "XA COMMIT 'c3'")
    capture.catch_up()
    assert keys(capture) == [2, 1, 3, 4]


def test_groups_beyond_what_is_kept_are_read_again(
    capture: LogCapture,
    sql: Sql,
    other: Sql,
    mysql_family: MySqlFamilyServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY, b LONGTEXT)")
    capture.start()
    prepare(sql, "l1", "INSERT INTO t VALUES (1, REPEAT('x', 1500000)), (2, '')")
    run(sql, "XA COMMIT 'l1'")
    capture.catch_up()
    monkeypatch.setattr(prepared_transactions, "MAX_KEPT_BYTES", 100)
    prepare(sql, "l2", "INSERT INTO t VALUES (3, REPEAT('y', 200))")
    run(sql, "XA COMMIT 'l2'")
    before = connections(mysql_family)
    capture.catch_up()
    assert keys(capture) == [1, 2, 3]
    assert len(capture.rows[0].new["b"]) == 1_500_000  # type: ignore[index]
    assert connections(mysql_family) - before >= 2
