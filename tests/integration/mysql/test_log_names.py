"""Names of tables in the log: in any case, with any character."""

from __future__ import annotations

import pytest
from tests.integration.mysql.log_capture import LogCapture

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
