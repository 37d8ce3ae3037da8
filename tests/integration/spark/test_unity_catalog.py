"""Delta tables in Unity Catalog, as people find them there."""

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
from tests.integration.spark.over_connect import Delivery
from tests.support.build_log import BuiltLog
from tests.support.pipeline_process import Delivering
from tests.support.spark_connect import ConnectServer, need_client
from tests.support.unity import UnityServer, by_duckdb

from tidelog.outputs.lake.delta.unity import UnityCatalog

pytestmark = [
    pytest.mark.spark, pytest.mark.integration, pytest.mark.thorough, pytest.mark.timeout(600)
]  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[UnityServer]:
    with UnityServer() as started:
        yield started


class Registered:
    """A lake whose tables are registered."""

    def __init__(self, lake: Lake, server: UnityServer) -> None:
        self.lake = lake
        self._catalog = UnityCatalog(server.uri, "main", server.token)

    def run(self) -> dict[str, str]:
        """Deliver all of the log. Returns the tables that are not registered."""
        name = self.lake.root.name  # else the log would go on from another lake's offset
        output = self.lake.output(name=name, catalog=self._catalog, state=self.lake.kept())
        self.lake.run(output=output)
        return dict(output.unregistered_tables())


@pytest.fixture
def registered(lake: Lake, server: UnityServer) -> Iterator[Registered]:
    yield Registered(lake, server)
    for name in ("orders", "items"):
        server.ask("DELETE", f"tables/main.public.{name}")


def entry(server: UnityServer, name: str) -> Any:
    return server.ask("GET", f"tables/main.public.{name}")


def test_tables_are_registered_as_they_are_made_and_twice_is_no_error(
    registered: Registered, server: UnityServer, built: BuiltLog, caplog: pytest.LogCaptureFixture
) -> None:
    orders(built)
    caplog.set_level(logging.DEBUG)
    assert registered.run() == {}
    found = entry(server, "orders")
    assert found["storage_location"] == (registered.lake.root / "lake/public/orders").as_uri()
    assert (found["table_type"], found["data_source_format"]) == ("EXTERNAL", "DELTA")
    assert [(each["name"], each["type_text"], each["type_name"]) for each in found["columns"]] == [
        ("id", "bigint", "LONG"),
        ("name", "string", "STRING"),
        ("amount", "decimal(10,2)", "DECIMAL"),
        ("_version", "bigint", "LONG"),
    ]
    items = built.table("public.items", COLUMNS)
    built.insert(items, "1", "n", "1.5")
    built.flush()
    assert registered.run() == {}
    assert caplog.text.count("is registered as main.public.") == 2
    assert entry(server, "orders") == found, "that of orders is left as it is"
    assert server.token not in caplog.text


def test_another_reader_finds_the_rows_by_name_as_they_change(
    registered: Registered, server: UnityServer, built: BuiltLog
) -> None:
    orders(built)
    assert registered.run() == {}
    both = "SELECT count(*), sum(id) FROM unity.public.orders"
    assert by_duckdb(server, both) == [(4, 6)]
    wider = built.table("public.orders", {**COLUMNS, "note": "text"})
    built.insert(wider, "9", "n", "1.5", "new")
    built.delete(wider, "0")
    built.flush()
    assert registered.run() == {}
    assert by_duckdb(server, both) == [(4, 15)]
    assert len(entry(server, "orders")["columns"]) == 4, "the API can't add one"
    server.ask("DELETE", "tables/main.public.orders")
    assert registered.run() == {}, "the next start registers it again"
    found = by_duckdb(server, "SELECT note FROM unity.public.orders WHERE id = 9")
    assert found == [("new",)]


def test_an_entry_that_points_elsewhere_stays_and_hinders_that_table_alone(
    registered: Registered, server: UnityServer, built: BuiltLog, tmp_path: Path
) -> None:
    orders(built)
    assert Registered(Lake(registered.lake.spark, built, tmp_path / "o"), server).run() == {}
    there = entry(server, "orders")["storage_location"]
    for name in ("items", "odd name"):
        table = built.table(f"public.{name}", COLUMNS)
        built.insert(table, "1", "n", "1.5")
    built.flush()
    found = registered.run()
    assert sorted(found) == ["public.odd name", "public.orders"]
    known = f"main.public.orders of Unity Catalog is the Delta table at {there}"
    assert known in found["public.orders"]
    assert "route: SCHEMA.OTHER" in found["public.odd name"]
    assert entry(server, "orders")["storage_location"] == there
    assert entry(server, "items") is not None
    assert len(registered.lake.rows("public.orders")) == 4, "its rows are written all the same"


def test_a_server_that_is_down_hinders_no_batch_and_gets_the_tables_later(
    registered: Registered, server: UnityServer, built: BuiltLog
) -> None:
    orders(built)
    server.kill()
    try:
        assert "does not answer: ConnectError" in registered.run()["public.orders"]
        assert len(registered.lake.rows("public.orders")) == 4
    finally:
        server.start()
    assert registered.run() == {}
    assert entry(server, "orders") is not None


def test_tables_are_registered_over_spark_connect_by_a_client_without_java(
    server: UnityServer, tmp_path: Path
) -> None:
    need_client()
    catalog = {"type": "unity", "uri": server.uri, "name": "main", "token": server.token}
    started = ConnectServer(tmp_path / "connect.log")
    try:
        started.wait()
        output = {"kind": "delta", "path": "lake", "catalog": catalog}
        next(Delivery(tmp_path, started.remote, output).deliver())
        found = by_duckdb(server, "SELECT count(*), sum(id) FROM unity.public.orders")
        assert found == [(4, 6)]
    finally:
        started.kill()
        server.ask("DELETE", "tables/main.public.orders")


def test_the_configuration_names_the_server_and_shows_no_token(
    database: str, server: UnityServer, tmp_path: Path
) -> None:
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute("CREATE SCHEMA shop")
        sql.execute("CREATE TABLE shop.orders (id int PRIMARY KEY, v text)")
        sql.execute("INSERT INTO shop.orders SELECT n, 'v' FROM generate_series(1, 50) n")
    file = tmp_path / "tidelog.yaml"

    def write(token: str) -> None:
        file.write_text(
            f"source: {{kind: postgres, url: '{database}', tables: ['shop.*']}}\n"
            "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\ncapture: {flush_ms: 10}\n"
            "pipeline: {trigger_ms: 50, master: 'local[2]'}\n"
            "outputs: [{kind: delta, path: lake, catalog: "
            f"{{type: unity, uri: '{server.uri}', name: main, token: '{token}'}}}}]\n"
        )

    def check() -> str:
        command = (sys.executable, "-m", "tidelog", "check", str(file))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    write("wrong-token")
    refused = check()
    assert "denies access: the catalog's token is wrong" in refused
    assert "wrong-token" not in refused
    write(server.token)
    assert f"Unity Catalog at {server.uri} has the catalog main" in check()
    running = Delivering(file, tmp_path / "run.log", command="run")
    try:
        deadline = time.monotonic() + 240
        while server.ask("GET", "tables/main.shop.orders") is None:
            assert running.code is None, running.said
            assert time.monotonic() < deadline, running.said
            time.sleep(0.5)
        while by_duckdb(server, "SELECT count(*) FROM unity.shop.orders") != [(50,)]:
            assert time.monotonic() < deadline, running.said
            time.sleep(0.5)
        assert server.token not in running.said
    finally:
        running.close()
