"""An API, OpenSearch, and S3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
from pyiceberg.exceptions import NoSuchTableError
from tests.behaviours.outputs import activity_files, api, search_index
from tests.behaviours.outputs.destination_delta_s3 import s3
from tests.faults.outputs.source import Source
from tests.faults.outputs.target import Strike, Target, nothing
from tests.integration.iceberg_catalogs.test_jdbc_catalog import catalog_at
from tests.integration.iceberg_catalogs.test_tables_on_s3 import by_others, jars
from tests.integration.spark.frozen_destinations import Place
from tests.support.delta_readers import by_duckdb
from tests.support.faulty_network import FaultyNetwork
from tests.support.iceberg_readers import by_pyiceberg

from tidelog.outputs.opensearch.indices import index_name

FOR_EVER = 1_000_000


class HttpTarget(Target):
    """Its requests go through a proxy that answers in place of the server, too."""

    network: FaultyNetwork
    writes = "POST"

    def _network(self, port: int) -> int:
        self.network = self._opened.enter_context(FaultyNetwork(port))
        return self._behind_switch(self.network.port)

    @contextmanager
    def _answers(self, fault: str) -> Iterator[Strike]:
        self.network.arm(fault, self.writes, FOR_EVER)
        try:
            yield nothing
        finally:
            self.network.disarm()

    def read_only(self) -> Any:
        return self._answers("forbid")

    def full(self) -> Any:
        return self._answers("full")

    def busy(self) -> Any:
        return self._answers("busy")


class Api(HttpTarget):
    def make(self) -> Place:
        self.server = api.receiver()
        made = self.places.http()
        port = self._network(self.server.port)
        made.output["url"] = made.output["url"].replace(f":{self.server.port}/", f":{port}/")
        made.output |= {"retry_for_ms": 500, "timeout_ms": 3000, "batch_rows": 20}
        # It is one that minds keys: a request may come as often as it likes.
        path = f"/events/{self._root.name}"
        made.found = lambda: [_change(each.event) for each in self.server.events(path)]
        return made

    def holds(self, source: Source) -> bool:
        """Each change once, and those of a key in order."""
        return _by_key(self.place.found()) == _by_key(source.changes)

    @contextmanager
    def killed(self) -> Iterator[Strike]:
        """It has stored what it was sent, and does not answer."""
        self.server.fail(die=True)
        try:
            yield nothing
        finally:
            self.server.kill()
            self.server.start()


class OpenSearch(HttpTarget):
    def make(self) -> Place:
        self.server = search_index.node()
        made = self.places.opensearch()
        made.output["urls"] = [f"http://127.0.0.1:{self._behind_switch(self.server.port)}"]
        return made

    @contextmanager
    def _block(self, name: str) -> Iterator[Strike]:
        path = f"/{index_name(self.place.output['index'])}/_settings"
        search_index.ask("PUT", path, {f"index.blocks.{name}": True})
        try:
            yield nothing
        finally:
            search_index.ask("PUT", path, {f"index.blocks.{name}": None})

    def read_only(self) -> Any:
        return self._block("read_only")

    def full(self) -> Any:
        """As the node does at the flood stage of its disk."""
        return self._block("read_only_allow_delete")


class S3Target(HttpTarget):
    """Files in a bucket of their own."""

    writes = "PUT"

    def make(self) -> Place:
        self.server = s3()
        made, bucket = self._made(), self.server.new_bucket()
        endpoint = f"http://127.0.0.1:{self._network(self.server.port)}"
        made.output["storage_options"] = self.server.options | {"endpoint": endpoint}
        self._put_at(made, f"s3://{bucket}/lake", self.server.directory.parent / bucket / "lake")
        return made

    def _made(self) -> Place:
        raise NotImplementedError

    def _put_at(self, made: Place, url: str, files: Path) -> None:
        raise NotImplementedError


class S3Files(S3Target):
    def _made(self) -> Place:
        return self.places.files()

    def _put_at(self, made: Place, url: str, files: Path) -> None:
        made.output["path"] = url

        def found() -> list[Any]:
            try:
                return sorted(map(_record, activity_files.read(files)), key=str)
            except (AssertionError, FileNotFoundError):  # the server is amid writing one
                return []

        made.found = found


class S3Delta(S3Target):
    def _made(self) -> Place:
        return self.places.delta()

    def _put_at(self, made: Place, url: str, files: Path) -> None:
        made.output["path"] = url
        self.table = files / "public/t"

        def found() -> list[Any]:
            try:
                rows = by_duckdb(str(self.table)).to_pylist()
            except duckdb.Error:  # there is no table yet, or the server is amid writing a file
                return []
            return [(row["id"], row["v"]) for row in rows]

        made.found = found

    def follow(self, message: str) -> None:
        assert "Move the table away" in message, message
        self.table.rename(self.table.parent / "away")


class S3Iceberg(S3Target):
    """In a catalog in PostgreSQL."""

    def _made(self) -> Place:
        return Place({"kind": "iceberg"}, list, None, "iceberg.written", conf=jars())

    def _put_at(self, made: Place, url: str, files: Path) -> None:
        dsn = self.places._request.getfixturevalue("database")
        made.output["catalog"] = catalog_at(dsn) | {"warehouse": url}
        self.lake = by_others(dsn, "tidelog_copy", self.server)

        def found() -> list[Any]:
            try:
                rows = by_pyiceberg(self.lake.load_table("public.t"))
            except (NoSuchTableError, OSError):  # there is none yet, or the server is away
                return []
            return [(row["id"], row["v"]) for row in rows]

        made.found = found

    def follow(self, message: str) -> None:
        assert "Move the table away" in message, message
        self.lake.rename_table("public.t", "public.away")


def _change(event: Any) -> tuple[str, int, str | None]:
    """Of an event in format ``flat``."""
    return event["__op"], event["id"], None if event["__deleted"] else str(event["v"])


def _record(record: Any) -> tuple[str, int, str | None]:
    """Of a file."""
    value = (record["after"] or {}).get("v")
    return record["op"], record["key"]["id"], None if value is None else str(value)


def _by_key(changes: list[Any]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for op, key, value in changes:
        found.setdefault(key, []).append((op, value))
    return found
