"""Table maps describe each column as the catalogue does, whatever columns stand beside it.

The optional metadata are lists and bitmaps without numbers of columns: which columns each of them
counts is the server's to know, and a column counted too much shifts all that follow.
"""

from __future__ import annotations

import random

import pytest
from tests.integration.mysql import random_values
from tests.integration.mysql.test_values import assert_equal_ways
from tests.integration.mysql.value_rows import ValueTable, log_batch, normal, texts
from tests.support.mysql import MariaDbServer, MySqlFamilyServer, MySqlServer

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.binlog.items import TableMapSeen
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.model.schema import TableName, TableSchema
from tidelog.sources.mysql.catalogue.schemas import MySqlSchemaFinder, mismatch
from tidelog.sources.mysql.connect import Connection, connect

pytestmark = pytest.mark.integration

_CHARSETS = ("latin1", "utf8mb4", "utf8mb3", "latin2", "cp1251", "gbk", "koi8r", "ascii")
_KEYS = {
    "int": "-7", "bigint unsigned": "18446744073709551615", "varchar(20)": "'é '",
    "decimal(10,2)": "-1.50", "datetime(3)": "'2024-01-02 03:04:05.600'", "binary(5)": "X'ff0000'",
}  # fmt: skip
"""Types of a key's columns, and a value of each."""
_GEOMETRIES = {
    "geometry": 0, "point": 1, "linestring": 2, "geometrycollection": 7, "geomcollection": 7
}  # fmt: skip


def random_columns(
    server: MySqlFamilyServer, chance: random.Random
) -> tuple[list[str], list[str], str]:
    """(names, types, definition) of a table with a column of every type, in any order, in any
    character set; its key is one column or two, anywhere, of one maybe only the beginning.
    """
    kinds = [*random_values.TYPES, "int", "int unsigned", "bigint unsigned", "year", "year"]
    kinds += random_values.MARIADB_TYPES if server.flavor == "mariadb" else ()
    kinds += random_values.MYSQL_9_TYPES if is_mysql(server, (9,)) else ()
    kinds = chance.sample(kinds, chance.randint(1, len(kinds)))
    chance.shuffle(kinds)
    names = [f"c{i}" for i in range(len(kinds))]
    lines = []
    for name, kind in zip(names, kinds, strict=True):
        base = kind.split("(")[0].split(" ")[0]
        text = base in ("char", "varchar", "enum", "set") or base.endswith("text")
        charset = ""
        if text and "compressed" not in kind and "é" not in kind and chance.random() < 0.7:
            charset = f" CHARACTER SET {chance.choice(_CHARSETS)}"
        null = " NULL" if "null" not in kind else ""
        lines.append(f"{name} {kind}{charset}{null}")
    key = [f"k{i} {kind} NOT NULL" for i, kind in enumerate(chance.sample(list(_KEYS), 2))]
    parts = ["k0", "k1"]
    if "varchar" in key[1] and chance.random() < 0.5:
        parts[1] = "k1(3)"
    indexes = []
    if "json" in kinds and is_mysql(server, (8, 0, 17)) and chance.random() < 0.5:
        document = names[kinds.index("json")]  # whose array has a hidden column
        indexes = [
            f"KEY many ((CAST({document} -> '$.many' AS UNSIGNED ARRAY)))",
            "KEY sum ((id + 1))",
        ]
    for line in [*key, "id int NOT NULL"]:
        at = chance.randint(0, len(lines))
        lines.insert(at, line)
        names.insert(at, line.split(" ")[0])
        kinds.insert(at, line.split(" ", 1)[1].removesuffix(" NOT NULL"))
    chance.shuffle(parts)
    return names, kinds, ", ".join([*lines, f"PRIMARY KEY ({', '.join([*parts, 'id'])})", *indexes])


def is_mysql(server: MySqlFamilyServer, version: tuple[int, ...]) -> bool:
    """Is it MySQL of this version or later?"""
    return server.flavor == "mysql" and server.version >= version


def check_metadata(schema: TableSchema, seen: TableMapSeen) -> None:
    """What the optional metadata say is what the catalogue says."""
    metadata = seen.metadata
    assert metadata.unsigned is not None
    for i, column in enumerate(schema.columns):
        if column.type_id in types.NUMERIC:
            assert metadata.unsigned[i] == types.is_unsigned(column), column
        if types.collation(column) and column.type_id not in (types.ENUM, types.SET):
            assert metadata.collations is not None
            assert metadata.collations[i] == types.collation(column), column
        if column.type_id == types.GEOMETRY:
            assert metadata.geometry_types is not None
            assert metadata.geometry_types[i] == _GEOMETRIES[column.type_name]
    assert mismatch(schema, seen) is None


@pytest.fixture(scope="module", params=["mysql", "mysql 8.0.15", "mariadb", "mariadb 11.4"])
def any_server(request: pytest.FixtureRequest):
    """Every server that there is: what their table maps count differs."""
    flavor, _, version = request.param.partition(" ")
    if not version:
        yield request.getfixturevalue(f"{flavor}_server")
        return
    with (MySqlServer if flavor == "mysql" else MariaDbServer)(version) as server:
        yield server


