"""An API, OpenSearch, and S3."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import duckdb
from tests.behaviours.outputs import activity_files, api, search_index
from tests.behaviours.outputs.destination_delta_s3 import s3
from tests.faults.outputs.source import Source
from tests.faults.outputs.target import Strike, Target, nothing
from tests.integration.spark.frozen_destinations import Place
from tests.support.delta_readers import by_duckdb
from tests.support.faulty_network import FaultyNetwork

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


class S3Files(HttpTarget):
    writes = "PUT"

    def make(self) -> Place:
        self.server = s3()
        made = self.places.files()
        options = self.server.options
        prefix = f"activity-{secrets.token_hex(4)}"
        port = self._network(self.server.port)
        options["endpoint"] = f"http://127.0.0.1:{port}"
        made.output |= {"path": self.server.url(prefix), "storage_options": options}
        path = self.server.files(prefix)

        def found() -> list[Any]:
            try:
                return sorted(map(_record, activity_files.read(path)), key=str)
            except (AssertionError, FileNotFoundError):  # the server is amid writing one
                return []

        made.found = found
        return made


class S3Delta(HttpTarget):
    writes = "PUT"

    def make(self) -> Place:
        self.server = s3()
        made = self.places.delta()
        prefix = f"lake-{secrets.token_hex(4)}"
        port = self._network(self.server.port)
        options = self.server.options | {"endpoint": f"http://127.0.0.1:{port}"}
        made.output |= {"path": self.server.url(prefix), "storage_options": options}
        self.table = self.server.files(prefix) / "public/t"

        def found() -> list[Any]:
            try:
                rows = by_duckdb(str(self.table)).to_pylist()
            except duckdb.Error:  # there is no table yet, or the server is amid writing a file
                return []
            return [(row["id"], row["v"]) for row in rows]

        made.found = found
        return made

    def follow(self, message: str) -> None:
        assert "Move the table away" in message, message
        self.table.rename(self.table.parent / "away")


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
