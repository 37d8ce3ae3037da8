"""GTIDs with tags, which MySQL has since 8.3, in compressed transactions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.integration.mysql.log_capture import LogCapture
from tests.support.mysql import MySqlServer

pytestmark = pytest.mark.integration


@pytest.fixture
def server() -> Iterator[MySqlServer]:
    made = MySqlServer()
    if made.version < (8, 3):
        made.close()
        pytest.skip("before 8.3 MySQL has no tags; `make test-mysql` brings another server")
    made.settings["binlog_transaction_compression"] = True
    with made:
        yield made


def test_transactions_with_tags_are_read_and_gone_on_behind(server: MySqlServer) -> None:
    server.create_database("d")
    with server.connect("d") as session, session.cursor() as sql:

        def tagged(tag: str, statement: str) -> None:
            sql.execute(f"SET GTID_NEXT = 'AUTOMATIC:{tag}'")
            sql.execute(statement)

        sql.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(100))")
        capture = LogCapture(server, ("d.t",))
        capture.start()
        sql.execute("INSERT INTO t VALUES (1, 'a')")
        tagged("blue", "INSERT INTO t VALUES (2, repeat('b', 90))")
        tagged("blue", "UPDATE t SET v = 'z' WHERE id = 1")
        sql.execute("SET GTID_NEXT = 'AUTOMATIC'")
        sql.execute("DELETE FROM t WHERE id = 2")
        tagged("red", "TRUNCATE t")
        capture.catch_up()
        assert [row.kind for row in capture.rows] == ["I", "I", "U", "D", "T"]
        assert ":blue:1-2:red:1" in server.gtid_position()
        resume = capture.resumes[-1]
        capture.reader.close()
        tagged("green", "INSERT INTO t VALUES (3, 'c')")
        again = LogCapture(server, ("d.t",))
        again.start(resume)
        again.catch_up()
        assert [(row.kind, row.new) for row in again.rows] == [("I", {"id": 3, "v": "c"})]
        again.reader.close()
