"""Schemas of the log: tables altered, renamed, dropped while capture runs, lags or is down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.mysql.log_capture import LogCapture
from tests.integration.mysql.test_log_reader import run
from tests.support.mysql import MySqlFamilyServer

from tidelog.model.schema import TableName
from tidelog.ports import NullRegistry, UnsupportedTableSeen
from tidelog.sources.mysql.catalogue.schemas import MySqlSchemaFinder
from tidelog.sources.mysql.connect import connect
from tidelog.sources.mysql.stream import log_tables
from tidelog.sources.mysql.stream.schema_history import ColumnFact, SchemaHistory, fix_version
from tidelog.state.sqlite import SqliteState

pytestmark = pytest.mark.integration

Make = Callable[..., LogCapture]
Sql = Any


@pytest.fixture
def state(tmp_path: Path) -> SqliteState:
    return SqliteState(f"sqlite:///{tmp_path}/state.db")


def news(capture: LogCapture) -> list[Any]:
    return [row.new for row in capture.rows]


def test_columns_change_while_capture_runs(capture: LogCapture, sql: Sql) -> None:
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(10))")
    capture.start()
    run(sql, "INSERT INTO t VALUES (1, 'x')")
    capture.catch_up()
    run(sql, "ALTER TABLE t ADD COLUMN c BIGINT NULL FIRST", "INSERT INTO t VALUES (5, 2, 'y')")
    capture.catch_up()
    run(sql, "ALTER TABLE t CHANGE b d VARCHAR(10)", "INSERT INTO t VALUES (6, 3, 'z')")
    capture.catch_up()
    run(sql, "ALTER TABLE t DROP COLUMN c", "INSERT INTO t VALUES (4, 'w')")
    capture.catch_up()
    assert news(capture) == [
        {"a": 1, "b": "x"},
        {"c": 5, "a": 2, "b": "y"},
        {"c": 6, "a": 3, "d": "z"},
        {"a": 4, "d": "w"},
    ]
    seen = capture.seen_schemas
    assert [s.schema.schema_id for s in seen] == [1, 2, 3, 4]
    assert [s.previous and s.previous.schema_id for s in seen[1:]] == [1, 2, 3]
    assert [e.reason for e in capture.unlogged] == ["a column's type was changed"]


def refusals(capture: LogCapture) -> list[str]:
    """Why tables were."""
    return [event.why.reason for event in capture.events if isinstance(event, UnsupportedTableSeen)]


def test_a_backlog_across_ddl_is_refused_when_names_are_not_certain(
    make_capture: Make, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = make_capture()
    capture.start()
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY, b INT)")
    run(sql, "INSERT INTO t VALUES (1, 2)", "ALTER TABLE t CHANGE b c INT")
    run(sql, "CREATE TABLE u (a INT PRIMARY KEY)", "INSERT INTO u VALUES (1)")
    capture.catch_up()
    assert news(capture) == [{"a": 1}]
    assert [reason.split(" after ")[0] for reason in refusals(capture)] == ["it was altered"]
    monkeypatch.setattr(log_tables, "RETRY_REFUSED_S", 0.0)
    run(sql, "INSERT INTO u VALUES (2)")
    capture.catch_up()
    run(sql, "INSERT INTO t VALUES (3, 4)")
    capture.catch_up()
    assert news(capture)[2:] == [{"a": 3, "c": 4}]
    told = [event.reason for event in capture.unlogged if event.table.name == "t"]
    assert told[-1] == "its changes could not be captured for a while"  # so it is dumped


def test_ddl_soon_after_the_first_start_leaves_no_doubt(capture: LogCapture, sql: Sql) -> None:
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY, b INT)")
    capture.start()
    run(sql, "INSERT INTO t VALUES (1, 2)", "ALTER TABLE t CHANGE b c INT")
    run(sql, "INSERT INTO t VALUES (3, 4)")
    capture.catch_up()
    assert news(capture) == [{"a": 1, "b": 2}, {"a": 3, "c": 4}]


def test_ddl_while_capture_is_down(make_capture: Make, sql: Sql, state: SqliteState) -> None:
    """What was known before stays known: rows before the DDL have the old columns."""
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY, b INT)")
    first = make_capture(state=state)
    first.start()
    run(sql, "INSERT INTO t VALUES (1, 1)")
    first.catch_up()
    first.reader.close()
    run(
        sql,
        "INSERT INTO t VALUES (2, 2)",
        "ALTER TABLE t CHANGE b c INT",
        "INSERT INTO t VALUES (3, 3)",
    )
    again = make_capture(state=state, schemas=first.schemas)
    again.start(first.resumes[-1])
    again.catch_up()
    assert news(again) == [{"a": 2, "b": 2}, {"a": 3, "c": 3}]


def test_statements_ahead_are_read_with_the_checksums_of_their_file(
    capture: LogCapture, sql: Sql
) -> None:
    """``binlog_checksum`` may be another one by now than when the statements were logged."""
    run(
        sql,
        "CREATE TABLE t (a INT PRIMARY KEY, b INT)",
        "CREATE TABLE u (b INT PRIMARY KEY, a INT)",
    )
    try:
        run(sql, "SET GLOBAL binlog_checksum = NONE")
        begin = capture.start()
        capture.reader._history.clear()
        run(sql, "INSERT INTO t VALUES (1, 10)", "RENAME TABLE t TO x", "RENAME TABLE u TO t")
    finally:
        run(sql, "SET GLOBAL binlog_checksum = CRC32")
    capture.start(begin)
    capture.catch_up()  # refused, or with the right names
    assert news(capture) in ([], [{"a": 1, "b": 10}])


def test_a_version_fixed_by_hand_is_the_way_on(
    make_capture: Make,
    sql: Sql,
    state: SqliteState,
    mysql_family: MySqlFamilyServer,
    mysql_family_database: str,
) -> None:
    capture = make_capture(state=state)
    capture.start()
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(10) COLLATE utf8mb4_bin)")
    capture.catch_up()
    begin = capture.resumes[-1]
    run(sql, "INSERT INTO t VALUES (1, 'x')", "DROP TABLE t")
    capture.catch_up()
    (told,) = [event for event in capture.events if isinstance(event, UnsupportedTableSeen)]
    assert told.table == TableName(mysql_family_database, "t")
    assert told.why.reason.startswith("it is gone after ")
    assert told.why.remedy == "SET GLOBAL binlog_row_metadata = 'FULL';"
    assert not news(capture)
    capture.reader.close()
    with connect(mysql_family.url, purpose="test") as connection:
        fix_version(
            connection,
            capture.schemas,
            SchemaHistory(state),
            TableName(mysql_family_database, "t"),
            begin.acknowledge,
            [
                ColumnFact("a", "int", nullable=False),
                ColumnFact("b", "varchar(10)", collation="utf8mb4_bin"),
            ],
            ["a"],
        )
    again = make_capture(state=state, schemas=capture.schemas)
    again.start(begin)
    again.catch_up()
    assert news(again) == [{"a": 1, "b": "x"}]


def test_a_new_event_log_trusts_nothing_of_the_one_before(
    make_capture: Make, sql: Sql, state: SqliteState
) -> None:
    """Its schema store counts anew."""
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY, b INT)", "CREATE TABLE u (a INT PRIMARY KEY)")
    first = make_capture(state=state)
    first.start()
    run(sql, "INSERT INTO t VALUES (1, 1)", "INSERT INTO u VALUES (2)")
    first.catch_up()
    first.reader.close()
    new = make_capture(state=state)
    new.start()
    run(sql, "INSERT INTO u VALUES (3)", "INSERT INTO t VALUES (4, 4)")
    new.catch_up()
    assert news(new) == [{"a": 3}, {"a": 4, "b": 4}]


def test_indexes_and_other_tables_ddl_leave_a_backlog_certain(make_capture: Make, sql: Sql) -> None:
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY, b INT)")
    capture = make_capture()
    capture.start()
    run(
        sql,
        "INSERT INTO t VALUES (1, 2)",
        "CREATE INDEX i ON t (b)",
        "ALTER TABLE t COMMENT = 'add column x'",
        "CREATE TABLE u (a INT PRIMARY KEY)",
        "ALTER TABLE u ADD COLUMN b INT",
        "INSERT INTO t VALUES (3, 4)",
    )
    capture.catch_up()
    assert news(capture) == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert capture.unlogged == []


def test_tables_swapped_by_rename_are_dumped_again(
    capture: LogCapture, sql: Sql, mysql_family_database: str
) -> None:
    """As gh-ost and pt-online-schema-change do it."""
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY)", "CREATE TABLE t_new (a INT PRIMARY KEY, b INT)")
    capture.start()
    run(sql, "INSERT INTO t VALUES (1)", "INSERT INTO t_new VALUES (1, 1)")
    capture.catch_up()
    run(sql, "RENAME TABLE t TO t_old, t_new TO t", "INSERT INTO t VALUES (2, 2)")
    capture.catch_up()
    assert news(capture) == [{"a": 1}, {"a": 1, "b": 1}, {"a": 2, "b": 2}]
    assert f"{mysql_family_database}.t" in [str(e.table) for e in capture.unlogged]


@pytest.mark.parametrize("noted", [True, False])
def test_a_surrogate_key_goes_by_the_name_that_a_table_was_given(
    noted: bool, make_capture: Make, sql: Sql, mysql_family_database: str
) -> None:
    """Whether the tables were known before they were swapped, or are looked up afterwards."""
    run(sql, "CREATE TABLE t (a INT NOT NULL)", "CREATE TABLE t_new (a INT NOT NULL, b INT)")
    capture = make_capture(keys={f"{mysql_family_database}.t": ["a"]})
    capture.start()
    if not noted:
        capture.reader._history.clear()
    run(sql, "INSERT INTO t VALUES (1)", "INSERT INTO t_new VALUES (1, 1)")
    if noted:
        capture.catch_up()
    run(sql, "RENAME TABLE t TO t_old, t_new TO t", "INSERT INTO t VALUES (2, 2)")
    capture.catch_up()
    assert news(capture) == [{"a": 1}, {"a": 1, "b": 1}, {"a": 2, "b": 2}]
    found = [
        (seen.schema.table.name, seen.schema.column_names, seen.schema.key)
        for seen in capture.seen_schemas
    ]
    assert found == [
        ("t", ("a",), ("a",)),
        ("t_new", ("a", "b"), ()),
        ("t", ("a", "b"), ("a",)),
    ]


def test_a_primary_key_is_seen_to_come_and_go(capture: LogCapture, sql: Sql) -> None:
    run(sql, "CREATE TABLE t (a INT NOT NULL)")
    capture.start()
    for number, statement in enumerate(
        (
            "ALTER TABLE t ADD CONSTRAINT p PRIMARY KEY (a)",
            "DROP INDEX `PRIMARY` ON t",
            "ALTER TABLE t ADD CONSTRAINT PRIMARY KEY (a)",
            "ALTER TABLE t DROP KEY `PRIMARY`",
        )
    ):
        run(sql, f"INSERT INTO t VALUES ({number})")
        capture.catch_up()
        run(sql, statement)
    run(sql, "INSERT INTO t VALUES (4)")
    capture.catch_up()
    assert [seen.schema.key for seen in capture.seen_schemas] == [(), ("a",), (), ("a",), ()]


def test_a_surrogate_key_that_is_named_later_holds_for_known_tables(
    make_capture: Make, sql: Sql, state: SqliteState, mysql_family_database: str
) -> None:
    run(sql, "CREATE TABLE t (a INT NOT NULL)")
    first = make_capture(state=state)
    first.start()
    run(sql, "INSERT INTO t VALUES (1)")
    first.catch_up()
    first.reader.close()
    keys = {f"{mysql_family_database}.t": ["a"]}
    again = make_capture(state=state, schemas=first.schemas, keys=keys)
    again.start(first.resumes[-1])
    run(sql, "INSERT INTO t VALUES (2)")
    again.catch_up()
    assert [seen.schema.key for seen in first.seen_schemas + again.seen_schemas] == [(), ("a",)]


def test_a_recreated_table_is_dumped_again(capture: LogCapture, sql: Sql) -> None:
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    capture.start()
    run(sql, "INSERT INTO t VALUES (2)")
    capture.catch_up()
    run(sql, "CREATE TABLE IF NOT EXISTS t (a INT PRIMARY KEY)")
    capture.catch_up()
    assert capture.unlogged == []
    run(sql, "DROP TABLE t", "CREATE TABLE IF NOT EXISTS t (z INT PRIMARY KEY)")
    run(sql, "INSERT INTO t VALUES (7)")
    capture.catch_up()
    assert news(capture)[-1] == {"z": 7}
    assert [e.reason for e in capture.unlogged] == ["the table was dropped and recreated"]


@pytest.mark.parametrize("down", [False, True], ids=["running", "down"])
@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        (("DROP COLUMN b, ADD COLUMN B INT",), "a column was dropped and added again"),
        (("DROP b", "ADD b INT"), "a column was dropped and added again"),
        (("DROP b", "ADD c INT", "ADD (d INT, `b` INT)"), "a column was dropped and added again"),
        (("RENAME COLUMN b TO c",), "a column was renamed"),
        (("DROP b, ADD c INT", "DROP c"), None),
    ],
    ids=["one statement", "two statements", "in a list", "renamed", "other names"],
)
def test_names_that_stand_for_other_columns_are_dumped_again(
    make_capture: Make,
    sql: Sql,
    state: SqliteState,
    statements: tuple[str, ...],
    reason: str | None,
    down: bool,
) -> None:
    """Without a row written since: what was copied before has values under these names."""
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY, b INT)")
    capture = make_capture(state=state)
    begin = capture.start()
    run(sql, "INSERT INTO t VALUES (1, 2)")
    capture.catch_up()
    if down:
        capture.reader.close()
        begin = capture.resumes[-1]
    run(sql, *(f"ALTER TABLE t {statement}" for statement in statements))
    if down:
        capture = make_capture(schemas=capture.schemas, state=state)
        capture.start(begin)
    capture.catch_up()
    assert [e.reason for e in capture.unlogged] == ([] if reason is None else [reason])


def select_may_make_tables(capture: LogCapture) -> None:
    if capture.server.flavor == "mysql":
        pytest.skip("before 8.0.21 MySQL refuses CREATE TABLE … SELECT where it has GTIDs")


def test_table_made_of_a_select_has_its_own_columns(capture: LogCapture, sql: Sql) -> None:
    """Of one group are the statement and the rows in MariaDB, as in MySQL 8.0.21 and later; no
    statement stands between them and what `information_schema` says now.
    """
    select_may_make_tables(capture)
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY, b INT)", "INSERT INTO t VALUES (1, 2), (3, 4)")
    capture.start()
    run(sql, "CREATE TABLE u (PRIMARY KEY (a)) SELECT a, b AS c FROM t")
    run(sql, "CREATE TABLE IF NOT EXISTS v SELECT 7 AS d")
    capture.catch_up()
    assert news(capture) == [{"a": 1, "c": 2}, {"a": 3, "c": 4}, {"d": 7}]
    run(sql, "CREATE OR REPLACE TABLE u (PRIMARY KEY (e)) SELECT a AS e FROM t")
    run(sql, "CREATE OR REPLACE TABLE w (PRIMARY KEY (f)) SELECT b AS f FROM t")
    capture.catch_up()
    assert news(capture)[3:] == [{"e": 1}, {"e": 3}, {"f": 2}, {"f": 4}]
    reasons = {str(e.table)[-1:]: e.reason for e in capture.unlogged}
    assert reasons == dict.fromkeys("uw", "the table was replaced by a new one")


def test_table_of_a_select_that_was_altered_since_is_refused(capture: LogCapture, sql: Sql) -> None:
    """The statement of the rows' own group does not count, those behind it do."""
    select_may_make_tables(capture)
    capture.start()
    run(sql, "CREATE TABLE u (PRIMARY KEY (a)) SELECT 1 AS a, 2 AS b")
    run(sql, "ALTER TABLE u CHANGE b c INT")
    capture.catch_up()
    assert [reason.split(" after ")[0] for reason in refusals(capture)] == ["it was altered"]
    assert capture.rows == []


