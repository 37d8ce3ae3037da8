"""Dumps in logs that are built, and when their records were committed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.build_log import BuiltLog

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def dump(built: BuiltLog, table: Any, rows: list[list[str]], dump_id: str = "d1") -> None:
    """A whole dump of the table in one chunk."""
    first = built.dump_started(table.table, dump_id=dump_id).first
    built.chunk(table, rows, dump_id=dump_id)
    built.dump_completed(table.table, first, dump_id=dump_id)


def moments(built: BuiltLog) -> list[tuple[int, datetime]]:
    """Each record's version and time of commit."""
    log = built.log
    found = []
    for ref in log.segments(log.head_offset):
        for batch in log.batches(ref, ("offset", "commit_ts")):
            for version, micros in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                found.append((version, EPOCH + timedelta(microseconds=micros)))
    return found
