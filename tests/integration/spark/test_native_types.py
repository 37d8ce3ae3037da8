"""Columns whose types the option `types` gives, in each output and in Spark's source."""

from __future__ import annotations

import json
import time as clock
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest
from pyiceberg.table import StaticTable
from tests.integration.event_messages import wait_for
from tests.integration.spark.test_unreal_keys import writing
from tests.support.delta_readers import by_delta_rs, by_duckdb, by_spark, rows_of
from tests.support.iceberg_readers import by_pyiceberg
from tests.support.postgres import PostgresServer

import tidelog
from tidelog import app
from tidelog.app.base.outputs import make_outputs
from tidelog.config import Config, load_config
from tidelog.control.commands import StartDump
from tidelog.errors import TableLeftOutError
from tidelog.eventlog.reader import EventLog
from tidelog.model.schema import TableName
from tidelog.spark.pipeline import LoopOptions, run_output_loops

pytestmark = [pytest.mark.spark, pytest.mark.integration]


@pytest.fixture(scope="module")
def server_with_extensions() -> Iterator[PostgresServer]:
    """The servers of the Python package have no `hstore`."""
    with PostgresServer(version=17) as server:
        yield server


@pytest.fixture
def database(server_with_extensions: PostgresServer) -> Iterator[str]:
    name = f"types_{next(NUMBERS)}"
    yield server_with_extensions.create_database(name)
    server_with_extensions.drop_database(name)


NUMBERS = count(1)
NOON = datetime(2026, 1, 2, 12, 30, 0, 250_000)
UUID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"


def spanning(lower: Any, upper: Any, bounds: str) -> dict[str, Any]:
    """A range as a reader finds it."""
    return {
        "lower": lower,
        "upper": upper,
        "lower_inclusive": bounds[0] == "[",
        "upper_inclusive": bounds[-1] == "]",
        "empty": bounds == "empty",
    }


# type, what is inserted, and what a reader finds
CASES: list[tuple[str, str, Any]] = [
    ("boolean[]", "'{t,NULL,f}'", [True, None, False]),
    ("smallint[]", "'{-32768,0}'", [-32768, 0]),
    ("integer[]", "'{}'", []),
    ("bigint[]", f"'{{{2**63 - 1},NULL}}'", [2**63 - 1, None]),
    ("real[]", "'{0.1,-Infinity}'", [0.10000000149011612, float("-inf")]),
    ("double precision[]", "'{0.1,1e300}'", [0.1, 1e300]),
    ("numeric(10,2)[]", "'{1.5,-0.01,NULL}'", [Decimal("1.50"), Decimal("-0.01"), None]),
    ("numeric[]", "'{1.5,0}'", [Decimal("1.5").quantize(Decimal("1e-18")), Decimal(0)]),
    ("text[]", r"""ARRAY['a', 'b,"c\', '', 'NULL', NULL, '{x}', 'é']""",
     ["a", 'b,"c\\', "", "NULL", None, "{x}", "é"]),
    ("varchar(20)[]", "'{\" x \"}'", [" x "]),
    ("date[]", "'{2026-01-02,NULL}'", [date(2026, 1, 2), None]),
    ("timestamp[]", f"ARRAY['{NOON}'::timestamp]", [NOON]),
    ("timestamptz[]", f"ARRAY['{NOON}+00'::timestamptz]", [NOON.replace(tzinfo=UTC)]),
    ("bytea[]", r"ARRAY['\x00ff'::bytea, '']", [b"\x00\xff", b""]),
    ("uuid[]", f"ARRAY['{UUID}'::uuid]", [UUID]),
    ("jsonb[]", """ARRAY['{"a": [1]}'::jsonb]""", ['{"a": [1]}']),
    ("numeric", "-123456789.000000000000000001", Decimal("-123456789.000000000000000001")),
    ("numeric(50,10)", "1.5", Decimal("1.5").quantize(Decimal("1e-18"))),
    ("box[]", "'{(1,1),(0,0)}'", "{(1,1),(0,0)}"),
    ("mood[]", "'{calm}'", "{calm}"),
    ("hstore", """hstore(ARRAY['a', '1', 'b"\\', NULL, '', 'é, "'])""",
     [("", 'é, "'), ("a", "1"), ('b"\\', None)]),
    ("integer[]", "'{{1,NULL},{3,4}}'", [[1, None], [3, 4]]),
    ("int4range", "'[1,9]'", spanning(1, 10, "[)")),
    ("numrange", "'empty'", spanning(None, None, "empty")),
    ("tsrange", f"tsrange('{NOON}', NULL, '()')", spanning(NOON, None, "()")),
    ("daterange[]", "ARRAY['empty'::daterange]", ["empty"]),
    ("datemultirange", "'{[2026-01-02,2026-01-04)}'",
     [spanning(date(2026, 1, 2), date(2026, 1, 4), "[)")]),
    ("textrange", """textrange('a, "', 'b', '[]')""", spanning('a, "', "b", "[]")),
    ("place", """ROW('a, "b" \\', 1.5, NULL, ROW(true, '[1,2)'))""",
     {"street": 'a, "b" \\', "size": Decimal("1.50"), "note": None,
      "inner": {"open": True, "hours": spanning(1, 2, "[)")}}),
    ("place[]", "ARRAY[ROW('', NULL, 'x', NULL)::place, NULL]",
     [{"street": "", "size": None, "note": "x", "inner": None}, None]),
    ("interval", "'1 year 2 months -3 days -04:05:06.7'",
     {"months": 14, "days": -3, "microseconds": -14_706_700_000}),
    ("time", "'12:30:00.25'", "12:30:00.25"),  # Delta has no such type
]  # fmt: skip
COLUMNS = [f"c{number}" for number in range(len(CASES))]
CLOCK = COLUMNS[-1]
TAGS = [kind for kind, *_ in CASES].index("hstore")
NESTED = next(n for n, (_, value, _) in zip(COLUMNS, CASES, strict=True) if "{{" in value)
DIMENSIONS = f"dimensions: {{public.t.{NESTED}: 2}}"
TYPES = (
    "types: {numeric: {decimal: [38, 18]}, ranges: struct, composites: struct, interval: struct, "
    f"{DIMENSIONS}}}"
)
WITH_TIMES = TYPES.replace("}}", "}, time: time}")
DEFINITIONS = (
    "CREATE EXTENSION hstore",
    "CREATE TYPE mood AS ENUM ('calm')",
    "CREATE TYPE textrange AS RANGE (subtype = text)",
    "CREATE DOMAIN note AS text",
    "CREATE TYPE detail AS (open boolean, hours int4range)",
    'CREATE TYPE place AS (street text, size numeric(10,2), note note, "inner" detail)',
)


