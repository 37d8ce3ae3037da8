"""examples/auto_cdc: the stream into Delta here, the declarative pipeline where it can run."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.build_log import BuiltLog

from tidelog.spark import register
from tidelog.system.maven import Jar, fetch

EXAMPLE = Path(__file__).parents[3] / "examples" / "auto_cdc"
# The row-level catalogue of Spark's own tests: no other for Spark 4.2 supports MERGE.
CATALYST_TESTS = Jar(
    "org.apache.spark",
    "spark-catalyst_2.13",
    "4.2.0",
    "9f46cfb6d4cb5dff696b76f8af3db1ecfc56cbc43ffb0fa785ef947ac4ad2620",
    classifier="tests",
)
CATALOGS = "org.apache.spark.sql.connector.catalog"
NEEDS = ("pandas", "grpc", "grpc_status", "google.rpc", "zstandard")

NEWEST = [(1, "Ann", "Paris"), (4, "Eve", "Bonn"), (5, "Joe", "Nice")]
# Key, city, and whether the row was followed by another.
HISTORY = [
    (1, "Paris", False),
    (1, "Rome", True),
    (2, "Oslo", True),
    (3, "Bonn", True),
    (4, "Bonn", False),
    (5, "Nice", False),
]


def first(built: BuiltLog) -> Any:
    table = built.table("public.customers", {"id": "int64", "name": "text", "city": "text"})
    built.insert(table, "1", "Ann", "Rome")
    built.insert(table, "2", "Bob", "Oslo")
    built.update(table, "1", "Ann", "Paris")
    built.flush()
    return table


def second(built: BuiltLog, table: Any) -> None:
    built.delete(table, "2")
    built.insert(table, "3", "Eve", "Bonn")
    built.update(table, "4", "Eve", "Bonn", key=["3"])
    built.insert(table, "5", "Joe", "Nice")
    built.flush()


@pytest.mark.thorough
@pytest.mark.spark
def test_delta_holds_newest_rows_and_history(spark: Any, built: BuiltLog, tmp_path: Path) -> None:
    register(spark)
    spec = importlib.util.spec_from_file_location("auto_cdc_delta", EXAMPLE / "delta.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    lake = str(tmp_path / "lake")
    table = first(built)
    example.run(spark, built.path, lake)
    second(built, table)
    example.run(spark, built.path, lake)
    newest = spark.read.format("delta").load(f"{lake}/customers").drop("version")
    assert sorted(tuple(row) for row in newest.collect()) == NEWEST
    history = spark.read.format("delta").load(f"{lake}/customers_history")
    rows = history.selectExpr("id", "city", "valid_to IS NOT NULL").collect()
    assert sorted(tuple(row) for row in rows) == HISTORY
    assert history.where("valid_to <= valid_from").isEmpty()


DRIVE = """
import json, sys
from pathlib import Path
from pyspark.pipelines.cli import load_pipeline_spec, register_definitions
from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
from pyspark.pipelines.spark_connect_pipeline import (
    create_dataflow_graph, handle_pipeline_events, start_run)
from pyspark.sql import SparkSession

example, storage, steps = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.shop")
path = example / "spark-pipeline.yml"
spec = load_pipeline_spec(path)
for step in steps:
    exec(step)
    graph = create_dataflow_graph(
        spark, default_catalog=spec.catalog, default_database=spec.database, sql_conf={})
    register_definitions(path, SparkConnectGraphElementRegistry(spark, graph), spec, spark, graph)
    handle_pipeline_events(start_run(spark, graph, full_refresh=[], full_refresh_all=False,
                                     refresh=[], dry=False, storage=storage))
newest = spark.table("lake.shop.customers").select("id", "name", "city").collect()
history = spark.table("lake.shop.customers_history")
history = history.selectExpr("id", "city", "valid_to IS NOT NULL")
print("FOUND " + json.dumps([sorted(map(list, newest)), sorted(map(list, history.collect()))]))
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.thorough
def test_declarative_pipeline_holds_newest_rows_and_history(tmp_path: Path) -> None:
    for name in NEEDS:
        pytest.importorskip(name, reason="Spark Connect's client: pip install tidelog[pipelines]")
    [jar] = fetch([CATALYST_TESTS], "the catalogue of Spark's tests")
    conf = tmp_path / "conf"
    conf.mkdir()
    catalog = f"{CATALOGS}.SharedTablesInMemoryRowLevelOperationTableCatalog"
    settings = {
        "spark.driver.extraClassPath": str(jar),
        "spark.sql.catalog.lake": catalog,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    text = "".join(f"{name} {value}\n" for name, value in settings.items())
    (conf / "spark-defaults.conf").write_text(text)
    built = BuiltLog(tmp_path / "log")
    table = first(built)
    second(built, table)
    done = subprocess.run(
        [sys.executable, "-c", DRIVE, str(EXAMPLE), f"file://{tmp_path}/storage", "", ""],
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_CONF_DIR": str(conf),
            "TIDELOG_LOG": built.path,
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    said = [line for line in done.stderr.splitlines() if not line.startswith(("\tat ", "[Stage"))]
    assert found, "\n".join(said)[-4000:]
    newest, history = json.loads(found[0].removeprefix("FOUND "))
    assert [tuple(row) for row in newest] == NEWEST
    assert [tuple(row) for row in history] == HISTORY
