"""Indices of a node that all tests of a process share."""

from __future__ import annotations

import functools
import itertools
import json
import urllib.error
import urllib.request
from dataclasses import replace
from typing import Any

from tests.behaviours.outputs.destinations import Context, Destination, Row
from tests.support.opensearch import OpenSearchServer

from tidelog.outputs.base.writer import Delivery
from tidelog.outputs.opensearch.client import ClusterOptions
from tidelog.outputs.opensearch.indices import index_name
from tidelog.outputs.opensearch.output import OpenSearchOutput
from tidelog.state.sqlite import SqliteState

_numbers = itertools.count(1)
SETTINGS = {"number_of_shards": 1, "number_of_replicas": 0}


@functools.cache
def node() -> OpenSearchServer:
    """One for all tests of the process; it goes when the process does."""
    server = OpenSearchServer()
    server.start()
    return server


def ask(method: str, path: str, body: Any = None) -> Any:
    """What the node answers; None: there is no such thing."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        node().url + path, data, {"Content-Type": "application/json"}, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise AssertionError(f"HTTP {error.code}: {error.read().decode()}") from None


def found(name: str) -> dict[str, Row]:
    """By id, what a search of an alias or index finds, without what the output keeps in it."""
    if ask("POST", f"/{name}/_refresh") is None:
        return {}
    hits = ask("POST", f"/{name}/_search", {"size": 1000})["hits"]["hits"]
    rows = {each["_id"]: each["_source"] for each in hits}
    for row in rows.values():
        row.pop("_tidelog")
    return rows


SIZES = {"create_indices": True, "tombstone_retention_s": 7 * 86_400.0, "bulk_bytes": 4 << 20}


def open_output(context: Context, pattern: str, **options: Any) -> OpenSearchOutput:
    names = {"delivery", "cluster"}
    how = {name: value for name, value in options.items() if name not in names}
    return OpenSearchOutput(
        context.spark,
        context.built.path,
        SqliteState(f"sqlite:///{context.path / 'state.db'}"),
        options.get("delivery", Delivery("search")),
        cluster=options.get("cluster", ClusterOptions((node().url,))),
        index=pattern,
        **SIZES | {"settings": SETTINGS} | how,
    )


def search_destination(context: Context, **options: Any) -> Destination:
    prefix = f"t{next(_numbers)}-{context.path.name}"[:60]
    node()

    def open_(**delivery: Any) -> OpenSearchOutput:
        wanted = replace(Delivery("search"), **delivery)
        return open_output(context, prefix + "-{table}", delivery=wanted, **options)

    def rows(table: str) -> list[Row]:
        rows = found(index_name(f"{prefix}-{table}"))
        return [rows[key] for key in sorted(rows, key=lambda each: (len(each), each))]

    def drop(table: str) -> None:
        alias = index_name(f"{prefix}-{table}")
        for index in ask("GET", f"/_alias/{alias}"):
            ask("DELETE", f"/{index}")

    return Destination(open_, rows, drop=drop)
