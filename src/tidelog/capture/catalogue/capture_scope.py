"""Stores which tables are captured, so that a table that was left out for a while is dumped.

Changes of tables that the configuration does not name are in no event log. So before the log is
read with another choice of tables, the tables left out from there on are stored. Each is dumped
once it is captured again, whatever `source.snapshot` says.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tidelog.capture.notifications import Notification, NotificationType, Notify
from tidelog.model.schema import TableName
from tidelog.ports import Catalogue, StateStore

logger = logging.getLogger(__name__)

SCOPE_KEY = "captured-tables"
TABLE_AGGREGATE = "Table"
SHOWN = 20
"""Tables that one log message names."""


@dataclass(frozen=True, slots=True)
class ScopeChange:
    """The effect of a changed choice of tables on those that exist.

    Attributes:
        captured: tables that are captured now, with their versions.
        never_captured: those of them that no earlier configuration of this event log named.
    """

    captured: dict[TableName, str]
    never_captured: Collection[TableName]


class CaptureScope:
    """The choice of tables and the tables it leaves out. Used by one thread, except `summary`.

    The document: ``patterns`` and ``excluded`` of now, ``ever``: each list of patterns configured
    in the life of the event log, ``left_out``: tables, and since when (milliseconds since 1970).

    Args:
        catalogue: the source's.
        state: store of the document.
        patterns: the tables that are captured.
        excluded: tables not captured although a pattern names them, such as a signal table.
        notify: receives a notification for each table that is left out.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        state: StateStore,
        patterns: Sequence[str],
        excluded: Sequence[str] = (),
        notify: Notify = lambda notification: None,
    ) -> None:
        self._catalogue = catalogue
        self._state = state
        self._patterns = sorted(set(patterns))
        self._excluded = sorted(set(excluded))
        self._notify = notify
        self._document: dict[str, Any] | None = None

    def begin(self) -> None:
        """Store the choice of a new event log."""
        self._put([self._patterns], {})

    def store_choice(self, known: Collection[str]) -> ScopeChange | None:
        """Store which tables are left out from now on, and which were until now. Call it before the
        log is read. Returns None if the choice of tables has not changed.

        Args:
            known: tables that were captured at the last comparison.
        """
        document = self._read()
        before, ever, known_left = (document[name] for name in ("patterns", "ever", "left_out"))
        if (before, document["excluded"]) == (self._patterns, self._excluded):
            return None
        captured = self._catalogue.versions(self._patterns)
        names = {str(table) for table in captured}
        existing = {str(table) for table in self._catalogue.tables(["*"])} | set(self._excluded)
        were = {str(table) for table in self._catalogue.tables(before)} | set(known)
        once = {str(t) for patterns in ever for t in self._catalogue.tables(patterns)} | were
        now_ms = int(time.time() * 1000)
        left = dict.fromkeys(sorted((were & existing) - names), now_ms)
        # Created or renamed while the previous choice left it out: its first changes are missing.
        missed = dict.fromkeys(sorted((names & once) - were), now_ms)
        now_ever = ever if self._patterns in ever else [*ever, self._patterns]
        self._put(now_ever, {**left, **missed, **known_left})
        self._report([name for name in left if name not in known_left])
        return ScopeChange(captured, [table for table in captured if str(table) not in once])

    def is_left_out(self, table: str) -> bool:
        """Are changes of the table missing until it is dumped again?"""
        return table in self._left_out()

    def reason(self, table: str) -> str:
        """The reason for dumping the table once it is captured again."""
        since = time.gmtime(self._left_out()[table] / 1000)
        return f"it was not captured since {time.strftime('%Y-%m-%d %H:%M:%S', since)} UTC"

    def note_dumps(self, tables: Collection[str]) -> None:
        """Note that dumps of these tables were requested."""
        left_out = self._left_out()
        if any(table in left_out for table in tables):
            kept = {name: since for name, since in left_out.items() if name not in tables}
            self._put(self._read()["ever"], kept)

    def summary(self) -> list[dict[str, Any]]:
        """For status: tables that were captured once and are not now. Callable from any thread."""
        return [
            {"table": name, "since_ms": since} for name, since in sorted(self._left_out().items())
        ]

    def _report(self, names: Sequence[str]) -> None:
        if not names:
            return
        listed = ", ".join(islice(names, SHOWN)) + (", …" if len(names) > SHOWN else "")
        logger.warning(
            "no longer captured, as source.tables says: %s. The event log holds no changes of them "
            "from here on; once source.tables selects them again, they are dumped",
            listed,
        )
        for name in names:
            data = {"table": name, "status": "SKIPPED", "reason": "it is no longer captured"}
            kind = NotificationType.SKIPPED
            self._notify(Notification(name, TABLE_AGGREGATE, kind, int(time.time() * 1000), data))

    def _left_out(self) -> dict[str, int]:
        left_out: dict[str, int] = self._read().get("left_out", {})
        return left_out

    def _read(self) -> dict[str, Any]:
        if self._document is None:
            stored = self._state.get(SCOPE_KEY)
            self._document = {} if stored is None else dict(stored.value)
        return self._document

    def _put(self, ever: Sequence[list[str]], left_out: dict[str, int]) -> None:
        document = {
            "patterns": self._patterns,
            "excluded": self._excluded,
            "ever": list(ever),
            "left_out": left_out,
        }
        self._state.put(SCOPE_KEY, document, None)
        self._document = document
