"""The Iceberg output and a JDBC catalog in PostgreSQL, which others use as well."""

from __future__ import annotations

import psycopg
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from tests.integration.iceberg_catalogs.conftest import Delivered
from tests.integration.spark.orders import orders
from tests.support.iceberg_readers import by_duckdb, by_pyiceberg
from tests.support.postgres_jdbc import jdbc_uri

from tidelog.errors import AccessRefusedError, OutputError, UsageError

pytestmark = [pytest.mark.spark, pytest.mark.integration]


def catalog_at(dsn: str) -> dict[str, str]:
    uri, login = jdbc_uri(dsn)
    return {"type": "jdbc", "uri": uri, **login}


def by_others(dsn: str, name: str, warehouse: str, **properties: str) -> SqlCatalog:
    """The catalog as PyIceberg opens it."""
    uri = dsn.replace("postgresql:", "postgresql+psycopg:")
    return SqlCatalog(name, uri=uri, warehouse=warehouse, **properties)


def names_in(table: object) -> list[tuple[int, str]]:
    return [(row["id"], row["name"]) for row in by_pyiceberg(table)]


def test_tables_are_beside_those_of_others_in_their_catalog(
    delivered: Delivered, database: str
) -> None:
    """Without a word about the name: it is the only catalog in the database."""
    lake = by_others(database, "lake", delivered.warehouse)
    lake.create_namespace("public")
    theirs = lake.create_table("public.theirs", pa.schema([("id", pa.int64())]))
    theirs.append(pa.table({"id": [7]}))
    table = orders(delivered.built)
    delivered.built.delete(table, "3")
    delivered.built.flush()
    delivered.run(catalog_at(database))
    assert sorted(lake.list_tables("public")) == [("public", "orders"), ("public", "theirs")]
    ours = lake.load_table("public.orders")
    assert names_in(ours) == [(0, "n0"), (1, "n1"), (2, "n2")]
    assert by_duckdb(ours.metadata_location) == by_pyiceberg(ours)
    assert lake.load_table("public.theirs").scan().to_arrow().to_pylist() == [{"id": 7}]
    delivered.built.update(table, "1", "changed", "1.5")
    delivered.built.flush()
    delivered.run(catalog_at(database))
    ours = lake.load_table("public.orders")
    assert names_in(ours) == [(0, "n0"), (1, "changed"), (2, "n2")]
    assert by_duckdb(ours.metadata_location) == by_pyiceberg(ours)


def test_a_name_that_can_not_be_known_is_asked_for(delivered: Delivered, database: str) -> None:
    for name in ("lake", "other"):
        by_others(database, name, delivered.warehouse).create_namespace("sales")
    orders(delivered.built)
    with pytest.raises(UsageError, match=r"catalogs lake, other.*catalog_name.*tidelog_iceberg"):
        delivered.run(catalog_at(database))
    delivered.run(catalog_at(database), catalog_name="other")
    other = by_others(database, "other", delivered.warehouse)
    assert names_in(other.load_table("public.orders")) == [(n, f"n{n}") for n in range(4)]
    assert by_others(database, "lake", delivered.warehouse).list_namespaces() == [("sales",)]


def test_an_output_keeps_the_catalog_of_its_own_that_it_has(
    delivered: Delivered, database: str
) -> None:
    """As in an empty database, where nobody else has one; that of another output is not taken."""
    table = orders(delivered.built)
    delivered.run(catalog_at(database), name="one")
    delivered.run(catalog_at(database), name="two")
    by_others(database, "lake", delivered.warehouse).create_namespace("sales")
    delivered.built.delete(table, "0")
    delivered.built.flush()
    for name in ("one", "two"):
        delivered.run(catalog_at(database), name=name)
        own = by_others(database, f"tidelog_{name}", delivered.warehouse)
        assert names_in(own.load_table("public.orders")) == [(n, f"n{n}") for n in (1, 2, 3)]


def test_a_database_that_is_away_or_denies_access_says_so(
    delivered: Delivered, database: str
) -> None:
    orders(delivered.built)
    catalog = catalog_at(database)
    with pytest.raises(OutputError, match="Exception: ConnectException"):
        delivered.run(catalog | {"uri": "jdbc:postgresql://127.0.0.1:1/nothing"})
    with pytest.raises(AccessRefusedError, match=r"denies access \(.*PSQLException"):
        delivered.run(catalog | {"jdbc.user": "nobody"})
    with pytest.raises(UsageError, match="no JDBC driver for jdbc:oracle"):
        delivered.run(catalog | {"uri": "jdbc:oracle:thin:x"})


def test_a_name_may_be_set_later_and_another_catalog_is_refused(
    delivered: Delivered, database: str
) -> None:
    """Else the tables would be made anew there, without what came before."""
    lake = by_others(database, "lake", delivered.warehouse)
    lake.create_namespace("sales")
    table = orders(delivered.built)
    delivered.run(catalog_at(database))
    delivered.built.delete(table, "0")
    delivered.built.flush()
    delivered.run(catalog_at(database), catalog_name="lake")
    assert names_in(lake.load_table("public.orders")) == [(n, f"n{n}") for n in (1, 2, 3)]
    with pytest.raises(UsageError, match=r"public\.orders is in the catalog lake.*not in other"):
        delivered.run(catalog_at(database), catalog_name="other")
    delivered.run(catalog_at(database), catalog_name="other", name="second")
    with psycopg.connect(database) as connection:
        connection.execute("DELETE FROM iceberg_tables WHERE catalog_name = 'other'")
        connection.execute("UPDATE iceberg_tables SET catalog_name = 'other'")
    delivered.built.delete(table, "1")
    delivered.built.flush()
    delivered.run(catalog_at(database), catalog_name="other")
    other = by_others(database, "other", delivered.warehouse)
    assert names_in(other.load_table("public.orders")) == [(n, f"n{n}") for n in (2, 3)]