@contextmanager
def capture(database: str, directory: Path, outputs: str) -> Iterator[tuple[Any, Config]]:
    """A table ``t`` of all types, with an insert that is dumped."""
    file = directory / "tidelog.yaml"
    file.write_text(
        f"source: {{kind: postgres, url: '{database}', tables: ['public.*']}}\n"
        f"log: {{path: {directory}/log}}\n"
        f"state: {{url: 'sqlite:///{directory}/state.db'}}\noutputs: {outputs}\n"
    )
    config = load_config(file)
    with psycopg.connect(database, autocommit=True) as sql:
        for definition in DEFINITIONS:
            sql.execute(definition)
        columns = ", ".join(f"{n} {kind}" for n, (kind, *_) in zip(COLUMNS, CASES, strict=True))
        sql.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
        sql.execute("CREATE TABLE keyless (a int[])")
        sql.execute("CREATE TABLE tags (id int PRIMARY KEY, h hstore)")
        insert(sql, 1)
        with tidelog.CaptureGroup([config], pipelines=False):
            yield sql, config


def wait_for_dumps(config: Config, table: str, number: int) -> None:
    """Wait until so many dumps of the table are complete."""
    deadline = clock.monotonic() + 60
    while True:
        dumps = app.status(config).document.get("dumps", ())
        tables = [
            each for dump in dumps if dump["status"] == "completed" for each in dump["tables"]
        ]
        if [each["table"] for each in tables].count(table) >= number:
            return
        assert clock.monotonic() < deadline, dumps
        clock.sleep(0.1)


def insert(sql: Any, key: int) -> None:
    sql.execute(f"INSERT INTO t VALUES ({key}, {', '.join(value for _, value, _ in CASES)})")


