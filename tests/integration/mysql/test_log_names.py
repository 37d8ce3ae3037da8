"""Names of tables in the log: in any case, with any character."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.mysql.log_capture import LogCapture
from tests.integration.mysql.test_log_reader import run

from tidelog.sources.mysql import log_reader
from tidelog.sources.mysql.marks import write_mark
from tidelog.testing.mysql import MariaDbServer

pytestmark = pytest.mark.integration


def test_names_are_found_in_any_case_where_the_server_takes_them_so() -> None:
    with MariaDbServer(settings={"lower_case_table_names": 1}) as server:
        server.execute("CREATE DATABASE Shop")
        server.execute("CREATE TABLE Shop.Orders (a INT PRIMARY KEY)")
        server.execute("CREATE TABLE Shop.Signals (id TEXT, type TEXT, data TEXT)")
        options = {"watermark_schema": "Tidelog", "signal_table": "Shop.Signals"}
        capture = LogCapture(server, ("Shop.*",), options=options)
        try:
            capture.start()
            server.execute("INSERT INTO shop.ORDERS VALUES (1)")
            server.execute("INSERT INTO Shop.Signals VALUES ('1', 'log', '{}')")
            write_mark(capture.reader._connected(), "Tidelog", "low")
            server.execute("INSERT INTO Shop.Orders VALUES (2)")
            capture.catch_up()
        finally:
            capture.reader.close()
    assert [(row.table, row.new) for row in capture.rows] == [
        ("shop.orders", {"a": 1}),
        ("shop.orders", {"a": 2}),
    ]
    assert capture.marks == ["low"]
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
