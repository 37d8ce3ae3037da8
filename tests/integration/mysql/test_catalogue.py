"""What tables there are, what of them changed unseen, and how many rows a dump would read."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.mysql import MySqlFamilyServer

from tidelog.codecs.mysql.binlog.items import unpack_position
from tidelog.errors import ChunkRefusedError, UnsupportedTableError
from tidelog.model.schema import TableName
from tidelog.sources.mysql.catalogue import tables
from tidelog.sources.mysql.catalogue.storage import storage_of
from tidelog.sources.mysql.catalogue.tables import MySqlCatalogue
from tidelog.sources.mysql.chunks.digests import MySqlEstimates
from tidelog.sources.mysql.connect import Connection

pytestmark = pytest.mark.integration


@pytest.fixture
def catalogue(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> Iterator[MySqlCatalogue]:
    found = MySqlCatalogue(mysql_family.url, metadata_tables=[f"{mysql_family_database}.signals"])
    yield found
    found.close()


def test_base_tables_are_listed_and_not_our_own(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, catalogue: MySqlCatalogue
) -> None:
    for statement in (
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE `A b.'\"``` (id int PRIMARY KEY)",
        "CREATE TABLE signals (id int PRIMARY KEY)",
        "CREATE VIEW v AS SELECT * FROM t",
    ):
        mysql_family.execute(statement, mysql_family_database)
    odd = TableName(mysql_family_database, "A b.'\"`")
    assert catalogue.tables([f"{mysql_family_database}.*"]) == [
        odd,
        TableName(mysql_family_database, "t"),
    ]
    shape = catalogue.shape(odd)
    assert shape is not None
    assert shape.schema.key == ("id",)
    assert " " not in shape.storage
    assert catalogue.shape(TableName(mysql_family_database, "none")) is None
    assert not catalogue.tables(["mysql.*", "sys.*", "information_schema.*", "tidelog.*"])


def test_a_table_whose_columns_are_not_all_shown_is_refused(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    """Until a right shows them: else each record is unlike the table, and each dump is in vain."""
    server, table = mysql_family, TableName(mysql_family_database, "t")
    server.execute("CREATE TABLE t (id int PRIMARY KEY, v int, w int)", mysql_family_database)
    quoted = f"`{mysql_family_database}`.t"
    url = server.create_user("part", "s", privileges=["SELECT (id, v)"], on=quoted)
    catalogue = MySqlCatalogue(url)
    try:
        with pytest.raises(UnsupportedTableError, match="rights to single columns") as refused:
            catalogue.shape(table)
        assert refused.value.remedy is not None
        server.execute(refused.value.remedy)
        shape = catalogue.shape(table)
        assert shape is not None
        assert shape.schema.column_names == ("id", "v", "w")
        server.execute(f"REVOKE REFERENCES ON {quoted} FROM 'part'@'%'")
        server.execute(f"GRANT SELECT (w) ON {quoted} TO 'part'@'%'")
        assert catalogue.shape(table) is not None
    finally:
        catalogue.close()
        server.execute("DROP USER 'part'@'%'")


@pytest.mark.parametrize(
    ("statement", "differ"),
    [
        ("INSERT INTO t VALUES (1, 1, 1)", False),
        ("ALTER TABLE t ADD INDEX (n), COMMENT 'x'", False),
        ("ALTER TABLE t ADD w int", False),
        ("ALTER TABLE t DROP n", False),
        ("ALTER TABLE t ENGINE = InnoDB", False),
        ("ALTER TABLE t ADD w int NOT NULL", True),
        ("ALTER TABLE t ADD w int DEFAULT 5", True),
        ("ALTER TABLE t MODIFY n varchar(20)", True),
        ("ALTER TABLE t RENAME COLUMN n TO o", True),
        ("ALTER TABLE t PARTITION BY HASH (id) PARTITIONS 3", True),
    ],
)
def test_changes_without_row_events_are_noticed(
    mysql_family: MySqlFamilyServer,
    mysql_family_database: str,
    catalogue: MySqlCatalogue,
    statement: str,
    differ: bool,
) -> None:
    mysql_family.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL, m int NOT NULL)", mysql_family_database
    )
    table = TableName(mysql_family_database, "t")
    patterns = [f"{mysql_family_database}.*"]
    before, version = catalogue.shape(table), catalogue.versions(patterns)[table]
    assert catalogue.versions(patterns) == {table: version}
    mysql_family.execute(statement, mysql_family_database)
    after, version_now = catalogue.shape(table), catalogue.versions(patterns)[table]
    assert before is not None
    assert after is not None
    assert catalogue.rows_may_differ(before.storage, after.storage) is differ
    assert version != version_now or (before.schema, before.storage) == (
        after.schema,
        after.storage,
    )


def test_versions_are_of_the_tables_that_are_listed(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, catalogue: MySqlCatalogue
) -> None:
    for statement in (
        "CREATE TABLE t (id int)",
        "CREATE TABLE u (id int)",
        "CREATE TABLE signals (id int PRIMARY KEY)",
        "CREATE VIEW v AS SELECT * FROM t",
    ):
        mysql_family.execute(statement, mysql_family_database)
    patterns = [f"{mysql_family_database}.*"]
    before = catalogue.versions(patterns)
    assert list(before) == catalogue.tables(patterns)
    mysql_family.execute("ALTER TABLE t ADD PRIMARY KEY (id)", mysql_family_database)
    after = catalogue.versions(patterns)
    assert {table.name for table in before if before[table] != after[table]} == {"t"}


@pytest.mark.usefixtures("unlogged")
def test_children_whose_rows_change_unseen_are_listed(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, catalogue: MySqlCatalogue
) -> None:
    for statement in (
        "CREATE TABLE p (id int PRIMARY KEY)",
        "CREATE TABLE c (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES p (id) "
        "ON DELETE CASCADE ON UPDATE SET NULL)",
        "CREATE TABLE d (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES p (id))",
    ):
        mysql_family.execute(statement, mysql_family_database)
    tables = catalogue.tables([f"{mysql_family_database}.*"])
    (cascade,) = catalogue.cascades(tables)
    assert (cascade.child.name, cascade.parent.name) == ("c", "p")
    assert cascade.rules == ("ON DELETE CASCADE", "ON UPDATE SET NULL")
    mysql_family.execute("DROP TABLE c", mysql_family_database)
    mysql_family.execute("DROP TABLE d", mysql_family_database)


def test_position_and_load_move_with_the_log(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, catalogue: MySqlCatalogue
) -> None:
    mysql_family.execute("CREATE TABLE t (id int PRIMARY KEY)", mysql_family_database)
    before = catalogue.position()
    load = catalogue.load(before)
    mysql_family.execute("INSERT INTO t VALUES (1)", mysql_family_database)
    after = catalogue.load(before)
    end = catalogue.position()
    assert (load.lag_bytes, after.lag_bytes) == (0, end - before)
    assert end > before
    assert load.replica_lag_s is None
    assert load.commits is not None
    assert after.commits is not None
    assert after.commits > load.commits
    assert (load.end, after.end) == (before, end)
    files = [str(row[0]) for row in mysql_family.execute("SHOW BINARY LOGS")]
    number, offset = unpack_position(before)
    assert load.reached == f"{next(f for f in files if int(f[-6:]) == number)}:{offset}"
    assert load.retention.kept_s is None or load.retention.kept_s > 0


def test_rows_are_estimated(mysql_family: MySqlFamilyServer, mysql_family_database: str) -> None:
    table = TableName(mysql_family_database, "t")
    mysql_family.execute("CREATE TABLE t (id int PRIMARY KEY)", mysql_family_database)
    values = ", ".join(f"({n})" for n in range(1_000))
    mysql_family.execute(f"INSERT INTO t VALUES {values}", mysql_family_database)
    mysql_family.execute("ANALYZE TABLE t", mysql_family_database)
    estimates = MySqlEstimates(mysql_family.url)
    try:
        every, some = estimates.rows(table, None), estimates.rows(table, "id < 100")
        assert every is not None
        assert some is not None
        assert 900 <= every.rows <= 1_100
        assert 50 <= some.rows <= 200
        assert estimates.rows(TableName(mysql_family_database, "none"), None) is None
        with pytest.raises(ChunkRefusedError):
            estimates.rows(table, "nothing = 1")
    finally:
        estimates.close()


def test_tables_are_listed_while_they_are_altered_and_no_other_is_waited_for(
    mysql_family: MySqlFamilyServer,
    mysql_family_database: str,
    catalogue: MySqlCatalogue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MariaDB does not list a table while its ALTER TABLE renames it."""
    table, patterns = TableName(mysql_family_database, "t"), [f"{mysql_family_database}.*"]
    mysql_family.execute("CREATE TABLE t (id int PRIMARY KEY, n int)", mysql_family_database)
    asked: list[TableName] = []

    def storage(connection: Connection, name: TableName) -> Any:
        asked.append(name)
        return storage_of(connection, name)

    monkeypatch.setattr(tables, "storage_of", storage)
    for _ in range(2):
        assert catalogue.tables(patterns) == [table]
        assert list(catalogue.versions(patterns)) == [table]
    assert not asked  # neither the server's own tables nor ours
    done = threading.Event()

    def alter() -> None:
        with mysql_family.connect(mysql_family_database) as session, session.cursor() as cursor:
            while not done.is_set():
                cursor.execute("ALTER TABLE t ENGINE = InnoDB, ALGORITHM = COPY")

    altering = threading.Thread(target=alter)
    altering.start()
    try:
        until = time.monotonic() + 3
        while time.monotonic() < until:
            assert catalogue.tables(patterns) == [table]
            assert list(catalogue.versions(patterns)) == [table]
    finally:
        done.set()
        altering.join()
