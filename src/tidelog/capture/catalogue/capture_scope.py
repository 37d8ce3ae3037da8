"""Which tables are captured, and which were: a table that is left out for a while is noticed.

A capture reads past the changes of tables that its configuration does not name: they are in no
event log. So before a log is read with another choice of tables, it is stored which tables are
left out from there on. Each is dumped once it is captured again, whatever `source.snapshot` says.
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
"""Tables that a line of the log names."""


@dataclass(frozen=True, slots=True)
class ScopeChange:
    """What another choice of tables means for those that exist.

    Attributes:
        captured: the tables that are captured now, with their versions.
        never_captured: those of them that no configuration of this event log named before.
    """

    captured: dict[TableName, str]
    never_captured: Collection[TableName]


class CaptureScope:
    """The choice of tables, and the tables that it leaves out. Used by one thread, but for
    `summary`.

    The document: ``patterns`` and ``excluded`` as they are now, ``ever``: all patterns that were
    configured in the life of the event log, ``left_out``: tables, and since when (milliseconds
    since 1970).

    Args:
        catalogue: of the source.
        state: keeps the document.
        patterns: the tables that are captured.
        excluded: tables that are not, though a pattern names them, such as a signal table.
        notify: told of each table that is left out.
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
        """An event log begins with these tables."""
        self._put(self._patterns, {})

    def store_choice(self, known: Collection[str]) -> ScopeChange | None:
        """Store which tables are left out from now on, and which were until now. To be called
        before the log is read. None: the choice of tables is the one of before.

        Args:
            known: tables that were captured at the last look.
        """
        document = self._read()
        now = self._patterns, self._excluded
        if document and (document["patterns"], document["excluded"]) == now:
            return None
        # A state that an earlier version wrote does not say: what it knows of tables does.
        before = document.get("patterns", self._patterns)
        ever = sorted({*document.get("ever", before), *before})
        captured = self._catalogue.versions(self._patterns)
        names = {str(table) for table in captured}
        there = {str(table) for table in self._catalogue.tables(["*"])} | set(self._excluded)
        were = {str(table) for table in self._catalogue.tables(before)} | set(known)
        once = {str(table) for table in self._catalogue.tables(ever)} | were
        now_ms = int(time.time() * 1000)
        left = dict.fromkeys(sorted((were & there) - names), now_ms)
        # Created or renamed while the choice of before left it out: its first changes are lost.
        missed = dict.fromkeys(sorted((names & once) - were), now_ms)
        known_left = document.get("left_out", {})
        self._put(sorted({*ever, *self._patterns}), {**left, **missed, **known_left})
        self._report([name for name in left if name not in known_left])
        return ScopeChange(captured, [table for table in captured if str(table) not in once])

    def is_left_out(self, table: str) -> bool:
        """Are changes of the table missing, until it is dumped again?"""
        return table in self._left_out()

    def reason(self, table: str) -> str:
        """Why it is dumped once it is captured again."""
        since = time.gmtime(self._left_out()[table] / 1000)
        return f"it was not captured since {time.strftime('%Y-%m-%d %H:%M:%S', since)} UTC"

    def dumped(self, tables: Collection[str]) -> None:
        """Dumps of these were asked for."""
        left_out = self._left_out()
        if any(table in left_out for table in tables):
            kept = {name: since for name, since in left_out.items() if name not in tables}
            self._put(self._read()["ever"], kept)

    def summary(self) -> list[dict[str, Any]]:
        """For status: the tables that were captured once and are not now. From any thread."""
        return [
            {"table": name, "since_ms": since} for name, since in sorted(self._left_out().items())
        ]

    def _report(self, names: Sequence[str]) -> None:
        if not names:
            return
        listed = ", ".join(islice(names, SHOWN)) + (", …" if len(names) > SHOWN else "")
        logger.warning(
            "no longer captured, as source.tables says: %s. The event log holds no changes of them "
            "from here on; once source.tables names them again, they are dumped",
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

    def _put(self, ever: Sequence[str], left_out: dict[str, int]) -> None:
        document = {
            "patterns": self._patterns,
            "excluded": self._excluded,
            "ever": list(ever),
            "left_out": left_out,
        }
        self._state.put(SCOPE_KEY, document, None)
        self._document = document
