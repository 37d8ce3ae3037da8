"""Which schema version a table's rows have from which position of the log on.

A table map of MINIMAL metadata doesn't tell names, so the log's reader notes what it came to know:
from a position on, rows of a table have a version; from a DDL statement on, it is not known. What
is noted is a fact about the source's log, hence stays true whatever is durable. ``tidelog schema``
notes a version by hand in the same place.
"""

from __future__ import annotations

from tidelog.model.schema import TableName
from tidelog.ports import StateStore

PREFIX = "log-schemas/"
FILE_KEY = "log-files"
KEPT = 32  # per table; a restart needs those behind the last durable position alone
KEPT_FILES = 64


class SchemaPins:
    """Notes of one event log. Used by one thread.

    Args:
        state: keeps them; None: they are kept in memory.
    """

    def __init__(self, state: StateStore | None = None) -> None:
        self._state = state
        self._known: dict[TableName, list[tuple[int, int]]] = {}
        self._files: dict[str, int] | None = None

    def find(self, table: TableName, position: int) -> int | None:
        """The number of the table's version at a position; None if it is not known."""
        found = None
        for begin, schema_id in self._of(table):
            if begin > position:
                break
            found = schema_id
        return found or None

    def of(self, table: TableName) -> list[tuple[int, int]]:
        """(position, version) in order; version 0: from there on it is not known."""
        return list(self._of(table))

    def last_before(self, table: TableName, schema_id: int) -> int | None:
        """The version before the table's newest one, which is ``schema_id``."""
        older = [number for _, number in self._of(table) if number not in (0, schema_id)]
        return older[-1] if older else None

    def note(self, table: TableName, position: int, schema_id: int) -> None:
        """From ``position`` on the table's rows have this version; 0: it is not known."""
        pins = self._of(table)
        before = [pin for pin in pins if pin[0] <= position]
        if (before[-1][1] if before else 0) == schema_id:
            return
        kept = [pin for pin in pins if pin[0] != position]
        kept.append((position, schema_id))
        kept.sort()
        self._known[table] = kept[-KEPT:]
        self._put(table)

    def created(self, number: int) -> int | None:
        """When the binlog file was made, as noted (seconds since 1970); None: nothing is."""
        return self._all_files().get(str(number))

    def note_file(self, number: int, created: int) -> None:
        files = self._all_files()
        if files.get(str(number)) == created:
            return
        files[str(number)] = created
        for old in sorted(files, key=int)[:-KEPT_FILES]:
            del files[old]
        if self._state is not None:
            self._state.put(FILE_KEY, files, None)

    def clear(self) -> None:
        """Another event log begins: its schemas have other numbers, its positions are new."""
        self._known, self._files = {}, {}
        if self._state is not None:
            for key in [*self._state.keys(PREFIX), FILE_KEY]:
                self._state.delete(key)

    def _of(self, table: TableName) -> list[tuple[int, int]]:
        if table not in self._known:
            found = None if self._state is None else self._state.get(PREFIX + str(table))
            pins = [] if found is None else [(int(at), int(number)) for at, number in found.value]
            self._known[table] = pins
        return self._known[table]

    def _put(self, table: TableName) -> None:
        if self._state is not None:
            value = [list(pin) for pin in self._known[table]]
            self._state.put(PREFIX + str(table), value, None)

    def _all_files(self) -> dict[str, int]:
        if self._files is None:
            found = None if self._state is None else self._state.get(FILE_KEY)
            self._files = {} if found is None else dict(found.value)
        return self._files