def run_with_a_grid(spark: Any, sql: Any, config: Config) -> str:
    """Deliver a table whose value has two dimensions; returns why it was left out."""
    sql.execute("CREATE TABLE grids (id int PRIMARY KEY, g int[])")
    sql.execute("INSERT INTO grids VALUES (1, '{{1,2},{3,4}}')")
    wait_for(config, 2)
    told = run_once(spark, config)
    assert "public.grids: column g, version " in told
    return told


def run_once(spark: Any, config: Config) -> str:
    """Deliver what the log has; returns which tables were left out, and why."""
    outputs = make_outputs(config, spark)
    try:
        run_output_loops(spark, str(config.log.path), outputs, LoopOptions(once=True))
    except TableLeftOutError as error:
        return str(error)
    finally:
        for each in outputs:
            each.close()
    return ""


def test_readers_find_arrays_and_exact_numbers(spark: Any, database: str, tmp_path: Path) -> None:
    """One row is dumped, others are logged; one changes, one goes."""
    place = f"{tmp_path}/lake/public/t"
    outputs = f"[{{kind: delta, path: {tmp_path}/lake, {TYPES}}}, " + (
        f"{{kind: delta, name: steps, path: {tmp_path}/steps, {TYPES}, "
        "tables: [public.t, public.keyless], steps: ["
        "{rename: {c2: ints}}, {filter: 'id < 4'}, {compute: {n: 'size(c3)'}}]}, "
        f"{{kind: iceberg, path: {tmp_path}/iceberg, {WITH_TIMES}, tables: [public.t]}}]"
    )
    with capture(database, tmp_path, outputs) as (sql, config):
        wait_for(config, 1)
        for key in (2, 3, 4):
            insert(sql, key)
        sql.execute("INSERT INTO t (id) VALUES (5)")
        sql.execute("UPDATE t SET c2 = '{7,8}' WHERE id = 3")
        sql.execute("DELETE FROM t WHERE id = 2")
        sql.execute("INSERT INTO keyless VALUES ('{1,NULL}')")
        sql.execute(f"INSERT INTO tags VALUES (1, {CASES[TAGS][1]}), (2, ''), (3, NULL)")
        copy = config.model_copy(update={"outputs": config.outputs[:1]})
        with writing(copy, spark):
            report = app.verify(copy).to_dict()
        assert run_once(spark, config) == ""
        by_types = spark.read.format("tidelog").option("types", '{"arrays": "text"}')
        log = {"path": str(config.log.path), "table": "public.t"}
        texts = by_types.options(**log).load()
        options = {"dimensions": {f"public.t.{NESTED}": 2}, "ranges": "struct", "time": "time"}
        by_types = spark.read.format("tidelog").option("types", json.dumps(options))
        native = by_types.options(**log).load()
    expected = {name: found for name, (*_, found) in zip(COLUMNS, CASES, strict=True)}
    for read in (by_duckdb, by_delta_rs):
        rows = [{n: v for n, v in row.items() if n in COLUMNS} for row in rows_of(read(place))]
        assert [row["c2"] for row in rows] == [[], [7, 8], [], None]
        assert all(value is None for value in rows[3].values())
        assert {**rows[0], "c14": [str(each) for each in rows[0]["c14"]]} == expected
    (*_, metadata) = sorted((tmp_path / "iceberg/public/t/metadata").glob("*.metadata.json"))
    of_iceberg = by_pyiceberg(StaticTable.from_metadata(str(metadata)))
    assert [row["id"] for row in of_iceberg] == [1, 3, 4, 5]
    first = {name: of_iceberg[0][name] for name in COLUMNS}
    assert first == expected | {CLOCK: time(12, 30, 0, 250_000)}
    changes = rows_of(by_duckdb(f"{tmp_path}/lake/public/keyless", "version"))
    assert [row["after"] for row in changes if row["op"] == "c"] == [{"a": [1, None]}]
    steps = rows_of(by_duckdb(f"{tmp_path}/steps/public/t"))
    assert [(row["id"], row["ints"], row["n"]) for row in steps] == [(1, [], 2), (3, [7, 8], 2)]
    (tags,) = [each for each in report["tables"] if each["table"] == "public.tags"]
    assert (tags["equal"], tags["method"], tags["rows"]) == (True, "checksum", 3), report
    (whole,) = [each for each in report["tables"] if each["table"] == "public.t"]
    assert (whole["equal"], whole["method"], whole["rows"]) == (True, "rows", 4), report
    assert [row[0] for row in native.select("after.c8").distinct().collect() if row[0]] == [
        expected["c8"]
    ]
    assert dict(texts.select("after.*").dtypes)["c8"] == "string"
    assert dict(native.select("after.*").dtypes)["c6"] == "array<decimal(10,2)>"
    kinds = dict(native.select("after.*").dtypes)
    assert kinds["c16"] == "string"
    assert kinds["c20"] == "map<string,string>"
    assert kinds[NESTED] == "array<array<int>>"
    assert kinds["c27"].startswith("struct<lower:string,upper:string,lower_inclusive:boolean")
    assert kinds["c28"] == "string"
    assert kinds[CLOCK] == "time(6)"
    times = native.where("op = 'r'").select(f"after.{CLOCK}", f"after.{NESTED}").collect()
    assert [tuple(row) for row in times] == [(time(12, 30, 0, 250_000), [[1, None], [3, 4]])]


