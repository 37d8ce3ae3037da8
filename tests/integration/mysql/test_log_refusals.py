"""Tables that the log can't be read of are named, by `check` and by capture, with the way on."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.mysql.log_capture import LogCapture
from tests.integration.mysql.test_log_reader import run
from tests.integration.mysql.test_preflight import check, faults, setting
from tests.support.mysql import MariaDbServer, MySqlServer

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.binlog import scanner as binlog_tables
from tidelog.errors import GapError
from tidelog.model.schema import TableName
from tidelog.ports import UnsupportedTableSeen
from tidelog.sources.mysql.connect import connect
from tidelog.sources.mysql.stream import log_tables, schema_history
from tidelog.sources.mysql.stream.schema_history import SchemaHistory
from tidelog.state.sqlite import SqliteState

pytestmark = pytest.mark.integration

Make = Callable[..., LogCapture]


@pytest.fixture(params=["MINIMAL", "FULL"])
def metadata(request: pytest.FixtureRequest, mariadb_server: MariaDbServer) -> Iterator[str]:
    mariadb_server.execute(f"SET GLOBAL binlog_row_metadata = {request.param}")
    yield request.param
    mariadb_server.execute("SET GLOBAL binlog_row_metadata = MINIMAL")


def refusals(capture: LogCapture) -> list[UnsupportedTableSeen]:
    return [event for event in capture.events if isinstance(event, UnsupportedTableSeen)]


def news(capture: LogCapture) -> list[Any]:
    return [row.new for row in capture.rows]


@pytest.mark.parametrize(
    "columns",
    [
        "",
        "ADD COLUMN s TIMESTAMP(6) GENERATED ALWAYS AS ROW START, "
        "ADD COLUMN e TIMESTAMP(6) GENERATED ALWAYS AS ROW END, ADD PERIOD FOR SYSTEM_TIME (s, e),",
    ],
    ids=["hidden", "named"],
)
def test_table_that_becomes_system_versioned_is_refused_from_there_on(
    mariadb_server: MariaDbServer, mariadb_database: str, metadata: str, columns: str
) -> None:
    """Its old rows are logged as inserts: none of them may pass for a row of now."""
    mariadb_server.execute("CREATE TABLE v (a INT PRIMARY KEY, b INT)", mariadb_database)
    capture = LogCapture(mariadb_server, tables=(f"{mariadb_database}.*",))
    capture.start()
    for statement in (
        "INSERT INTO v VALUES (1, 1)",
        f"ALTER TABLE v {columns} ADD SYSTEM VERSIONING",
        "UPDATE v SET b = 2",
        "DELETE FROM v",
    ):
        mariadb_server.execute(statement, mariadb_database)
    capture.catch_up()
    assert news(capture) == [{"a": 1, "b": 1}]
    assert "system-versioned" in refusals(capture)[0].why.reason
    capture.reader.close()


def test_system_versioned_table_is_refused_by_name(
    mariadb_server: MariaDbServer, mariadb_database: str, metadata: str
) -> None:
    mariadb_server.execute(
        "CREATE TABLE v (a INT PRIMARY KEY, b INT) WITH SYSTEM VERSIONING", mariadb_database
    )
    found = faults(check(mariadb_server, mariadb_database))[f"table {mariadb_database}.v"]
    assert (found.level, found.by_hand) == ("error", True)
    assert found.message.startswith("it is system-versioned")
    assert found.fix == f"ALTER TABLE `{mariadb_database}`.`v` DROP SYSTEM VERSIONING;"
    capture = LogCapture(mariadb_server, tables=(f"{mariadb_database}.*",))
    capture.start()
    mariadb_server.execute("INSERT INTO v VALUES (1, 1)", mariadb_database)
    capture.catch_up()
    (told,) = refusals(capture)
    assert told.table == TableName(mariadb_database, "v")
    assert "system-versioned" in told.why.reason
    assert told.why.remedy == f"ALTER TABLE `{mariadb_database}`.`v` DROP SYSTEM VERSIONING;"
    assert news(capture) == []
    mariadb_server.execute("SET @@system_versioning_alter_history = 1", mariadb_database)
    mariadb_server.execute(told.why.remedy, mariadb_database)
    mariadb_server.execute("INSERT INTO v VALUES (2, 2)", mariadb_database)
    capture.catch_up()
    assert news(capture) == [{"a": 2, "b": 2}]
    assert told.table in {event.table for event in capture.unlogged}
    capture.reader.close()


@pytest.mark.parametrize("full", [False, True])
def test_index_of_an_expression_is_named_where_the_log_shows_its_column(full: bool) -> None:
    settings = {"binlog_row_metadata": "FULL" if full else "MINIMAL"}
    with MySqlServer("8.0.15", settings) as server:
        server.create_database("d")
        server.execute("CREATE TABLE d.f (a INT PRIMARY KEY, b INT, KEY ab ((a + b)))")
        found = faults(check(server, "d"))["table d.f"]
        assert found.level == "error"
        assert "DROP INDEX `ab`" in found.message
        capture = LogCapture(server, tables=("d.*",))
        capture.start()
        server.execute("INSERT INTO d.f VALUES (1, 1)")
        capture.catch_up()
        (told,) = refusals(capture)
        assert re.search(r"d\.f has an index of an expression .*`ab`", told.why.reason)
        capture.reader.close()


def test_a_type_that_is_not_known_matters_only_in_captured_tables(
    make_capture: Make, sql: Any, mysql_family_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if points were newer than Tidelog is."""
    known = binlog_tables.KNOWN_TYPES - {types.GEOMETRY}
    monkeypatch.setattr(binlog_tables, "KNOWN_TYPES", known)
    run(
        sql,
        "CREATE TABLE t (a INT PRIMARY KEY)",
        "CREATE TABLE u (a INT PRIMARY KEY, p POINT, v VARCHAR(300))",
    )
    capture = make_capture(tables=(f"{mysql_family_database}.t",))
    capture.start()
    run(
        sql,
        "INSERT INTO u VALUES (1, POINT(1, 2), 'x'), (2, NULL, REPEAT('x', 300))",
        "INSERT INTO t VALUES (1)",
        "BEGIN",
        "UPDATE u SET v = 'y', p = POINT(3, 4)",
        "INSERT INTO t VALUES (2)",
        "DELETE FROM u",
        "INSERT INTO t VALUES (3)",
        "COMMIT",
    )
    capture.catch_up()
    assert news(capture) == [{"a": 1}, {"a": 2}, {"a": 3}]
    capture.reader.close()
    again = make_capture()
    again.start()
    run(sql, "INSERT INTO u VALUES (1, POINT(1, 2), 'x')", "INSERT INTO t VALUES (4)")
    again.catch_up()
    (told,) = refusals(again)
    assert told.table == TableName(mysql_family_database, "u")
    assert "the binlog's type 255: " in told.why.reason
    assert "source.tables" in told.why.reason
    assert news(again) == [{"a": 4}]
    run(sql, "ALTER TABLE u DROP COLUMN p", "INSERT INTO u VALUES (5, 'y')")
    again.catch_up()
    assert news(again) == [{"a": 4}, {"a": 5, "v": "y"}]
    assert told.table in {event.table for event in again.unlogged}


