"""Primary keys that the server makes by itself and hides, which MySQL does since 8.0.30."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.integration.mysql.log_capture import LogCapture

from tidelog.demo.servers.mysql import MySqlServer
from tidelog.model.schema import TableName
from tidelog.sources.mysql.catalogue.tables import MySqlCatalogue

pytestmark = pytest.mark.integration


@pytest.fixture
def server() -> Iterator[MySqlServer]:
    made = MySqlServer()
    if made.version < (8, 0, 30):
        made.close()
        pytest.skip("before 8.0.30 MySQL makes no keys; `make test-mysql` brings another server")
    made.settings["sql_generate_invisible_primary_key"] = True
    made.settings["show_gipk_in_create_table_and_information_schema"] = False
    with made:
        yield made


def test_a_hidden_key_is_a_key_in_the_catalogue_and_in_the_log(server: MySqlServer) -> None:
    server.create_database("d")
    dsn = server.create_user("reader", "s", privileges=("SELECT", "REPLICATION SLAVE"))
    server.execute("CREATE TABLE t (v INT)", "d")
    catalogue = MySqlCatalogue(dsn)
    shape = catalogue.shape(TableName("d", "t"))
    catalogue.close()
    assert shape is not None
    assert shape.schema.key == ("my_row_id",)
    capture = LogCapture(server, ("d.t",))
    capture.start()
    server.execute("INSERT INTO t VALUES (7), (8)", "d")
    server.execute("DELETE FROM t WHERE v = 7", "d")
    capture.catch_up()
    capture.reader.close()
    assert [row.new for row in capture.rows[:2]] == [
        {"my_row_id": 1, "v": 7},
        {"my_row_id": 2, "v": 8},
    ]
    assert capture.rows[2].kind == "D"