@pytest.mark.thorough
@pytest.mark.parametrize("names", ["plain", "exact"])
def test_a_composites_new_attribute_is_a_new_member_of_the_struct(
    spark: Any, database: str, tmp_path: Path, names: str
) -> None:
    """In a copy and in a table of history. Older files: tests/unit/lake/test_grown_structs.py."""
    place, column = f"{tmp_path}/lake/public/places", '"at b"' if names == "exact" else "at"
    options = f"kind: delta, types: {{composites: struct}}, names: {names}, tables: [public.places]"
    outputs = (
        f"[{{{options}, name: lake, path: {tmp_path}/lake}}, "
        f"{{{options}, name: all, path: {tmp_path}/all, holds: {{public.*: history}}}}]"
    )
    with capture(database, tmp_path, outputs) as (sql, config):
        sql.execute(f"CREATE TABLE places (id int PRIMARY KEY, n int, {column} place)")
        for key in (1, 2, 3):
            row = f"ROW('street {key}', 1, NULL, NULL)::place"
            sql.execute(f"INSERT INTO places VALUES ({key}, 1, {row})")
        wait_for_dumps(config, "public.places", 1)
        assert run_once(spark, config) == ""
        sql.execute("ALTER TYPE place ADD ATTRIBUTE floor int")
        sql.execute("INSERT INTO places VALUES (4, 1, ROW('four', 1, NULL, NULL, 4)::place)")
        sql.execute("UPDATE places SET n = 2 WHERE id = 1")
        sql.execute(f"UPDATE places SET {column}.floor = 7 WHERE id = 2")
        wait_for_dumps(config, "public.places", 2)
        assert run_once(spark, config) == ""
        with writing(config, spark):
            report = app.verify(config).to_dict()
    assert report["equal"], report
    for reader in (by_delta_rs, by_duckdb, lambda where: by_spark(spark, where)):
        found = {row["id"]: row[column.strip('"')] for row in rows_of(reader(place))}
        assert {key: at["floor"] for key, at in found.items()} == {1: None, 2: 7, 3: None, 4: 4}
        assert found[3]["street"] == "street 3"


def test_a_value_that_does_not_fit_leaves_out_its_table_alone(
    spark: Any, database: str, tmp_path: Path
) -> None:
    """The message says what to do; columns that there are keep their types, whatever is said."""
    place = tmp_path / "lake" / "public"

    def rows(table: str, column: str) -> list[Any]:
        return [row[column] for row in rows_of(by_duckdb(str(place / table)))]

    output = f"{{kind: delta, path: {tmp_path}/lake, types: {{{DIMENSIONS}}}}}"
    with capture(database, tmp_path, f"[{output}]") as (sql, config):
        told = run_with_a_grid(spark, sql, config)
        assert "is an array of several dimensions, which array(int32) does not fit" in told
        assert f"types: {{arrays: text}} in the output's options, then move {place}/grids" in told
        assert rows("t", "c2") == [[]]
        assert rows("grids", "g") == []
        sql.execute("INSERT INTO t (id, c2) VALUES (9, '{9}')")
        wait_for(config, 3)
        missing = run_once(spark, config)  # it may have been mended: a dump shows it
        assert "rows are missing until a dump of it is done" in missing
        assert rows("t", "c2") == [[], [9]]

        (place / "grids").rename(tmp_path / "away")
        file = tmp_path / "tidelog.yaml"
        file.write_text(file.read_text().replace("types: {", "types: {arrays: text, "))
        config = load_config(file)
        sql.execute("INSERT INTO grids VALUES (2, '{5}')")
        sql.execute("INSERT INTO t (id, c2) VALUES (10, '{10}')")
        command = StartDump(dump_id="again", tables=("public.grids",))
        assert app.send_command(config, command, timeout_s=30).to_dict()["error"] is None
        app.dump_wait(config, "again", timeout_s=60)
        wait_for(config, 7)
        assert run_once(spark, config) == ""
        assert rows("grids", "g") == ["{{1,2},{3,4}}", "{5}"]
        assert rows("t", "c2") == [[], [9], [10]]
        file.write_text(file.read_text().replace("arrays: text", "arrays: native"))
        sql.execute("INSERT INTO grids VALUES (3, '{6}')")
        wait_for(config, 8)
        run_once(spark, load_config(file))
        assert rows("grids", "g")[-1] == "{6}"


