"""Notifications about dumps, in Debezium's types and words (see its page on notifications)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class NotificationType(StrEnum):
    """The kind of event."""

    STARTED = "STARTED"
    IN_PROGRESS = "IN_PROGRESS"
    TABLE_SCAN_COMPLETED = "TABLE_SCAN_COMPLETED"
    PAUSED = "PAUSED"
    RESUMED = "RESUMED"
    ABORTED = "ABORTED"
    COMPLETED = "COMPLETED"
    SKIPPED = "SKIPPED"


class TableScanStatus(StrEnum):
    """The result of a table's scan."""

    SUCCEEDED = "SUCCEEDED"
    EMPTY = "EMPTY"
    NO_PRIMARY_KEY = "NO_PRIMARY_KEY"
    SKIPPED = "SKIPPED"
    SQL_EXCEPTION = "SQL_EXCEPTION"
    UNKNOWN_SCHEMA = "UNKNOWN_SCHEMA"


AGGREGATES = {
    "incremental": "Incremental Snapshot",
    "blocking": "Blocking Snapshot",
    "initial": "Initial Snapshot",
}


@dataclass(frozen=True, slots=True)
class Notification:
    """One message. ``data`` holds names, counts and statuses, never cell values.

    Attributes:
        dump_id: id of the dump.
        aggregate_type: a value of `AGGREGATES`.
        type: what happened.
        timestamp_ms: milliseconds since 1970.
        data: Debezium's ``additional_data``: ``connector_name``, ``data_collections``,
            ``current_collection_in_progress``, ``scanned_collection``, ``total_rows_scanned``,
            ``status``.
    """

    dump_id: str
    aggregate_type: str
    type: NotificationType
    timestamp_ms: int
    data: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The notification as Debezium writes it."""
        return {
            "id": self.dump_id,
            "aggregate_type": self.aggregate_type,
            "type": str(self.type),
            "additional_data": self.data,
            "timestamp": self.timestamp_ms,
        }


Notify = Callable[[Notification], None]
"""Called from any thread once its subject is durable; must be quick and must not raise."""
