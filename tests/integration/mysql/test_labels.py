"""Labels of ENUM and SET that the server's catalogue can't show: log and dump have them alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.integration.mysql.log_capture import LogCapture
from tests.integration.mysql.test_preflight import check, faults
from tests.integration.mysql.value_rows import texts
from tests.integration.postgres.conftest import rows_of
from tests.support.mysql import MariaDbServer, MySqlFamilyServer

from tidelog.codecs.mysql import types
from tidelog.model.records import LogBatch
from tidelog.model.schema import TableName
from tidelog.ports import ChunkRequest, NullRegistry
from tidelog.sources.mysql.catalogue.tables import MySqlCatalogue
from tidelog.sources.mysql.chunks.reader import MySqlChunkReader

pytestmark = pytest.mark.integration

SETS = ["utf8mb4", "utf16", "utf16le", "utf32", "gb18030"]
CODECS = {"utf8mb4": "utf-8", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be"}
LABELS = ["😀", "a", "?", "😁?", "é", "it's\\"]


@pytest.fixture(params=["MINIMAL", "FULL"])
def metadata(request: pytest.FixtureRequest, mysql_family: MySqlFamilyServer) -> Iterator[str]:
    mysql_family.execute(f"SET GLOBAL binlog_row_metadata = {request.param}")
    yield request.param
    mysql_family.execute("SET GLOBAL binlog_row_metadata = MINIMAL")


def labelled(kind: str, name: str, charset: str, labels: list[str] | None = None) -> str:
    codec = CODECS.get(charset, charset)
    listed = ", ".join(f"X'{label.encode(codec).hex()}'" for label in labels or LABELS)
    return f"{name} {kind}({listed}) CHARACTER SET {charset} COLLATE {charset}_bin"


def captured(capture: LogCapture) -> list[dict[str, str]]:
    capture.catch_up()
    found = []
    for batch in (event for event in capture.events if isinstance(event, LogBatch)):
        schema = capture.schemas.get(int(batch.schema_id[0]))
        for row in texts(batch, schema):
            found.append({name: value.decode() for name, value in row.items() if value is not None})
    return found


def dumped(server: MySqlFamilyServer, table: TableName) -> list[dict[str, str | None]]:
    schemas = NullRegistry()
    chunks = MySqlChunkReader(server.url, schemas)
    try:
        rows = chunks.read(ChunkRequest(table)).rows
        chunks.release()
        return [row.new or {} for row in rows_of(rows, schemas)]
    finally:
        chunks.close()


def test_log_and_dump_have_characters_beyond_the_basic_plane(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, metadata: str
) -> None:
    name, table = mysql_family_database, TableName(mysql_family_database, "t")
    sets = [one for one in SETS if one != "gb18030" or mysql_family.flavor == "mysql"]
    columns = [labelled("enum", f"e_{one}", one) for one in sets]
    columns += [labelled("set", f"s_{one}", one) for one in sets]
    mysql_family.execute(f"CREATE TABLE t (id int PRIMARY KEY, {', '.join(columns)})", name)
    capture = LogCapture(mysql_family, tables=(f"{name}.*",), keep_rows=False, keep_batches=True)
    capture.start()
    expected = []
    for i, label in enumerate(LABELS):
        some = 1 << i | 1
        values = [str(i + 1)] * len(sets) + [str(some)] * len(sets)
        mysql_family.execute(f"INSERT INTO t VALUES ({i}, {', '.join(values)})", name)
        several = ",".join(one for k, one in enumerate(LABELS) if some >> k & 1)
        row = {"id": str(i)} | {f"e_{one}": label for one in sets}
        expected.append(row | {f"s_{one}": several for one in sets})
    assert dumped(mysql_family, table) == expected
    assert captured(capture) == expected
    capture.reader.close()


@pytest.mark.parametrize("kind", ["enum", "set"])
def test_each_of_many_labels_is_reported(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, kind: str
) -> None:
    labels = [f"😀{i}" for i in range(64 if kind == "set" else 333)]
    column = labelled(kind, "`a``b`", "utf8mb4", labels)
    mysql_family.execute(
        f"CREATE TABLE `o``dd` (id int PRIMARY KEY, {column})", mysql_family_database
    )
    catalogue = MySqlCatalogue(mysql_family.dsn())
    shape = catalogue.shape(TableName(mysql_family_database, "o`dd"))
    catalogue.close()
    assert shape is not None
    assert list(types.labels(shape.schema.columns[1])) == labels


def test_a_user_who_may_only_read_the_table_learns_its_labels(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    name = mysql_family_database
    mysql_family.execute(f"CREATE TABLE t (id int, {labelled('enum', 'e', 'utf8mb4')})", name)
    user = f"reader_of_{name}"
    url = mysql_family.create_user(user, "secret", privileges=["SELECT"], on=f"`{name}`.`t`")
    catalogue = MySqlCatalogue(url)
    shape = catalogue.shape(TableName(name, "t"))
    catalogue.close()
    mysql_family.execute(f"DROP USER {user}")
    assert shape is not None
    assert list(types.labels(shape.schema.columns[1])) == LABELS


def test_surrogates_are_question_marks_in_labels_and_defaults(
    mariadb_server: MariaDbServer, mariadb_database: str
) -> None:
    """MariaDB's catalogue gives them as they are, which is no UTF-8."""
    name, table = mariadb_database, TableName(mariadb_database, "t")
    mariadb_server.execute(
        "CREATE TABLE t (id int PRIMARY KEY, "
        "e enum(X'D83D', X'0061') CHARACTER SET ucs2 COLLATE ucs2_bin DEFAULT X'D83D', "
        "s set(X'0000DE00', X'00000061') CHARACTER SET utf32 COLLATE utf32_bin, "
        "v varchar(9) CHARACTER SET ucs2 DEFAULT X'D83D')",
        name,
    )
    catalogue = MySqlCatalogue(mariadb_server.dsn())
    assert table in catalogue.versions([f"{name}.*"])
    assert catalogue.shape(table) is not None
    catalogue.close()
    assert f"table {table}" not in faults(check(mariadb_server, name))
    capture = LogCapture(mariadb_server, tables=(f"{name}.*",), keep_rows=False, keep_batches=True)
    capture.start()
    mariadb_server.execute("INSERT INTO t VALUES (1, 1, 3, 'b'), (2, 2, 1, DEFAULT)", name)
    expected = [
        {"id": "1", "e": "?", "s": "?,a", "v": "b"},
        {"id": "2", "e": "a", "s": "?", "v": "?"},
    ]
    assert captured(capture) == expected
    assert dumped(mariadb_server, table) == expected
    capture.reader.close()