def test_declared_dimensions_are_those_of_the_arrays(
    spark: Any, database: str, tmp_path: Path
) -> None:
    """Of rows of the log and of a dump alike; a value of others leaves its table out."""
    place = tmp_path / "lake" / "public" / "declared"

    def rows() -> list[Any]:
        return [row["g"] for row in rows_of(by_duckdb(str(place)))]

    output = f"{{kind: delta, path: {tmp_path}/lake, types: {{{DIMENSIONS}}}}}"
    with capture(database, tmp_path, f"[{output}]") as (sql, config):
        sql.execute("CREATE TABLE declared (id int PRIMARY KEY, g int[][])")
        sql.execute("INSERT INTO declared VALUES (1, '{{1,2},{3,4}}'), (2, '{}'), (3, NULL)")
        wait_for(config, 4)
        wait_for_dumps(config, "public.declared", 1)
        sql.execute("UPDATE declared SET g = '{{7,8,9}}' WHERE id = 3")
        wait_for(config, 5)
        assert run_once(spark, config) == ""
        assert rows() == [[[1, 2], [3, 4]], [], [[7, 8, 9]]]
        log = EventLog.open(str(config.log.path))
        assert len(log.schemas.versions(TableName("public", "declared"))) == 1
        sql.execute("ALTER TABLE declared ALTER g TYPE int[]")  # what is there keeps its type
        sql.execute("INSERT INTO declared VALUES (4, '{{5}}')")
        wait_for(config, 6)
        assert run_once(spark, config) == ""
        assert rows()[3:] == [[[5]]]
        sql.execute("INSERT INTO declared VALUES (5, '{6}')")
        wait_for(config, 7)
        told = run_once(spark, config)
        assert "is an array of fewer dimensions, which array(array(int32)) does not fit" in told
        assert rows()[3:] == [[[5]]]


def test_files_have_arrays_if_asked(spark: Any, database: str, tmp_path: Path) -> None:
    """What does not fit leaves out its table; a column that exists keeps its type."""
    output = f"kind: files, path: {tmp_path}/files, {WITH_TIMES}"
    lines = f"kind: files, name: lines, format: json, path: {tmp_path}/lines, {WITH_TIMES}"
    with capture(database, tmp_path, f"[{{{output}}}, {{{lines}}}]") as (sql, config):
        told = run_with_a_grid(spark, sql, config)
        assert "in the options of an output with another name and path" in told
        file = tmp_path / "tidelog.yaml"
        file.write_text(file.read_text().replace("types: {", "types: {arrays: text, "))
        sql.execute("UPDATE t SET c2 = '{7}'")
        wait_for(config, 3)
        run_once(spark, load_config(file))
    rows = duckdb.sql(
        f"SELECT * FROM '{tmp_path}/files/table=public.t/**/*.parquet' ORDER BY version"
    )
    first, second = rows_of(rows.to_arrow_table())
    expected = {name: found for name, (*_, found) in zip(COLUMNS, CASES, strict=True)}
    expected[CLOCK] = time(12, 30, 0, 250_000)
    assert {**first["after"], "c14": [UUID]} == {"id": 1, **expected}
    assert second["after"]["c2"] == [7]
    assert not list(tmp_path.glob("*/table=public.grids/**/*.*"))
    of_json = [
        json.loads(line)
        for file in tmp_path.glob("lines/table=public.t/**/*.json")
        for line in file.read_text().splitlines()
    ]
    found = min(of_json, key=lambda record: int(record["version"]))["after"]
    dates = {"lower": "2026-01-02", "upper": "2026-01-04"}
    assert (found["c10"], found["c26"]) == (["2026-01-02", None], [expected["c26"][0] | dates])
    assert found["c28"] == expected["c28"] | {"size": "1.50"}


