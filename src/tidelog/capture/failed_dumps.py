"""Requests failed dumps that capture needs again, at growing intervals.

Only capture knows of them, and the cause may be gone: a missing function, a busy server, a damaged
block. A table that is read for hours rests in proportion, so that reading it takes at most a
twentieth of the time. All is derived from the stored dumps, so a restart changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from tidelog.capture.dumps.state import TABLE_GONE, DumpState, TableProgress, asks_for_all
from tidelog.capture.dumps.state_machine import TableStatus
from tidelog.capture.dumps.store import is_own

FIRST_MS = 60_000
LAST_MS = 3_600_000
REST = 20
"""A failed table rests for this many times the time that reading it took."""


@dataclass(frozen=True, slots=True)
class DueDump:
    """A dump of ``table`` is due at ``at_ms``; ``failed``: why the last one failed."""

    table: str
    at_ms: int
    failed: str

    def summary(self) -> dict[str, Any]:
        """For status."""
        return {"table": self.table, "at_ms": self.at_ms, "failed": self.failed}


def to_repeat(dumps: Iterable[DumpState]) -> list[DueDump]:
    """The dumps to request again, now or later, from each table's last dumps. A table is left out
    if a later dump reads all of it, if its last dump was cancelled by a user, or if the catalogue
    will show that the cause has gone.
    """
    by_table = _newest_first(dumps)
    due = (_due_dump(table, newest_first) for table, newest_first in sorted(by_table.items()))
    return [again for again in due if again is not None]


def last_failed(dumps: Iterable[DumpState]) -> dict[str, str]:
    """Tables whose last dump failed, however long ago and whoever requested it: table → reason."""
    last = {
        table: dumps_of_table[0][1]
        for table, dumps_of_table in sorted(_newest_first(dumps).items())
    }
    return {
        table: progress.reason
        for table, progress in last.items()
        if progress.status is TableStatus.FAILED and progress.reason != TABLE_GONE
    }


def _newest_first(dumps: Iterable[DumpState]) -> dict[str, list[tuple[DumpState, TableProgress]]]:
    """The dumps of each whole table, newest first."""
    by_table: dict[str, list[tuple[DumpState, TableProgress]]] = {}
    for dump in sorted(dumps, key=lambda dump: dump.number, reverse=True):
        for progress in dump.tables:
            if asks_for_all(progress):
                by_table.setdefault(progress.table, []).append((dump, progress))
    return by_table


def _due_dump(table: str, newest_first: list[tuple[DumpState, TableProgress]]) -> DueDump | None:
    failures = list(takewhile(lambda one: one[1].status is TableStatus.FAILED, newest_first))
    if not any(progress.due or is_own(dump) for dump, progress in failures):
        return None
    _, last = failures[0]
    if not last.may_pass:
        return None
    ended = last.finished_ms or 0
    took = ended - (last.started_ms or ended)
    pause = max(min(FIRST_MS * 2 ** min(len(failures) - 1, 10), LAST_MS), REST * took)
    return DueDump(table, ended + pause, last.reason)


def tables_failed(dumps: Sequence[DumpState]) -> list[str]:
    """Tables that failed in the newest of these dumps that has them, each with the reason."""
    newest = {table.table: table for dump in dumps for table in dump.tables}
    return [
        f"{table.table} ({table.reason})"
        for table in newest.values()
        if table.status is TableStatus.FAILED
    ]
