"""Primary keys that the server makes by itself: hidden ones (MySQL, since 8.0.30), and unique keys
that table maps name as the primary key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.integration.mysql.log_capture import LogCapture
from tests.support.mysql import MySqlFamilyServer, MySqlServer

from tidelog.model.records import LogBatch
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


def test_a_unique_key_in_the_place_of_a_missing_primary_key_is_none_in_the_log(
    mysql_family: MySqlFamilyServer,
    mysql_family_database: str,
    make_capture: Callable[..., LogCapture],
) -> None:
    plain, keyed = (TableName(mysql_family_database, name) for name in ("plain", "keyed"))
    mysql_family.execute("SET GLOBAL binlog_row_metadata = FULL")
    try:
        for name in ("plain", "keyed", "prior"):
            mysql_family.execute(
                f"CREATE TABLE {name} (code VARCHAR(9) NOT NULL UNIQUE, v INT NOT NULL UNIQUE)",
                mysql_family_database,
            )
        capture = make_capture(keys={str(keyed): ["v"]})
        capture.keep_batches = True
        capture.start()
        for statement in (
            "INSERT INTO {} VALUES ('a', 1)",
            "ALTER TABLE {} ADD COLUMN w INT",  # the log is read after all of these statements
            "UPDATE {} SET v = 2",
            "ALTER TABLE {} ADD COLUMN x INT",
        ):
            for name in ("plain", "keyed"):
                mysql_family.execute(statement.format(name), mysql_family_database)
        capture.catch_up()
        mysql_family.execute("INSERT INTO plain VALUES ('b', 3, 3, 3)", mysql_family_database)
        mysql_family.execute("INSERT INTO prior VALUES ('a', 1)", mysql_family_database)
        capture.catch_up()
        mysql_family.execute(
            "ALTER TABLE plain DROP KEY code, ADD PRIMARY KEY (code)", mysql_family_database
        )
        mysql_family.execute("DELETE FROM plain", mysql_family_database)
        capture.catch_up()
    finally:
        mysql_family.execute("SET GLOBAL binlog_row_metadata = MINIMAL")
    batches = [event for event in capture.events if isinstance(event, LogBatch)]
    numbers = [int(number) for batch in batches for number in batch.schema_id]
    used = {schema.fingerprint: schema for schema in map(capture.schemas.get, numbers)}.values()
    keys = [(schema.table, len(schema.columns), schema.key) for schema in used]
    assert keys == [
        (plain, 2, ()),
        (keyed, 2, ("v",)),
        (plain, 3, ()),
        (keyed, 3, ("v",)),
        (plain, 4, ()),
        (TableName(mysql_family_database, "prior"), 2, ()),
        (plain, 4, ("code",)),
    ]
