"""Maps each captured table to its relation number, to notice changes made under another name.

A source that identifies tables by number (PostgreSQL's oid) logs rows under the table's name of
that moment. A table that is renamed, written to and renamed back, even within one transaction,
leaves records under a name that no table has afterwards, and the catalogue shows nothing of it; the
same holds for a table whose name another one has for a while. The number shows both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping

from tidelog.model.schema import TableName
from tidelog.ports import RelationNamed, RowsUnlogged, StateStore

RELATIONS_KEY = "table-relations"


class RelationNames:
    """Table → relation number, stored. Thread-safe: a lookup never waits for the state store, since
    the engine's thread looks up each relation that the log names.
    """

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self._storing = threading.Lock()
        """Guards a change and its storing; acquired before ``_lock``."""
        self._lock = threading.Lock()
        self._known: dict[str, int] | None = None
        self._tables: dict[int, set[str]] = {}

    def add_new(self, relations: Mapping[str, int]) -> None:
        """Add the numbers of tables that are not known yet."""
        self._change(lambda known: {n: each for n, each in relations.items() if n not in known})

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
