"""What others write to our tables, or make of them, ends nothing: it is read at every start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pymysql
import pytest
from tests.integration.mysql.log_capture import LogCapture
from tests.support.mysql import MySqlFamilyServer

from tidelog.errors import ChunkDeniedError
from tidelog.ports import MAX_SIGNAL_BYTES, NullRegistry
from tidelog.sources.mysql.chunks.reader import MySqlChunkReader
from tidelog.sources.mysql.preflight.checks import MySqlPreflight

pytestmark = pytest.mark.integration
Make = Callable[..., LogCapture]
Sql = Any


@pytest.fixture
def own(mysql_family: MySqlFamilyServer, mysql_family_database: str) -> Iterator[str]:
    """The watermark table's database."""
    name = f"{mysql_family_database}_own"
    mysql_family.create_database(name)
    yield name
    mysql_family.drop_database(name)


def run(sql: Sql, *statements: str) -> None:
    with sql.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    sql.commit()


def test_a_signal_table_of_any_shape_ends_nothing(
    make_capture: Make, sql: Sql, mysql_family_database: str
) -> None:
    run(
        sql,
        "CREATE TABLE signals (n BIGINT AUTO_INCREMENT UNIQUE, data LONGTEXT, type TEXT, id TEXT, "
        "at TIMESTAMP DEFAULT CURRENT_TIMESTAMP, money DECIMAL(10, 2), place POINT, j JSON)",
        "CREATE TABLE t (id INT PRIMARY KEY)",
    )
    capture = make_capture(signal_table=f"{mysql_family_database}.signals")
    capture.start()
    for statements in (
        ["INSERT INTO signals (id, type, data) VALUES ('1', 'log', '{}'), (NULL, NULL, NULL)"],
        [f"INSERT INTO signals (id, data) VALUES ('2', REPEAT('x', {MAX_SIGNAL_BYTES + 9}))"],
        ["UPDATE signals SET type = 'pause-snapshot'", "DELETE FROM signals"],
        ["ALTER TABLE signals MODIFY id DOUBLE, MODIFY data VARCHAR(99) CHARACTER SET latin1"],
        ["INSERT INTO signals (id, type, data) VALUES ('3', 'log', x'ff')"],
        ["ALTER TABLE signals MODIFY id TEXT, DROP COLUMN data"],
        ["INSERT INTO signals (id, type) VALUES ('4', 'pause-snapshot')"],
        ["INSERT INTO signals (id) VALUES ('5')", "ALTER TABLE signals DROP COLUMN at"],
        ["INSERT INTO t VALUES (1)"],
    ):
        run(sql, *statements)
        capture.catch_up()
    assert [row.new for row in capture.rows] == [{"id": 1}]
    first, empty, long, third, fourth, fifth = capture.signals
    assert (first.signal_id, first.type, first.data) == ("1", "log", "{}")
    assert (empty.signal_id, empty.type, empty.data) == ("", "", None)
    assert len(long.data or "") == MAX_SIGNAL_BYTES + 1
    assert (third.signal_id, third.type, third.data) == ("", "log", "\ufffd")
    assert (fourth.signal_id, fourth.type, fourth.data) == ("4", "pause-snapshot", None)
    assert (fifth.type, fifth.data) == ("", None)


