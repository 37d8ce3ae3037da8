"""The binlog as events of the port: rows, order, resuming, DDL, signals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.mysql.log_capture import LogCapture
from tests.support.mysql import MySqlFamilyServer

from tidelog.model.records import LogBatch, Resume

pytestmark = pytest.mark.integration

Sql = Any
Make = Callable[..., LogCapture]


def run(sql: Sql, *statements: str) -> None:
    with sql.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def test_rows_come_in_commit_order_with_both_images(capture: LogCapture, sql: Sql) -> None:
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(20))")
    capture.start()
    run(
        sql,
        "INSERT INTO t VALUES (1, 'x'), (2, NULL)",
        "UPDATE t SET b = 'y' WHERE a = 1",
        "DELETE FROM t WHERE a = 2",
    )
    capture.catch_up()
    assert capture.brief() == [
        ("I", None, {"a": 1, "b": "x"}),
        ("I", None, {"a": 2, "b": None}),
        ("U", {"a": 1, "b": "x"}, {"a": 1, "b": "y"}),
        ("D", {"a": 2, "b": None}, None),
    ]
    assert capture.places == sorted(set(capture.places))
    assert [row.ordinal for row in capture.rows] == [0, 1, 0, 0]
    assert all(row.xid == row.position for row in capture.rows)
    assert len({row.position for row in capture.rows}) == 3
    assert [str(seen.schema.table.name) for seen in capture.seen_schemas] == ["t"]
    assert capture.seen_schemas[0].schema.key == ("a",)


def test_resumes_at_every_place_without_loss_or_repetition(make_capture: Make, sql: Sql) -> None:
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY AUTO_INCREMENT, b VARCHAR(20))")
    first = make_capture()
    begin = first.start()
    for _ in range(3):
        run(sql, "INSERT INTO t (b) VALUES ('x'), ('y'), ('z')", "UPDATE t SET b = CONCAT(b, 'w')")
    first.catch_up()
    first.reader.close()
    whole = first.rows
    assert len(whole) == 9 + 3 + 6 + 9
    for i, row in enumerate(whole):
        again = make_capture(schemas=first.schemas)
        again.start(Resume(begin.acknowledge, row.position, row.ordinal))
        again.catch_up()
        again.reader.close()
        assert again.rows == whole[i + 1 :]


def test_resumes_in_the_middle_of_a_large_transaction(make_capture: Make, sql: Sql) -> None:
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY AUTO_INCREMENT, b VARCHAR(100))")
    first = make_capture(buffer_bytes=64 << 10)
    first.start()
    run(
        sql,
        "BEGIN",
        "INSERT INTO t (b) VALUES " + ",".join(["(REPEAT('x', 90))"] * 5000),
        "UPDATE t SET b = REPEAT('y', 80)",
        "COMMIT",
    )
    first.until(lambda: len(first.rows) > 1000)
    first.reader.close()
    assert len(first.rows) < 10_000
    last = first.rows[-1]
    resume = first.resumes[-1]
    assert (resume.position, resume.ordinal) == (last.position, last.ordinal)
    assert resume.acknowledge <= last.position
    again = make_capture(schemas=first.schemas)
    again.start(resume)
    again.catch_up()
    assert [row.ordinal for row in first.rows + again.rows] == list(range(10_000))
    assert {row.position for row in first.rows + again.rows} == {last.position}


def test_rotation_inside_the_stream_goes_unnoticed(capture: LogCapture, sql: Sql) -> None:
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY)")
    capture.start()
    for i in range(5):
        run(sql, f"INSERT INTO t VALUES ({i})", "FLUSH BINARY LOGS")
    capture.catch_up()
    assert [row.new for row in capture.rows] == [{"a": i} for i in range(5)]
    assert capture.places == sorted(capture.places)


def test_tables_that_are_not_captured_are_passed_over(
    make_capture: Make, sql: Sql, mysql_family_database: str
) -> None:
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY)", "CREATE TABLE other (a INT PRIMARY KEY)")
    capture = make_capture(tables=(f"{mysql_family_database}.t",))
    begin = capture.start()
    run(
        sql,
        "BEGIN",
        "INSERT INTO other VALUES (1)",
        "INSERT INTO t VALUES (1)",
        "COMMIT",
        "INSERT INTO other VALUES (2)",
    )
    capture.catch_up()
    assert [(row.new, row.ordinal) for row in capture.rows] == [({"a": 1}, 1)]
    assert capture.resumes[-1].acknowledge > begin.acknowledge


def test_rolled_back_rows_and_savepoints(capture: LogCapture, sql: Sql) -> None:
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY)")
    capture.start()
    run(
        sql,
        "BEGIN",
        "INSERT INTO t VALUES (1)",
        "SAVEPOINT s",
        "INSERT INTO t VALUES (2)",
        "ROLLBACK TO s",
        "INSERT INTO t VALUES (3)",
        "RELEASE SAVEPOINT s",
        "COMMIT",
        "BEGIN",
        "INSERT INTO t VALUES (4)",
        "ROLLBACK",
    )
    capture.catch_up()
    assert [row.new for row in capture.rows] == [{"a": 1}, {"a": 3}]


def test_truncate_is_a_record(capture: LogCapture, sql: Sql) -> None:
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    capture.start()
    run(sql, "TRUNCATE TABLE t", "INSERT INTO t VALUES (2)", "/* c */ truncate `t`")
    capture.catch_up()
    assert [row.kind for row in capture.rows] == ["T", "I", "T"]
    batch = next(event for event in capture.events if isinstance(event, LogBatch))
    assert batch.payload.tobytes() == b"T\0\0\0\1\0\0\0\0\0"
    assert capture.places == sorted(set(capture.places))


def test_watermarks_and_signals_are_events(
    make_capture: Make, sql: Sql, mysql_family_database: str, mysql_family: MySqlFamilyServer
) -> None:
    own = f"{mysql_family_database}_own"
    mysql_family.execute(f"CREATE DATABASE {own}")
    run(
        sql,
        f"CREATE TABLE {own}.watermark (id TINYINT PRIMARY KEY, mark VARCHAR(190) NOT NULL)"
        " CHARACTER SET utf8mb4",
        "CREATE TABLE signals (id VARCHAR(42) PRIMARY KEY, type VARCHAR(32) NOT NULL,"
        " data VARCHAR(2048) NULL)",
    )
    capture = make_capture(
        watermark_schema=own, signal_table=f"{mysql_family_database}.signals", tables=("*.*",)
    )
    capture.start()
    run(
        sql,
        f"INSERT INTO {own}.watermark VALUES (1, 'm1')",
        f"UPDATE {own}.watermark SET mark = 'm2 ü'",
        "INSERT INTO signals VALUES ('i', 'log', '{\"message\": \"ä\"}'), ('j', 'x', NULL)",
        "DELETE FROM signals",
    )
    capture.catch_up()
    assert capture.watermarks == ["m1", "m2 ü"]
    assert [(s.signal_id, s.type, s.data) for s in capture.signals] == [
        ("i", "log", '{"message": "ä"}'),
        ("j", "x", None),
    ]
    assert capture.rows == []
    mysql_family.drop_database(own)


def test_an_idle_server_is_reported_up_to_its_logs_end(
    capture: LogCapture, mysql_family: MySqlFamilyServer
) -> None:
    begin = capture.start()
    mysql_family.execute("FLUSH BINARY LOGS")
    capture.catch_up()
    assert capture.resumes[-1].acknowledge == capture.end > begin.acknowledge
