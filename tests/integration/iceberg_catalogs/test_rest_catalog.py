"""The Iceberg output and a REST catalog: Iceberg's own server, and faults of its answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from tests.integration.iceberg_catalogs.conftest import Delivered
from tests.integration.spark.orders import orders
from tests.support.iceberg_readers import by_duckdb, by_pyiceberg
from tests.support.iceberg_rest import FaultyCatalog, RestCatalogServer
from tests.support.postgres_jdbc import jdbc_uri

from tidelog.demo.servers.postgres import PostgresServer
from tidelog.errors import AccessRefusedError

pytestmark = [pytest.mark.spark, pytest.mark.integration]

TOKEN = "t0ken"  # noqa: S105


@pytest.fixture(scope="module")
def server(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RestCatalogServer]:
    uri, login = jdbc_uri(postgres.create_database("rest_catalog"))
    warehouse: Path = tmp_path_factory.mktemp("warehouse")
    catalog = {"type": "jdbc", "uri": uri, **login, "jdbc.schema-version": "V1"}
    with RestCatalogServer(catalog | {"warehouse": f"file://{warehouse}"}) as started:
        yield started


@pytest.fixture
def front(server: RestCatalogServer) -> Iterator[FaultyCatalog]:
    with FaultyCatalog(server.port, token=TOKEN) as catalog:
        yield catalog


@pytest.fixture
def catalog(front: FaultyCatalog) -> dict[str, str]:
    return {"type": "rest", "uri": front.uri, "token": TOKEN}


@pytest.fixture
def by_others(catalog: dict[str, str]) -> Iterator[RestCatalog]:
    found = RestCatalog("lake", uri=catalog["uri"], token=TOKEN)
    yield found
    found.drop_table("public.orders")


def names_in(table: Any) -> dict[int, str]:
    return {row["id"]: row["name"] for row in by_pyiceberg(table)}


def test_a_table_is_written_and_read_by_others(
    delivered: Delivered, catalog: dict[str, str], by_others: RestCatalog
) -> None:
    table = orders(delivered.built)
    delivered.run(catalog)
    delivered.built.update(table, "1", "changed", "1.5")
    delivered.built.delete(table, "3")
    delivered.built.flush()
    delivered.run(catalog)
    found = by_others.load_table("public.orders")
    assert names_in(found) == {0: "n0", 1: "changed", 2: "n2"}
    assert by_duckdb(found.metadata_location) == by_pyiceberg(found)


def test_a_wrong_token_is_said_without_it(delivered: Delivered, catalog: dict[str, str]) -> None:
    orders(delivered.built)
    with pytest.raises(AccessRefusedError, match="the catalog denies access") as refused:
        delivered.run(catalog | {"token": "wr0ng"})
    assert "wr0ng" not in str(refused.value)


def test_a_token_is_fetched_by_a_credential(
    delivered: Delivered, front: FaultyCatalog, by_others: RestCatalog
) -> None:
    """By OAuth2, from the catalog itself, as Polaris has it."""
    orders(delivered.built)
    front.token = "client-credentials-token:sub=tidelog"  # noqa: S105
    delivered.run({"type": "rest", "uri": front.uri, "credential": "tidelog:s3cret"})
    front.token = TOKEN
    assert names_in(by_others.load_table("public.orders")) == {n: f"n{n}" for n in range(4)}
