"""The Spark source on a real session: shapes, ranges, streams, admission, and how it stops."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from tests.support.build_log import BuiltLog
from tests.support.pgoutput_messages import UNCHANGED

from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.eventlog.storage import OPTIONS_VARIABLE
from tidelog.spark.datasource.source import tidelog_reader
from tidelog.spark.sessions.errors import find_error
from tidelog.spark.sessions.versions import STREAMS_ARE_LIMITED

pytestmark = pytest.mark.spark

ORDERS = {
    "id": "int64",
    "name": "text",
    "amount": "decimal(10,2)",
    "at": "timestamptz",
    "day": "date",
    "paid": "bool",
    "raw": "binary",
    "score": "float64",
}
FIRST = ("1", 'a "b" \\ \n\x01é', "12.50", "2024-01-02 03:04:05.5+00", "2024-01-01", "t", "\\x0102")


def fill(built: BuiltLog) -> tuple[Any, Any]:
    orders = built.table("public.orders", ORDERS)
    users = built.table("public.users", {"id": "int32", "mail": "text"}, relation_id=2)
    built.insert(orders, *FIRST, "NaN")
    built.insert(users, "1", "u@x")
    built.update(orders, "1", UNCHANGED, "3.00", None, None, "f", None, "1.5")
    built.flush()
    built.update(orders, "2", "moved", None, None, None, None, None, None, key=["1"])
    built.delete(users, "1")
    built.truncate(users)
    built.flush()
    built.chunk(users, [["5", "z"]], absent=[["6"]])
    return orders, users


def test_typed_rows_have_ops_images_keys_and_source(
    built: BuiltLog, read: Callable[..., Any]
) -> None:
    orders, _ = fill(built)
    rows = read(table="public.orders").orderBy("version").collect()
    assert [row.op for row in rows] == ["c", "u", "u"]
    after = rows[0].after
    assert after.id == 1
    assert after.name == FIRST[1]
    assert after.amount == Decimal("12.50")
    assert after.at == datetime(2024, 1, 2, 3, 4, 5, 500000, tzinfo=UTC).astimezone().replace(
        tzinfo=None
    )
    assert after.day == date(2024, 1, 1)
    assert after.raw == b"\x01\x02"
    assert [row.missing for row in rows] == [None, ["name"], None]
    assert rows[0].before is None
    assert rows[2].before.id == 1
    assert [row.key.id for row in rows] == [1, 1, 2]
    assert {row.schema_version for row in rows} == {orders.schema_id}
    assert rows[0].source.table == "public.orders"
    assert [row.source.position for row in rows] == [1001, 1003, 1004]
    assert {row.source.origin for row in rows} == {"log"}


def test_dump_rows_and_absent_keys_are_marked(built: BuiltLog, read: Callable[..., Any]) -> None:
    fill(built)
    rows = read(table="public.users").orderBy("version").collect()
    assert [(row.op, row.source.origin) for row in rows] == [
        ("c", "log"),
        ("d", "log"),
        ("t", "log"),
        ("r", "dump"),
        ("d", "dump"),
    ]
    assert [row.key.id for row in rows] == [1, 1, None, 5, 6]


def test_columns_are_pruned(built: BuiltLog, read: Callable[..., Any]) -> None:
    fill(built)
    frame = read(table="public.orders", columns="paid,id")
    assert frame.schema["after"].dataType.fieldNames() == ["paid", "id"]
    assert [tuple(row.after) for row in frame.orderBy("version").collect()] == [
        (True, 1),
        (False, 1),
        (None, 2),
    ]


def test_typed_rows_have_the_columns_that_the_table_has_now(
    built: BuiltLog, read: Callable[..., Any]
) -> None:
    """Whatever columns came and went since they were written."""
    old = built.table("public.t", {"id": "int64", "a": "text", "gone": "text"})
    built.insert(old, "1", "x", "y")
    built.flush()
    new = built.table("public.t", {"id": "int64", "a": "text", "added": "int32"})
    built.insert(new, "2", "x", "7")
    built.flush()
    frame = read(table="public.t")
    assert frame.schema["after"].dataType.fieldNames() == ["id", "a", "added"]
    rows = [tuple(row.after) for row in frame.orderBy("version").collect()]
    assert rows == [(1, "x", None), (2, "x", 7)]
    then = read(table="public.t", schemaVersion=str(old.schema_id))
    assert then.schema["after"].dataType.fieldNames() == ["id", "a", "gone"]


@pytest.mark.parametrize("shape", ["typed", "events"])
def test_a_column_is_there_again_after_it_was_dropped(
    built: BuiltLog, read: Callable[..., Any], shape: str
) -> None:
    """The schema is the first one again, and so is its number."""
    columns = {"id": "int64", "a": "text", "x": "text"}
    built.insert(built.table("public.t", columns), "1", "a", "old")
    short = built.table("public.t", {"id": "int64", "a": "text"})
    built.insert(short, "2", "a")
    built.flush()
    built.insert(again := built.table("public.t", columns), "3", "a", "new")
    assert again.schema_id < short.schema_id
    built.flush()
    frame = read(table="public.t", shape=shape)
    xs = frame.orderBy("version").select("after.x") if shape == "typed" else frame.select("x")
    built.insert(built.table("public.t", {"id": "int64"}), "4")  # after the frame was made
    built.flush()
    assert {row.x for row in xs.collect()} >= {"old", "new"}


def test_envelope_is_debezium_json_of_all_tables_in_log_order(
    built: BuiltLog, read: Callable[..., Any]
) -> None:
    fill(built)
    rows = read().collect()
    assert [row.version for row in rows] == sorted(row.version for row in rows)
    assert [row.op for row in rows if row.table == "public.users"] == ["c", "d", "t", "r", "d"]
    value = json.loads(rows[0].value)
    assert json.loads(rows[0].key) == {"id": 1}
    assert value["before"] is None
    assert value["after"] == {
        "id": 1,
        "name": FIRST[1],
        "amount": "12.50",
        "at": "2024-01-02T03:04:05.500000Z",
        "day": 19723,
        "paid": True,
        "raw": "AQI=",
        "score": "NaN",
    }
    assert value["source"]["table"] == "orders"
    assert value["source"]["lsn"] == 1001
    assert value["source"]["snapshot"] == "false"
    partial = json.loads(next(row.value for row in rows if row.version == rows[2].version))
    assert partial["after"]["name"] == "__debezium_unavailable_value"
    truncate = next(row for row in rows if row.op == "t")
    assert truncate.key is None
    only = read(tables="public.us*").collect()
    assert {row.table for row in only} == {"public.users"}


def test_raw_rows_carry_payload_table_and_schema(built: BuiltLog, read: Callable[..., Any]) -> None:
    fill(built)
    built.control({"type": "note"})
    rows = read(shape="raw").orderBy("offset").collect()
    assert [row.kind for row in rows][-3:] == ["dump_row", "absent", "control"]
    assert rows[0].payload[:1] == b"I"
    assert json.loads(rows[0].schema)["columns"][0]["name"] == "id"
    assert json.loads(rows[-1].payload) == {"type": "note"}
    assert rows[-1].table is None


def test_raw_rows_of_a_table_come_with_the_marks_of_its_dumps(
    built: BuiltLog, read: Callable[..., Any]
) -> None:
    fill(built)
    for table in ("public.users", "public.other"):
        built.control({"type": "dump-completed", "table": table})
    rows = read(shape="raw", tables="public.us*").orderBy("offset").collect()
    assert {row.table for row in rows} == {"public.users"}
    assert [row.kind for row in rows].count("control") == 1
    marked = read(shape="raw").where("kind = 'control'").orderBy("offset").collect()
    assert [row.table for row in marked] == ["public.users", "public.other"]
    assert {row.op for row in read(tables="public.us*").collect()} <= set("cudrt")


def test_a_range_is_read_exactly(built: BuiltLog, read: Callable[..., Any]) -> None:
    fill(built)
    versions = [row.version for row in read().collect()]
    part = read(startingOffset=versions[1], endingOffset=versions[4])
    assert [row.version for row in part.collect()] == versions[1:4]


def test_partitions_spread_segments(spark: Any, built: BuiltLog) -> None:
    table = built.table("public.t", {"id": "int64", "x": "text"})
    for segment in range(8):
        for row in range(50):
            built.insert(table, str(segment * 50 + row), "x" * 100)
        built.flush()
    reader = spark.read.format("tidelog").option("path", built.path).option("table", "public.t")
    many = reader.option("partitionBytes", "10k").load()
    assert many.rdd.getNumPartitions() > 2
    assert sorted(row.key.id for row in many.collect()) == list(range(400))
    assert reader.option("partitions", "2").load().rdd.getNumPartitions() == 2


class Collector:
    """A foreachBatch target that keeps each batch's rows."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []

    def __call__(self, frame: Any, _batch: int) -> None:
        rows = frame.collect()
        if rows:
            self.batches.append(rows)