@pytest.mark.parametrize("captured", [False, True])
def test_optional_metadata_that_can_not_be_read_matters_only_in_captured_tables(
    make_capture: Make,
    sql: Any,
    mysql_family_database: str,
    monkeypatch: pytest.MonkeyPatch,
    mysql_family: Any,
    captured: bool,
) -> None:
    """As if the server counted blobs among the columns with a character set; Tidelog does not."""
    with setting(mysql_family, "binlog_row_metadata", "MINIMAL"):  # MariaDB's default is none
        _read_with_other_character_sets(
            make_capture, sql, mysql_family_database, monkeypatch, captured
        )


def _read_with_other_character_sets(
    make_capture: Make, sql: Any, name: str, monkeypatch: pytest.MonkeyPatch, captured: bool
) -> None:
    monkeypatch.setattr(log_tables, "RETRY_REFUSED_S", 0.0)
    charsets = types.CHARSETS
    fewer = {flavor: codes - {types.BLOB} for flavor, codes in charsets.items()}
    monkeypatch.setattr(types, "CHARSETS", fewer)
    run(
        sql,
        "CREATE TABLE t (a INT PRIMARY KEY)",
        "CREATE TABLE u (a INT PRIMARY KEY, b BLOB, v VARCHAR(300) CHARACTER SET latin1)",
    )
    capture = make_capture(tables=(f"{name}.*" if captured else f"{name}.t",))
    capture.start()
    run(
        sql,
        "INSERT INTO u VALUES (1, 'x', 'y'), (2, NULL, NULL)",
        "INSERT INTO t VALUES (1)",
        "BEGIN",
        "UPDATE u SET v = 'y', b = 'z'",
        "INSERT INTO t VALUES (2)",
        "DELETE FROM u WHERE a = 1",
        "COMMIT",
    )
    capture.catch_up()
    assert news(capture) == [{"a": 1}, {"a": 2}]
    assert [row.ordinal for row in capture.rows] == [0, 2]
    told = {event.table: event.why.reason for event in refusals(capture)}
    assert set(told) == ({TableName(name, "u")} if captured else set())
    if captured:
        assert "the optional metadata (character sets) can't be read" in told[TableName(name, "u")]
        monkeypatch.setattr(types, "CHARSETS", charsets)
        run(sql, "INSERT INTO u VALUES (3, 'x', 'y')", "INSERT INTO t VALUES (3)")
        capture.catch_up()
        assert news(capture)[2:] == [{"a": 3, "b": "x", "v": "y"}, {"a": 3}]
        assert TableName(name, "u") in {event.table for event in capture.unlogged}


