"""Each kind of catalog, with its own server: two leaders, an answer that is lost or comes late, and
a server that is away. No change is lost, and none comes twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import StaticTable
from tests.faults.outputs.switch import Switch
from tests.integration.iceberg_catalogs.conftest import (
    CHANGED,
    Delivered,
    change,
    written_output,
)
from tests.integration.iceberg_catalogs.test_jdbc_catalog import by_others, catalog_at
from tests.support.faulty_network import FaultyNetwork
from tests.support.hive import HiveMetastore
from tests.support.iceberg_readers import by_duckdb, by_pyiceberg
from tests.support.iceberg_rest import FaultyCatalog, RestCatalogServer, once_committed
from tests.support.postgres_jdbc import LostCommits
from tests.support.s3 import S3Server

from tidelog.errors import OutputError
from tidelog.outputs.lake.delta.hive import HiveCatalog
from tidelog.system import failpoints

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]


@dataclass
class Catalog:
    """One of a kind.

    Attributes:
        properties: as the output's section has them.
        metadata: returns the file with the newest metadata of ``public.orders``.
        lose_next: has the next commit be made, and its answer be lost after so many seconds.
        switch: what its clients go through.
        network: what clients of the store of its tables go through, if that is S3.
        properties_of_files: how others reach that.
    """

    properties: dict[str, str]
    metadata: Callable[[], str]
    lose_next: Callable[[float], object] = lambda _: None
    switch: Switch | None = None
    network: FaultyNetwork | None = None
    properties_of_files: dict[str, str] = field(default_factory=dict)


class Catalogs:
    """Makes them, by the names of its methods."""

    def __init__(
        self, request: pytest.FixtureRequest, delivered: Delivered, opened: ExitStack
    ) -> None:
        self._value = request.getfixturevalue
        self._delivered, self._opened = delivered, opened

    def files(self) -> Catalog:
        place = self._delivered.warehouse.removeprefix("file://")

        def metadata() -> str:
            metadata = self._value("tmp_path") / place / "public/orders/metadata"
            number = (metadata / "version-hint.text").read_text()
            return str(metadata / f"v{number}.metadata.json")

        return Catalog({"type": "hadoop"}, metadata)

    def jdbc(self, **properties: str) -> Catalog:
        dsn = self._value("database")
        port = urlsplit(dsn).port or 0
        between = self._opened.enter_context(LostCommits(port))
        switch = self._opened.enter_context(Switch(between.port))
        found = catalog_at(dsn)
        found["uri"] = found["uri"].replace(str(port), str(switch.port))

        def metadata() -> str:
            lake = by_others(dsn, "tidelog_iceberg", self._delivered.warehouse, **properties)
            return lake.load_table("public.orders").metadata_location

        return Catalog(found, metadata, between.lose_next, switch)

    def jdbc_s3(self) -> Catalog:
        """Its tables are on S3, in a bucket of their own: Hadoop has one client for each."""
        s3: S3Server = self._value("s3")
        bucket = s3.new_bucket()
        network = self._opened.enter_context(FaultyNetwork(s3.port))
        self._delivered.warehouse = f"s3://{bucket}/lake"
        endpoint = f"http://127.0.0.1:{network.port}"
        self._delivered.storage_options = s3.options | {"endpoint": endpoint}
        made = self.jdbc(**s3.pyiceberg_properties)
        made.network, made.properties_of_files = network, s3.pyiceberg_properties
        return made

    def rest(self) -> Catalog:
        served = catalog_at(self._value("database")) | {"warehouse": self._delivered.warehouse}
        server = self._opened.enter_context(RestCatalogServer(served))
        front = self._opened.enter_context(FaultyCatalog(server.port))
        switch = self._opened.enter_context(Switch(front.port))

        def lose_next(hold_s: float) -> None:
            front.answer = once_committed(lambda: time.sleep(hold_s))

        def metadata() -> str:
            lake = RestCatalog("lake", uri=f"http://127.0.0.1:{server.port}")
            return lake.load_table("public.orders").metadata_location

        uri = f"http://127.0.0.1:{switch.port}"
        return Catalog({"type": "rest", "uri": uri}, metadata, lose_next, switch)

    def hive(self) -> Catalog:
        metastore = self._opened.enter_context(HiveMetastore())
        between = self._opened.enter_context(LostCommits(metastore.port, commits=b"alter_table"))
        switch = self._opened.enter_context(Switch(between.port))

        def metadata() -> str:
            client = HiveCatalog(self._delivered.spark, metastore.uri)._connect()
            parameters = client.getTable("public", "orders").getParameters()
            client.close()
            return str(parameters.get("metadata_location"))

        # Spark's metastore has no tables of locks.
        own = {"table-default.engine.hive.lock-enabled": "false"}
        uri = f"thrift://127.0.0.1:{switch.port}"
        return Catalog({"type": "hive", "uri": uri, **own}, metadata, between.lose_next, switch)


def thorough(value: str | float, **how: str) -> Any:
    return pytest.param(value, marks=pytest.mark.thorough, **how)


HIVE, ON_S3 = thorough("hive"), thorough("jdbc_s3")


@pytest.fixture
def catalog(
    request: pytest.FixtureRequest, delivered: Delivered, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Catalog]:
    monkeypatch.setattr("tidelog.outputs.lake.iceberg.catalog.ANSWER_S", 5)
    with ExitStack() as opened:
        made: Catalog = getattr(Catalogs(request, delivered, opened), request.param)()
        yield made


@pytest.fixture
def output(delivered: Delivered, catalog: Catalog) -> Iterator[Any]:
    """One that has written a batch: rows 0 to 3."""
    with written_output(delivered, catalog.properties) as output:
        yield output


def check(catalog: Catalog, rows: dict[int, str], snapshots: int) -> None:
    """As two other readers see the table."""
    place = catalog.metadata()
    found = StaticTable.from_metadata(place, catalog.properties_of_files)
    assert {row["id"]: row["name"] for row in by_pyiceberg(found)} == rows
    if catalog.network is None:  # DuckDB's package has no client of S3
        assert by_duckdb(place) == by_pyiceberg(found)
    assert len(found.snapshots()) == snapshots


def deliver(delivered: Delivered, output: Any) -> None:
    """Write the batch, again while it fails, as pipelines do."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            delivered.write(output)
        except OutputError:
            time.sleep(0.5)
        else:
            return
    raise AssertionError("the batch fails again and again")


