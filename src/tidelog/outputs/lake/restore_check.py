"""Copies that somebody set back to an older state, though the newer one was committed."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.errors import OutputRefusedError
from tidelog.eventlog.reader import EventLog
from tidelog.model.schema import TableName


@dataclass(frozen=True)
class Restored:
    """A copy whose rows are older than what is noted as committed: those of ``offset``, or of an
    unknown one. ``why``: how that is known, for messages.
    """

    offset: int | None
    why: str


def start_of(log: EventLog, place: str, table: TableName, found: Restored) -> int:
    """From where on the log has what a restored copy lacks. More than that does no harm: rows are
    folded to the newest state of each key before they are compared with the copy's.

    Raises OutputRefusedError if the log does not reach back so far.
    """
    head = log.head_offset
    whole = head == log.info.start_offset
    start = head if found.offset is None and whole else found.offset
    if start is None or start < head:
        raise OutputRefusedError(
            f"{place} was restored to an older state ({found.why}), and the event log does not "
            f"hold all that {table} lacks since then. Restore it to the version before that; or "
            f"move the table away and dump {table} again."
        )
    return start
