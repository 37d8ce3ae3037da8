"""Iceberg tables on S3: data and metadata by the options of the output, in a JDBC catalog."""

from __future__ import annotations

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from tests.integration.iceberg_catalogs.conftest import Delivered
from tests.integration.iceberg_catalogs.test_jdbc_catalog import catalog_at
from tests.integration.spark.orders import orders
from tests.support.iceberg_readers import by_pyiceberg
from tests.support.iceberg_rest import RestCatalogServer
from tests.support.postgres_jdbc import postgres_jdbc_jar
from tests.support.s3 import S3Server, hadoop_aws_jars

from tidelog.errors import AccessRefusedError, StorageError, UsageError
from tidelog.eventlog.storage import OPTIONS_VARIABLE
from tidelog.outputs.lake.iceberg.catalog import _ONE_COLUMN, IcebergCatalog
from tidelog.outputs.lake.java_libraries import HADOOP_DEFAULTS, hadoop_settings, start_java
from tidelog.spark.sessions.jars import iceberg_jars

pytestmark = [pytest.mark.spark, pytest.mark.integration]


def jars() -> dict[str, str]:
    """Of a pipeline into such tables."""
    return {"spark.jars": ",".join(map(str, [*hadoop_aws_jars(), postgres_jdbc_jar()]))}


def by_others(dsn: str, name: str, s3: S3Server) -> SqlCatalog:
    """The catalog as PyIceberg opens it."""
    uri = dsn.replace("postgresql:", "postgresql+psycopg:")
    return SqlCatalog(name, uri=uri, **s3.pyiceberg_properties)


def test_data_and_metadata_are_written_by_the_options_of_the_output(
    delivered: Delivered, database: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(OPTIONS_VARIABLE)  # which the server's fixture set
    catalog = catalog_at(database) | {"warehouse": s3.url("lake")}
    table = orders(delivered.built)
    delivered.run(catalog, storage_options=s3.options)
    delivered.built.update(table, "1", "changed", "1.5")
    delivered.built.delete(table, "3")
    delivered.built.flush()
    delivered.run(catalog, storage_options=s3.options)
    found = by_pyiceberg(by_others(database, "tidelog_iceberg", s3).load_table("public.orders"))
    assert {row["id"]: row["name"] for row in found} == {0: "n0", 1: "changed", 2: "n2"}
    assert list(s3.files("lake/public/orders/data").glob("*.parquet"))


@pytest.mark.thorough
def test_a_rest_catalog_says_where_a_table_is(
    delivered: Delivered, database: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output knows no bucket before."""
    monkeypatch.delenv(OPTIONS_VARIABLE, raising=False)
    table = orders(delivered.built)
    served = catalog_at(database) | {"warehouse": s3.url("served")}
    with RestCatalogServer(served, s3) as server:
        catalog = {"type": "rest", "uri": f"http://127.0.0.1:{server.port}"}
        delivered.run(catalog, storage_options=s3.options)
        delivered.built.delete(table, "3")
        delivered.built.flush()
        delivered.run(catalog, storage_options=s3.options)
    found = by_pyiceberg(by_others(database, "served", s3).load_table("public.orders"))
    assert [row["id"] for row in found] == [0, 1, 2]
    assert list(s3.files("served/public/orders/data").glob("*.parquet"))


@pytest.mark.thorough
def test_wrong_keys_are_said_without_them(
    delivered: Delivered, database: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(OPTIONS_VARIABLE, raising=False)
    orders(delivered.built)
    with pytest.raises((AccessRefusedError, StorageError)) as refused:
        delivered.run(
            catalog_at(database) | {"warehouse": s3.url("other")},
            storage_options=s3.options | {"secret_access_key": "wr0ng"},
        )
    assert "wr0ng" not in str(refused.value)


def test_the_jars_of_s3_are_named_each_time_where_java_lacks_them(database: str) -> None:
    settings = HADOOP_DEFAULTS | {"spark.jars": str(postgres_jdbc_jar())}
    gateway, process = start_java(settings, iceberg_jars())
    catalog = catalog_at(database) | {"warehouse": "s3://bucket/lake"}
    try:
        opened = IcebergCatalog(gateway, hadoop_settings(gateway, settings), "lake", catalog)
        for _ in range(2):
            with pytest.raises(UsageError, match="give it the jars of the file system"):
                opened.create(("public", "t"), _ONE_COLUMN, {"spec-id": 0, "fields": []}, {})
    finally:
        process.kill()
        process.wait()
