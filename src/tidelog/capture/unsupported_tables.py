"""Tables that can't be captured or dumped as they are, with the reason and the remedy for each.

One table's problem stops no other table. It is stored, shown by `tidelog status`, reported once as
a warning and a notification, and removed once it is fixed. If it prevents a dump that capture
itself needs, that dump is owed until it is requested again.

State-store writes are decided under a lock and executed later without it, in order
(`DeferredWrites`). A caller holds the lock only while it changes memory. The store may take seconds
or be down: only a caller that needs the change durable waits for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from tidelog.capture.notifications import Notification, NotificationType, Notify
from tidelog.capture.state_writes import DeferredWrites
from tidelog.errors import UnsupportedTableError
from tidelog.model.schema import TableName
from tidelog.ports import Catalogue, SourceLoad, StateStore, TableShape, UnsupportedReason
from tidelog.system.backoff import Backoff
from tidelog.system.processes import unix_ms

logger = logging.getLogger(__name__)

REFUSED_KEY = "refused-tables"
TABLE_AGGREGATE = "Table"
RETRY_MS = Backoff(first=5_000, longest=3_600_000)


class UnsupportedTables:
    """The unsupported tables and the causes of each. Thread-safe; a call returns once its change is
    durable, unless its docstring says otherwise.

    Checkers (``by``): ``publication``, ``catalogue``, ``rights``, ``log``, ``dump``.

    Args:
        state: store of the document.
        notify: receives a notification for each table that becomes unsupported or supported again.
    """

    def __init__(self, state: StateStore, notify: Notify) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._changes = DeferredWrites(state)
        self.flush = self._changes.flush
        """Make all changes durable."""
        self._tries: dict[str, int] = {}
        stored = state.get(REFUSED_KEY)
        self._known: dict[str, dict[str, Any]] = {} if stored is None else dict(stored.value)
        self._stored = deepcopy(self._known)
        self._of_all = self._causes_of_all()

    def clear(self) -> None:
        """Forget everything: another event log begins."""
        with self._changing():
            self._known.clear()

    def set_all(self, by: str, found: Mapping[TableName, UnsupportedReason]) -> None:
        """Replace all causes of ``by``: those it does not report now are resolved."""
        with self._changing():
            before = {name for name, entry in self._known.items() if by in entry["causes"]}
            for table, why in found.items():
                self._add(by, str(table), why)
            self._resolve(by, before - {str(table) for table in found})

    def add(self, by: str, table: TableName, why: UnsupportedReason) -> None:
        """Add one cause of ``by``."""
        with self._changing():
            self._add(by, str(table), why)

    def resolve(self, by: str, table: TableName) -> None:
        """Remove the table's cause of ``by``."""
        with self._changing():
            self._resolve(by, {str(table)})

    @property
    def any_left(self) -> bool:
        """Is any table unsupported or owed a dump?"""
        with self._lock:
            return bool(self._known)

    def find_reason(self, table: TableName) -> UnsupportedReason | None:
        """Why the table can't be dumped; None if no cause is known."""
        with self._lock:
            entry = self._known.get(str(table))
            causes = [] if entry is None else list(entry["causes"].values())
            causes += self._of_all
            if not causes:
                return None
            return UnsupportedReason(**{k: v for k, v in causes[0].items() if k != "at_ms"})

    def on_dump_failed(self, table: TableName, reason: str) -> None:
        """Report that a dump which capture needs lacked a privilege. It is retried at growing
        intervals. Durable after the next `flush`.
        """
        name = str(table)
        with self._deciding():
            tries = self._tries[name] = self._tries.get(name, 0) + 1
            why = UnsupportedReason(reason, only_dumps=True)
            self._add("dump", name, why, at_ms=unix_ms() + int(RETRY_MS.after(tries)))
            self._known[name]["owed"] = True

    def on_table_dumped(self, table: TableName) -> None:
        """Report that a dump of the whole table succeeded: the next failure is retried soon."""
        with self._lock:
            self._tries.pop(str(table), None)

    def retry_due(self, changed: Collection[str] = ()) -> None:
        """Allow dumps again that lacked a privilege long enough ago, and those of ``changed``
        tables: a privilege may be what has changed.
        """
        with self._changing():
            due = {
                name
                for name, entry in self._known.items()
                if "dump" in entry["causes"]
                and (name in changed or entry["causes"]["dump"]["at_ms"] <= unix_ms())
            }
            self._resolve("dump", due)

    def require_dump(self, table: TableName) -> None:
        """Note that the whole table must be dumped once it is supported again. Durable after the
        next `flush`.
        """
        with self._deciding():
            self._known.setdefault(str(table), _entry())["owed"] = True

    def needs_dump(self, table: TableName) -> bool:
        with self._lock:
            return bool(self._known.get(str(table), {}).get("owed"))

    def dump_requested(self, table: TableName) -> None:
        """Note that the owed dump was requested."""
        with self._changing():
            entry = self._known.get(str(table))
            if entry is not None and entry["owed"]:
                entry["owed"] = False
                self._forget(str(table))

    def keep_only(self, tables: Sequence[TableName]) -> None:
        """Drop the dumps owed to all other tables: they are gone, or no longer captured."""
        with self._changing():
            names = {str(table) for table in tables}
            gone = [n for n, e in self._known.items() if n not in names and e["owed"]]
            for name in gone:
                self._known[name]["owed"] = False
                self._resolve("log", {name})
                self._resolve("dump", {name})
                self._forget(name)

    def summary(self) -> list[dict[str, Any]]:
        """For status: an entry for each unsupported table."""
        with self._lock:
            return [
                {
                    "table": name,
                    "reason": "; ".join(dict.fromkeys(c["reason"] for c in causes.values())),
                    "remedy": "\n".join(
                        dict.fromkeys(c["remedy"] for c in causes.values() if c["remedy"])
                    )
                    or None,
                    "only_dumps": all(each.get("only_dumps") for each in causes.values()),
                    "since_ms": entry["since_ms"],
                }
                for name, entry in sorted(self._known.items())
                if (causes := _shown(entry["causes"]))
            ]

    # ------------------------------------------------------------ under the lock

    def _add(self, by: str, name: str, why: UnsupportedReason, at_ms: int | None = None) -> None:
        entry = self._known.setdefault(name, _entry())
        cause: dict[str, Any] = {
            "reason": why.reason,
            "remedy": why.remedy,
            "all_dumps": why.all_dumps,
            "only_dumps": why.only_dumps,
        }
        reported = any(
            (known["reason"], known["remedy"]) == (why.reason, why.remedy)
            for known in entry["causes"].values()
        )
        if at_ms is not None:
            cause["at_ms"] = at_ms
        entry["causes"][by] = cause
        if not reported:
            remedy = "" if why.remedy is None else f": {why.remedy}"
            logger.warning("%s is not supported: %s%s", name, why.reason, remedy)
            self._report(name, NotificationType.SKIPPED, why)

    def _resolve(self, by: str, names: set[str]) -> None:
        for name in names:
            entry = self._known.get(name)
            cause = None if entry is None else entry["causes"].pop(by, None)
            if entry is None or cause is None or entry["causes"]:
                continue
            logger.info("%s is supported again", name)
            self._report(name, NotificationType.RESUMED, None)
            self._forget(name)

    def _forget(self, name: str) -> None:
        entry = self._known.get(name)
        if entry is not None and not entry["causes"] and not entry["owed"]:
            del self._known[name]

    def _report(self, name: str, kind: NotificationType, why: UnsupportedReason | None) -> None:
        data = {"table": name}
        if why is not None:
            data |= {"status": "SKIPPED", "reason": why.reason}
            if why.remedy is not None:
                data["remedy"] = why.remedy
        self._notify(Notification(name, TABLE_AGGREGATE, kind, unix_ms(), data))

    def _causes_of_all(self) -> list[dict[str, Any]]:
        """The causes that prevent dumps of every table. Cached: tables are checked one by one, and
        thousands may be unsupported.
        """
        return [
            cause
            for entry in self._known.values()
            for cause in entry["causes"].values()
            if cause.get("all_dumps")
        ]

    @contextmanager
    def _deciding(self) -> Iterator[None]:
        with self._lock:
            yield
            if self._known != self._stored:
                self._of_all = self._causes_of_all()
                self._stored = deepcopy(self._known)
                self._changes.put(REFUSED_KEY, self._stored)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """As `_deciding`, and stored on exit."""
        with self._deciding():
            yield
        self.flush()