@pytest.mark.parametrize("place", ["iceberg.written", thorough("lake.table.write")])
@pytest.mark.parametrize("catalog", ["files", "rest", "jdbc", ON_S3, HIVE], indirect=True)
def test_a_driver_that_hung_is_refused(
    delivered: Delivered, catalog: Catalog, output: Any, place: str
) -> None:
    """Two leaders: one settles a batch and hangs, another writes it and more, the first goes on."""
    change(delivered)
    built = delivered.built
    other = delivered.output(catalog.properties)
    other.prepare(built.log.generation)

    def go_on() -> None:
        with failpoints.arm({place: lambda: None}):
            delivered.write(other)
            built.delete(built.log.schemas.latest(built.log.schemas.tables()[0]), "4")
            built.flush()
            delivered.write(other)

    with failpoints.arm({place: go_on}), pytest.raises(OutputError, match="another pipeline"):
        delivered.write(output)
    other.close()
    delivered.write(output)
    check(catalog, {0: "n0", 1: "changed", 2: "n2"}, 3)


@pytest.mark.parametrize("hold_s", [pytest.param(0.0, id="lost"), thorough(40.0, id="held")])
@pytest.mark.parametrize("catalog", [thorough("rest"), "jdbc", ON_S3, HIVE], indirect=True)
def test_a_commit_whose_answer_is_lost_is_made_once(
    delivered: Delivered, catalog: Catalog, output: Any, hold_s: float
) -> None:
    change(delivered)
    catalog.lose_next(hold_s)
    began = time.monotonic()
    deliver(delivered, output)
    assert time.monotonic() - began < 35  # a catalog's client may not wait forever
    check(catalog, CHANGED, 2)
    delivered.write(output)
    check(catalog, CHANGED, 2)


@pytest.mark.parametrize(
    "catalog", [thorough("rest"), thorough("jdbc"), ON_S3, HIVE], indirect=True
)
def test_a_commit_is_made_once_though_the_catalog_is_away_after_it(
    delivered: Delivered, catalog: Catalog, output: Any
) -> None:
    """The library asks until it finds out, or says that it can't (`CommitStateUnknown`)."""
    switch = catalog.switch
    assert switch is not None
    change(delivered)
    catalog.lose_next(2.0)
    before = catalog.metadata()
    away = threading.Event()

    def go_away() -> None:
        while catalog.metadata() == before:
            time.sleep(0.05)
        switch.refuse()
        away.set()
        time.sleep(15)
        switch.listen()

    thread = threading.Thread(target=go_away)
    thread.start()
    deliver(delivered, output)
    thread.join()
    assert away.is_set()
    check(catalog, CHANGED, 2)


@pytest.mark.parametrize("catalog", [thorough("rest"), "jdbc", ON_S3, HIVE], indirect=True)
def test_a_catalog_that_was_away_gets_what_it_missed(
    delivered: Delivered, catalog: Catalog, output: Any
) -> None:
    """Also from an output that begins while it is away."""
    switch = catalog.switch
    assert switch is not None
    change(delivered)
    switch.refuse()
    other = delivered.output(catalog.properties)
    try:
        with pytest.raises(OutputError, match=r"public.orders: the catalog failed: "):
            delivered.write(output)
        with pytest.raises(OutputError, match=r"the catalog failed|output iceberg"):
            other.prepare(delivered.built.log.generation)
    finally:
        switch.listen()
    deliver(delivered, output)
    other.prepare(delivered.built.log.generation)
    delivered.write(other)
    other.close()
    check(catalog, CHANGED, 2)


@pytest.mark.parametrize(
    ("fault", "requests"),
    [
        pytest.param(
            *(fault, requests),
            marks=[] if (fault, name) == ("done_503", "metadata") else pytest.mark.thorough,
            id=f"{fault}-{name}",
        )
        for fault in ("busy", "lose_answer", "done_500", "done_503")
        for name, requests in (
            ("data", "PUT /{}/data/"),
            ("metadata", "PUT /{}/metadata/"),
            ("reads", "GET /{}"),
            ("looks", "HEAD /{}"),
        )
    ],
)
@pytest.mark.parametrize("catalog", ["jdbc_s3"], indirect=True)
def test_a_store_that_fails_has_a_batch_written_once(
    delivered: Delivered, catalog: Catalog, output: Any, fault: str, requests: str
) -> None:
    network, place = catalog.network, delivered.warehouse.removeprefix("s3://")
    assert network is not None
    change(delivered)
    network.arm(fault, requests.format(f"{place}/public/orders"), times=3)
    deliver(delivered, output)
    assert network.struck
    network.disarm()
    check(catalog, CHANGED, 2)
    delivered.write(output)
    check(catalog, CHANGED, 2)
