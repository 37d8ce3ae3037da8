"""Sends notifications about dumps, in Debezium's words."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tidelog.capture.dumps.state import DumpState, DumpStatus, Rejected, TableProgress, TableStatus
from tidelog.capture.notifications import (
    AGGREGATES,
    Notification,
    NotificationType,
    Notify,
    TableScanStatus,
)
from tidelog.system.processes import unix_ms

PROGRESS_EVERY_S = 1.0
NAMED_TABLES = 100
"""A dump of more tables names them all only when it begins and ends."""


class DumpNotices:
    """Builds notifications and sends them. The caller holds the coordinator's lock."""

    def __init__(self, notify: Notify) -> None:
        self._notify = notify
        self._sent_at: dict[tuple[str, str], float] = {}

    def started(self, dump: DumpState) -> None:
        self._send(dump, NotificationType.STARTED, data_collections=_names(dump))

    def in_progress(self, dump: DumpState, progress: TableProgress) -> None:
        """Sent at most once a second for each table, and only while dump and table are running."""
        if dump.status is not DumpStatus.RUNNING or progress.status is not TableStatus.RUNNING:
            return
        dump_table, now = (dump.dump_id, progress.table), time.monotonic()
        if now - self._sent_at.get(dump_table, -PROGRESS_EVERY_S) < PROGRESS_EVERY_S:
            return
        self._sent_at[dump_table] = now
        self._send(
            dump,
            NotificationType.IN_PROGRESS,
            data_collections=_names(dump, progress.table),
            current_collection_in_progress=progress.table,
            total_rows_scanned=str(progress.rows_read),
        )

    def scanned(
        self, dump: DumpState, progress: TableProgress, status: TableScanStatus | None = None
    ) -> None:
        """Report the end of a table's scan; ``status`` None: derived from its progress."""
        if status is None:
            status = TableScanStatus.SUCCEEDED if progress.rows_read else TableScanStatus.EMPTY
        self._sent_at.pop((dump.dump_id, progress.table), None)
        self._send(
            dump,
            NotificationType.TABLE_SCAN_COMPLETED,
            data_collections=_names(dump, progress.table),
            scanned_collection=progress.table,
            total_rows_scanned=str(progress.rows_read),
            status=str(status),
        )

    def rejected(self, dump: DumpState, rejected: Rejected) -> None:
        """Report a table that can't be scanned: Debezium does so when its turn comes."""
        self._send(
            dump,
            NotificationType.TABLE_SCAN_COMPLETED,
            data_collections=_names(dump, rejected.table),
            scanned_collection=rejected.table,
            total_rows_scanned="0",
            status=rejected.status,
        )

    def stopped(self, dump: DumpState, tables: Sequence[str]) -> None:
        """Report tables that were removed from a dump that is still running."""
        for table in tables:
            self._sent_at.pop((dump.dump_id, table), None)
        if tables:
            self._send(dump, NotificationType.ABORTED, data_collections=",".join(tables))

    def paused(self, dump: DumpState) -> None:
        self._send(dump, NotificationType.PAUSED, data_collections=_names(dump))

    def resumed(self, dump: DumpState) -> None:
        self._send(dump, NotificationType.RESUMED, data_collections=_names(dump))

    def finished(self, dump: DumpState, *, stopped: bool = False) -> None:
        """Report the end, as Debezium does: ABORTED if ``stopped``, or if a blocking dump failed. A
        program that waits for COMPLETED must not wait for ever because a table could not be read.
        """
        for table in dump.tables:
            self._sent_at.pop((dump.dump_id, table.table), None)
        ended = {table.status for table in dump.tables}
        aborted = {TableStatus.CANCELLED}
        if dump.mode == "blocking":
            aborted.add(TableStatus.FAILED)
        kind = NotificationType.COMPLETED
        if stopped or (TableStatus.DONE not in ended and ended & aborted):
            kind = NotificationType.ABORTED
        self._send(dump, kind, data_collections=_names(dump))

    def _send(self, dump: DumpState, kind: NotificationType, **data: str) -> None:
        aggregate = AGGREGATES["initial" if dump.reason == "initial" else dump.mode]
        now_ms = unix_ms()
        self._notify(Notification(dump.dump_id, aggregate, kind, now_ms, data))


def _names(dump: DumpState, table: str | None = None) -> str:
    """The names of its tables; of many only ``table`` if given. Each table has its own
    notifications, and they are stored: with all names in each, 10,000 tables would take gigabytes.
    """
    tables: list[TableProgress | Rejected] = [*dump.tables, *dump.rejected]
    if table is not None and len(tables) > NAMED_TABLES:
        return table
    return ",".join(each.table for each in tables)
