"""`tidelog check` asks the catalog of an Iceberg output, and writes nothing there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from tests.support.iceberg_rest import FaultyCatalog, Passed, Request, RestCatalogServer, refused
from tests.support.postgres import PostgresServer
from tests.support.postgres_jdbc import jdbc_uri, postgres_jdbc_jar

from tidelog.app.sources.preflight import _check_outputs
from tidelog.config import parse_config

pytestmark = [pytest.mark.spark, pytest.mark.integration]

TOKEN = "t0ken"


def check_result(directory: Path, catalog: Mapping[str, str], more: str = "") -> tuple[str, str]:
    """Level and message of what `tidelog check` finds."""
    text = f"""
source: {{kind: postgres, url: 'postgresql://u@127.0.0.1:1/x', tables: ['public.*']}}
log: {{path: log}}
pipeline: {{conf: {{spark.jars: '{postgres_jdbc_jar()}'}}}}
outputs: [{{kind: iceberg, name: o, tables: ['sales.*'], catalog: {json.dumps(catalog)}{more}}}]
"""
    [found] = _check_outputs(parse_config(text, "test", directory, {}))
    assert found.check == "output o"
    for secret in (TOKEN, "wr0ng"):
        assert secret not in found.message
    return found.level, found.message


def test_a_database(tmp_path: Path, database: str, postgres: PostgresServer) -> None:
    uri, login = jdbc_uri(database)
    catalog = {"type": "jdbc", "uri": uri, **login}
    where = f", path: '{tmp_path}'"
    assert check_result(tmp_path, catalog, where) == (
        "ok",
        "the catalog answers: it has no namespace yet",
    )
    with psycopg.connect(database, autocommit=True) as connection:
        query = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'iceberg%'"
        assert connection.execute(query).fetchone() == (0,)
        uri_of_python = database.replace("postgresql:", "postgresql+psycopg:")
        lake = SqlCatalog("lake", uri=uri_of_python, warehouse=str(tmp_path))
        for name in ("sales", "other"):
            lake.create_namespace(name)
        lake.engine.dispose()
        answer = "the catalog answers: tables can be created in sales"
        assert check_result(tmp_path, catalog, where) == ("ok", answer)
        role = f"reader_{urlsplit(database).path.strip('/')}"
        connection.execute(f"CREATE ROLE {role} LOGIN".encode())
        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}".encode())
        level, message = check_result(tmp_path, catalog | {"jdbc.user": role}, where)
        connection.execute(f"DROP OWNED BY {role}".encode())
        connection.execute(f"DROP ROLE {role}".encode())
    assert level == "error"
    assert "GRANT SELECT, INSERT, UPDATE, DELETE ON iceberg_tables" in message
    level, message = check_result(
        tmp_path, catalog | {"uri": "jdbc:postgresql://127.0.0.1:1/x"}, where
    )
    assert level == "error"
    assert message.endswith(
        "ConnectException). Check its uri and credentials in catalog, and that it runs"
    )


@pytest.fixture(scope="module")
def server(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RestCatalogServer]:
    uri, login = jdbc_uri(postgres.create_database("checked_catalog"))
    warehouse = f"file://{tmp_path_factory.mktemp('warehouse')}"
    with RestCatalogServer({"type": "jdbc", "uri": uri, **login, "warehouse": warehouse}) as made:
        yield made


@pytest.mark.thorough
def test_a_rest_catalog(tmp_path: Path, server: RestCatalogServer) -> None:
    from pyiceberg.catalog.rest import RestCatalog

    with FaultyCatalog(server.port, token=TOKEN) as front:
        catalog = {"type": "rest", "uri": front.uri, "token": TOKEN}
        by_others = RestCatalog("lake", uri=front.uri, token=TOKEN)
        by_others.create_namespace("sales")
        answer = "the catalog answers: tables can be created in sales"
        assert check_result(tmp_path, catalog) == ("ok", answer)
        assert by_others.list_tables("sales") == []
        level, message = check_result(tmp_path, catalog | {"token": "wr0ng"})
        assert level == "error"
        assert "denies access" in message
        assert "check its credentials, token and rights" in message

        def only_reads(request: Request) -> Passed:
            if request.method == "POST":
                return refused(403, "ForbiddenException")
            return request.forward()

        front.answer = only_reads
        level, message = check_result(tmp_path, catalog)
        assert level == "error"
        assert "may not list or create tables in the namespace sales" in message
    level, message = check_result(tmp_path, catalog)
    assert level == "error"
    assert "Check its uri and credentials" in message
