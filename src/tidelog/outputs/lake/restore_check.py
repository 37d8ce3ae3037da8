"""Finds the offset to resume at for a copy that somebody restored to an older state, though the
newer one was committed.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.errors import TableLeftOutError
from tidelog.eventlog.reader import EventLog
from tidelog.model.schema import TableName


@dataclass(frozen=True)
class RestoredCopy:
    """A copy whose rows are older than its committed offset: those of ``offset``; None: unknown.
    ``why``: how that was found out, for messages.
    """

    offset: int | None
    why: str


def resume_offset(log: EventLog, location: str, table: TableName, found: RestoredCopy) -> int:
    """Returns the offset from which the log has the rows that a restored copy does not have.
    Writing more than that does no harm: rows are folded to the newest state of each key before they
    are compared with the copy's.

    Raises TableLeftOutError if the log does not reach back that far.
    """
    head = log.head_offset
    whole = head == log.info.start_offset
    start = head if found.offset is None and whole else found.offset
    if start is None or start < head:
        raise TableLeftOutError(
            f"{location} was restored to an older state ({found.why}), and the event log does not "
            f"have all rows of {table} since then. Restore it to the version before that, or "
            f"move the table away and dump {table} again."
        )
    return start