def test_partitions_that_lose_rows_are_dumped_again(capture: LogCapture, sql: Sql) -> None:
    run(
        sql,
        "CREATE TABLE t (a INT PRIMARY KEY) PARTITION BY RANGE (a) "
        "(PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))",
        "CREATE TABLE u (a INT PRIMARY KEY)",
        "INSERT INTO t VALUES (1), (11)",
    )
    capture.start()
    run(
        sql,
        "ALTER TABLE t TRUNCATE PARTITION p0",
        "ALTER TABLE t EXCHANGE PARTITION p1 WITH TABLE u",
        "ALTER TABLE t ADD PARTITION (PARTITION p2 VALUES LESS THAN (30))",
        "ALTER TABLE t DROP PARTITION p0",
    )
    capture.catch_up()
    assert [str(e.table).split(".")[1] for e in capture.unlogged] == ["t", "t", "u", "t"]
    assert capture.rows == []


def test_statements_instead_of_rows_have_their_table_dumped(capture: LogCapture, sql: Sql) -> None:
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY, b INT)")
    capture.start()
    run(sql, "SET SESSION binlog_format = STATEMENT", "INSERT INTO t VALUES (1, 2)")
    capture.catch_up()
    assert [event.table.name for event in capture.unlogged] == ["t"]


