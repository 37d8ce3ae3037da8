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
from tests.support.mysql import MySqlServer
from tests.support.postgres import PostgresServer

import tidelog
from tidelog import app
from tidelog.config import Config, load_config
from tidelog.eventlog.reader import EventLog
from tidelog.spark.sessions.jars import DELTA_SPARK_JARS
from tidelog.spark.sessions.versions import SPARK_VERSION

pytestmark = [
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.thorough,
    pytest.mark.skipif(
        SPARK_VERSION not in DELTA_SPARK_JARS, reason="Spark itself falsifies Delta tables here"
    ),
]

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
    report = app.verify(config).to_dict()
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
    assert _found(app.verify(config).to_dict()) == {
        "delta": (1, 0, 1, [("3",), ("4",)]),
        "postgres": (2, 1, 1, [("11",), ("12",), ("13",), ("9999",)]),
    }


def test_copies_in_mysql_count_as_the_source_writes_them(
    spark: Any, mysql_server: MySqlServer, mysql_database: str, tmp_path: Path
) -> None:
    """Times have more digits there. And keys are of bytes."""
    with mysql_server.connect(mysql_database) as session, session.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE t (id varbinary(9) PRIMARY KEY, a time, b time(3), c decimal(60,2), "
            "d decimal(45,0))"
        )
        for key in ("", "00", "27", "5c78", "C3A9", "FFFE"):
            values = "'-10:00:00', '120:00:00.120', 1.50, 100"
            cursor.execute(f"INSERT INTO t VALUES (x'{key}', {values})")
    copy = f"{mysql_database}_copy"
    config = _config(
        tmp_path,
        f"{{kind: mysql, url: '{mysql_server.dsn(mysql_database)}', tables: [{mysql_database}.t]}}",
        f"[{{kind: mysql, url: '{mysql_server.dsn()}', database: {copy}}}, "
        f"{{kind: delta, path: {tmp_path}/lake}}]",
    )
    with running(config), mysql_server.connect(mysql_database) as session:
        _wait_dumped(config)
        report = app.verify(config).to_dict()
        assert report["equal"], report
        [by_rows, _] = report["tables"]
        assert by_rows["because"] == ""
        assert by_rows["ranges_read"] == 0
        with session.cursor() as cursor:
            cursor.execute(f"UPDATE {copy}.t SET c = 1.51 WHERE id = x'00'")
            cursor.execute(f"UPDATE {copy}.t SET b = '120:00:00.1204' WHERE id = x'5C78'")
            cursor.execute(f"UPDATE {copy}.t SET a = '-10:00:00.5', id = 'no' WHERE id = x'FFFE'")
        lake = f"delta.`{tmp_path}/lake/{mysql_database}/t`"
        spark.sql(f"UPDATE {lake} SET d = '100.0' WHERE id = x'27'")
        spark.sql(f"DELETE FROM {lake} WHERE id = x''")
        assert _found(app.verify(config).to_dict()) == {
            "mysql": (1, 1, 2, [("\\x00",), ("\\x5C78",), ("\\x6E6F",), ("\\xFFFE",)]),
            "delta": (1, 0, 1, [("\\x",), ("\\x27",)]),
        }
        app.verify(config, repair=True)
        _wait_for(lambda: bool(app.verify(config).to_dict()["equal"]))


def test_keys_of_a_copy_in_another_type_are_found_again(
    spark: Any, postgres16: PostgresServer, mysql_server: MySqlServer, tmp_path: Path
) -> None:
    """Instants and truth values are other types in MySQL; infinity is a day in all copies."""
    source = postgres16.create_database("verified_keys")
    postgres16.execute(
        "CREATE TABLE t (at timestamptz, yes bool, n int, PRIMARY KEY (at, yes));"
        "INSERT INTO t SELECT '2024-01-01 00:00:00.5Z'::timestamptz + i * interval '1 hour', "
        "i % 2 = 0, i FROM generate_series(1, 20) i;"
        "INSERT INTO t VALUES ('infinity', true, 0), ('infinity', false, 1), "
        "('-infinity', true, 2)",
        "verified_keys",
    )
    copy = "verified_keys_copy"
    config = _config(
        tmp_path,
        f"{{kind: postgres, url: '{source}', slot: verified_keys}}",
        f"[{{kind: mysql, url: '{mysql_server.dsn()}', database: {copy}}}, "
        f"{{kind: delta, path: {tmp_path}/lake}}]",
    )
    lake = f"delta.`{tmp_path}/lake/public/t`"
    first, new = "2024-01-01 01:00:00.5", "2024-02-01 00:00:00"
    try:
        with running(config), mysql_server.connect() as session, session.cursor() as cursor:
            _wait_dumped(config)
            assert app.verify(config).to_dict()["equal"]
            cursor.execute(f"UPDATE {copy}.t SET n = 9 WHERE at = '{first}' OR n = 0")
            cursor.execute(f"INSERT INTO {copy}.t VALUES ('{new}', false, 1, 1)")
            spark.sql(f"UPDATE {lake} SET n = 9 WHERE n = 0")
            spark.sql(f"DELETE FROM {lake} WHERE at < '1000-01-01'")
            infinite = ("9999-12-31 00:00:00+00", "t")
            assert _found(app.verify(config).to_dict()) == {
                "mysql": (0, 1, 2, [(f"{first}+00", "f"), (f"{new}+00", "f"), infinite]),
                "delta": (1, 0, 1, [("0001-01-03 00:00:00+00", "t"), infinite]),
            }
    finally:
        postgres16.drop_database("verified_keys")


def _config(directory: Path, source: str, outputs: str) -> Config:
    file = directory / "tidelog.yaml"
    file.write_text(
        f"source: {source}\n"
        f"log: {{path: {directory}/log}}\n"
        f"state: {{url: 'sqlite:///{directory}/state.db'}}\n"
        f"outputs: {outputs}\n"
        f"pipeline: {{checkpoint: {directory}/checkpoint}}\n"
    )
    return load_config(file)


def _found(report: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {
        t["output"]: (t["missing"], t["surplus"], t["different"], sorted(map(tuple, t["keys"])))
        for t in report["tables"]
    }


@contextmanager
def running(config: Config, source: str = "") -> Iterator[None]:
    """Capture and pipeline, on threads; with ``source`` writes go on there."""
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(source, autocommit=True) as connection:
            while not stop.wait(0.2):
                connection.execute("UPDATE tick SET id = id + 1")

    with tidelog.Capture(config):
        _wait_for(lambda: EventLog.exists(str(config.log.path)))
        with tidelog.Pipeline(config):
            writer = threading.Thread(target=write if source else str, daemon=True)
            writer.start()
            try:
                yield
            finally:
                stop.set()
                writer.join(60)


def _wait_dumped(config: Config) -> None:
    def dumped() -> bool:
        dumps = app.status(config).document.get("dumps", ())
        return any(dump["status"] == "completed" for dump in dumps)

    _wait_for(dumped)


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
