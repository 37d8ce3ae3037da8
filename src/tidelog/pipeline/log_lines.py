"""The event log as dicts in Debezium's envelope, without Spark: what ``tidelog log`` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tidelog.eventlog.reader import EventLog
from tidelog.pipeline.executor import batches
from tidelog.pipeline.options import SourceOptions
from tidelog.pipeline.reading import Reading
from tidelog.pipeline.shapes import ENVELOPE


def events(
    log: EventLog, path: str, start: int, end: int, table: str | None
) -> Iterator[dict[str, Any]]:
    """Change events with ``start <= version < end``, in log order.

    Raises:
        OffsetGoneError: retention has removed ``start``.
    """
    options = {"path": path, "shape": "envelope"}
    if table is not None:
        options["tables"] = table
    reading = Reading(SourceOptions.parse(options), None, ENVELOPE)
    tables = None if table is None else [table]
    for ref in log.segments(start, end, tables=tables):
        for batch in batches(reading, log, [ref]):
            names = ("table", "version", "schema_version", "key", "value")
            for row in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
                found = dict(zip(names[:3], row[:3], strict=True))
                found["key"] = None if row[3] is None else json.loads(row[3])
                yield {**found, **json.loads(row[4])}
