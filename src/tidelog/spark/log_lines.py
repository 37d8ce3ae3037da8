"""Formats the event log as JSON lines in Debezium's envelope, without Spark: `tidelog log` prints
them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from heapq import merge
from operator import itemgetter
from typing import Any

from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.model.records import RecordKind
from tidelog.spark.datasource import executor
from tidelog.spark.datasource.executor import ReadPlan
from tidelog.spark.datasource.options import SourceOptions
from tidelog.spark.formats.shapes import ENVELOPE

Line = tuple[int, str]


def events(
    log: EventLog, path: str, start: int, end: int, table: str | None, *, dumps: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield `lines`, parsed."""
    return map(json.loads, lines(log, path, start, end, table, dumps=dumps))


def lines(
    log: EventLog, path: str, start: int, end: int, table: str | None, *, dumps: bool = False
) -> Iterator[str]:
    """Yield change events with ``start <= version < end``, in log order; with ``dumps`` also the
    records about dumps, of ``table`` if given. Key and envelope are the texts that outputs write.

    Raises:
        OffsetGoneError: retention has removed ``start``.
    """
    tables = None if table is None else [table]
    options = SourceOptions.parse({"path": path, "shape": "envelope"})
    plan = ReadPlan(replace(options, tables=tuple(tables or ())), None, ENVELOPE)
    for ref in log.segments(start, end, tables=tables):
        found = _changes(log, plan, ref)
        if (table is None or dumps) and 0 in _schema_ids(log, ref):
            others = _messages(log, ref, table, dumps=dumps)
            found = merge(found, others, key=itemgetter(0))
        yield from map(itemgetter(1), found)


def _changes(log: EventLog, plan: ReadPlan, ref: SegmentRef) -> Iterator[Line]:
    names = ("table", "version", "schema_version", "key", "value")
    for batch in executor.batches(plan, log, [ref]):
        for row in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
            table, version, schema_version, key, value = row
            head = _text({"table": table, "version": version, "schema_version": schema_version})
            yield version, f'{head[:-1]},"key":{key or "null"},{value[1:]}'


def _schema_ids(log: EventLog, ref: SegmentRef) -> set[int]:
    return {i for batch in log.batches(ref, ["schema_id"]) for i in batch.column(0).to_pylist()}


def _messages(log: EventLog, ref: SegmentRef, table: str | None, *, dumps: bool) -> Iterator[Line]:
    """Yield logical messages as Debezium shows them, op ``m``; and our own records."""
    for batch in log.batches(ref, ["offset", "kind", "payload"], schema_ids=[0]):
        for record in batch.to_pylist():
            content = json.loads(record["payload"])
            if record["kind"] == RecordKind.MESSAGE and table is None:
                parts = ("prefix", "content", "omitted")
                message = {name: content[name] for name in parts if name in content}
                found = {"version": record["offset"], "op": "m", "message": message}
                yield record["offset"], _text(found)
            elif record["kind"] == RecordKind.CONTROL and dumps:
                table_name = content.get("table")
                if table in (None, table_name):
                    shown = {} if table_name is None else {"table": table_name}
                    found = {**shown, "version": record["offset"], "op": "dump", "dump": content}
                    yield record["offset"], _text(found)


def _text(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