@pytest.mark.parametrize(
    "statement",
    [
        "SET STATEMENT max_statement_time=10 FOR INSERT INTO t VALUES (1)",
        "ANALYZE UPDATE t SET a = 2",
        "/*M!100100 INSERT INTO t VALUES (1) */",
    ],
)
def test_mariadbs_statements_instead_of_rows_have_their_table_dumped(
    statement: str, mariadb_server: MySqlFamilyServer, mariadb_database: str
) -> None:
    capture = LogCapture(mariadb_server, (f"{mariadb_database}.*",))
    with mariadb_server.connect(mariadb_database) as connection:
        run(connection, "CREATE TABLE t (a INT PRIMARY KEY)", "INSERT INTO t VALUES (7)")
        capture.start()
        run(connection, "SET SESSION binlog_format = STATEMENT", statement)
        capture.catch_up()
    assert [event.table.name for event in capture.unlogged] == ["t"]
    capture.reader.close()


@pytest.mark.parametrize(
    "statement",
    [
        "SET STATEMENT max_statement_time=10 FOR TRUNCATE TABLE t",
        "/*M!100100 TRUNCATE TABLE t */",
    ],
)
def test_a_truncate_is_seen_however_it_is_written(
    statement: str, mariadb_server: MySqlFamilyServer, mariadb_database: str
) -> None:
    capture = LogCapture(mariadb_server, (f"{mariadb_database}.*",))
    with mariadb_server.connect(mariadb_database) as connection:
        run(connection, "CREATE TABLE t (a INT PRIMARY KEY)", "INSERT INTO t VALUES (7)")
        capture.start()
        run(connection, statement, "INSERT INTO t VALUES (8)")
        capture.catch_up()
    capture.reader.close()
    assert [(row.kind, row.new) for row in capture.rows] == [("T", None), ("I", {"a": 8})]


