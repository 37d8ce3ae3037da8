"""Keys of ENUM and SET with labels that are one text, or have none, are refused."""

from __future__ import annotations

import pytest
from tests.integration.mysql.log_capture import LogCapture
from tests.integration.mysql.test_log_refusals import news, refusals
from tests.integration.mysql.test_preflight import check, faults
from tests.support.mysql import MySqlFamilyServer

from tidelog.errors import UnsupportedTableError
from tidelog.model.schema import TableName
from tidelog.sources.mysql.catalogue.tables import MySqlCatalogue

pytestmark = pytest.mark.integration

REFUSED = [
    ("ascii", ("80", "81")),
    ("sjis", ("5C", "815F")),  # both a backslash
    ("cp932", ("8790", "81E0")),
    ("euckr", ("A2FE", "C9A1")),
]
TAKEN = [
    ("utf8mb4", ("C3A9", "E282AC")),
    ("utf8mb4", ("F09F9880", "F09F9881")),  # 😀 and 😁, both ? in information_schema
    ("utf8mb4", ("F09F9880", "3F")),
    ("utf16", ("D83DDE00", "D83DDE01")),
    ("latin1", ("3F", "80")),
    ("gbk", ("A1A1", "61")),
]


def column(kind: str, charset: str, codes: tuple[str, str]) -> str:
    listed = ", ".join(f"X'{code}'" for code in codes)
    return f"k {kind}({listed}) CHARACTER SET {charset} COLLATE {charset}_bin"


@pytest.mark.parametrize("kind", ["enum", "set"])
def test_such_tables_are_refused_and_no_others(
    kind: str, mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    name = mysql_family_database
    columns = {}
    for n, one in enumerate(REFUSED):
        columns[f"odd_{n}"] = f"{column(kind, *one)} PRIMARY KEY"
        columns[f"beside_{n}"] = f"id int PRIMARY KEY, {column(kind, *one)}"
    for n, one in enumerate(TAKEN):
        columns[f"even_{n}"] = f"{column(kind, *one)} PRIMARY KEY"
    for table, listed in columns.items():
        mysql_family.execute(f"CREATE TABLE {table} ({listed})", name)
    catalogue = MySqlCatalogue(mysql_family.dsn())
    odd = {table for table in columns if table.startswith("odd_")}
    try:
        for table in columns:
            if table in odd:
                with pytest.raises(UnsupportedTableError, match="as Unicode"):
                    catalogue.shape(TableName(name, table))
            else:
                assert catalogue.shape(TableName(name, table)) is not None
    finally:
        catalogue.close()
    told = faults(check(mysql_family, name))
    assert odd == {about.removeprefix(f"table {name}.") for about in told if f" {name}." in about}


def test_no_row_of_such_a_table_is_captured(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    name = mysql_family_database
    mysql_family.execute(f"CREATE TABLE odd ({column('enum', *REFUSED[0])} PRIMARY KEY)", name)
    mysql_family.execute("CREATE TABLE even (a int PRIMARY KEY)", name)
    capture = LogCapture(mysql_family, tables=(f"{name}.*",))
    capture.start()
    mysql_family.execute("INSERT INTO odd VALUES (1), (2)", name)
    mysql_family.execute("INSERT INTO even VALUES (1)", name)
    capture.catch_up()
    (told,) = refusals(capture)
    assert told.table == TableName(name, "odd")
    assert news(capture) == [{"a": 1}]
