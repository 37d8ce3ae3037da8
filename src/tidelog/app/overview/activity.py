"""How many records the event log holds of each table, and when the last ones came."""

from __future__ import annotations

from typing import Any

from tidelog.eventlog.reader import EventLog


def activity_of(log: EventLog) -> dict[str, dict[str, Any]]:
    """For status: ``records`` and ``last_ms`` by table. Made of the chain's metadata alone."""
    found: dict[str, dict[str, Any]] = {}
    for meta in log.chain(log.info.start_offset).segments:
        for table, rows in meta.rows_by_table.items():
            if not rows:
                continue
            seen = found.setdefault(table, {"records": 0, "last_ms": 0})
            seen["records"] += rows
            seen["last_ms"] = max(seen["last_ms"], meta.created_ms)
    return found