def test_table_that_may_not_be_read_holds_up_no_other(
    mysql_family: Any, mysql_family_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_tables, "RETRY_REFUSED_S", 0.0)
    server, name = mysql_family, mysql_family_database
    server.execute("CREATE TABLE t (a INT PRIMARY KEY)", name)
    server.execute("CREATE USER 'few'@'%' IDENTIFIED BY 'few'")
    server.execute("GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'few'@'%'")
    if server.flavor == "mariadb":
        server.execute("GRANT BINLOG MONITOR ON *.* TO 'few'@'%'")
    server.execute(f"GRANT SELECT ON {name}.t TO 'few'@'%'")
    capture = LogCapture(server, tables=(f"{name}.*",), url=server.dsn(user="few", password="few"))
    try:
        capture.start()
        server.execute("CREATE TABLE hidden (a INT PRIMARY KEY)", name)
        server.execute("INSERT INTO hidden VALUES (1)", name)
        server.execute("INSERT INTO t VALUES (1)", name)
        capture.catch_up()
        (told,) = {event.table: event for event in refusals(capture)}.values()
        assert told.table == TableName(name, "hidden")
        assert str(told.why.remedy).startswith(f"GRANT SELECT ON `{name}`.`hidden` TO")
        assert news(capture) == [{"a": 1}]
        server.execute(f"GRANT SELECT ON {name}.hidden TO 'few'@'%'")
        server.execute("INSERT INTO t VALUES (2)", name)
        capture.catch_up()
        server.execute("INSERT INTO hidden VALUES (2)", name)
        capture.catch_up()
        assert news(capture) == [{"a": 1}, {"a": 2}, {"a": 2}]
        assert [event.table for event in capture.unlogged] == [told.table]
    finally:
        capture.reader.close()
        server.execute("DROP USER 'few'@'%'")


def test_alter_in_two_phases_acts_when_it_commits(
    mariadb_server: MariaDbServer, mariadb_database: str, metadata: str
) -> None:
    sql = mariadb_server.connect(mariadb_database)
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY, b INT)", "INSERT INTO t VALUES (1, 1), (2, 1)")
    capture = LogCapture(mariadb_server, tables=(f"{mariadb_database}.*",))
    capture.start()
    run(sql, "SET SESSION binlog_alter_two_phase = 1", "INSERT INTO t VALUES (3, 3)")
    with pytest.raises(Exception, match="Duplicate"):
        run(sql, "ALTER TABLE t ADD COLUMN c INT DEFAULT 7, ADD UNIQUE (b)")
    run(sql, "INSERT INTO t VALUES (4, 4)")
    capture.catch_up()
    assert capture.unlogged == []
    run(sql, "ALTER TABLE t ADD COLUMN z INT DEFAULT 3", "INSERT INTO t VALUES (5, 5, 5)")
    capture.catch_up()
    assert news(capture)[-1] == {"a": 5, "b": 5, "z": 5}
    assert [news(capture)[0], news(capture)[1]] == [{"a": 3, "b": 3}, {"a": 4, "b": 4}]
    assert [event.table.name for event in capture.unlogged] == ["t"]
    capture.reader.close()
    sql.close()