@pytest.mark.parametrize("form", ["STATEMENT", "MIXED"])
def test_a_table_made_of_a_select_is_dumped_where_the_log_holds_the_statement(
    form: str, mariadb_server: MySqlFamilyServer, mariadb_database: str
) -> None:
    capture = LogCapture(mariadb_server, (f"{mariadb_database}.*",))
    with mariadb_server.connect(mariadb_database) as connection:
        run(connection, "CREATE TABLE t (a INT PRIMARY KEY)", "INSERT INTO t VALUES (7)")
        capture.start()
        run(connection, f"SET SESSION binlog_format = {form}", "CREATE TABLE u SELECT a FROM t")
        capture.catch_up()
    capture.reader.close()
    told = [(event.table.name, event.reason) for event in capture.unlogged]
    assert told == [("u", "the log holds the statement that made its rows, and not them")]


def test_statements_of_tables_not_captured_are_passed_over(
    make_capture: Make, sql: Sql, mysql_family_database: str
) -> None:
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY)", "CREATE TABLE u (a INT PRIMARY KEY)")
    capture = make_capture(tables=(f"{mysql_family_database}.t",))
    capture.start()
    run(
        sql,
        "SET SESSION binlog_format = STATEMENT",
        "INSERT INTO u VALUES (1)",
        "SET SESSION binlog_format = ROW",
        "INSERT INTO t VALUES (1)",
    )
    capture.catch_up()
    assert news(capture) == [{"a": 1}]


