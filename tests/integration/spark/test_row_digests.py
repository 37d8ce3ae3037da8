"""A row's text is the same in the source's SQL and of a copy, for every type; so are their sums."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import functions as f
from pyspark.sql.types import DoubleType
from tests.integration.mysql import random_values
from tests.integration.test_types import CASES
from tests.support.mysql import MySqlFamilyServer
from tests.support.payloads import table_schema
from tests.support.postgres import PostgresServer

from tidelog.app.sources.kinds import source_kind
from tidelog.app.verification import OpenReader
from tidelog.config import Config
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.outputs.lake.delta.options import DeltaLayout
from tidelog.outputs.lake.delta.table import DeltaTable
from tidelog.outputs.lake.settling.reading import FileRows, file_rows
from tidelog.ports import ChunkRequest, Digest, SourceId
from tidelog.sources.mysql.chunks import digests as mysql_digests
from tidelog.sources.mysql.connect import connect as mysql_connect
from tidelog.sources.postgres.chunks import digests as postgres_digests
from tidelog.sources.postgres.connect import connect as postgres_connect
from tidelog.spark.changed_keys import as_text
from tidelog.spark.formats import shapes
from tidelog.spark.source_rows import source_frame
from tidelog.spark.transforms import target_table
from tidelog.verify import digests
from tidelog.verify.compare import KINDS, RowDifferences
from tidelog.verify.model import Copy, Key
from tidelog.verify.range_sums import RowSource, column_text

pytestmark = [pytest.mark.spark, pytest.mark.integration]

ROWS = 60


@pytest.fixture
def digesting(spark: Any) -> Any:
    session = spark.newSession()
    for name, value in digests.SESSION_CONF.items():
        session.conf.set(name, value)
    return session


@pytest.mark.thorough
def test_what_is_no_value_of_the_sources_type_is_different(digesting: Any) -> None:
    """In sums, and row by row: a cast makes NULL of it, or bends it to another number."""
    kinds = ["int64", "int32", "date", "float32", "decimal(9,2)", "text"]
    schema = table_schema([(f"c{i}", kind) for i, kind in enumerate(kinds)], key=["c0"])
    names = {name: name for name in schema.column_names}
    shape = shapes.row_type(schema)
    row = "{}L id, {} i, {} d, {} f, {} n, {} t"
    source = [row.format(1, *["NULL"] * 5), row.format(2, 7, "DATE'2024-01-01'", 0.5, 1, "'a'")]
    given = digesting.sql(" UNION ALL ".join(f"SELECT {each}" for each in source))
    expected = given.toDF(*names).select(*(f.col(c.name).cast(c.dataType) for c in shape.fields))
    rows = summed(digesting, expected, schema)

    def found(*lines: str, keys: list[Key] | None = None) -> tuple[Any, Any]:
        copy = digesting.sql(" UNION ALL ".join(f"SELECT {each}" for each in lines)).toDF(*names)
        unequal = RowDifferences(expected, copy, list(names), ["c0"], keys)
        counts = unequal.classify(False, dict.fromkeys(KINDS, 9)).counts
        sums = summed(digesting, copy, schema)
        return sums == rows, {kind: count for kind, count in counts.items() if count}

    texts = row.format("'{}'", "{}", "'2024-01-01'", "'0.5'", "'1.00'", "'a'")
    nulls = row.format("'1'", *["CAST(NULL AS STRING)"] * 5).replace("L id", " id")
    held = texts.replace("'{}'L", "'2'").format("'7'")
    assert found(nulls, held) == (True, {})
    for place in range(1, 5):
        bent = nulls.split(", ")
        bent[place] = "'odd' x"
        assert found(", ".join(bent), held) == (False, {"different": 1})
    wide = "CAST({} AS DOUBLE), {}, DATE'2024-01-01', 0.5D, 1.00D, 'a'"
    none = "CAST(1 AS DOUBLE), NULL, NULL, NULL, NULL, NULL"
    assert found(none, wide.format(2, "7.0D")) == (True, {})
    assert found(none, wide.format(2, "7.5D")) == (False, {"different": 1})
    assert found(none, wide.format(2, "7D").replace("1.00D", "1.001D")) == (
        False,
        {"different": 1},
    )
    # A key as well; whatever keys are looked for, nobody can ask the source for it.
    lost = {"missing": 1, "foreign": 1}
    assert found(none, wide.format(2.5, "7D")) == (False, lost)
    assert found(nulls, held.replace("'2'", "'odd'", 1)) == (False, lost)
    assert found(none, wide.format(3, "7D"), keys=[("3",)])[1] == {"surplus": 1}


def test_sums_of_many_tables_take_one_job(digesting: Any) -> None:
    """A small table is verified in the time that the source takes."""

    class Numbers:
        bytes = 100

        def batches(self) -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_arrays([pa.array(range(100), pa.int32())], names=["id"])

    schema = table_schema([("id", "int32")], key=["id"])
    context = digesting.sparkContext
    copy = copy_of(digesting, schema, None, [Numbers()])
    table = digests.CopySums(copy, {"id": "id"}, ((None, ("49",)), (("49",), None)))
    context.setJobGroup("sums", "sums of small tables")
    try:
        found = digests.digests(digesting, [table, None, *[table] * 9])
        jobs = context.statusTracker().getJobIdsForGroup("sums")
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
    assert [[each.rows for each in sums] for sums in found] == [[50, 50], [], *[[50, 50]] * 9]
    assert len(jobs) == 1


def copy_of(
    spark: Any, schema: TableSchema, frame: Any, sources: Sequence[RowSource] | None
) -> Copy:
    target = target_table(spark, schema, (), SourceId("test", "", ""), keyed=True)
    names = schema.column_names
    return Copy(target, (), lambda: names, lambda _: frame, lambda: 0, lambda _: sources)


def summed(
    spark: Any,
    frame: Any,
    schema: TableSchema,
    bounds: Sequence[Key] = (),
    sources: Sequence[RowSource] | None = None,
    columns: Sequence[str] = (),
) -> list[Digest]:
    names = {name: name for name in columns or schema.column_names}
    ranges = tuple(pairwise([None, *bounds, None]))
    table = digests.CopySums(copy_of(spark, schema, frame, sources), names, ranges)
    [found] = digests.digests(spark, [table])
    return found


def in_delta(rows: Any, schema: TableSchema, columns: Sequence[str], path: str) -> list[FileRows]:
    """The rows as our reader reads them from a Delta table."""
    rows.repartition(2).write.format("delta").save(path)
    table = DeltaTable(path, DeltaLayout(), lambda _: [])
    assert table.exists()
    table.key = schema.match_key
    return file_rows(table.files(), columns)


def test_zero_is_one_key_whatever_its_sign(digesting: Any) -> None:
    plus, minus = digesting.sql("SELECT 0.0D k, 1 n"), digesting.sql("SELECT -0.0D k, 2 n")
    changed = minus.select(as_text("k", DoubleType()).alias("k0"), f.lit(True).alias("changed"))
    unequal = RowDifferences(plus, minus, ["k", "n"], ["k"], [("0.0",)])
    assert unequal.classify(False, dict.fromkeys(KINDS, 9)).keys["different"] == [("0.0",)]
    assert unequal.classify(changed, dict.fromkeys(KINDS, 9)).counts["unsettled"] == 1


def check(
    spark: Any,
    url: str,
    kind: str,
    table: TableName,
    texts_in_source: Callable[[list[str]], list[tuple[Any, ...]]],
    text_in_sql: Callable[[Column], str],
    lake: str,
) -> None:
    """Texts of each column, and sums of ranges."""
    config = Config.model_validate(
        {
            "source": {"kind": kind, "url": url, "tables": [str(table)]},
            "log": {"path": "unused"},
            "state": {"url": "sqlite:///unused"},
        }
    )
    source = source_kind(config)
    catalogue, reader = source.catalogue(), source.digests()
    try:
        shape = catalogue.shape(table)
        assert shape is not None
        schema = shape.schema
        rows = source_frame(spark, OpenReader(config), schema, [ChunkRequest(table)]).persist()
        names = [c.name for c in schema.columns if reader.why_not(schema, [c.name]) is None]
        columns = [schema.columns[schema.column_index(name)] for name in names]
        theirs = texts_in_source([text_in_sql(column) for column in columns])
        ours = rows.orderBy("id").toArrow().combine_chunks()
        for place, column in enumerate(columns):
            [held] = ours.column(column.name).chunks
            mine = column_text(held, column.logical).fill_null("~").to_pylist()
            assert mine == [str(row[place]) for row in theirs], column.type_name
        bounds: list[Key] = list(reader.boundaries(ChunkRequest(table, limit_rows=25), 10))
        assert digests.ascending(schema, bounds)
        edges: Sequence[Key | None] = [None, *bounds, None]
        found = [
            reader.digest(ChunkRequest(table, after=low, upto=high), schema, names)
            for low, high in pairwise(edges)
        ]
        assert sum(each.rows for each in found) == ROWS
        assert summed(spark, rows, schema, bounds, columns=names) == found
        files = in_delta(rows, schema, names, lake)
        assert summed(spark, None, schema, bounds, files, names) == found
    finally:
        catalogue.close()
        reader.close()


def test_postgres_and_copies_write_every_type_alike(
    digesting: Any, postgres16: PostgresServer, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    dsn = postgres16.create_database("digests")
    with psycopg.connect(dsn, autocommit=True) as sql:
        sql.execute("CREATE TYPE mood AS ENUM ('sad', 'so, so', 'très \"happy\"')")
        sql.execute("CREATE DOMAIN positive AS int CHECK (VALUE > 0)")
        sql.execute("CREATE DOMAIN amount AS numeric(10,2)")
        sql.execute("CREATE DOMAIN word AS varchar(60)")
        sql.execute("CREATE TYPE pair AS (a int, b text)")
        kinds = ", ".join(f"c{i} {case.sql}" for i, case in enumerate(CASES))
        sql.execute(f"CREATE TABLE t (id bigint PRIMARY KEY, {kinds}, w word)")
        holders = ", ".join(f"%s::text::{case.sql}" for case in CASES)
        rows = [
            [i, *(None if chance.random() < 0.1 else case.generate(chance) for case in CASES)]
            for i in range(ROWS)
        ]
        with sql.transaction(), sql.cursor() as cursor:
            cursor.executemany(f"INSERT INTO t VALUES (%s, {holders}, '~,:')", rows)

    def texts(expressions: list[str]) -> list[tuple[Any, ...]]:
        with postgres_connect(dsn, purpose="test") as sql:
            found = []
            for at in range(0, len(expressions), 30):
                listed = ", ".join(expressions[at : at + 30])
                found.append(sql.execute(f"SELECT {listed} FROM public.t ORDER BY id").fetchall())
            return [sum(parts, ()) for parts in zip(*found, strict=True)]

    try:
        table = TableName("public", "t")
        lake = f"{tmp_path}/t"
        check(digesting, dsn, "postgres", table, texts, postgres_digests.column_text, lake)
    finally:
        postgres16.drop_database("digests")


def test_mysql_and_copies_write_every_type_alike(
    digesting: Any, mysql_family: MySqlFamilyServer, mysql_family_database: str, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    kinds = list(random_values.TYPES)
    if mysql_family.flavor == "mariadb":
        kinds += random_values.MARIADB_TYPES
    kinds += [f"varchar(40) character set {name}" for name in ("latin1", "sjis", "utf16", "cp1251")]
    with mysql_family.connect(mysql_family_database) as session, session.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'")
        listed = ", ".join(f"c{i} {kind}" for i, kind in enumerate(kinds))
        cursor.execute(f"CREATE TABLE t (id int PRIMARY KEY, {listed})")
        for row in range(ROWS):
            # A date of no calendar but in the right month is told apart by the rows alone.
            values = [random_values.literal(kind, chance) for kind in kinds]
            given = ", ".join("NULL" if v == "'2024-02-31'" else v for v in values)
            cursor.execute(f"INSERT INTO t VALUES ({row}, {given})")

    def texts(expressions: list[str]) -> list[tuple[Any, ...]]:
        mode = {"sql_mode": "'ALLOW_INVALID_DATES'"}
        url = mysql_family.dsn(mysql_family_database)
        connection = mysql_connect(url, purpose="test", settings=mode)
        try:
            return connection.rows(f"SELECT {', '.join(expressions)} FROM t ORDER BY id")
        finally:
            connection.close()

    check(
        digesting,
        mysql_family.dsn(mysql_family_database),
        mysql_family.flavor,
        TableName(mysql_family_database, "t"),
        texts,
        mysql_digests.column_text,
        f"{tmp_path}/t",
    )
