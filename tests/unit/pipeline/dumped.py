"""Dumps in logs that are built, and when their records were committed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tidelog.testing.build_log import BuiltLog

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def dump(built: BuiltLog, table: Any, rows: list[list[str]], dump_id: str = "d1") -> None:
    """A whole dump of the table in one chunk."""
    record = {"dump_id": dump_id, "table": str(table.table)}
    first = built.control({"type": "dump-started", **record}).first
    built.chunk(table, rows, dump_id=dump_id)
    place = {"first_offset": first, "delete_absent": True}
    built.control({"type": "dump-completed", **record, **place})


def moments(built: BuiltLog) -> list[tuple[int, datetime]]:
    """Each record's version and time of commit."""
    log = built.log
    found = []
    for ref in log.segments(log.head_offset):
        for batch in log.batches(ref, ("offset", "commit_ts")):
            for version, micros in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                found.append((version, EPOCH + timedelta(microseconds=micros)))
    return found