TYPES = """
  a BIGINT UNSIGNED AUTO_INCREMENT, t1 TINYINT(1), t2 SMALLINT UNSIGNED NOT NULL, t3 MEDIUMINT,
  t4 INT UNSIGNED ZEROFILL, d1 DECIMAL(30,10), d2 DECIMAL(5) UNSIGNED, f1 FLOAT, f2 DOUBLE,
  b1 BIT(1), b2 BIT(33), y YEAR, d DATE, tm TIME(3), dt DATETIME, dt6 DATETIME(6),
  ts TIMESTAMP(2) NULL, c1 CHAR(10) CHARACTER SET latin1, c2 CHAR(200) CHARACTER SET utf8mb4,
  v1 VARCHAR(20) CHARACTER SET utf8mb4, v2 VARCHAR(300) CHARACTER SET latin1 COLLATE latin1_bin,
  x1 TINYTEXT, x2 TEXT, x3 MEDIUMTEXT, x4 LONGTEXT, bi BINARY(16), vb VARBINARY(300),
  o1 TINYBLOB, o2 BLOB, o3 MEDIUMBLOB, o4 LONGBLOB, j JSON,
  e ENUM('a','it''s','ü') CHARACTER SET utf8mb4, s SET('x','y','z') CHARACTER SET latin1,
  g GEOMETRY, p POINT, g1 INT AS (t3 + 1) VIRTUAL, g2 INT AS (t3 + 2) STORED,
  PRIMARY KEY (t2, a), KEY (a)
"""


