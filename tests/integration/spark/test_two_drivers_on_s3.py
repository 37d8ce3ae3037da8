"""Two drivers of one pipeline bring twenty tables to S3. The leader stands still, with its JVM and
workers, before a commit or while the store has yet to get one, and wakes up when another has
delivered all: nothing of that is lost, and nothing comes twice.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.integration.spark.test_failover import Pipeline
from tests.integration.spark.test_frozen_leader import freeze
from tests.support.build_log import BuiltLog
from tests.support.faulty_network import FaultyNetwork
from tests.support.pipeline_process import signal_all
from tests.support.s3 import S3Server

from tidelog.model.schema import TableSchema

pytestmark = [
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.timeout(900),
]

TABLES = [f"t{n:02d}" for n in range(20)]
AMID = TABLES[9]
"""The table whose commit is held: those before it have theirs."""

Event = tuple[str, int, str | None]
"""Operation, key and value."""
FIRST: list[Event] = [("c", key, "first") for key in range(1, 6)]
FROZEN: list[Event] = [("u", 1, "frozen"), ("d", 2, None), ("c", 6, "frozen")]
MEANWHILE: list[Event] = [("u", 1, "newer"), ("c", 2, "again"), ("d", 3, None), ("d", 6, None)]
AFTER: list[Event] = [("u", 4, "after"), ("c", 7, "after")]


@dataclass
class Place:
    """An output on S3. ``events``: it keeps each change, and not the rows as they are now."""

    s3: S3Server
    network: FaultyNetwork
    root: str

    kind = ""
    before = ""  # the failpoint right before a commit
    events = False

    def held(self) -> str:
        """The first line of the PUT of the next commit."""
        raise NotImplementedError

    def found(self, table: str) -> list[Any]:
        """As another reader has it."""
        raise NotImplementedError

    def wanted(self, told: list[Event]) -> list[Any]:
        if self.events:
            return sorted(told, key=str)
        rows = {key: value for _, key, value in told}
        return sorted((key, value) for key, value in rows.items() if value is not None)

    def _newest(self, folder: str) -> int:
        return max((int(each.stem) for each in self.s3.files(folder).glob("*.json")), default=0)

    def _put(self, folder: str) -> str:
        return f"PUT /{self.s3.bucket}/{folder}/{self._newest(folder) + 1:020d}.json"


class Delta(Place):
    kind = "delta"
    before = "delta.commit.before"

    def held(self) -> str:
        return self._put(f"{self.root}/public/{AMID}/_delta_log")

    def found(self, table: str) -> list[Any]:
        if not any(self.s3.files(f"{self.root}/public/{table}/_delta_log").glob("*.json")):
            return []
        opened = DeltaTable(
            self.s3.url(f"{self.root}/public/{table}"), storage_options=self.s3.options
        )
        read = QueryBuilder().register("t", opened).execute("SELECT id, v FROM t")
        return sorted((row["id"], row["v"]) for row in pa.table(read.read_all()).to_pylist())


class Files(Place):
    kind = "files"
    before = "files.commit.before"
    events = True

    def held(self) -> str:
        return self._put(f"{self.root}/_tidelog/files/commits")

    def found(self, table: str) -> list[Any]:
        names = sorted(self.s3.files(f"{self.root}/table=public.{table}").rglob("*.parquet"))
        rows = [row for name in names for row in ds.dataset(name).to_table().to_pylist()]
        versions = [row["version"] for row in rows]
        assert len(versions) == len(set(versions)), f"an event of {table} came twice"
        told = [(row["op"], row["key"]["id"], (row["after"] or {}).get("v")) for row in rows]
        return sorted(told, key=str)


PLACES = {"delta": Delta, "files": Files}


class Twenty(Pipeline):
    """The tables of a growing log, and processes that deliver them."""

    def __init__(self, built: BuiltLog, directory: Path, place: Place, state: str) -> None:
        super().__init__(built, directory)
        self.place, self.told = place, list[Event]()
        self.tables: list[TableSchema] = [
            built.table(f"public.{name}", {"id": "int64", "v": "text"}, relation_id=at + 2)
            for at, name in enumerate(TABLES)
        ]
        options = place.s3.options | {"endpoint": f"http://127.0.0.1:{place.network.port}"}
        path = place.s3.url(place.root)
        self.configure({"kind": place.kind, "path": path, "storage_options": options})
        with self.file.open("a") as config:  # who is frozen with SQLite's lock holds up the others
            config.write(f"state: {{url: '{state}'}}\n")

    def tell(self, events: list[Event]) -> None:
        """The same changes of each table, in one segment."""
        for table in self.tables:
            for op, key, value in events:
                if op == "c":
                    self.built.insert(table, str(key), value)
                elif op == "u":
                    self.built.update(table, str(key), value)
                else:
                    self.built.delete(table, str(key))
        self.built.flush()
        self.told += events

    def delivered(self) -> bool:
        wanted = self.place.wanted(self.told)
        return all(self.place.found(name) == wanted for name in TABLES)

    def deliver(self, events: list[Event]) -> None:
        self.tell(events)
        self.wait_for(self.delivered)


@pytest.fixture
def twenty(
    request: pytest.FixtureRequest, built: BuiltLog, s3: S3Server, database: str, tmp_path: Path
) -> Iterator[Twenty]:
    with FaultyNetwork(s3.port) as network:
        made = Twenty(built, tmp_path, PLACES[request.param](s3, network, tmp_path.name), database)
        yield made
        made.close()


@pytest.mark.parametrize("stands", ["before its commit", "while its PUT is on the way"])
@pytest.mark.parametrize("twenty", PLACES, indirect=True)
def test_a_driver_that_wakes_up_late_loses_nothing_of_the_one_that_took_over(
    twenty: Twenty, stands: str, tmp_path: Path
) -> None:
    network, armed = twenty.place.network, tmp_path / "armed"
    twenty.tell(FIRST)
    for _ in range(2):
        twenty.start(f"{twenty.place.before}:pause:{armed}")
    twenty.wait_for(twenty.delivered)
    twenty.wait_for(lambda: twenty.status()["standbys"])
    frozen = twenty.leader()
    assert frozen is not None

    waits: Callable[[], object]
    if stands == "before its commit":
        armed.touch()
        waits = lambda: frozen.frozen  # noqa: E731
    else:
        network.arm("hold", twenty.place.held())
        waits = lambda: network.struck  # noqa: E731
    twenty.tell(FROZEN)
    twenty.wait_for(waits)
    pids = freeze(frozen)
    armed.unlink(missing_ok=True)
    twenty.wait_for(lambda: twenty.leader() not in (None, frozen))
    other = twenty.leader()
    twenty.wait_for(twenty.delivered)
    twenty.deliver(MEANWHILE)

    network.deliver()
    assert twenty.delivered()
    signal_all(pids, signal.SIGCONT)
    twenty.wait_for(lambda: len(twenty.status()["standbys"]) == 1)
    time.sleep(2)  # what is late has arrived
    assert twenty.delivered()
    assert twenty.leader() is other
    twenty.deliver(AFTER)
    assert [each.code for each in twenty.processes] == [None, None]
