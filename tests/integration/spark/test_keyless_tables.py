"""`tidelog run` on a schema with a table that has no key: it stops nothing, and is copied later."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.delta_readers import by_delta_rs, rows_of
from tests.support.pipeline_process import Delivering

pytestmark = [pytest.mark.spark, pytest.mark.integration]


class Running:
    """A process that brings ``public.*`` into a lake and into the schema ``copy``."""

    def __init__(self, url: str, directory: Path) -> None:
        self.sql = psycopg.connect(url, autocommit=True)
        self.lake = directory / "lake"
        self.file = directory / "tidelog.yaml"
        self.file.write_text(
            f"source: {{kind: postgres, url: '{url}', tables: ['public.*']}}\n"
            "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\n"
            "capture: {flush_ms: 10}\n"
            "pipeline: {trigger_ms: 50, master: 'local[2]', "
            "conf: {spark.sql.shuffle.partitions: 2, spark.ui.enabled: false}}\n"
            f"outputs: [{{kind: delta, path: lake}}, {{kind: postgres, url: '{url}', "
            "schema: copy}]\n"
        )
        self.sql.execute("CREATE TABLE orders (id int PRIMARY KEY, v text)")
        self.sql.execute("CREATE TABLE audit (at int, what text)")
        self.sql.execute("INSERT INTO orders SELECT n, 'v' FROM generate_series(1, 50) n")
        self.sql.execute("INSERT INTO audit VALUES (0, 'before')")
        self.process = Delivering(self.file, directory / "run.log", command="run")

    def close(self) -> None:
        self.process.close()
        self.sql.close()

    def rows(self, table: str, columns: str) -> list[Any]:
        if self.sql.execute(b"SELECT to_regclass(%s)", (table,)).fetchall() == [(None,)]:
            return []
        return self.sql.execute(f"SELECT {columns} FROM {table} ORDER BY 1".encode()).fetchall()

    def delta(self, table: str, order: str) -> list[dict[str, Any]]:
        place = self.lake / "public" / table
        if not (place / "_delta_log").is_dir():
            return []
        return rows_of(by_delta_rs(str(place), order))

    def status(self, *options: str) -> str:
        command = [sys.executable, "-m", "tidelog", "status", str(self.file), *options]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def wait_for(self, what: Callable[[], Any], timeout_s: float = 240) -> None:
        deadline = time.monotonic() + timeout_s
        while not what():
            assert self.process.code is None, self.process.said
            assert time.monotonic() < deadline, self.process.said
            time.sleep(0.2)


@pytest.fixture
def running(database: str, tmp_path: Path) -> Iterator[Running]:
    made = Running(database, tmp_path)
    yield made
    made.close()


def test_a_table_without_columns_is_delivered_once_it_has_one(running: Running) -> None:
    running.wait_for(lambda: len(running.delta("orders", "id")) == 50)
    running.sql.execute("CREATE TABLE nothing ()")
    running.sql.execute("INSERT INTO nothing DEFAULT VALUES")
    running.sql.execute("INSERT INTO orders VALUES (51, 'later')")
    running.wait_for(lambda: len(running.delta("orders", "id")) == 51)
    running.wait_for(lambda: "public.nothing has no columns" in running.status())
    running.sql.execute("ALTER TABLE nothing ADD COLUMN v int DEFAULT 7")
    running.sql.execute("INSERT INTO nothing VALUES (8)")

    def values() -> set[int]:
        return {row["after"]["v"] for row in running.delta("nothing", "version") if row["after"]}

    running.wait_for(lambda: values() == {7, 8})


def test_a_table_without_a_key_stops_nothing_and_is_copied_once_it_has_one(
    running: Running,
) -> None:
    def orders_are_equal() -> bool:
        source = running.rows("public.orders", "id, v")
        lake = [(row["id"], row["v"]) for row in running.delta("orders", "id")]
        return source == running.rows("copy.orders", "id, v") == lake

    running.wait_for(orders_are_equal)
    running.sql.execute("INSERT INTO audit VALUES (1, 'one'), (1, 'one')")
    running.sql.execute("INSERT INTO orders VALUES (51, 'later')")
    running.wait_for(orders_are_equal)
    running.wait_for(lambda: len(running.delta("audit", "version")) == 4)
    rows = running.delta("audit", "version")
    assert sorted(row["op"] for row in rows) == ["c", "c", "r", "s"]
    assert [row["after"] for row in rows if row["op"] == "c"] == [{"at": 1, "what": "one"}] * 2
    assert [row["after"] for row in rows if row["op"] == "r"] == [{"at": 0, "what": "before"}]
    dumps = {row["source"]["ordinal"] for row in rows if row["op"] in ("r", "s")}
    assert len(dumps) == 1, "the rows of a dump are marked with its number"
    assert running.rows("copy.audit", "at") == []
    outputs = {each["output"]: each for each in json.loads(running.status("--json"))["outputs"]}
    assert "output delta appends its changes" in outputs["delta"]["keyless"]["public.audit"]
    statement = 'ALTER TABLE "public"."audit" ADD PRIMARY KEY (COLUMN, …), or ADD COLUMN row_id'
    assert all(statement in each["keyless"]["public.audit"] for each in outputs.values())
    assert "public.audit has no key, and output postgres keeps" in running.status()
    assert running.process.said.count("public.audit is left out") == 1

    running.sql.execute("ALTER TABLE audit ADD COLUMN id bigserial PRIMARY KEY")
    running.sql.execute("INSERT INTO audit VALUES (2, 'two')")
    running.wait_for(
        lambda: (
            len(running.rows("copy.audit", "id, at, what")) == 4
            and running.rows("copy.audit", "id, at, what") == running.rows("audit", "id, at, what")
        )
    )
    running.wait_for(orders_are_equal)
    running.process.send(signal.SIGTERM)
    assert running.process.wait() == 0


def test_a_deferrable_key_is_no_key_for_two_rows_may_have_one(running: Running) -> None:
    """The statement gives each row the key of the next one, before that has another."""
    running.wait_for(lambda: len(running.delta("orders", "id")) == 50)
    running.sql.execute("CREATE TABLE moved (id int PRIMARY KEY DEFERRABLE, v text)")
    running.sql.execute("ALTER TABLE moved REPLICA IDENTITY FULL")
    running.sql.execute("INSERT INTO moved SELECT n, 'r' || n FROM generate_series(1, 5) n")

    def keys() -> set[int]:
        return {row["after"]["id"] for row in running.delta("moved", "version") if row["after"]}

    running.wait_for(lambda: keys() == {1, 2, 3, 4, 5})
    running.sql.execute("UPDATE moved SET id = id + 1")
    running.wait_for(lambda: 6 in keys())
    updated = [row for row in running.delta("moved", "version") if row["op"] == "u"]
    assert [(row["before"]["v"], row["after"]["id"]) for row in updated] == [
        (f"r{n}", n + 1) for n in range(1, 6)
    ]
    assert running.rows("copy.moved", "id") == []
