"""What capture asks the event log for: records that it emitted itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tidelog.model.records import LogBatch, XidRanges
from tidelog.model.schema import TableName


class EmittedTransactionsLog(Protocol):
    """What was emitted before this engine started, or is not in its memory any more."""

    def changed_by(self, xids: XidRanges) -> dict[int, set[int]]:
        """Xid → schema ids of its records, for those of ``xids`` that are in the event log."""
        ...

    def records_of(self, xids: XidRanges, table: TableName) -> Iterable[LogBatch]:
        """The records of ``xids`` on ``table``, in log order, read as they are asked for."""
        ...

    def first_offset_of(self, xids: XidRanges, table: TableName) -> int | None:
        """The lowest offset of a durable record of ``xids`` on ``table``; None if there is none."""
        ...

    def max_xid(self) -> int:
        """The greatest xid in the event log; 0 if there is none."""
        ...
