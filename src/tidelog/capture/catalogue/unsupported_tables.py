"""Tables that can't be captured or dumped as they are: which, why, and what mends each.

A table's trouble is that table's state: all others go on. It is stored, shown by `tidelog status`,
told once as a warning and a notification, and taken back when it has gone. A dump that capture
itself needs and that a refused table stood in the way of is owed until it was asked for again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from tidelog.capture.deferred_writes import DeferredWrites
from tidelog.capture.notifications import Notification, NotificationType, Notify
from tidelog.errors import TableRefusedError
from tidelog.model.schema import TableName
from tidelog.ports import Catalogue, Refusal, SourceLoad, StateStore, TableShape

logger = logging.getLogger(__name__)

REFUSED_KEY = "refused-tables"
TABLE_AGGREGATE = "Table"
FIRST_RETRY_S = 5.0
LAST_RETRY_S = 3600.0


class UnsupportedTables:
    """The refused tables, and what refused each. Thread-safe; durable when a call returns, if it
    does not say otherwise.

    Who finds it (``by``): ``publication``, ``catalogue``, ``log``, ``dump``.

    Args:
        state: keeps it.
        notify: told of each table that is refused, and of each that is no more.
    """

    def __init__(self, state: StateStore, notify: Notify) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._changes = DeferredWrites(state)
        self.flush = self._changes.flush
        """Make all of it durable."""
        self._tries: dict[str, int] = {}
        stored = state.get(REFUSED_KEY)
        self._known: dict[str, dict[str, Any]] = {} if stored is None else dict(stored.value)
        self._stored = deepcopy(self._known)
        self._of_all = self._causes_of_all()

    def clear(self) -> None:
        """Begin anew, with another event log."""
        with self._changing():
            self._known.clear()

    def hold(self, by: str, found: Mapping[TableName, Refusal]) -> None:
        """All that ``by`` refuses now; what it refused before and does not now is mended."""
        with self._changing():
            before = {name for name, entry in self._known.items() if by in entry["causes"]}
            for table, refusal in found.items():
                self._add(by, str(table), refusal)
            self._mend(by, before - {str(table) for table in found})

    def refuse(self, by: str, table: TableName, refusal: Refusal) -> None:
        """``by`` found one more."""
        with self._changing():
            self._add(by, str(table), refusal)

    def mend(self, by: str, table: TableName) -> None:
        """``by`` refuses the table no more."""
        with self._changing():
            self._mend(by, {str(table)})

    @property
    def any_left(self) -> bool:
        """Is a table refused, or owed a dump?"""
        with self._lock:
            return bool(self._known)

    def of(self, table: TableName) -> Refusal | None:
        """Why the table can't be dumped; None: nothing is known against it."""
        with self._lock:
            entry = self._known.get(str(table))
            found = [] if entry is None else list(entry["causes"].values())
            found += self._of_all
            return Refusal(**{k: v for k, v in found[0].items() if k != "at_ms"}) if found else None

    def failed(self, table: TableName, reason: str) -> None:
        """A dump that capture needs met a missing right: it is tried again, less and less often.
        Durable after the next `flush`.
        """
        name = str(table)
        with self._deciding():
            tries = self._tries[name] = self._tries.get(name, -1) + 1
            wait_s = min(FIRST_RETRY_S * 2.0**tries, LAST_RETRY_S)
            self._add("dump", name, Refusal(reason), at_ms=_now_ms() + int(wait_s * 1000))
            self._known[name]["owed"] = True

    def dumped(self, table: TableName) -> None:
        """A dump of all the table ended well: the next that fails is tried again soon."""
        with self._lock:
            self._tries.pop(str(table), None)

    def retry_due(self) -> None:
        """Let dumps begin again that met a missing right long enough ago."""
        with self._changing():
            due = {
                name
                for name, entry in self._known.items()
                if "dump" in entry["causes"] and entry["causes"]["dump"]["at_ms"] <= _now_ms()
            }
            self._mend("dump", due)

    def owe(self, table: TableName) -> None:
        """A dump of all the table is needed once it is refused no more. Durable after the next
        `flush`.
        """
        with self._deciding():
            self._known.setdefault(str(table), _entry())["owed"] = True

    def owed(self, table: TableName) -> bool:
        with self._lock:
            return bool(self._known.get(str(table), {}).get("owed"))

    def paid(self, table: TableName) -> None:
        """The dump was asked for."""
        with self._changing():
            entry = self._known.get(str(table))
            if entry is not None and entry["owed"]:
                entry["owed"] = False
                self._forget(str(table))

    def keep(self, tables: Sequence[TableName]) -> None:
        """All other tables are owed no dump: they are gone, or no longer captured."""
        with self._changing():
            names = {str(table) for table in tables}
            gone = [n for n, e in self._known.items() if n not in names and e["owed"]]
            for name in gone:
                self._known[name]["owed"] = False
                self._mend("log", {name})
                self._mend("dump", {name})
                self._forget(name)

    def summary(self) -> list[dict[str, Any]]:
        """For status: a line for each refused table."""
        with self._lock:
            return [
                {
                    "table": name,
                    "reason": "; ".join(dict.fromkeys(c["reason"] for c in causes.values())),
                    "remedy": "\n".join(
                        dict.fromkeys(c["remedy"] for c in causes.values() if c["remedy"])
                    )
                    or None,
                    "since_ms": entry["since_ms"],
                }
                for name, entry in sorted(self._known.items())
                if (causes := entry["causes"])
            ]

    # ------------------------------------------------------------ under the lock

    def _add(self, by: str, name: str, refusal: Refusal, at_ms: int | None = None) -> None:
        entry = self._known.setdefault(name, _entry())
        cause: dict[str, Any] = {
            "reason": refusal.reason,
            "remedy": refusal.remedy,
            "all_dumps": refusal.all_dumps,
        }
        told = any(
            (known["reason"], known["remedy"]) == (refusal.reason, refusal.remedy)
            for known in entry["causes"].values()
        )
        if at_ms is not None:
            cause["at_ms"] = at_ms
        entry["causes"][by] = cause
        if not told:
            remedy = "" if refusal.remedy is None else f": {refusal.remedy}"
            logger.warning("%s is refused: %s%s", name, refusal.reason, remedy)
            self._tell(name, NotificationType.SKIPPED, refusal)

    def _mend(self, by: str, names: set[str]) -> None:
        for name in names:
            entry = self._known.get(name)
            cause = None if entry is None else entry["causes"].pop(by, None)
            if entry is None or cause is None or entry["causes"]:
                continue
            logger.info("%s is refused no more", name)
            self._tell(name, NotificationType.RESUMED, None)
            self._forget(name)

    def _forget(self, name: str) -> None:
        entry = self._known.get(name)
        if entry is not None and not entry["causes"] and not entry["owed"]:
            del self._known[name]

    def _tell(self, name: str, kind: NotificationType, refusal: Refusal | None) -> None:
        data = {"table": name}
        if refusal is not None:
            data |= {"status": "SKIPPED", "reason": refusal.reason}
            if refusal.remedy is not None:
                data["remedy"] = refusal.remedy
        self._notify(Notification(name, TABLE_AGGREGATE, kind, _now_ms(), data))

    def _causes_of_all(self) -> list[dict[str, Any]]:
        """The causes that keep every table from being dumped. They are kept, because tables are
        asked for one by one, and thousands may be refused.
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
        """The same, and stored."""
        with self._deciding():
            yield
        self.flush()


class CheckingCatalogue:
    """A `tidelog.ports.Catalogue` that raises for the shape of a refused table.

    Args:
        catalogue: of the source.
        refused: what is refused.
    """

    def __init__(self, catalogue: Catalogue, refused: UnsupportedTables) -> None:
        self._catalogue = catalogue
        self._refused = refused

    def tables(self, patterns: Sequence[str]) -> list[TableName]:
        return self._catalogue.tables(patterns)

    def shape(self, table: TableName) -> TableShape | None:
        """Raises TableRefusedError, also for what others than the catalogue know."""
        refusal = self._refused.of(table)
        if refusal is not None:
            raise TableRefusedError(table, refusal.reason, refusal.remedy)
        return self._catalogue.shape(table)

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


def _entry() -> dict[str, Any]:
    return {"causes": {}, "since_ms": _now_ms(), "owed": False}


def _now_ms() -> int:
    return int(time.time() * 1000)
