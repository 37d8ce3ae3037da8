"""Stores which tables are captured, and which relation number each of them has.

Changes of tables that the configuration does not name are in no event log. So before the log is
read with another choice of tables, the tables left out from there on are stored. Each is dumped
once it is captured again, whatever `source.snapshot` says.

A source that identifies tables by number (PostgreSQL's oid) logs rows under the table's name of
that moment. A table that is renamed, written to and renamed back, even within one transaction,
leaves records under a name that no table has afterwards, and the catalogue shows nothing of it; the
same holds for a table whose name another one has for a while. The number shows both.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tidelog.capture.notifications import Notification, NotificationType, Notify
from tidelog.model.schema import TableName
from tidelog.ports import Catalogue, RelationNamed, RowsUnlogged, StateStore, TableRenamed
from tidelog.system.processes import unix_ms

logger = logging.getLogger(__name__)

SCOPE_KEY = "captured-tables"
TABLE_AGGREGATE = "Table"
TABLES_SHOWN = 20
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
        now_ms = unix_ms()
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
        listed = ", ".join(islice(names, TABLES_SHOWN)) + (
            ", …" if len(names) > TABLES_SHOWN else ""
        )
        logger.warning(
            "no longer captured, as source.tables says: %s. The event log holds no changes of them "
            "from here on; once source.tables selects them again, they are dumped",
            listed,
        )
        for name in names:
            data = {"table": name, "status": "SKIPPED", "reason": "it is no longer captured"}
            kind = NotificationType.SKIPPED
            self._notify(Notification(name, TABLE_AGGREGATE, kind, unix_ms(), data))

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


# Relation numbers.

RELATIONS_KEY = "table-relations"
RENAMED_KEY = "renamed-tables"
RENAMES_KEPT = 100


class RelationNames:
    """Table → relation number, stored. Thread-safe: a lookup never waits for the state store, since
    the loop's thread looks up each relation that the log names.
    """

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self._storing = threading.Lock()
        """Guards a change and its storing; acquired before ``_lock``."""
        self._lock = threading.Lock()
        self._known: dict[str, int] | None = None
        self._renamed: list[dict[str, Any]] | None = None
        self._tables: dict[int, set[str]] = {}

    def add_new(self, relations: Mapping[str, int], captured: Collection[str] = ()) -> None:
        """Add the numbers of tables that are not known yet. If one had another name, which no table
        of ``captured`` has now, report that it was renamed.
        """
        with self._lock:
            self._read()
            former = {
                old: name
                for name, relation_id in relations.items()
                for old in self._tables.get(relation_id, set()) - set(captured)
                if name in captured
            }
        if captured:
            self._store_renames(former, captured)
        self._change(lambda known: {n: each for n, each in relations.items() if n not in known})

    def _store_renames(self, former: Mapping[str, str], captured: Collection[str]) -> None:
        """Report and store them; forget those whose former name a table has again."""
        back = (each["table"] for each in self.renamed() if each["table"] in captured)
        self._note_names(dict.fromkeys(back) | dict(sorted(former.items())))

    def note_renamed(self, seen: TableRenamed) -> None:
        """Report and store that a table got another name; forget it once a table has the former
        name again.
        """
        now = None if seen.now is None else str(seen.now)
        self._note_names({str(seen.table): now}, captured=seen.captured)

    def _note_names(self, names: Mapping[str, str | None], *, captured: bool = True) -> None:
        """``names``: former names, each with the table's name now; None: a table has it again."""
        known = self.renamed()
        reported = {each["table"]: each["now"] for each in known}
        new = {old: now for old, now in names.items() if reported.get(old) != now}
        if not new:
            return
        kept = [each for each in known if each["table"] not in new][-RENAMES_KEPT:]
        now_ms = unix_ms()
        outcome = (
            "captured as a table of its own, with copies of its own"
            if captured
            else "not captured, since source.tables does not select it"
        )
        for old, now in new.items():
            if now is not None:
                logger.warning(
                    "%s was renamed to %s: copies of %s stay as they are. %s is %s",
                    *(old, now, old, now, outcome),
                )
                kept.append({"table": old, "now": now, "at_ms": now_ms, "captured": captured})
        self._state.put(RENAMED_KEY, kept, None)
        self._renamed = kept

    def relation_ids(self, tables: Collection[str]) -> dict[int, str]:
        """The known numbers of these tables, each with the table."""
        with self._lock:
            known = self._read()
            return {known[name]: name for name in tables if name in known}

    def renamed(self) -> list[dict[str, Any]]:
        """For status: the last tables that got another name, each with it and the time, and whether
        the new name is captured.
        """
        if self._renamed is None:
            stored = self._state.get(RENAMED_KEY)
            self._renamed = [] if stored is None else list(stored.value)
        return self._renamed

    def keep_only(self, tables: Collection[str]) -> None:
        """Forget all other tables: they do not exist, and are dumped as new once they do."""
        self._change(lambda known: dict.fromkeys(name for name in known if name not in tables))

    def note_dump(self, table: TableName, relation_id: int) -> None:
        """Note that the table is dumped as this relation: later log records match the dump."""
        self._change(lambda _known: {str(table): relation_id})

    def find_wrong_rows(self, named: RelationNamed) -> list[RowsUnlogged]:
        """The tables whose rows the log shows wrongly, given a relation that it names. Call
        `store_name` once they are stored.
        """
        name, relation_id, xid = str(named.table), named.relation_id, named.xid
        with self._lock:
            known = self._read()
            wrong = [
                RowsUnlogged(TableName.parse(other), f"it was written to as {name}", xid)
                for other in sorted(self._tables.get(relation_id, ()))
                if other != name
            ]
            if named.captured and known.get(name, relation_id) != relation_id:
                wrong.append(RowsUnlogged(named.table, "another table had its name", xid))
        return wrong

    def store_name(self, named: RelationNamed) -> None:
        """Store that the table is this relation from here on."""
        if not named.captured:
            return
        with self._lock:
            known = self._read().get(str(named.table)) == named.relation_id
        if not known:
            self._change(lambda _known: {str(named.table): named.relation_id})

    def _read(self) -> dict[str, int]:
        if self._known is None:
            stored = self._state.get(RELATIONS_KEY)
            self._known = {} if stored is None else dict(stored.value)
            for name, relation_id in self._known.items():
                self._tables.setdefault(relation_id, set()).add(name)
        return self._known

    def _change(self, news_of: Callable[[Mapping[str, int]], Mapping[str, int | None]]) -> None:
        """``news_of``: known numbers → changes; None: forget the table."""
        with self._storing:
            with self._lock:
                known = self._read()
                news = {n: each for n, each in news_of(known).items() if known.get(n) != each}
                for name, relation_id in news.items():
                    self._tables.get(known.pop(name, 0), set()).discard(name)
                    if relation_id is not None:
                        self._tables.setdefault(relation_id, set()).add(name)
                        known[name] = relation_id
                stored = dict(known)
            if news:
                self._state.put(RELATIONS_KEY, stored, None)
