"""The API that all tests of a process share, and readers of what it got."""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tests.behaviours.outputs.destinations import Context, Destination, Row, newest
from tests.support.http_receiver import HttpReceiver
from tests.support.output_options import body as request_body
from tests.support.output_options import endpoint as request_endpoint

from tidelog.outputs.base.writer import Delivery
from tidelog.outputs.formatters import formatter
from tidelog.outputs.http.requests import Body
from tidelog.outputs.http.writer import HttpOutput
from tidelog.state.sqlite import SqliteState

UNTOLD = "__debezium_unavailable_value"
DELIVERY = Delivery("api", keyed=False, formatter=formatter("flat", tombstones=False))
_numbers = itertools.count(1)


@functools.cache
def receiver() -> HttpReceiver:
    """One for all tests of the process; it goes when the process does."""
    folder = tempfile.TemporaryDirectory()
    made = HttpReceiver(Path(folder.name) / "received.db")
    made.start()
    atexit.register(lambda: (made.kill(), folder.cleanup()))
    return made


def output(
    context: Context,
    url: str,
    *,
    body: Body | None = None,
    lanes: int = 3,
    endpoint: Mapping[str, Any] | None = None,
    **delivery: Any,
) -> HttpOutput:
    return HttpOutput(
        context.spark,
        context.built.path,
        SqliteState(f"sqlite:///{context.path / 'state.db'}"),
        replace(DELIVERY, **delivery),
        endpoint=request_endpoint(
            url, **({"timeout_s": 5.0, "retry_for_s": 10.0} | dict(endpoint or {}))
        ),
        body=body or request_body(rows=2),
        lanes=lanes,
    )


def table_rows(events: Iterable[Mapping[str, Any]], key: str = "id") -> list[Row]:
    """Rows as a reader that keeps them by key sees them: it fills what an event does not tell."""
    told: list[tuple[str, int, Row | None]] = []
    known: dict[str, Row] = {}
    for event in events:
        version = event["__version"]
        if event["__op"] == "t":
            told += [(each, version, None) for each in known]
            known.clear()
            continue
        row = {n: v for n, v in event.items() if not n.startswith("__")}
        name = json.dumps(row[key])
        before = known.get(name, {})
        row = {n: before.get(n) if v == UNTOLD else v for n, v in row.items()}
        known[name] = row
        told.append((name, version, None if event["__deleted"] else row))
    return newest(told)


def destination(context: Context) -> Destination:
    api = receiver()
    folder = f"/events/{next(_numbers)}"

    def open_(**delivery: Any) -> HttpOutput:
        return output(context, f"{api.url}{folder}/{{table}}", **delivery)

    def rows(table: str) -> list[Row]:
        """In the order in which they came; each event came once, since the API minds keys."""
        path = f"{folder}/{table}"
        events = [e.event for e in api.events(f"{folder}/%") if unquote(e.path) == path]
        seen = [(event["__version"], event["__op"]) for event in events]
        assert len(set(seen)) == len(seen), "an event was stored twice"
        return table_rows(events)

    return Destination(open_, rows, frozenset({"stream"}))
