"""What every version of Spark has to do, as a user has it done: `make test-sparks`, which runs this
with each of them in an environment of its own, that is not activated.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyspark
import pytest
from tests.support.delta_readers import by_delta_rs
from tests.support.pipeline_process import Delivering
from tests.support.postgres import PostgresServer

import tidelog
from tidelog.spark.sessions.jars import installed_spark, pinned_jars

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.thorough]

TABLES = """
CREATE TABLE orders (
  id int PRIMARY KEY, at timestamptz, day date, total numeric(10,2), note text, raw bytea
);
CREATE TABLE items (item text COLLATE "C", n int, price float8, PRIMARY KEY (item, n));
INSERT INTO orders SELECT i, '2026-01-02 03:04:05Z'::timestamptz + i * interval '1 hour',
  '2026-01-02', i * 1.25, 'note ' || i, '\\x00ff' FROM generate_series(1, 300) i;
INSERT INTO items SELECT 'item ' || i % 7, i, 1.0 / i FROM generate_series(1, 50) i;
"""
CHANGES = """
UPDATE orders SET total = total + 1, note = NULL WHERE id % 3 = 0;
DELETE FROM orders WHERE id % 10 = 1;
INSERT INTO orders SELECT i, now(), current_date, 1.5, 'ü', NULL FROM generate_series(301, 340) i;
UPDATE items SET price = -0.5 WHERE n < 10;
DELETE FROM items WHERE n > 45;
"""
KEYS = {"orders": ("id",), "items": ("item", "n")}
DUMPED = {"orders": 300, "items": 50}
LAKES = ("delta", "iceberg", "postgres")
CHANGED = {"orders": 100 + 30 + 40, "items": 9 + 5}
# To make an archive of the JVM's classes takes half a minute, and pays off later.
CONF = {"spark.driver.extraJavaOptions": "-Xshare:auto", "spark.sql.shuffle.partitions": "2"}


class Shop:
    """A database, a capture of it, and outputs that `tidelog pipeline --once` brings up to date."""

    def __init__(self, source: str, copy: str, directory: Path) -> None:
        self.source = source
        self.copy = copy
        self.directory = directory
        self.log = str(directory / "log")
        self.file = directory / "tidelog.yaml"
        self.file.write_text(
            f"source: {{kind: postgres, url: '{source}', tables: ['public.*'], slot: each_spark}}\n"
            "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\n"
            "capture: {flush_ms: 10}\n"
            f"pipeline: {{master: 'local[2]', conf: {json.dumps(CONF)}}}\n"
            "outputs:\n"
            "  - {kind: delta, path: lake}\n"
            "  - {kind: iceberg, path: iceberg}\n"
            "  - {kind: files, path: activity, format: json}\n"
            f"  - {{kind: postgres, url: '{copy}', schema: shop}}\n"
        )
        self.config = tidelog.load_config(self.file)
        with psycopg.connect(source) as connection:
            connection.execute(TABLES)
        self.capture = Delivering(self.file, directory / "capture.log", command="capture")

    def wait_for_dump(self) -> None:
        self.wait_for(self._is_dumped)

    def change(self, sql: str) -> None:
        """Return when capture has acknowledged it."""
        with psycopg.connect(self.source) as connection:
            connection.execute(sql)
            connection.commit()
            row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
            assert row is not None
            self.wait_for(lambda: self._is_captured(row[0]))

    def deliver(self) -> None:
        """By a process of its own, as after a restart."""
        command = [sys.executable, "-m", "tidelog", "pipeline", str(self.file), "--once"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """The source's, by key."""
        return _rows(self.source, f"SELECT * FROM {table} ORDER BY {', '.join(KEYS[table])}")

    def copied(self, table: str) -> list[tuple[Any, ...]]:
        """The rows of the output of kind postgres, whose last column is the version."""
        order = 'item COLLATE "C", n' if table == "items" else "id"
        found = _rows(self.copy, f"SELECT * FROM shop.{table} ORDER BY {order}")
        return [row[:-1] for row in found]

    def in_lake(self, table: str) -> list[tuple[Any, ...]]:
        """The rows of the output of kind delta, as delta-rs reads them."""
        path = self.directory / "lake" / "public" / table
        found = by_delta_rs(str(path), ", ".join(KEYS[table])).drop(["_version"])
        return [tuple(row.values()) for row in found.to_pylist()]

    def recorded(self) -> int:
        """How many changes the output of kind files has."""
        files = (self.directory / "activity").glob("table=*/**/*.json")
        return sum(len(file.read_text().splitlines()) for file in files)

    def wait_for(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 300
        while not what():
            assert self.capture.code is None, self.capture.said
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def _is_dumped(self) -> bool:
        dumps = tidelog.status(self.config).document.get("dumps", ())
        return any(dump["status"] == "completed" for dump in dumps)

    def _is_captured(self, end: str) -> bool:
        of_ours = "FROM pg_replication_slots WHERE slot_name = 'each_spark'"
        sql = f"SELECT confirmed_flush_lsn >= %s::pg_lsn {of_ours}"
        return _rows(self.source, sql, end) == [(True,)]


def _rows(url: str, sql: str, *values: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(sql.encode(), values or None).fetchall()


@pytest.fixture
def shop(
    postgres16: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin:/bin")  # as where nothing is activated
    names = ("each_spark", "each_spark_copy")
    found = Shop(*(postgres16.create_database(name) for name in names), tmp_path)
    try:
        yield found
    finally:
        found.capture.close()
        for name in names:
            postgres16.drop_database(name)


def test_jars_for_s3_have_the_version_of_spark_s_hadoop() -> None:
    [hadoop] = Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")
    [of_s3] = [jar for jar in pinned_jars("s3", installed_spark()) if jar.artifact == "hadoop-aws"]
    assert hadoop.stem == f"hadoop-client-api-{of_s3.version}"


@pytest.mark.timeout(1800)  # two of them share two cores
def test_outputs_and_streams_hold_what_the_source_has(shop: Shop) -> None:
    """By two pipelines, one after the other, and a stream that goes on at its checkpoint."""
    shop.wait_for_dump()
    shop.deliver()
    assert_equal(shop)
    assert shop.recorded() == sum(DUMPED.values())
    spark = tidelog.spark.spark_session("local[2]", conf=CONF, delta=False, iceberg=True)
    try:
        go_on(shop, spark)
    finally:
        spark.stop()


def go_on(shop: Shop, spark: Any) -> None:
    assert read_available(spark, shop) == DUMPED["orders"]

    shop.change(CHANGES)
    shop.deliver()
    assert_equal(shop)
    assert shop.recorded() == sum(DUMPED.values()) + sum(CHANGED.values())
    assert read_available(spark, shop) == DUMPED["orders"] + CHANGED["orders"]
    assert read(spark.read, shop).count() == DUMPED["orders"] + CHANGED["orders"]

    report = tidelog.verify_outputs(shop.config).to_dict()
    found = {(each["table"], each["output"], each["equal"]) for each in report["tables"]}
    assert found == {(f"public.{t}", o, True) for t in KEYS for o in LAKES}

    query = written(spark, shop).start()
    try:
        shop.change("UPDATE orders SET note = 'last'")
        query.processAllAvailable()
    finally:
        query.stop()
    streamed = spark.read.parquet(str(shop.directory / "streamed"))
    assert streamed.where("after.note = 'last'").count() == len(shop.rows("orders"))
    assert shop.rows("orders") != shop.in_lake("orders")  # what is compared can differ


def assert_equal(shop: Shop) -> None:
    for table in KEYS:
        rows = shop.rows(table)
        assert shop.in_lake(table) == rows
        assert shop.copied(table) == rows


def read(reader: Any, shop: Shop) -> Any:
    return reader.format("tidelog").options(path=shop.log, table="public.orders").load()


def written(spark: Any, shop: Shop) -> Any:
    """The stream of a table's changes into files, from its checkpoint."""
    writer = read(spark.readStream, shop).writeStream.format("parquet")
    checkpoint = str(shop.directory / "checkpoint-of-stream")
    return writer.options(path=str(shop.directory / "streamed"), checkpointLocation=checkpoint)


def read_available(spark: Any, shop: Shop) -> int:
    """How many rows the stream has written, once it has ended by itself."""
    query = written(spark, shop).trigger(availableNow=True).start()
    query.awaitTermination()
    return int(spark.read.parquet(str(shop.directory / "streamed")).count())
