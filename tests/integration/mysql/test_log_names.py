"""Names of tables in the log: in any case, with any character."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.integration.mysql.log_capture import LogCapture
from tests.integration.mysql.test_log_reader import run
from tests.support.mysql import MariaDbServer

from tidelog.app import check
from tidelog.config import load_config
from tidelog.sources.mysql.chunks.watermarks import commit_watermark
from tidelog.sources.mysql.stream import log_reader

pytestmark = pytest.mark.integration


def test_names_are_found_in_any_case_where_the_server_takes_them_so(tmp_path: Path) -> None:
    with MariaDbServer(settings={"lower_case_table_names": 1}) as server:
        server.execute("CREATE DATABASE Shop")
        server.execute("CREATE TABLE Shop.Orders (a INT PRIMARY KEY)")
        server.execute("CREATE TABLE Shop.Keyless (a INT)")
        server.execute("CREATE TABLE Shop.Signals (id TEXT, type TEXT, data TEXT)")
        options = {"watermark_schema": "Tidelog", "signal_table": "Shop.Signals"}
        capture = LogCapture(server, ("Shop.*",), options=options)
        try:
            capture.start()
            server.execute("INSERT INTO shop.ORDERS VALUES (1)")
            server.execute("INSERT INTO Shop.Signals VALUES ('1', 'log', '{}')")
            commit_watermark(capture.reader._get_connection(), "Tidelog", "low")
            server.execute("INSERT INTO Shop.Orders VALUES (2)")
            capture.catch_up()
        finally:
            capture.reader.close()
        file = tmp_path / "tidelog.yaml"
        file.write_text(
            f"source: {{kind: mariadb, url: '{server.dsn()}', tables: [Shop.*],\n"
            "  keys: {shop.keyless: [lost]}}\n"
            f"log: {{path: {tmp_path}/log}}\nstate: {{url: 'sqlite:///{tmp_path}/state.db'}}\n"
            f"outputs: [{{kind: files, path: {tmp_path}/out, tables: [Shop.Orders]}}]\n"
        )
        found = {
            each["message"]: each["fix"]
            for each in [each.to_dict() for each in check(load_config(file))]
        }
    assert any("names columns that it does not have: lost;" in message for message in found)
    # Outputs know the log's names alone, which are as the server lists them.
    told = found["tables of output files: no captured table matches 'Shop.Orders', others do"]
    assert told.startswith("did you mean shop.orders? Correct it, or leave it if")
    assert [(row.table, row.new) for row in capture.rows] == [
        ("shop.orders", {"a": 1}),
        ("shop.orders", {"a": 2}),
    ]
    assert capture.watermarks == ["low"]
    assert [signal.signal_id for signal in capture.signals] == ["1"]


def test_tables_opened_again_and_again_do_not_add_up(
    capture: LogCapture, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time the server opens a table, its rows have another table id."""
    monkeypatch.setattr(log_reader, "MOST_TABLES", 3)
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY)")
    capture.start()
    for number in range(12):
        run(sql, f"INSERT INTO t VALUES ({number})", "FLUSH TABLES t")
        capture.catch_up()
    scanner = capture.reader._scanner
    assert scanner is not None
    assert scanner.tables <= 4
    assert [row.new for row in capture.rows] == [{"a": number} for number in range(12)]
    assert len(capture.seen_schemas) == 1


@pytest.mark.parametrize(
    ("charset", "codec", "name"),
    [
        ("utf8mb4", "utf-8", "tü表"),
        ("latin1", "cp1252", "tü"),
        ("cp1251", "cp1251", "таб"),
        ("gbk", "gbk", "表誠"),  # the last byte is a backslash
        ("sjis", "shift_jis", "表ソ"),  # of both characters
        ("big5", "big5", "功許"),
        ("ujis", "euc_jp", "表"),
    ],
)
def test_statements_are_read_in_the_clients_character_set(
    charset: str, codec: str, name: str, capture: LogCapture, sql: Any
) -> None:
    run(sql, f"SET NAMES {charset}")
    sql.query(f"CREATE TABLE {name} (a INT PRIMARY KEY)".encode(codec))
    capture.start()
    for statement in (
        f"INSERT INTO {name} VALUES (1)",
        f"TRUNCATE TABLE {name}",
        f"ALTER TABLE {name} ADD {name} INT DEFAULT 2",
        f"INSERT INTO {name} VALUES (3, 4)",
    ):
        sql.query(statement.encode(codec))
    capture.catch_up()
    if capture.server.flavor == "mariadb":  # which writes these statements itself, in UTF-8
        sql.query(f"CREATE TABLE {name}2 (PRIMARY KEY (a)) SELECT * FROM {name}".encode(codec))
        capture.catch_up()
        sql.query(f"CREATE OR REPLACE TABLE {name}2 SELECT 5 AS {name}".encode(codec))
        capture.catch_up()
        assert [row.new for row in capture.rows[3:]] == [{"a": 3, name: 4}, {name: 5}]
    rows = [(row.kind, row.table.split(".")[1], row.new) for row in capture.rows[:3]]
    assert rows == [("I", name, {"a": 1}), ("T", name, None), ("I", name, {"a": 3, name: 4})]
    added, *replaced = [(event.table.name, event.reason) for event in capture.unlogged]
    assert added == (name, "a column with values in it was added")
    assert replaced in ([], [(f"{name}2", "the table was replaced by a new one")])


def test_statements_are_read_by_the_sessions_sql_mode(capture: LogCapture, sql: Any) -> None:
    run(sql, "SET sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES'")
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY)", 'CREATE TABLE "u\\" (a INT PRIMARY KEY)')
    capture.start()
    run(sql, "INSERT INTO t VALUES (1)", 'INSERT INTO "u\\" VALUES (1)')
    capture.catch_up()
    run(
        sql,
        r"""ALTER TABLE t COMMENT '\', ADD COLUMN d INT DEFAULT 3 COMMENT '\'""",
        "INSERT INTO t VALUES (2, 2)",
        'TRUNCATE TABLE "u\\"',
    )
    capture.catch_up()
    assert [row.new for row in capture.rows] == [{"a": 1}, {"a": 1}, {"a": 2, "d": 2}, None]
    assert [event.reason for event in capture.unlogged] == ["a column with values in it was added"]