def test_a_watermark_table_of_any_shape_ends_nothing(
    make_capture: Make, sql: Sql, own: str
) -> None:
    run(sql, "CREATE TABLE t (id INT PRIMARY KEY)")
    watermark = f"{own}.watermark"
    run(sql, f"CREATE TABLE {watermark} (id TINYINT PRIMARY KEY, mark LONGTEXT, at DATETIME(6))")
    capture = make_capture(watermark_schema=own)
    capture.start()
    run(
        sql,
        f"INSERT INTO {watermark} VALUES (1, 'unknown', NOW())",
        f"UPDATE {watermark} SET mark = REPEAT('m', 100000)",
        f"UPDATE {watermark} SET mark = NULL",
        f"DELETE FROM {watermark}",
        f"TRUNCATE {watermark}",
        f"ALTER TABLE {watermark} MODIFY mark DOUBLE",
        f"INSERT INTO {watermark} VALUES (1, 1.5, NOW())",
        f"UPDATE {watermark} SET mark = 2.5",
        f"ALTER TABLE {watermark} DROP COLUMN mark, DROP COLUMN at",
        f"INSERT INTO {watermark} VALUES (2)",
        f"ALTER TABLE {watermark} ADD COLUMN mark VARCHAR(9) CHARACTER SET latin1",
        f"UPDATE {watermark} SET mark = x'ff' WHERE id = 2",
        f"DROP TABLE {watermark}",
        "INSERT INTO t VALUES (1)",
    )
    capture.catch_up()
    assert [row.new for row in capture.rows] == [{"id": 1}]
    assert capture.watermarks[:1] == ["unknown"]
    assert all(len(mark) < 200 for mark in capture.watermarks)


NAMES = (
    "quo`te",
    'dou"ble',
    "new\nline",
    "tab\t\x01\x1b[31m",
    " leading",
    "dots.and.more",
    "ünï-ко́д",
    "x" * 64,
    "é" * 64,
    "%s %(a)s {0}",
    "back\\slash",
    "a'b;-- #",
    "/* open",
    "*/ closed",
    "/*!50000 x",
    "select",
    "watermark",
)