def stream(spark: Any, built: BuiltLog, checkpoint: Path, **options: Any) -> list[list[Any]]:
    """Run a stream with AvailableNow; the rows of its batches."""
    found = Collector()
    reader = spark.readStream.format("tidelog").option("path", built.path).options(**options)
    query = (
        reader.load()
        .writeStream.foreachBatch(found)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert not query.isActive
    return found.batches


def test_a_stream_resumes_at_its_checkpoint(spark: Any, built: BuiltLog, tmp_path: Path) -> None:
    table = built.table("public.t", {"id": "int64"})
    built.insert(table, "1")
    built.flush()
    first = stream(spark, built, tmp_path / "c", table="public.t")
    assert [row.key.id for batch in first for row in batch] == [1]
    built.insert(table, "2")
    built.insert(table, "3")
    built.flush()
    second = stream(spark, built, tmp_path / "c", table="public.t")
    assert [row.key.id for batch in second for row in batch] == [2, 3]
    assert stream(spark, built, tmp_path / "c", table="public.t") == []


@pytest.mark.skipif(not STREAMS_ARE_LIMITED, reason="Spark asks for limits since 4.2")
def test_admission_limits_bound_micro_batches(spark: Any, built: BuiltLog, tmp_path: Path) -> None:
    table = built.table("public.t", {"id": "int64", "x": "text"})
    for segment in range(6):
        for row in range(10):
            built.insert(table, str(segment * 10 + row), "x" * 100)
        built.flush()
    by_bytes = stream(spark, built, tmp_path / "b", shape="segments", maxBytesPerTrigger="3k")
    assert [sum(row.rows for row in batch) for batch in by_bytes] == [20, 20, 20]
    by_rows = stream(spark, built, tmp_path / "r", shape="segments", maxRecordsPerTrigger="30")
    assert [sum(row.rows for row in batch) for batch in by_rows] == [30, 30]


def test_a_removed_offset_stops_the_stream_with_a_way_on(
    spark: Any, built: BuiltLog, tmp_path: Path
) -> None:
    table = built.table("public.t", {"id": "int64"})
    built.insert(table, "1")
    built.flush()
    stream(spark, built, tmp_path / "c", table="public.t")
    for row in range(2, 6):
        built.insert(table, str(row))
        built.flush()
    EventLogMaintenance(built.path).retain(0, now_ms=4_000_000_000_000)
    with pytest.raises(PySparkException) as caught:
        stream(spark, built, tmp_path / "c", table="public.t")
    found = find_error(str(caught.value))
    assert type(found).__name__ == "OffsetGoneError"
    assert "retention removed" in str(found)
    assert "new checkpoint" in str(found)


def test_a_recreated_log_stops_the_stream(spark: Any, tmp_path: Path) -> None:
    built = BuiltLog(tmp_path / "log")
    table = built.table("public.t", {"id": "int64"})
    built.insert(table, "1")
    built.flush()
    stream(spark, built, tmp_path / "c", table="public.t")
    (tmp_path / "log").rename(tmp_path / "old")
    again = BuiltLog(tmp_path / "log", start_offset=10_000)
    again.table("public.t", {"id": "int64"})
    with pytest.raises(PySparkException, match="recreated"):
        stream(spark, again, tmp_path / "c", table="public.t")


@pytest.mark.parametrize("shape", ["typed", "events"])
def test_a_stream_of_columns_stops_at_another_schema_version_and_continues_with_it(
    spark: Any, built: BuiltLog, tmp_path: Path, shape: str
) -> None:
    """Also at one with an older number: a column that was dropped is there again."""
    wide = built.table("public.t", {"id": "int64", "extra": "text"})
    built.insert(wide, "1", "old")
    built.flush()
    table = built.table("public.t", {"id": "int64"})
    built.insert(table, "2")
    built.flush()
    query_started, release = threading.Event(), threading.Event()
    found: list[int] = []
    row = "after.*" if shape == "typed" else "*"

    def batch(frame: Any, _number: int) -> None:
        found.extend(each.id for each in frame.select(row).collect())
        query_started.set()
        release.wait(60)

    reader = spark.readStream.format("tidelog").option("path", built.path).option("shape", shape)
    query = (
        reader.option("table", "public.t")
        .load()
        .writeStream.foreachBatch(batch)
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    assert query_started.wait(120)
    built.insert(table, "3")
    assert built.table("public.t", {"id": "int64", "extra": "text"}) == wide
    built.insert(wide, "4", "new")
    built.flush()
    release.set()
    with pytest.raises(PySparkException, match=r"added extra.*restart the query"):
        query.awaitTermination(120)
    assert found == [1, 2]
    parts = stream(spark, built, tmp_path / "c", table="public.t", shape=shape)
    rows = [row if shape == "events" else row.after for part in parts for row in part]
    assert [(row.id, row.extra) for row in rows] == [(3, None), (4, "new")]


def test_decode_errors_name_table_and_version_not_values(
    built: BuiltLog, read: Callable[..., Any]
) -> None:
    table = built.table("public.t", {"id": "int64", "n": "int32"})
    built.insert(table, "1", "7")
    built.insert(table, "2", "secret-value")
    version = built.flush().first
    with pytest.raises(PySparkException) as caught:
        read(table="public.t").collect()
    found = find_error(str(caught.value))
    assert type(found).__name__ == "DecodeError"
    assert "public.t" in str(found)
    assert "column n" in str(found)
    assert str(version) in str(found) or "version" in str(found)
    assert "secret-value" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": "typed"}, "needs the option 'table'"),
        ({"tabel": "x"}, "unknown option 'tabel'"),
        ({"table": "public.nothing"}, "no records of table public.nothing"),
        (
            {"table": "public.orders", "columns": "id,nothing"},
            "has no column .nothing.; it has: id, name",
        ),
        ({"startingOffset": "yesterday"}, "must be earliest, latest or an offset"),
        ({"filterPushdown": "true"}, "was removed: Spark keeps the filters"),
    ],
)
def test_wrong_options_are_named(
    built: BuiltLog, read: Callable[..., Any], options: dict[str, str], message: str
) -> None:
    fill(built)
    with pytest.raises(PySparkException, match=message):
        read(**options)


