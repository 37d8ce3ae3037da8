"""Iceberg tables, and Delta tables in a Hive Metastore, over Spark Connect: the client has Java for
their libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable, Table
from tests.integration.spark.orders import orders
from tests.integration.spark.over_connect import Delivery
from tests.support.hive import HiveMetastore, HiveReader
from tests.support.iceberg_readers import by_duckdb, by_pyiceberg
from tests.support.postgres_jdbc import jdbc_uri, postgres_jdbc_jar
from tests.support.s3 import S3Server, hadoop_aws_jars
from tests.support.spark_connect import ConnectServer, need_client, python_with

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]

BEFORE = [(number, f"n{number}") for number in range(4)]
AFTER = [(0, "n0"), (1, "changed"), (3, "n3")]


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    need_client()
    started = ConnectServer(tmp_path_factory.mktemp("connect") / "server.log")
    try:
        started.wait()
        yield started.remote
    finally:
        started.kill()


def pairs(rows: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(row["id"], row["name"]) for row in rows]


def check(delivery: Delivery, table: Callable[[], Table]) -> None:
    """Compare what readers that are not ours find with what was delivered."""
    for expected, _ in zip((BEFORE, AFTER), delivery.deliver(), strict=True):
        assert pairs(by_pyiceberg(table())) == expected


def newest(folder: Path) -> str:
    hint = (folder / "metadata" / "version-hint.text").read_text().strip()
    return str(folder / "metadata" / f"v{hint}.metadata.json")


def test_tables_in_a_directory(tmp_path: Path, remote: str) -> None:
    delivery = Delivery(tmp_path, remote, {"kind": "iceberg", "path": "lake"}, java=True)
    metadata = lambda: newest(tmp_path / "lake" / "public" / "orders")  # noqa: E731
    check(delivery, lambda: StaticTable.from_metadata(metadata()))
    assert pairs(by_duckdb(metadata())) == AFTER


def test_tables_on_s3_of_a_catalog_in_postgresql(
    tmp_path: Path, remote: str, database: str, s3: S3Server
) -> None:
    """The JDBC driver comes by spark.jars, the store's options by storage_options."""
    uri, login = jdbc_uri(database)
    output = {
        "kind": "iceberg",
        "path": s3.url(f"connect-{tmp_path.name}"),
        "catalog": {"type": "jdbc", "uri": uri, **login},
        "catalog_name": "lake",
        "storage_options": s3.options,
    }
    conf = {"spark.jars": ",".join(map(str, [postgres_jdbc_jar(), *hadoop_aws_jars()]))}
    delivery = Delivery(tmp_path, remote, output, java=True, conf=conf)
    theirs = SqlCatalog(
        "lake",
        uri=database.replace("postgresql:", "postgresql+psycopg:"),
        **{
            "s3.endpoint": s3.endpoint,
            "s3.access-key-id": s3.access_key_id,
            "s3.secret-access-key": s3.secret_access_key,
            "s3.region": "us-east-1",
        },
    )
    check(delivery, lambda: theirs.load_table("public.orders"))


def test_delta_tables_in_a_hive_metastore(tmp_path: Path, remote: str) -> None:
    with HiveMetastore() as metastore, HiveReader(metastore.uri) as reader:
        catalog = {"type": "hive", "uri": metastore.uri}
        output = {"kind": "delta", "path": "lake", "catalog": catalog}
        delivery = Delivery(tmp_path, remote, output, java=True)
        for expected, _ in zip((BEFORE, AFTER), delivery.deliver(), strict=True):
            found = reader.sql("SELECT id, name FROM public.orders ORDER BY id")
            assert [tuple(row) for row in found] == expected


@pytest.mark.parametrize(
    "output",
    [
        {"kind": "iceberg", "path": "lake"},
        {"kind": "delta", "path": "lake", "catalog": {"type": "hive", "uri": "thrift://h:1"}},
    ],
    ids=["iceberg", "hive"],
)
def test_a_client_without_java_is_refused(
    tmp_path: Path, remote: str, output: dict[str, Any]
) -> None:
    delivery = Delivery(tmp_path, remote, output)
    with pytest.raises(AssertionError, match=r"output \w+: .*needs Java 17 or later"):
        delivery.run()


LAKES = {"kind": "delta", "path": "delta"}, {"kind": "iceberg", "path": "lake"}


def package(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("packages", "lacks"),
    [((), "no module pyarrow"), (("pyarrow", "numpy"), "no numba, pydantic, re2, yaml")],
    ids=["pyspark alone", "without the decoder"],
)
def test_what_the_server_s_python_lacks_is_named(
    tmp_path: Path, packages: tuple[str, ...], lacks: str
) -> None:
    need_client()
    python = python_with(tmp_path / "python", map(package, ("pyspark", "py4j", *packages)))
    server = ConnectServer(tmp_path / "log.txt", python=python, environment={"PYTHONPATH": ""})
    try:
        server.wait()
        delivery = Delivery(tmp_path, server.remote, *LAKES, java=True)
        orders(delivery.built)
        ended = delivery.run_once()
    finally:
        server.kill()
    assert (ended.returncode, lacks in ended.stderr) == (2, True), ended.stderr[-3000:]
    assert "that has Tidelog" in ended.stderr or "install Tidelog there" in ended.stderr


def test_a_client_without_spark_s_jars_reports_what_iceberg_needs(tmp_path: Path) -> None:
    """As with pyspark-client in place of pyspark."""
    pyspark = package("pyspark")
    others = [each for each in pyspark.parent.iterdir() if each.name not in ("pyspark", "py4j")]
    client = tmp_path / "pyspark"
    client.mkdir()
    for each in pyspark.iterdir():
        if each.name not in ("jars", "core"):
            (client / each.name).symlink_to(each)
    delivery = Delivery(tmp_path, "sc://127.0.0.1:1", LAKES[1], java=True)
    delivery.python = python_with(tmp_path / "python", [*others, client])
    orders(delivery.built)
    ended = delivery.run_once()
    assert (ended.returncode, "pip uninstall pyspark-client" in ended.stderr) == (2, True), ended