DOCUMENTS = [
    '{"a": 1, "b": [1.50, true, null, {"c": "é\\n"}], "\ue000": 12345678901234567890}',
    "[]",
    "null",
    '{"b": {"long": "' + "x" * 70 + '"}, "a": -1.5e-3}',
]


def test_json_is_variant_if_asked(spark: Any, database: str, tmp_path: Path) -> None:
    """What Spark reads from Delta and from the log is what its own `parse_json` makes."""
    output = "kind: delta, tables: [public.docs], types: {json: variant}"
    outputs = f"[{{{output}, path: {tmp_path}/lake}}, " + (
        f"{{{output}, name: steps, path: {tmp_path}/steps, steps: [{{compute: "
        "{n: \"variant_get(plain, '$.b[0]', 'decimal(3,2)')\"}}]}, "
        f"{{{output}, name: past, path: {tmp_path}/past, holds: {{'*.*': history}}}}]"
    )
    insert = "INSERT INTO docs VALUES (%s, %s, %s)"
    with capture(database, tmp_path, outputs) as (sql, config):
        sql.execute("CREATE TABLE docs (id int PRIMARY KEY, doc jsonb, plain json)")
        for key, text in enumerate(DOCUMENTS, 1):
            sql.execute(insert, (key, text, text))
        wait_for(config, 5)
        sql.execute("INSERT INTO docs VALUES (5)")
        sql.execute("UPDATE docs SET doc = doc || '{\"a\": 2}' WHERE id = 1")
        sql.execute("DELETE FROM docs WHERE id = 2")
        copy = config.model_copy(update={"outputs": config.outputs[:1]})
        with writing(copy, spark):
            (report,) = app.verify(copy).to_dict()["tables"]
        assert run_once(spark, config) == ""
        log = {"path": str(config.log.path), "table": "public.docs"}
        read = spark.read.format("tidelog").options(**log).option("types", '{"json": "variant"}')
        logged = {row["id"]: row for row in read.load().selectExpr("after.*").collect()}
        events = len(wait_for(config, 8))
        sql.execute('INSERT INTO docs VALUES (6, NULL, \'{"a": 1, "a": 1}\')')
        wait_for(config, events + 1)
        told = run_once(spark, copy)
    assert (report["equal"], report["method"], report["rows"]) == (True, "rows", 4), report
    assert "column plain, version " in told
    assert "has an object with one name twice, which variant does not fit" in told
    assert "write types: {json: text} in the output's options" in told

    def read_back(place: str, columns: str) -> list[tuple[Any, ...]]:
        frame = spark.sql(f"SELECT {columns} FROM delta.`{tmp_path}/{place}/public/docs`")
        return [tuple(row) for row in frame.orderBy("id").collect()]

    texts = spark.createDataFrame([(each,) for each in (*DOCUMENTS, None)], "text string")
    parsed = [row[0] for row in texts.selectExpr("parse_json(text)").collect()]
    found = read_back("lake", "id, plain")
    assert [(key, bytes_of(value)) for key, value in found] == [
        (key, bytes_of(parsed[key - 1])) for key in (1, 3, 4, 5)
    ]
    assert bytes_of(logged[1]["plain"]) == bytes_of(parsed[0])
    assert read_back("steps", "id, n")[:2] == [(1, Decimal("1.50")), (3, None)]
    past = read_back("past", "id, _current, variant_get(doc, '$.a', 'int')")
    assert sorted(past[:3]) == [(1, False, 1), (1, True, 2), (2, False, None)]
    by_others = by_duckdb(f"{tmp_path}/lake/public/docs", what="id, doc::JSON::VARCHAR AS doc")
    changed = '{"a":2,"b":[1.50,true,null,{"c":"é\\n"}],"\ue000":12345678901234567890}'
    assert [row["doc"] for row in rows_of(by_others)[:2]] == [changed, "null"]


def bytes_of(value: Any) -> tuple[bytes, bytes] | None:
    """Of a VARIANT."""
    return None if value is None else (value.value, value.metadata)
