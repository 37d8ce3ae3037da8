"""A row read from the log equals the same row read by SELECT, for every type and character set."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import numpy as np
import pytest
from tests.integration.mysql import random_values
from tests.integration.mysql.log_capture import LogCapture
from tests.integration.mysql.value_rows import (
    ValueTable,
    keeps_surrogates,
    log_batch,
    normal,
    records,
    texts,
)
from tests.support.mysql import MySqlFamilyServer

from tidelog.codecs.decode import decode
from tidelog.codecs.mysql.rows.keys import BinlogKeys
from tidelog.codecs.mysql.types import column_of_map, fits
from tidelog.model.records import KeyEffect, LogBatch, RecordKind

pytestmark = pytest.mark.integration


@pytest.fixture
def table(mysql_family: MySqlFamilyServer, mysql_family_database: str) -> Iterator[ValueTable]:
    with mysql_family.connect(mysql_family_database) as session:
        yield ValueTable(mysql_family, mysql_family_database, session)


def assert_equal_ways(table: ValueTable, piece: int = 1 << 16) -> None:
    """The inserted rows are alike as texts, as typed values and as keys."""
    schema = table.schema()
    rows = table.logged()
    for column, code, meta in zip(
        schema.columns, rows[0].table.types, rows[0].table.metas, strict=True
    ):
        assert fits(column, code, meta), column
    logged, selected = log_batch(rows), table.selected(schema, piece)
    left, right = texts(logged, schema), texts(selected, schema)
    both = zip(normal(left, schema), normal(right, schema), strict=True)
    for i, (mine, theirs) in enumerate(both):
        for column in schema.columns:
            assert mine[column.name] == theirs[column.name], (i, column.type_name)
    typed = decode(records(logged), schema).after, decode(records(selected), schema).after
    for column in schema.columns:
        assert typed[0].field(column.name).equals(typed[1].field(column.name)), column.type_name
    keys = BinlogKeys()
    every = np.arange(len(rows), dtype="int32")
    ways = [keys.keys(batch, every, schema) for batch in (logged, selected)]
    found = [[keys.texts(way.key(i), schema) for i in range(len(way))] for way in ways]
    assert found[0] == found[1]
    assert len(found[0]) == len(rows)
    assert ways[0].hash.tolist() == ways[1].hash.tolist()


@pytest.mark.parametrize("seed", [1, 2])
def test_row_of_the_log_equals_the_selected_row_for_every_type(
    table: ValueTable, seed: int
) -> None:
    chance = random.Random(seed)
    kinds = list(random_values.TYPES)
    if table.server.flavor == "mariadb":
        kinds += random_values.MARIADB_TYPES
    columns = ", ".join(f"c{i} {kind}" for i, kind in enumerate(kinds))
    table.create(f"id int PRIMARY KEY, {columns}")
    for row in range(30):
        values = ", ".join(random_values.literal(kind, chance) for kind in kinds)
        table.run(f"INSERT INTO t VALUES ({row}, {values})")
    assert_equal_ways(table, piece=chance.choice([1, 100, 1 << 16]))


def test_zero_keeps_its_sign(table: ValueTable) -> None:
    """MySQL stores -0, which equals 0, and shows it: a key is spelled alike on both ways."""
    table.create("id int PRIMARY KEY, a double, b float, c double(10,2)")
    table.run("INSERT INTO t VALUES (1, 0e0 * -1e0, 0e0 * -1e0, 0e0 * -1e0), (2, 0, 0, 0)")
    assert_equal_ways(table)


def test_text_of_the_log_equals_the_selected_text_in_every_character_set(
    table: ValueTable,
) -> None:
    charsets = [*random_values.CHARSETS]
    if table.server.flavor == "mysql":
        charsets += random_values.MYSQL_CHARSETS
    chance = random.Random(3)
    for charset in charsets:
        table.create(
            "id int PRIMARY KEY, a char(10), b varchar(60), c text, d varchar(200)",
            f"CHARACTER SET {charset}",
        )
        table.run("SET sql_mode = ''")
        for row in range(12):
            values = ", ".join(random_values.text(chance, most) for most in (10, 30, 90, 100))
            table.run(f"INSERT INTO t VALUES ({row}, {values})")
        assert_equal_ways(table)


def test_every_character_of_the_sets_of_several_bytes_is_the_selected_one(
    table: ValueTable,
) -> None:
    """All of the basic plane and samples of others, private and unassigned ones as well."""
    sets = ["ucs2", "utf16", "utf16le", "utf32", "gbk", "eucjpms", "cp932"]
    sets += random_values.MYSQL_CHARSETS if table.server.flavor == "mysql" else ()
    bases = [*range(0, 0xD800, 2048), *range(0xE000, 0x10000, 2048), 0x1F600, 0xF0000, 0x10F800]
    for charset in sets:
        table.create("id int PRIMARY KEY, a text", f"CHARACTER SET {charset}")
        table.run("SET sql_mode = ''")
        for base in bases:
            characters = "".join(map(chr, range(base, base + 2048))).encode()
            table.run(
                f"INSERT INTO t VALUES ({base}, "
                f"CONVERT(_utf8mb4 X'{characters.hex()}' USING {charset}))"
            )
        assert_equal_ways(table)


@pytest.mark.parametrize("charset", ["ucs2", "utf32"])
def test_surrogates_are_question_marks_on_both_ways(table: ValueTable, charset: str) -> None:
    """These sets keep what UTF-8 has no bytes for, which the server sends all the same."""
    if charset == "utf32" and not keeps_surrogates(table.server):
        pytest.skip("this server refuses surrogates in utf32")
    table.create("id int PRIMARY KEY, a varchar(9), b text", f"CHARACTER SET {charset}")
    for number, units in enumerate(("D800", "DFFF", "D83D DE00", "0041 DBFF 0042", "D7FF E000")):
        zeros = "0000" if charset == "utf32" else ""
        text = "".join(zeros + unit for unit in units.split())
        table.run(f"INSERT INTO t VALUES ({number}, _{charset} X'{text}', _{charset} X'{text}')")
    assert_equal_ways(table)
    schema = table.schema()
    found = [row["a"] for row in texts(table.selected(schema), schema)]
    assert found == [b"?", b"?", b"??", b"A?B", "\ud7ff\ue000".encode()]


def test_any_number_of_labels_is_decoded(table: ValueTable) -> None:
    many = ",".join(f"'v{i}'" for i in range(300))
    bits = ",".join(f"'m{i}'" for i in range(64))
    table.create(f"id int PRIMARY KEY, e enum({many}), s set({bits}), one enum('x')")
    for i in range(12):
        table.run(f"INSERT INTO t VALUES ({i}, {i * 27 % 301}, {3 << (i * 5)}, {i % 2})")
    assert_equal_ways(table)


def test_compressed_columns_are_unpacked(
    mariadb_server: MySqlFamilyServer, mariadb_database: str
) -> None:
    with mariadb_server.connect(mariadb_database) as session:
        table = ValueTable(mariadb_server, mariadb_database, session)
        table.create(
            "id int PRIMARY KEY, a text COMPRESSED, b longblob COMPRESSED, c varchar(3000) "
            "COMPRESSED CHARACTER SET latin1"
        )
        for i, (wrap, size) in enumerate([(0, 99), (0, 100), (0, 1000), (1, 1000), (0, 70000)]):
            table.run(f"SET GLOBAL column_compression_zlib_wrap = {wrap}")
            table.run(f"SET column_compression_zlib_wrap = {wrap}")
            c = f"repeat('é', {min(size, 3000)})"
            table.run(
                f"INSERT INTO t VALUES ({i}, repeat('a', {min(size, 65000)}), "
                f"repeat('xyz', {size}), {c})"
            )
        assert_equal_ways(table)


def test_rows_of_many_packets_are_put_together(table: ValueTable) -> None:
    table.run("SET GLOBAL max_allowed_packet = 1073741824")
    table.create("id int PRIMARY KEY, big longblob, small varchar(10)")
    edge = (1 << 24) - 1
    for i, size in enumerate([10, edge - 12, edge - 13, edge - 11, edge, edge + 5, 2 * edge - 13]):
        with (
            table.server.connect(table.database, max_allowed_packet=1 << 30) as session,
            session.cursor() as cursor,
        ):
            cursor.execute(f"INSERT INTO t VALUES ({i}, repeat('x', {size}), 'behind')")
    schema = table.schema()
    logged = texts(log_batch(table.logged()), schema)
    assert texts(table.selected(schema, 1 << 20), schema) == logged


@pytest.mark.parametrize("image", ["full", "minimal", "noblob"])
def test_partial_images_leave_columns_missing_and_say_so(table: ValueTable, image: str) -> None:
    table.create("id double, a varchar(10), n int, b text, PRIMARY KEY (a, id)")
    table.run(f"SET SESSION binlog_row_image = '{image}'")
    table.run("INSERT INTO t VALUES (0.1, 'x', 1, 'big')")
    table.run("INSERT INTO t (id, a) VALUES (1e30, 'y')")
    table.run("UPDATE t SET n = 2 WHERE a = 'x'")
    table.run("UPDATE t SET a = 'z' WHERE a = 'x'")
    table.run("DELETE FROM t WHERE a = 'y'")
    schema = table.schema()
    logged = log_batch(table.logged())
    keys = BinlogKeys()
    records_of = [int(r) for r in keys.key_changes(logged)]
    entries = keys.keys(logged, np.arange(5, dtype="int32"), schema)
    found = [
        (int(r), KeyEffect(e), keys.texts(entries.key(i), schema))
        for i, (r, e) in enumerate(zip(entries.record, entries.effect, strict=True))
    ]
    whole = image == "full"
    partial = KeyEffect.COMPLETE if whole else KeyEffect.PARTIAL
    moved = KeyEffect.COMPLETE if whole else KeyEffect.MOVED_PARTIAL
    x, y, z = (schema_key(schema, a, i) for a, i in (("x", "0.1"), ("y", "1e+30"), ("z", "0.1")))
    assert found == [
        (0, KeyEffect.COMPLETE, x), (1, moved, y), (2, partial, x), (3, KeyEffect.GONE, x),
        (3, moved, z), (4, KeyEffect.GONE, y),
    ]  # fmt: skip
    assert records_of == ([] if whole else [1, 2, 3])
    rows = texts(logged, schema)
    known = {"full": {"id", "a", "n", "b"}, "minimal": {"id", "a"}, "noblob": {"id", "a", "n"}}
    assert set(rows[3]) == known[image]
    selected = table.selected(schema)
    dumped = keys.keys(selected, np.arange(1, dtype="int32"), schema)
    assert keys.texts(dumped.key(0), schema) == z


def schema_key(schema: object, a: str, number: str) -> tuple[str, ...]:
    values = {"a": a, "id": number}
    return tuple(values[name] for name in schema.match_key)  # type: ignore[attr-defined]


def test_changes_of_documents_give_the_document_that_a_select_shows(
    mysql_server: MySqlFamilyServer, mysql_database: str
) -> None:
    with mysql_server.connect(mysql_database) as session:
        table = ValueTable(mysql_server, mysql_database, session)
        table.create("id int PRIMARY KEY, j json, k json, n int")
        table.run("SET binlog_row_value_options = 'PARTIAL_JSON'")
        long = "x" * 300
        table.run(
            f"""INSERT INTO t VALUES
            (1, '{{"a": 1, "b c": [1, 2, {{"c": "{long}"}}], "q\\\\"": 5}}',
             '["{long}", 1.5, {{"é": "{long}"}}]', 0)"""
        )
        selected = []
        for change in (
            "j = json_set(j, '$.a', 17, '$.\"b c\"[2].c', 'short')",
            "j = json_replace(j, '$.\"b c\"[0]', CAST(1.5 AS json)), n = 7",
            "k = json_set(k, '$[2].\"é\"', 'ü'), j = json_remove(j, '$.\"b c\"[2].c')",
            "k = json_remove(k, '$[0]'), n = 8",
            "j = json_set(j, '$.\"q\\\\\"\"', json_array(1, 'two', NULL))",
            "j = json_set(j, '$.new', CAST('2024-01-02 03:04:05' AS datetime)), k = NULL",
        ):
            table.run(f"UPDATE t SET {change} WHERE id = 1")
            selected.append(texts(table.selected(table.schema()), table.schema())[0])
        rows = table.logged()
        assert any(row.payload[1] & 4 for row in rows)
        assert texts(log_batch(rows), table.schema())[1:] == selected


@pytest.mark.parametrize("image", ["full", "noblob", "minimal"])
def test_random_changes_of_documents_give_what_a_select_shows(
    mysql_server: MySqlFamilyServer, mysql_database: str, image: str
) -> None:
    """Columns that a record lacks, as it has no old document to change, are missing and said to be:
    whatever it does tell is what a SELECT shows.
    """
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    names = [f"j{i}" for i in range(10)]
    with mysql_server.connect(mysql_database) as session:
        table = ValueTable(mysql_server, mysql_database, session)
        table.create("id int PRIMARY KEY, n int, " + ", ".join(f"{name} json" for name in names))
        table.run(
            f"SET binlog_row_value_options = 'PARTIAL_JSON', binlog_row_image = '{image.upper()}'"
        )
        documents = {name: random_values.document(chance) for name in names}
        values = ", ".join(random_values.quoted(json.dumps(documents[name])) for name in names)
        table.run(f"INSERT INTO t VALUES (1, 0, {values})")
        schema = table.schema()
        selected = texts(table.selected(schema), schema)
        for number in range(1, 60):
            changes = [f"n = {number}"] if chance.random() < 0.3 else []
            for name in chance.sample(names, chance.randint(1, 3)):
                held = json.loads(selected[-1][name] or b"null")
                changes.append(f"{name} = {random_values.json_change(name, held, chance)}")
            if len(changes) == 1 and "n =" in changes[0]:
                continue
            table.run(f"UPDATE t SET {', '.join(changes)} WHERE id = 1")
            if (row := texts(table.selected(schema), schema)[0]) != selected[-1]:
                selected.append(row)
        rows = table.logged()
    batch = log_batch(rows)
    found = texts(batch, schema)
    effects = BinlogKeys().keys(batch, np.arange(len(rows), dtype="int32"), schema).effect
    assert sum(row.payload[1] & 4 != 0 for row in rows) > 10
    assert len(found) == len(selected)
    for told, shown, effect in zip(found, selected, effects, strict=True):
        assert told == {name: shown[name] for name in told}
        assert (told.keys() == shown.keys()) == (effect == KeyEffect.COMPLETE)
        assert image != "full" or told.keys() == shown.keys()


def test_values_of_other_types_inside_documents_print_as_the_server_prints_them(
    mysql_server: MySqlFamilyServer, mysql_database: str
) -> None:
    with mysql_server.connect(mysql_database) as session:
        table = ValueTable(mysql_server, mysql_database, session)
        table.create("id int PRIMARY KEY, j json")
        for i, value in enumerate(
            [
                "CAST(-12.340 AS decimal(10,3))", "CAST('2024-02-03' AS date)",
                "CAST('-12:34:56.789' AS time(3))", "CAST('2024-02-03 04:05:06.07' AS datetime(6))",
                "TIMESTAMP'2024-02-03 04:05:06'", "X'00ff41'", f"X'{'ab' * 200}'", "b'101'",
                "1e-7", "1.5", "1668694028178401.2e0", "1e15",
                "18446744073709551615", "NULL", "ST_GeomFromText('POINT(1 2)')",
                *(f"CAST('{sign}{'9' * whole}.{'9' * scale}' AS decimal({whole + scale},{scale}))"
                  for whole, scale in ((35, 30), (65, 0), (1, 30), (30, 30)) for sign in ("", "-")),
                f"{'9' * 35}.{'9' * 30}", f"0.{'0' * 29}1",
                "CAST(1e20 AS decimal(65,30)) * CAST(1e14 AS decimal(65,30))",
            ]
        ):  # fmt: skip
            table.run(f"INSERT INTO t VALUES ({i}, json_array({value}, json_object('k', {value})))")
        schema = table.schema()
        logged = texts(log_batch(table.logged()), schema)
        selected = texts(table.selected(schema, 1 << 16), schema)
        for mine, theirs in zip(logged, selected, strict=True):
            told, printed = mine["j"], theirs["j"]
            assert told is not None
            assert printed is not None
            # 8.0.12 prints the line ends of long ones as they are, and not as JSON has them.
            assert told == printed.replace(b"\n", b"\\n")
            json.loads(told)


def test_full_metadata_spells_columns_as_information_schema_does(table: ValueTable) -> None:
    kinds = [k for k in random_values.TYPES if "geometry" not in k and "zerofill" not in k]
    if table.server.flavor == "mariadb":
        kinds += random_values.MARIADB_TYPES
    columns = ", ".join(f"c{i} {kind}" for i, kind in enumerate(kinds))
    previous = table.run("SELECT @@GLOBAL.binlog_row_metadata")[0][0]
    table.run("SET GLOBAL binlog_row_metadata = 'FULL'")
    try:
        table.create(f"id int PRIMARY KEY, {columns}, l1 varchar(9) CHARACTER SET latin1")
        table.run("INSERT INTO t (id) VALUES (1)")
    finally:
        table.run(f"SET GLOBAL binlog_row_metadata = '{previous}'")
    schema = table.schema()
    seen = table.logged()[0].table
    names = seen.metadata.names
    assert names == schema.column_names
    for i, expected in enumerate(schema.columns):
        labels = (seen.metadata.labels or ())[i] if seen.metadata.labels else None
        mapped = column_of_map(
            names[i],
            seen.types[i],
            seen.metas[i],
            unsigned=bool(seen.metadata.unsigned and seen.metadata.unsigned[i]),
            collation_id=(seen.metadata.collations or {})[i] or 0,
            members=[label.decode() for label in labels or ()],
            nullable=bool(seen.nullable[i // 8] >> i % 8 & 1),
            geometry_type=(seen.metadata.geometry_types or {i: None})[i],
            like=expected,
        )
        assert mapped == expected


def test_every_kind_of_record_has_the_images_its_kind_says(table: ValueTable) -> None:
    table.create("id int PRIMARY KEY, v datetime(3)")
    table.run("INSERT INTO t VALUES (1, '0000-00-00 00:00:00.5')")
    table.run("UPDATE t SET v = '2024-02-03 04:05:06.789'")
    table.run("DELETE FROM t")
    schema = table.schema()
    rows = table.logged()
    assert [row.kind for row in rows] == [RecordKind.INSERT, RecordKind.UPDATE, RecordKind.DELETE]
    decoded = decode(records(log_batch(rows)), schema)
    assert [row and row["v"] is not None for row in decoded.after.to_pylist()] == [
        False, True, None,
    ]  # fmt: skip
    assert [row and row["v"] is not None for row in decoded.before.to_pylist()] == [
        None, False, True,
    ]  # fmt: skip


@pytest.fixture
def old_table(mariadb_server: MySqlFamilyServer, mariadb_database: str) -> Iterator[ValueTable]:
    """A table whose temporal columns are as MariaDB made them before 10.1."""
    with mariadb_server.connect(mariadb_database) as session:
        table = ValueTable(mariadb_server, mariadb_database, session)
        mariadb_server.execute("SET GLOBAL mysql56_temporal_format = OFF")
        try:
            table.create(f"id int PRIMARY KEY, d date, {_old_columns()}, n int unsigned")
        finally:
            mariadb_server.execute("SET GLOBAL mysql56_temporal_format = ON")
        yield table


def _old_columns() -> str:
    return ", ".join(
        f"{kind}{digits} {kind}({digits}) NULL"
        for kind in ("time", "datetime", "timestamp")
        for digits in range(7)
    )


def test_temporal_values_of_mariadbs_old_format(old_table: ValueTable) -> None:
    table = old_table
    assert "mariadb-5.3" in table.schema().columns[5].type_name
    chance = random.Random(6)
    for row in range(40):
        values = [
            random_values.literal(f"{kind}({digits})", chance)
            for kind in ("time", "datetime", "timestamp")
            for digits in range(7)
        ]
        table.run(f"INSERT INTO t VALUES ({row}, '2024-02-29', {', '.join(values)}, 4000000000)")
    table.run("UPDATE t SET time6 = '-00:00:00.000001', datetime3 = NULL WHERE id < 5")
    table.run("UPDATE t SET time6 = '838:59:59.999999', n = 1 WHERE id < 5")
    schema = table.schema()
    logged = table.logged()
    both = log_batch(logged)
    replayed = {row["id"]: row for row in texts(both, schema)}
    shown = texts(table.selected(schema), schema)
    assert [replayed[row["id"]] for row in shown] == shown
    assert {row["n"] for row in shown} == {b"1", b"4000000000"}


@pytest.mark.parametrize("metadata", ["MINIMAL", "FULL"])
def test_tables_of_mariadbs_old_format_are_captured_and_passed_over(
    old_table: ValueTable, metadata: str
) -> None:
    """Table maps do not tell how long their values are: not of tables that are not captured."""
    table = old_table
    table.run("CREATE TABLE aside LIKE t")
    previous = table.run("SELECT @@GLOBAL.binlog_row_metadata")[0][0]
    table.run(f"SET GLOBAL binlog_row_metadata = {metadata}")
    capture = LogCapture(
        table.server, tables=(f"{table.database}.t",), keep_rows=False, keep_batches=True
    )
    try:
        capture.start()
        for number in range(3):
            for name in ("aside", "t"):
                moments = ", ".join(["'2024-02-29 12:34:56.123456'"] * 21)
                table.run(f"INSERT INTO {name} VALUES ({number}, '2024-02-29', {moments}, 7)")
        table.run("UPDATE aside SET n = 5, time6 = NULL")
        table.run("UPDATE t SET n = 4000000000")
        capture.catch_up()
    finally:
        capture.reader.close()
        table.run(f"SET GLOBAL binlog_row_metadata = {previous}")
    batches = [event for event in capture.events if isinstance(event, LogBatch)]
    schema = capture.schemas.get(int(batches[0].schema_id[0]))
    rows = [row for batch in batches for row in texts(batch, schema)]
    selected = texts(table.selected(table.schema()), table.schema())
    assert rows[3:] == selected
    assert [row["n"] for row in rows] == [b"7"] * 3 + [b"4000000000"] * 3