@pytest.mark.parametrize("tables", [4, pytest.param(100, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
def test_every_type_beside_every_other_is_what_the_catalogue_says(
    any_server: MySqlFamilyServer, metadata: str, tables: int
) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    any_server.execute("DROP DATABASE IF EXISTS table_maps")
    any_server.create_database("table_maps")
    previous = any_server.execute("SELECT @@GLOBAL.binlog_row_metadata")[0][0]
    any_server.execute(f"SET GLOBAL binlog_row_metadata = {metadata}")
    try:
        with any_server.connect("table_maps") as session, looking(any_server) as catalogue:
            for _ in range(tables):
                table = ValueTable(any_server, "table_maps", session)
                names, kinds, definition = random_columns(any_server, chance)
                charset = chance.choice(_CHARSETS)
                table.create(definition, f"ROW_FORMAT=DYNAMIC CHARACTER SET {charset}")
                for row in range(3):
                    values = [random_values.literal(kind, chance) for kind in kinds]
                    for at, (name, kind) in enumerate(zip(names, kinds, strict=True)):
                        if name[0] != "c":
                            values[at] = str(row) if name == "id" else _KEYS[kind]
                    table.run(f"INSERT INTO t VALUES ({', '.join(values)})")
                alone = any_server.installation.version != "8.0.12"  # labels' character sets
                check(table, catalogue, metadata, alone=alone)
    finally:
        any_server.execute(f"SET GLOBAL binlog_row_metadata = '{previous}'")


def looking(server: MySqlFamilyServer) -> Connection:
    return connect(server.url, purpose="test")


def check(table: ValueTable, catalogue: Connection, metadata: str, *, alone: bool = True) -> None:
    """``alone``: the map tells everything without the catalogue, too."""
    finder = MySqlSchemaFinder()
    found = finder.find(catalogue, TableName(table.database, "t"))
    assert found is not None
    rows = table.logged()
    check_metadata(found.schema, rows[0].table)
    mapped = finder.schema_of_map(rows[0].table, Flavor(table.server.flavor), found.schema)
    assert (mapped is not None) == (metadata == "FULL")
    if mapped is not None:
        assert mapped == found.schema
    if mapped is not None and alone:
        single = finder.schema_of_map(rows[0].table, Flavor(table.server.flavor), None)
        assert single is not None
        for column, known in zip(single.columns, found.schema.columns, strict=True):
            assert column.type_id == known.type_id
            assert types.is_unsigned(column) == types.is_unsigned(known)
    assert_equal_ways(table)
    selected = table.selected(found.schema)
    shown = normal(texts(selected, found.schema), found.schema)
    assert normal(texts(log_batch(rows), mapped or found.schema), found.schema) == shown


def test_numbers_behind_a_year_keep_their_signs(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    with mysql_family.connect(mysql_family_database) as session:
        session.cursor().execute("SELECT 1")
        mysql_family.execute("SET GLOBAL binlog_row_metadata = FULL")
        try:
            table = ValueTable(mysql_family, mysql_family_database, session)
            table.create(
                "y year, n int unsigned, b bigint unsigned, s smallint, id int PRIMARY KEY"
            )
            table.run("INSERT INTO t VALUES (2024, 4000000000, 18446744073709551615, -1, 1)")
        finally:
            mysql_family.execute("SET GLOBAL binlog_row_metadata = MINIMAL")
        rows = table.logged()
        mapped = MySqlSchemaFinder().schema_of_map(rows[0].table, Flavor(mysql_family.flavor), None)
    assert mapped is not None
    assert texts(log_batch(rows), mapped) == [
        {"y": b"2024", "n": b"4000000000", "b": b"18446744073709551615", "s": b"-1", "id": b"1"}
    ]


def test_labels_in_every_character_set_are_those_of_the_catalogue(
    any_server: MySqlFamilyServer,
) -> None:
    """MySQL 8.0.12 sends labels in the column's character set, and not which that is."""
    any_server.execute("DROP DATABASE IF EXISTS table_maps")
    any_server.create_database("table_maps")
    charsets = [*random_values.CHARSETS]
    charsets += random_values.MYSQL_CHARSETS if any_server.flavor == "mysql" else ()
    previous = any_server.execute("SELECT @@GLOBAL.binlog_row_metadata")[0][0]
    any_server.execute("SET GLOBAL binlog_row_metadata = FULL")
    try:
        with any_server.connect("table_maps") as session, looking(any_server) as catalogue:
            table = ValueTable(any_server, "table_maps", session)
            session.cursor().execute("SET NAMES utf8mb4")
            columns = []
            for charset in charsets:
                # What the set lacks is a question mark: one such label is enough.
                labels = "'a', 'b''c', 'é'" if charset != "swe7" else "'a', 'b''c'"
                columns += [f"e_{charset} enum({labels}, 'z') CHARACTER SET {charset}"]
                columns += [f"s_{charset} set({labels}, 'z') CHARACTER SET {charset}"]
            for at in range(0, len(columns), 20):
                some = columns[at : at + 20]
                table.create(f"id int PRIMARY KEY, {', '.join(some)}")
                for row in range(4):
                    values = [
                        str(row + 1 if name.startswith("e_") else row * 2 + 1) for name in some
                    ]
                    values = [
                        str(min(int(v), 3)) if "swe7" in c else v
                        for v, c in zip(values, some, strict=True)
                    ]
                    table.run(f"INSERT INTO t VALUES ({row}, {', '.join(values)})")
                check(table, catalogue, "FULL", alone=any_server.installation.version != "8.0.12")
    finally:
        any_server.execute(f"SET GLOBAL binlog_row_metadata = '{previous}'")
