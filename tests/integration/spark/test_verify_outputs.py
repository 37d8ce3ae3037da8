"""Copies of every kind that can be compared are, through their transforms; what was falsified is
found to the row.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import tidelog
from tidelog import runtime
from tidelog.config import Config, load_config
from tidelog.eventlog.reader import EventLog
from tidelog.testing.postgres import PostgresServer

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.thorough]

SQL = """
CREATE TYPE mood AS ENUM ('good', 'bad');
CREATE TABLE orders (
  id int PRIMARY KEY, at timestamptz, total numeric(10,2), note text, doc jsonb, u uuid,
  m mood, d float8
);
INSERT INTO orders SELECT i, '2024-01-01Z'::timestamptz + i * interval '1 hour', i, 'n' || i,
  jsonb_build_object('i', i), md5(i::text)::uuid, 'good', 1.0 / i FROM generate_series(1, 500) i;
CREATE TABLE tick (id int PRIMARY KEY);
INSERT INTO tick VALUES (1);
"""


@pytest.fixture(scope="module")
def databases(postgres16: PostgresServer) -> Iterator[tuple[str, str]]:
    dsn = postgres16.create_database("verified")
    copy = postgres16.create_database("verified_copy")
    postgres16.execute(SQL, "verified")
    yield dsn, copy
    postgres16.drop_database("verified")
    postgres16.drop_database("verified_copy")


def test_falsified_copies_are_found_to_the_row(
    spark: Any, databases: tuple[str, str], tmp_path: Path
) -> None:
    source, copy = databases
    file = tmp_path / "tidelog.yaml"
    file.write_text(
        f"source: {{kind: postgres, url: '{source}', slot: verified}}\n"
        f"log: {{path: {tmp_path}/log}}\n"
        f"state: {{url: 'sqlite:///{tmp_path}/state.db'}}\n"
        f"outputs:\n"
        f"  - kind: delta\n"
        f"    path: {tmp_path}/lake\n"
        f"    deletes: soft\n"
        f"    tables: [public.orders]\n"
        f"    steps:\n"
        f"      - {{rename: {{id: number}}}}\n"
        f"      - {{hash: [note]}}\n"
        f"      - {{compute: {{cents: 'CAST(total * 100 AS BIGINT)'}}}}\n"
        f"      - {{filter: 'number <> 7'}}\n"
        f"      - {{route: 'sales.{{name}}'}}\n"
        f"  - {{kind: postgres, url: '{copy}', schema: shop, tables: [public.orders]}}\n"
        f"pipeline: {{checkpoint: {tmp_path}/checkpoint}}\n"
    )
    config = load_config(file)
    with running(config, source):
        _check(spark, config, source, copy)


def _check(spark: Any, config: Config, source: str, copy: str) -> None:
    _wait_dumped(config)
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("DELETE FROM orders WHERE id = 9")
    report = runtime.verify(config)
    assert [(t["output"], t["equal"], t["rows"]) for t in report["tables"]] == [
        ("delta", True, 498),
        ("postgres", True, 499),
    ]
    lake = f"delta.`{config.outputs[0].path}/sales/orders`"  # type: ignore[union-attr]
    spark.sql(f"UPDATE {lake} SET cents = 1 WHERE number = 3")
    spark.sql(f"UPDATE {lake} SET _deleted = true WHERE number = 4")
    with psycopg.connect(copy, autocommit=True) as connection:
        connection.execute("UPDATE shop.orders SET doc = '{}' WHERE id = 11")
        connection.execute("DELETE FROM shop.orders WHERE id IN (12, 13)")
        connection.execute("INSERT INTO shop.orders (id, _tidelog_version) VALUES (9999, 1)")
    report = runtime.verify(config)
    counts = {
        t["output"]: (t["missing"], t["surplus"], t["different"], sorted(t["keys"]))
        for t in report["tables"]
    }
    assert counts == {
        "delta": (1, 0, 1, [("3",), ("4",)]),
        "postgres": (2, 1, 1, [("11",), ("12",), ("13",), ("9999",)]),
    }


@contextmanager
def running(config: Config, source: str) -> Iterator[None]:
    """Capture and pipeline, on threads; writes go on in the source."""
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(source, autocommit=True) as connection:
            while not stop.wait(0.2):
                connection.execute("UPDATE tick SET id = id + 1")

    threads = [
        threading.Thread(target=tidelog.Capture(config).run, args=(stop,), daemon=True),
        threading.Thread(
            target=runtime.pipeline, args=(config,), kwargs={"stop_event": stop}, daemon=True
        ),
        threading.Thread(target=write, daemon=True),
    ]
    for thread in threads:
        thread.start()
        _wait_for(lambda: EventLog.exists(str(config.log.path)))
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def _wait_dumped(config: Config) -> None:
    def dumped() -> bool:
        dumps = runtime.status(config).get("dumps", ())
        return any(dump["status"] == "completed" for dump in dumps)

    _wait_for(dumped)


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