def test_names_and_comments_of_all_kinds_are_read(
    make_capture: Make, sql: Sql, mysql_family_database: str
) -> None:
    capture = make_capture()
    capture.start()
    expected = []
    for number, name in enumerate(NAMES):
        table, column = (f"`{each.replace('`', '``')}`" for each in (name, NAMES[number - 1]))
        run(
            sql,
            f"/* `{name[:3].strip('*/!')} */ CREATE TABLE {table} "
            f"({column} INT PRIMARY KEY /*! , v INT */) -- x",
            f"/*!50000 INSERT */ INTO {table} # {number}\n VALUES (1, 2)"
            if number % 2
            else f"INSERT INTO {table} VALUES (1, 2)",
            f"ALTER TABLE {table} COMMENT '*/ ; DROP TABLE `t`; -- \\n'",
            f"/* \\' */ TRUNCATE /* `x`.`y` */ TABLE {table} -- \n",
            f"RENAME /* , */ TABLE {table} TO `moved /* {number}`, `moved /* {number}` TO {table}",
            f"INSERT INTO {table} VALUES (3, 4)",
        )
        capture.catch_up()  # which looks up what the columns are called
        run(sql, f"DROP TABLE IF EXISTS {table} /* generated by server */")
        expected += [(name, "I", 1), (name, "T", None), (name, "I", 3)]
    rows = capture.catch_up()
    assert [
        (row.table, row.kind, row.new and row.new[NAMES[place // 3 - 1]])
        for place, row in enumerate(rows)
    ] == [(f"{mysql_family_database}.{name}", kind, key) for name, kind, key in expected]


@pytest.mark.parametrize("charset", ["utf8mb4", "latin1", "gbk", "sjis", "binary", "cp932"])
def test_statements_with_bytes_of_no_character_end_nothing(
    make_capture: Make,
    sql: Sql,
    mysql_family: MySqlFamilyServer,
    mysql_family_database: str,
    charset: str,
) -> None:
    run(sql, "CREATE TABLE t (id INT PRIMARY KEY)")
    capture = make_capture()
    capture.start()
    refused = 0
    with mysql_family.connect(mysql_family_database) as hostile:
        run(hostile, f"SET NAMES {charset}")
        hostile.encoding = "latin1"  # bytes as they are
        for byte in ("\xff", "\xed\xa0\x80", "\x81\x5c", "\x81", "\xe9`", "\xbf\x27"):
            for statement in (
                f"CREATE TABLE `a{byte}` (id INT PRIMARY KEY, `c{byte}` INT)",
                f"/* {byte} */ CREATE TABLE IF NOT EXISTS u (id INT) COMMENT 'x{byte}'",
                f"INSERT /* {byte} */ INTO t VALUES ({refused + 100})",
                f"DROP TABLE IF EXISTS `a{byte}`, u # {byte}",
                f"ANALYZE TABLE t -- {byte}",
                f"CREATE OR REPLACE VIEW w AS SELECT '{byte}' /* {byte} */ AS x",
            ):
                try:
                    run(hostile, statement)
                except (pymysql.MySQLError, UnicodeError):
                    refused += 1
    run(sql, "INSERT INTO t VALUES (1)")
    rows = capture.catch_up()
    assert rows[-1].new == {"id": 1}
    assert refused < 36


@pytest.mark.parametrize(
    "junk", ["/*" * 200_000, r"\'" * 200_000, "'" + r"\'" * 200_000 + "\\", "`" * 200_001, "#" * 99]
)
def test_what_only_looks_like_comments_and_texts_takes_no_time(
    make_capture: Make, sql: Sql, mysql_family_database: str, junk: str
) -> None:
    """Behind ``--`` and a control character all is a comment, as the servers have it."""
    run(sql, "CREATE TABLE t (id INT PRIMARY KEY)")
    capture = make_capture()
    capture.start()
    run(
        sql,
        f"CREATE TABLE u (id INT PRIMARY KEY) --\x01 {junk}",
        "INSERT INTO u VALUES (1)",
        f"TRUNCATE TABLE --\x01 {junk}\n u",
        "INSERT INTO t VALUES (1)",
    )
    rows = capture.catch_up()
    names = [(row.table.partition(".")[2], row.kind) for row in rows]
    assert names == [("u", "I"), ("u", "T"), ("t", "I")]


@pytest.mark.parametrize("comment", ["--\n", "--\x01 x\n", "-- x\n--\n#\n/* */ "])
def test_a_comment_hides_no_statement(make_capture: Make, sql: Sql, comment: str) -> None:
    """One that is in the log instead of its rows: without a dump they would be lost."""
    run(sql, "CREATE TABLE t (id INT PRIMARY KEY)")
    capture = make_capture()
    capture.start()
    run(sql, "SET SESSION binlog_format = STATEMENT", f"{comment}INSERT INTO t VALUES (1)")
    capture.catch_up()
    assert [event.table.name for event in capture.unlogged] == ["t"]


def test_a_view_of_the_watermark_tables_name_leads_no_mark_elsewhere(
    mysql_family: MySqlFamilyServer, sql: Sql, mysql_family_database: str, own: str
) -> None:
    """Such a view has the rights of who writes through it."""
    run(
        sql,
        "CREATE TABLE accounts (id INT PRIMARY KEY, name VARCHAR(99))",
        "INSERT INTO accounts VALUES (1, 'root')",
        f"CREATE SQL SECURITY INVOKER VIEW {own}.watermark AS "
        f"SELECT id, name AS mark FROM {mysql_family_database}.accounts",
    )
    reader = MySqlChunkReader(mysql_family.url, NullRegistry(), watermark_schema=own)
    with pytest.raises(ChunkDeniedError, match=rf"{own}\.watermark is a view"):
        reader.write_watermark("mark")
    with sql.cursor() as cursor:
        cursor.execute("SELECT name FROM accounts")
        assert cursor.fetchall() == (("root",),)
    flavor = reader._watermark_connection().flavor
    preflight = MySqlPreflight(mysql_family.url, server_id=1, kind=flavor, watermark_schema=own)
    [found] = [f for f in preflight.check() if f.name == "watermark table"]
    assert found.level == "error"
    run(sql, found.fix)
    reader.write_watermark("mark")
    reader.close()