@pytest.mark.parametrize("metadata", ["MINIMAL", "FULL"])
def test_every_type_in_the_catalogue_fits_its_table_map(
    metadata: str, mysql_family: MySqlFamilyServer, mysql_family_database: str, sql: Sql
) -> None:
    run(sql, f"CREATE TABLE t ({TYPES})")
    capture = LogCapture(mysql_family, (f"{mysql_family_database}.t",), keep_rows=False)
    mysql_family.execute(f"SET GLOBAL binlog_row_metadata = {metadata}")
    try:
        with mysql_family.connect(mysql_family_database) as fresh:
            capture.start()
            run(fresh, "INSERT INTO t (t2, t3) VALUES (1, 2)")
            capture.catch_up()
    finally:
        mysql_family.execute("SET GLOBAL binlog_row_metadata = DEFAULT")
        capture.reader.close()
    assert capture.count == 1
    with connect(mysql_family.url, purpose="test") as connection:
        found = MySqlSchemaFinder().find(connection, TableName(mysql_family_database, "t"))
    assert found is not None
    assert [s.schema for s in capture.seen_schemas] == [found.schema.numbered(1)]
    assert found.schema.key == ("t2", "a")


def test_full_metadata_tells_a_dropped_tables_columns(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    schemas = NullRegistry()
    capture = LogCapture(mysql_family, (f"{mysql_family_database}.*",), schemas)
    mysql_family.execute("SET GLOBAL binlog_row_metadata = FULL")
    try:
        with mysql_family.connect(mysql_family_database) as fresh:
            capture.start()
            run(
                fresh,
                "CREATE TABLE t (b INT, a VARCHAR(5) CHARACTER SET latin1, "
                "e ENUM('p', 'q') CHARACTER SET utf8mb4, PRIMARY KEY (a, b))",
                "INSERT INTO t (b, a) VALUES (1, 'x')",
                "ALTER TABLE t CHANGE b c INT",
                "INSERT INTO t (c, a) VALUES (2, 'x')",
                "DROP TABLE t",
            )
            capture.catch_up()
    finally:
        mysql_family.execute("SET GLOBAL binlog_row_metadata = DEFAULT")
        capture.reader.close()
    assert news(capture) == [{"b": 1, "a": "x", "e": None}, {"c": 2, "a": "x", "e": None}]
    assert [s.schema.key for s in capture.seen_schemas] == [("a", "b"), ("a", "c")]


def test_mariadb_sequences_are_no_tables(mariadb_server: MySqlFamilyServer) -> None:
    mariadb_server.create_database("sequences")
    capture = LogCapture(mariadb_server, ("sequences.*",))
    with mariadb_server.connect("sequences") as connection:
        run(connection, "CREATE TABLE t (a INT PRIMARY KEY)", "CREATE SEQUENCE s")
        capture.start()
        run(connection, "SELECT NEXTVAL(s)", "INSERT INTO t VALUES (NEXTVAL(s))")
        capture.catch_up()
        run(connection, "CREATE SEQUENCE u", "SELECT NEXTVAL(u)", "DROP SEQUENCE u")
        capture.catch_up()
    capture.reader.close()
    mariadb_server.drop_database("sequences")
    assert news(capture) == [{"a": 2}]
