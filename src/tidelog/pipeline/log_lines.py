"""The event log as dicts in Debezium's envelope, without Spark: what ``tidelog log`` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from heapq import merge
from operator import itemgetter
from typing import Any

from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.model.records import Kind
from tidelog.pipeline import executor
from tidelog.pipeline.options import SourceOptions
from tidelog.pipeline.reading import Reading
from tidelog.pipeline.shapes import ENVELOPE


def events(
    log: EventLog, path: str, start: int, end: int, table: str | None, *, dumps: bool = False
) -> Iterator[dict[str, Any]]:
    """Change events with ``start <= version < end``, in log order; with ``dumps`` also the records
    about dumps, of ``table`` if there is one.

    Raises:
        OffsetGoneError: retention has removed ``start``.
    """
    tables = None if table is None else [table]
    options = SourceOptions.parse({"path": path, "shape": "envelope"})
    reading = Reading(replace(options, tables=tuple(tables or ())), None, ENVELOPE)
    for ref in log.segments(start, end, tables=tables):
        lines = _changes(log, reading, ref)
        if (table is None or dumps) and 0 in _schema_ids(log, ref):
            others = _messages(log, ref, table, dumps=dumps)
            lines = merge(lines, others, key=itemgetter("version"))
        yield from lines


def _changes(log: EventLog, reading: Reading, ref: SegmentRef) -> Iterator[dict[str, Any]]:
    names = ("table", "version", "schema_version", "key", "value")
    for batch in executor.batches(reading, log, [ref]):
        for row in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
            found = dict(zip(names[:3], row[:3], strict=True))
            found["key"] = None if row[3] is None else json.loads(row[3])
            yield {**found, **json.loads(row[4])}


def _schema_ids(log: EventLog, ref: SegmentRef) -> set[int]:
    return {i for batch in log.batches(ref, ["schema_id"]) for i in batch.column(0).to_pylist()}


def _messages(
    log: EventLog, ref: SegmentRef, table: str | None, *, dumps: bool
) -> Iterator[dict[str, Any]]:
    """The application's logical messages, as Debezium shows them: op ``m``; and our own records."""
    for batch in log.batches(ref, ["offset", "kind", "payload"], schema_ids=[0]):
        for record in batch.to_pylist():
            content = json.loads(record["payload"])
            if record["kind"] == Kind.MESSAGE and table is None:
                shown = ("prefix", "content", "omitted")
                message = {name: content[name] for name in shown if name in content}
                yield {"version": record["offset"], "op": "m", "message": message}
            elif record["kind"] == Kind.CONTROL and dumps:
                of = content.get("table")
                if table in (None, of):
                    named = {} if of is None else {"table": of}
                    yield {**named, "version": record["offset"], "op": "dump", "dump": content}
