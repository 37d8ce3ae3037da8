"""The Iceberg output and a REST catalog: Iceberg's own server, and faults of its answers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from tests.integration.iceberg_catalogs.conftest import (
    CHANGED,
    Delivered,
    change,
    written_output,
)
from tests.integration.spark.orders import orders
from tests.support.iceberg_readers import by_duckdb, by_pyiceberg
from tests.support.iceberg_rest import (
    FaultyCatalog,
    Passed,
    Request,
    RestCatalogServer,
    held,
    once_committed,
    refused,
)
from tests.support.postgres import PostgresServer
from tests.support.postgres_jdbc import jdbc_uri

from tidelog.errors import AccessRefusedError

pytestmark = [pytest.mark.spark, pytest.mark.integration]

TOKEN = "t0ken"


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
    found.drop_namespace("public")


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
    front.token = "client-credentials-token:sub=tidelog"
    delivered.run({"type": "rest", "uri": front.uri, "credential": "tidelog:s3cret"})
    front.token = TOKEN
    assert names_in(by_others.load_table("public.orders")) == {n: f"n{n}" for n in range(4)}


@pytest.fixture
def output(
    delivered: Delivered, catalog: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """One that has written a batch: rows 0 to 3."""
    monkeypatch.setattr("tidelog.outputs.lake.iceberg.catalog.ANSWER_S", 5)
    with written_output(delivered, catalog) as output:
        yield output


def test_a_batch_loads_its_table_twice(
    delivered: Delivered, front: FaultyCatalog, by_others: RestCatalog, output: Any
) -> None:
    """To follow it, and as Iceberg's library does before each commit."""
    change(delivered)
    asked: list[tuple[str, bool]] = []

    def serve(request: Request) -> Passed | None:
        asked.append((request.method, request.is_commit))
        return request.forward()

    front.answer = serve
    delivered.write(output)
    assert asked == [("GET", False), ("GET", False), ("POST", True)]
    assert names_in(by_others.load_table("public.orders")) == CHANGED


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda: refused(500), id="500"),
        pytest.param(lambda: refused(502), id="502", marks=pytest.mark.thorough),
        pytest.param(lambda: refused(503), id="503", marks=pytest.mark.thorough),
        pytest.param(lambda: refused(504), id="504", marks=pytest.mark.thorough),
        pytest.param(lambda: None, id="lost"),
        pytest.param(held(40), id="held"),
    ],
)
def test_a_commit_whose_answer_is_wrong_or_lost_is_made_once(
    delivered: Delivered,
    front: FaultyCatalog,
    by_others: RestCatalog,
    output: Any,
    answer: Callable[[], Passed | None],
) -> None:
    change(delivered)
    front.answer = once_committed(answer)
    began = time.monotonic()
    delivered.retry(output)
    assert time.monotonic() - began < 35  # a catalog's client may not wait forever
    found = by_others.load_table("public.orders")
    assert names_in(found) == CHANGED
    assert len(found.snapshots()) == 2
    delivered.write(output)
    assert len(found.refresh().snapshots()) == 2
    assert by_duckdb(found.metadata_location) == by_pyiceberg(found)


@pytest.mark.parametrize("after_s", [0.2, pytest.param(2.0, marks=pytest.mark.thorough)])
def test_a_commit_that_comes_after_its_answer_is_made_once(
    delivered: Delivered, front: FaultyCatalog, by_others: RestCatalog, output: Any, after_s: float
) -> None:
    """A gateway gives up and the server goes on: while the batch is settled again, or later."""
    change(delivered)
    late: list[threading.Thread] = []

    def serve(request: Request) -> Passed | None:
        if request.is_commit and not late:
            late.append(threading.Thread(target=lambda: (time.sleep(after_s), request.forward())))
            late[0].start()
            return refused(504)
        return request.forward()

    front.answer = serve
    delivered.retry(output)
    late[0].join()
    delivered.write(output)
    found = by_others.load_table("public.orders")
    assert names_in(found) == CHANGED
    assert len(found.snapshots()) == 2
    assert by_duckdb(found.metadata_location) == by_pyiceberg(found)


def test_a_new_column_whose_answer_is_lost_comes_once(
    delivered: Delivered, front: FaultyCatalog, by_others: RestCatalog, output: Any
) -> None:
    wider = {"id": "int64", "name": "text", "amount": "decimal(10,2)", "added": "text"}
    delivered.built.insert(delivered.built.table("public.orders", wider), "9", "n9", "1.5", "x")
    delivered.built.flush()
    front.answer = once_committed(lambda: refused(500))
    delivered.retry(output)
    found = by_others.load_table("public.orders")
    assert [each.name for each in found.schema().fields].count("added") == 1
    assert {row["id"]: row["added"] for row in by_pyiceberg(found)}[9] == "x"


@pytest.mark.parametrize("what", ["tables", pytest.param("namespaces", marks=pytest.mark.thorough)])
def test_a_table_whose_creation_is_not_answered_is_ours(
    delivered: Delivered, front: FaultyCatalog, catalog: dict[str, str], by_others: RestCatalog,
    what: str
) -> None:  # fmt: skip
    orders(delivered.built)
    left = [500]

    def serve(request: Request) -> Passed | None:
        found = request.forward()
        if request.method == "POST" and request.path.endswith(f"/{what}") and left:
            return refused(left.pop())
        return found

    front.answer = serve
    output = delivered.output(catalog)
    output.prepare(delivered.built.log.generation)
    assert delivered.retry(output) == 1
    output.close()
    assert names_in(by_others.load_table("public.orders")) == {n: f"n{n}" for n in range(4)}


def test_a_token_that_is_taken_no_more_is_fetched_again(
    delivered: Delivered,
    front: FaultyCatalog,
    by_others: RestCatalog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after a restart of the catalog: the token that it gave had not expired."""
    monkeypatch.setattr("tidelog.outputs.lake.iceberg.catalog.REOPEN_S", 0.0)
    given = {"access_token": "first", "token_type": "bearer"}
    kind = [("Content-Type", "application/json")]

    def serve(request: Request) -> Passed | None:
        if request.path.endswith("/oauth/tokens"):
            return 200, kind, json.dumps(given).encode()
        return request.forward()

    front.answer, front.token = serve, "first"
    orders(delivered.built)
    output = delivered.output(
        {"type": "rest", "uri": front.uri, "credential": "tidelog:s3cret", "scope": "all"}
    )
    output.prepare(delivered.built.log.generation)
    delivered.write(output)
    change(delivered)
    front.token = given["access_token"] = "second"
    delivered.write(output)
    output.close()
    front.token, front.answer = TOKEN, lambda request: request.forward()
    assert names_in(by_others.load_table("public.orders")) == CHANGED


def test_a_namespace_that_is_there_needs_no_right_to_make_one(
    delivered: Delivered, front: FaultyCatalog, catalog: dict[str, str], by_others: RestCatalog
) -> None:
    by_others.create_namespace_if_not_exists("public")

    def serve(request: Request) -> Passed | None:
        if request.method == "POST" and request.path.endswith("/namespaces"):
            return refused(403, "ForbiddenException")
        return request.forward()

    front.answer = serve
    orders(delivered.built)
    delivered.run(catalog)
    assert names_in(by_others.load_table("public.orders")) == {n: f"n{n}" for n in range(4)}
