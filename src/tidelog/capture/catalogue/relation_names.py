"""Which relation each captured table is, so that a change under another name is noticed.

A source that knows its tables by number (PostgreSQL's oid) logs their rows under the name that the
table bears then. One that is renamed, written to and renamed back, also within one transaction,
leaves records under a name that no table has afterwards, and the catalogue shows nothing of it; so
does one whose name another table bears for a while. The number tells.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping

from tidelog.model.schema import TableName
from tidelog.ports import RelationNamed, RowsUnlogged, StateStore

RELATIONS_KEY = "table-relations"


class RelationNames:
    """Table → relation, stored. Thread-safe: whoever only asks waits for no other's request to the
    store, since the engine's thread asks about each relation that the log names.
    """

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self._storing = threading.Lock()
        """Held while something is changed and stored; taken before the other one."""
        self._lock = threading.Lock()
        self._known: dict[str, int] | None = None
        self._tables: dict[int, set[str]] = {}

    def learn(self, relations: Mapping[str, int]) -> None:
        """What the catalogue says of tables that are not known yet."""
        self._change(lambda known: {n: each for n, each in relations.items() if n not in known})

    def keep(self, tables: Collection[str]) -> None:
        """Forget all others: they do not exist, and are dumped as new ones once they do."""
        self._change(lambda known: dict.fromkeys(name for name in known if name not in tables))

    def dumped(self, table: TableName, relation_id: int) -> None:
        """The table is dumped as this relation: what the log shows of it from now on fits."""
        self._change(lambda _known: {str(table): relation_id})

    def seen(self, named: RelationNamed) -> list[RowsUnlogged]:
        """The tables whose rows the log shows wrongly, by the relation that it names. Call `bears`
        once they are stored.
        """
        name, relation_id, xid = str(named.table), named.relation_id, named.xid
        with self._lock:
            known = self._read()
            found = [
                RowsUnlogged(TableName.parse(other), f"it was written to as {name}", xid)
                for other in sorted(self._tables.get(relation_id, ()))
                if other != name
            ]
            if named.captured and known.get(name, relation_id) != relation_id:
                found.append(RowsUnlogged(named.table, "another table bore its name", xid))
        return found

    def bears(self, named: RelationNamed) -> None:
        """The table is this relation from here on."""
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
        """``news_of``: what is known → what changes; None: forget the table."""
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