def test_sql_reads_a_view_and_makes_no_table(spark: Any, built: BuiltLog) -> None:
    fill(built)
    options = f"USING tidelog OPTIONS (path 'file:{built.path}', table 'public.orders')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders_of_a_log {options}")
    found = spark.sql("SELECT op FROM orders_of_a_log ORDER BY version").collect()
    assert [row.op for row in found] == ["c", "u", "u"]
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE orders_of_a_log_too {options}")


def test_a_frame_gives_the_same_rows_whatever_was_filtered_before(
    built: BuiltLog, read: Callable[..., Any]
) -> None:
    """Spark would keep pushed filters for later queries of the frame."""
    fill(built)
    frame = read(table="public.orders")
    assert [row.op for row in frame.where("key.id = 2").collect()] == ["u"]
    assert frame.where("version < 0").count() == 0
    assert frame.count() == 3


def test_a_plain_session_finds_the_source_by_its_module(built: BuiltLog) -> None:
    fill(built)
    code = (
        "from pyspark.sql import SparkSession\n"
        "s = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')"
        ".getOrCreate()\n"
        f"print(s.read.format('tidelog').option('path', {built.path!r}).load().count())\n"
        "s.stop()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout.strip().endswith("8"), done.stderr[-2000:]


def test_the_source_has_the_options_of_stores_that_this_process_has_now(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second pipeline of the process may read an event log on another store."""
    monkeypatch.setitem(spark.sparkContext.environment, OPTIONS_VARIABLE, "{}")
    session = spark.newSession()
    sources = session._jsparkSession.sessionState().dataSourceManager()
    found = []
    for options in ("{}", '{"s3://one": {}}', '{"s3://one": {}}', '{"s3://other": {}}'):
        monkeypatch.setenv(OPTIONS_VARIABLE, options)
        tidelog_reader(session)
        function = sources.lookupDataSource("tidelog").dataSourceCls()
        found.append(function.envVars().get(OPTIONS_VARIABLE))
    assert found == ["{}", '{"s3://one": {}}', '{"s3://one": {}}', '{"s3://other": {}}']