def test_binlog_that_ends_within_an_event_is_a_gap() -> None:
    with MariaDbServer() as server:
        server.create_database("d")
        server.execute("CREATE TABLE d.t (a INT PRIMARY KEY)")
        capture = LogCapture(server, tables=("d.*",))
        begin = capture.start()
        server.execute("INSERT INTO d.t VALUES (1)")
        capture.catch_up()
        capture.reader.close()
        server.execute("INSERT INTO d.t VALUES (2)")
        name, _ = server.binlog_end()
        server.kill()
        path = server.data_dir / name
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 45)
        server.start()
        server.execute("INSERT INTO d.t VALUES (3)")
        capture.start(begin)
        with pytest.raises(
            GapError, match=r"ends in the middle of an event .*tidelog reset CONFIG.*when_needed"
        ):
            capture.catch_up()
        capture.reader.close()


def test_preferred_tls_loads_no_authorities(
    mariadb_server: MariaDbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("authorities were loaded")

    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", refuse)
    connection = connect(mariadb_server.url, purpose="test", database="")
    assert connection.rows("SHOW STATUS LIKE 'Ssl_cipher'")[0][1]
    connection.close()


def test_table_made_again_if_missing_is_dumped_after_a_restart(
    make_capture: Make, sql: Any, mysql_family_database: str, tmp_path: Path
) -> None:
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY)", "CREATE TABLE o (a INT PRIMARY KEY)")
    state = SqliteState(f"sqlite:///{tmp_path}/state.db")
    first = make_capture(state=state)
    first.start()
    run(sql, "INSERT INTO t VALUES (1)", "DROP TABLE t", "INSERT INTO o VALUES (1)")
    first.catch_up()
    first.reader.close()
    second = make_capture(schemas=first.schemas, state=state)
    begin = second.start(first.resumes[-1])
    again = "CREATE TABLE IF NOT EXISTS t (a INT PRIMARY KEY)"
    run(sql, again, "INSERT INTO t VALUES (2)")
    second.catch_up()
    run(sql, again)
    second.catch_up()
    t = TableName(mysql_family_database, "t")
    assert [event.table for event in second.unlogged] == [t]
    second.reader.close()
    # What was told and not made durable is told again; the second time nothing was made.
    third = make_capture(schemas=first.schemas, state=state)
    third.start(begin)
    third.catch_up()
    assert [event.table for event in third.unlogged] == [t]
    run(sql, again, "INSERT INTO t VALUES (3)")
    third.catch_up()
    assert len(third.unlogged) == 1
    third.reader.close()
    run(sql, f"DROP DATABASE {mysql_family_database}")
    third = make_capture(schemas=first.schemas, state=state)
    third.start(second.resumes[-1])
    third.catch_up()
    third.reader.close()
    fourth = make_capture(schemas=first.schemas, state=state)
    fourth.start(third.resumes[-1])
    run(sql, f"CREATE DATABASE {mysql_family_database}", f"USE {mysql_family_database}")
    run(sql, again, "INSERT INTO t VALUES (4)")
    fourth.catch_up()
    assert [event.table for event in fourth.unlogged] == [t]


def test_dropped_tables_are_forgotten_on_the_safe_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_history, "KEPT_DROPPED", 5)
    state = SqliteState(f"sqlite:///{tmp_path}/state.db")
    noted = SchemaHistory(state)
    tables = [TableName("d", f"t{n}") for n in range(20)]
    assert not noted.note_created(tables[0], 5)
    for at, table in enumerate(tables):
        noted.note_dropped(table, 10 + at)
    assert len(noted._all_dropped()) <= 6
    again = SchemaHistory(state)
    assert again.note_created(tables[0], 100)
    assert again.note_created(tables[19], 101)
    assert again.note_created(tables[0], 100)
    assert not again.note_created(tables[0], 102)
