"""Iceberg tables on S3: data and metadata by the options of the output, in a JDBC catalog."""

from __future__ import annotations

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from tests.integration.iceberg_catalogs.conftest import Delivered
from tests.integration.iceberg_catalogs.test_jdbc_catalog import catalog_at
from tests.integration.spark.orders import orders
from tests.support.iceberg_readers import by_pyiceberg
from tests.support.s3 import S3Server

from tidelog.errors import AccessRefusedError, StorageError
from tidelog.eventlog.local_storage import OPTIONS_VARIABLE

pytestmark = [pytest.mark.spark, pytest.mark.integration]


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
    others = SqlCatalog(
        "tidelog_iceberg",
        **{
            "uri": database.replace("postgresql:", "postgresql+psycopg:"),
            "s3.endpoint": s3.endpoint,
            "s3.access-key-id": s3.access_key_id,
            "s3.secret-access-key": s3.secret_access_key,
            "s3.region": "us-east-1",
        },
    )
    found = by_pyiceberg(others.load_table("public.orders"))
    assert {row["id"]: row["name"] for row in found} == {0: "n0", 1: "changed", 2: "n2"}
    assert list(s3.files("lake/public/orders/data").glob("*.parquet"))


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
