"""Counts the records of a table in an event log."""

from __future__ import annotations

from tidelog.config import Config
from tidelog.eventlog.reader import EventLog


def logged_rows(config: Config, table: str) -> int:
    """The table's records; 0 as long as there is no event log."""
    path = str(config.log.path)
    if not EventLog.exists(path):
        return 0
    log = EventLog.open(path)
    return sum(
        batch.num_rows
        for ref in log.segments(log.head_offset, tables=[table])
        for batch in log.batches(ref, tables=[table])
    )
