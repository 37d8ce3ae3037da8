"""Delta tables in a Hive Metastore, as people find them there."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.integration.spark.conftest import Lake
from tests.integration.spark.orders import COLUMNS, orders
from tests.support.build_log import BuiltLog
from tests.support.hive import HiveMetastore, HiveReader
from tests.support.pipeline_process import Delivering

from tidelog.eventlog.consumers import Consumers
from tidelog.outputs.lake.delta.hive import HiveCatalog
from tidelog.spark.transforms import Step

pytestmark = [pytest.mark.spark, pytest.mark.integration]


@pytest.fixture(scope="module")
def metastore() -> Iterator[HiveMetastore]:
    with HiveMetastore() as server:
        yield server


class Registered:
    """A lake whose tables are registered; and what the metastore has of them."""

    def __init__(self, spark: Any, lake: Lake, metastore: HiveMetastore) -> None:
        self.lake = lake
        self.metastore = metastore
        self._catalog = HiveCatalog(spark, metastore.uri)

    def run(self, **options: Any) -> dict[str, str]:
        """Deliver all of the log. Returns the tables that are not registered."""
        name = self.lake.root.name  # else the log would go on from another lake's offset
        output = self.lake.output(
            name=name,
            catalog=self._catalog,
            state=self.lake.kept(),
            options=self.lake.options(**options),
        )
        self.lake.run(output=output)
        return dict(output.unregistered_tables())

    def entry(self, database: str, name: str) -> Any:
        client = self._catalog._connect()
        try:
            return client.getTable(database, name) if client.tableExists(database, name) else None
        finally:
            client.close()

    def drop(self, database: str, name: str) -> None:
        client = self._catalog._connect()
        client.dropTable(database, name)
        client.close()


@pytest.fixture
def registered(spark: Any, lake: Lake, metastore: HiveMetastore) -> Iterator[Registered]:
    found = Registered(spark, lake, metastore)
    yield found
    for name in ("orders", "items"):
        if found.entry("public", name) is not None:
            found.drop("public", name)


def path_in(entry: Any) -> str:
    return str(entry.getSd().getSerdeInfo().getParameters().get("path"))


def test_tables_are_registered_as_they_are_made_and_twice_is_no_error(
    registered: Registered, built: BuiltLog, caplog: pytest.LogCaptureFixture
) -> None:
    orders(built)
    caplog.set_level(logging.INFO)
    assert registered.run() == {}
    entry = registered.entry("public", "orders")
    assert path_in(entry) == f"file:{registered.lake.path}/public/orders"
    assert (entry.getTableType(), entry.getParameters().get("EXTERNAL")) == (
        "EXTERNAL_TABLE",
        "TRUE",
    )
    assert caplog.text.count("is registered as public.orders") == 1
    items = built.table("public.items", COLUMNS)
    built.insert(items, "1", "n", "1.5")
    built.flush()
    assert registered.run() == {}
    assert caplog.text.count("is registered as") == 2, "that of orders is left as it is"
    assert path_in(registered.entry("public", "items")).endswith("/lake/public/items")


def test_an_entry_that_points_elsewhere_stays_and_hinders_that_table_alone(
    registered: Registered, built: BuiltLog, tmp_path: Path
) -> None:
    other = Registered(
        registered.lake.spark,
        Lake(registered.lake.spark, built, tmp_path / "o"),
        registered.metastore,
    )
    orders(built)
    assert other.run() == {}
    there = path_in(registered.entry("public", "orders"))
    items = built.table("public.items", COLUMNS)
    built.insert(items, "1", "n", "1.5")
    odd = built.table("public.odd name", COLUMNS)
    built.insert(odd, "1", "n", "1.5")
    built.flush()
    found = registered.run()
    assert sorted(found) == ["public.odd name", "public.orders"]
    assert (
        f"public.orders of the Hive Metastore is the Delta table at {there}"
        in found["public.orders"]
    )
    assert "DROP TABLE public.orders" in found["public.orders"]
    assert "route: SCHEMA.OTHER" in found["public.odd name"]
    assert path_in(registered.entry("public", "orders")) == there
    assert path_in(registered.entry("public", "items")).startswith(f"file:{registered.lake.path}/")
    assert len(registered.lake.rows("public.orders")) == 4, "its rows are written all the same"
    registered.drop("public", "orders")
    assert sorted(registered.run()) == ["public.odd name"]
    assert path_in(registered.entry("public", "orders")).startswith(f"file:{registered.lake.path}/")


@pytest.mark.thorough
def test_a_metastore_that_is_down_hinders_no_batch_and_gets_the_tables_later(
    registered: Registered, built: BuiltLog
) -> None:
    orders(built)
    registered.metastore.kill()
    try:
        found = registered.run()
        assert "does not answer" in found["public.orders"]
        (consumer,) = Consumers(built.log.storage).all()
        assert dict(consumer.delivered[registered.lake.root.name].unregistered) == found
        assert len(registered.lake.rows("public.orders")) == 4
    finally:
        registered.metastore.start()
    assert registered.run() == {}
    assert registered.entry("public", "orders") is not None
    (consumer,) = Consumers(built.log.storage).all()
    assert consumer.delivered[registered.lake.root.name].unregistered == {}


@pytest.mark.thorough
def test_a_session_of_spark_reads_by_name_what_follows_its_source(
    registered: Registered, built: BuiltLog
) -> None:
    orders(built)
    route = Step("route", "Shop.items", ("public.items",))
    assert registered.run(steps=(route,)) == {}
    with HiveReader(registered.metastore.uri) as reader:
        count = "SELECT count(*), sum(id) FROM public.orders"
        assert reader.sql(count) == [[4, 6]]

        wider = built.table("public.orders", {**COLUMNS, "note": "text"})
        built.insert(wider, "9", "n", "1.5", "new")
        items = built.table("public.items", COLUMNS)
        built.insert(items, "1", "n", "1.5")
        built.flush()
        assert registered.run(steps=(route,)) == {}
        assert reader.sql("SELECT note FROM public.orders WHERE id = 9") == [["new"]]
        assert reader.sql("SELECT id FROM shop.items") == [[1]], "names ignore case"
        columns = [row[0] for row in reader.sql("DESCRIBE TABLE public.orders")]
        assert columns[:5] == ["id", "name", "amount", "_version", "note"]

        assert reader.sql("DROP TABLE public.orders") == []
        assert "TABLE_OR_VIEW_NOT_FOUND" in reader.sql(count)
        assert len(registered.lake.rows("public.orders")) == 5, "its files are there"
        assert registered.run(steps=(route,)) == {}
        assert reader.sql(count) == [[5, 15]], "the next start registers it again"

        assert reader.sql("DROP TABLE shop.items") == []
        reader.sql(
            "CREATE TABLE IF NOT EXISTS shop.items USING delta "
            f"LOCATION '{registered.lake.path}/Shop/items'"
        )
        assert registered.run(steps=(route,)) == {}, "an entry of Spark's own is the same"
        reader.sql("DROP TABLE shop.items")
        reader.sql("CREATE VIEW shop.items AS SELECT 1 AS one")
        why = registered.run(steps=(route,))["public.items"]
        assert "Shop.items of the Hive Metastore is no Delta table" in why


@pytest.mark.thorough
def test_the_configuration_names_the_metastore(
    database: str, metastore: HiveMetastore, tmp_path: Path
) -> None:
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute("CREATE SCHEMA shop")
        sql.execute("CREATE TABLE shop.orders (id int PRIMARY KEY, v text)")
        sql.execute("CREATE TABLE shop.odd$name (id int PRIMARY KEY)")
        sql.execute("INSERT INTO shop.orders SELECT n, 'v' FROM generate_series(1, 50) n")
        sql.execute("INSERT INTO shop.odd$name VALUES (1)")
    file = tmp_path / "tidelog.yaml"
    file.write_text(
        f"source: {{kind: postgres, url: '{database}', tables: ['shop.*']}}\n"
        "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\ncapture: {flush_ms: 10}\n"
        "pipeline: {trigger_ms: 50, master: 'local[2]'}\n"
        "outputs: [{kind: delta, path: lake, "
        f"catalog: {{type: hive, uri: '{metastore.uri}'}}}}]\n"
    )

    def said(*command: str) -> str:
        command = (sys.executable, "-m", "tidelog", *command)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    assert f"the Hive Metastore answers at {metastore.uri}" in said("check", str(file))
    running = Delivering(file, tmp_path / "run.log", command="run")
    try:
        with HiveReader(metastore.uri) as reader:
            deadline = time.monotonic() + 240
            while reader.sql("SELECT count(*) FROM shop.orders") != [[50]]:
                assert running.code is None, running.said
                assert time.monotonic() < deadline, running.said
                time.sleep(0.5)
        why = "has not registered shop.odd$name: shop.odd$name can't be a name in the Hive"
        while why not in (status := said("status", str(file))):
            assert time.monotonic() < deadline, status
    finally:
        running.close()