class CheckingCatalogue:
    """A `tidelog.ports.Catalogue` that raises for the shape of an unsupported table.

    Args:
        catalogue: the source's.
        unsupported: the unsupported tables.
    """

    def __init__(self, catalogue: Catalogue, unsupported: UnsupportedTables) -> None:
        self._catalogue = catalogue
        self._unsupported = unsupported

    def tables(self, patterns: Sequence[str]) -> list[TableName]:
        return self._catalogue.tables(patterns)

    def shape(self, table: TableName) -> TableShape | None:
        """Raise UnsupportedTableError, also for causes that others than the catalogue found."""
        why = self._unsupported.find_reason(table)
        if why is not None:
            raise UnsupportedTableError(table, why.reason, why.remedy)
        return self._catalogue.shape(table)

    def shapes(
        self, tables: Sequence[TableName]
    ) -> dict[TableName, TableShape | UnsupportedReason]:
        found = self._catalogue.shapes(tables)
        return {t: self._unsupported.find_reason(t) or shape for t, shape in found.items()}

    def columns(self, tables: Sequence[TableName]) -> dict[TableName, tuple[str, ...]]:
        return self._catalogue.columns(tables)

    def names(self, relation_ids: Sequence[int]) -> dict[int, TableName]:
        return self._catalogue.names(relation_ids)

    def partitioned(self, table: TableName) -> TableName | None:
        return self._catalogue.partitioned(table)

    def unseen(
        self, tables: Sequence[TableName], patterns: Sequence[str], state: StateStore
    ) -> dict[TableName, str]:
        return self._catalogue.unseen(tables, patterns, state)

    def estimated_rows(self, tables: Sequence[TableName]) -> dict[TableName, int]:
        return self._catalogue.estimated_rows(tables)

    def check_condition(self, table: TableName, condition: str) -> None:
        self._catalogue.check_condition(table, condition)

    def stamp(self) -> str | None:
        return self._catalogue.stamp()

    def versions(self, patterns: Sequence[str]) -> dict[TableName, str]:
        return self._catalogue.versions(patterns)

    def rows_may_differ(self, before: str, after: str) -> bool:
        return self._catalogue.rows_may_differ(before, after)

    def position(self) -> int:
        return self._catalogue.position()

    def load(self, reached: int) -> SourceLoad:
        return self._catalogue.load(reached)

    def close(self) -> None:
        self._catalogue.close()


def _shown(causes: dict[str, Any]) -> dict[str, Any]:
    """Return the causes for status: a missing right, which explains the others, or all."""
    return {"rights": causes["rights"]} if "rights" in causes else causes


def _entry() -> dict[str, Any]:
    return {"causes": {}, "since_ms": unix_ms(), "owed": False}
