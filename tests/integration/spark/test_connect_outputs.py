"""Outputs written by Spark Connect from a client without Java, each into a real destination; those
of test_spark_connect.py are not repeated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.behaviours.outputs import api, kafka_topics, search_index
from tests.behaviours.outputs.database_tables import live_rows, server
from tests.integration.spark.over_connect import Delivery
from tests.support.s3 import S3Server
from tests.support.spark_connect import ConnectServer, need_client

from tidelog.outputs.database.mysql import MySql

pytestmark = [
    pytest.mark.spark, pytest.mark.integration, pytest.mark.thorough, pytest.mark.timeout(600)
]  # fmt: skip

Rows = list[tuple[int, str]]
Found = Callable[[], Rows]
BEFORE: Rows = [(number, f"n{number}") for number in range(4)]
AFTER: Rows = [(0, "n0"), (1, "changed"), (3, "n3")]
EVENTS = [*(("c", number) for number in range(4)), ("u", 1), ("d", 2)]


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    need_client()
    started = ConnectServer(tmp_path_factory.mktemp("connect") / "server.log")
    try:
        started.wait()
        yield started.remote
    finally:
        started.kill()


def check_copy(delivery: Delivery, rows: Found) -> None:
    for expected, _ in zip((BEFORE, AFTER), delivery.deliver(), strict=True):
        assert rows() == expected


def pairs(rows: list[dict[str, Any]]) -> Rows:
    return sorted((row["id"], row["name"]) for row in rows)


def version(event: Mapping[str, Any]) -> int:
    return int(event["__version"])


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_tables_of_mysql_and_mariadb(tmp_path: Path, remote: str, kind: str) -> None:
    url = server(kind).create_database(f"over_connect_{os.getpid()}")
    output = {"kind": "mysql", "url": url, "database": "copies", "own_database": "own"}
    delivery = Delivery(tmp_path, remote, output)
    check_copy(delivery, lambda: pairs(live_rows(MySql(url), "copies", "orders")))


@pytest.mark.parametrize("exactly_once", [False, True])
def test_topics_of_kafka(tmp_path: Path, remote: str, exactly_once: bool) -> None:
    topic = f"connect-{exactly_once}-{os.getpid()}".lower()
    output = {
        "kind": "kafka",
        "servers": kafka_topics.broker().servers,
        "topic": topic,
        "format": "flat",
        "transactions": exactly_once,
        "partitions": 2,
        "replication": 1,
    }
    delivery = Delivery(tmp_path, remote, output)
    for count, _ in zip((4, 6), delivery.deliver(), strict=True):
        messages = [each for each in kafka_topics.read(topic) if each.value is not None]
        kafka_topics.check_order(messages)
        ordered = sorted(messages, key=lambda each: each.version)
        assert [(m.value["__op"], m.value["id"]) for m in ordered] == EVENTS[:count]


def test_documents_of_opensearch(tmp_path: Path, remote: str) -> None:
    prefix = f"connect-{os.getpid()}"
    output = {
        "kind": "opensearch",
        "urls": [search_index.node().url],
        "index": prefix + "-{name}",
        "settings": search_index.SETTINGS,
    }
    delivery = Delivery(tmp_path, remote, output)
    check_copy(delivery, lambda: pairs(list(search_index.found(f"{prefix}-orders").values())))


def test_requests_of_an_api(tmp_path: Path, remote: str) -> None:
    folder = f"/events/connect-{os.getpid()}"
    output = {"kind": "http", "url": f"{api.receiver().url}{folder}/{{table}}", "format": "flat"}
    delivery = Delivery(tmp_path, remote, output)
    for count, _ in zip((4, 6), delivery.deliver(), strict=True):
        events = [each.event for each in api.receiver().events(f"{folder}/%")]
        by_key = {each["id"]: each["__version"] for each in sorted(events, key=version)}
        assert {each["id"]: each["__version"] for each in events} == by_key
        ordered = [(each["__op"], each["id"]) for each in sorted(events, key=version)]
        assert ordered == EVENTS[:count]


def test_a_lake_and_files_on_s3(tmp_path: Path, remote: str, s3: S3Server) -> None:
    """Executors get the store's options from the client: the server has none."""
    from deltalake import DeltaTable, QueryBuilder

    prefix = f"connect-{os.getpid()}"
    options = {"storage_options": s3.options}
    delivery = Delivery(
        tmp_path,
        remote,
        {"kind": "delta", "path": s3.url(f"{prefix}/lake"), **options},
        {"kind": "files", "path": s3.url(f"{prefix}/files"), **options},
    )
    for number, _ in enumerate(delivery.deliver()):
        table = DeltaTable(s3.url(f"{prefix}/lake/public/orders"), storage_options=s3.options)
        found = QueryBuilder().register("t", table).execute("SELECT id, name FROM t").read_all()
        rows = [(row["id"], row["name"]) for row in found.to_struct_array().to_pylist()]
        assert sorted(rows) == (BEFORE, AFTER)[number]
        events = s3.parquet(f"{prefix}/files/").sort_by("version").to_pylist()
        assert [(each["op"], each["key"]["id"]) for each in events] == EVENTS[: 4 + 2 * number]
