"""Stores the schema version of each table by position of the log.

A table map with MINIMAL metadata has no column names, so the log reader notes what it learns: from
a position on, rows of a table have a version; from a DDL statement on, the version is unknown. Such
a note is a fact about the source's log, so it stays true whatever is durable. But an event log that
was restored to an earlier state assigns version numbers again. So each note contains the
fingerprint of its version, and is valid only where the version of this number has it. ``tidelog
schema`` adds notes by hand in the same place.
"""

from __future__ import annotations

from tidelog.errors import EventLogError
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import SchemaRegistry, StateStore

PREFIX = "log-schemas/"
FILE_KEY = "log-files"
KEPT = 32  # per table; a restart needs only those after the last durable position
KEPT_FILES = 64
DROPPED_KEY = "log-dropped"
KEPT_DROPPED = 1000
FORGOTTEN = ""  # the key that stands for entries removed beyond the limit


class SchemaHistory:
    """Schema notes of one event log. Used by one thread.

    Args:
        state: the store of the notes; None: memory.
        registry: the versions; None: every note is valid.
    """

    def __init__(
        self, state: StateStore | None = None, registry: SchemaRegistry | None = None
    ) -> None:
        self._state = state
        self._registry = registry
        self._known: dict[TableName, list[tuple[int, int]]] = {}
        self._files: dict[str, int] | None = None
        self._dropped: dict[str, list[int]] | None = None

    def find(self, table: TableName, position: int) -> int | None:
        """The number of the table's version at a position; None if it is not known."""
        found = None
        for begin, schema_id in self._of(table):
            if begin > position:
                break
            found = schema_id
        return found or None

    def of(self, table: TableName) -> list[tuple[int, int]]:
        """(position, version) in order; version 0 means that the version is unknown
        from there on.
        """
        return list(self._of(table))

    def last_before(self, table: TableName, schema_id: int) -> int | None:
        """The version before the table's newest one, which is ``schema_id``."""
        older = [number for _, number in self._of(table) if number not in (0, schema_id)]
        return older[-1] if older else None

    def note(self, table: TableName, position: int, schema_id: int) -> None:
        """Store that the table's rows have this version from ``position`` on; 0: it is
        not known.
        """
        versions = self._of(table)
        before = [version for version in versions if version[0] <= position]
        if (before[-1][1] if before else 0) == schema_id:
            return
        kept = [version for version in versions if version[0] != position]
        kept.append((position, schema_id))
        kept.sort()
        self._known[table] = kept[-KEPT:]
        self._put(table)

    def created(self, number: int) -> int | None:
        """The noted creation time of the binlog file (seconds since 1970); None if there is no
        note.
        """
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

    def note_dropped(self, what: TableName | str, position: int) -> None:
        """Note that a table was dropped or renamed at the position, or that a database (a name) was
        dropped.
        """
        gone = self._all_dropped()
        name = str(what) if isinstance(what, TableName) else _database(what)
        if name not in gone or gone[name][0] < position:
            gone[name] = [position, 0]
            self._put_dropped()

    def note_created(self, table: TableName, position: int) -> bool:
        """Note that the table exists from this position on.

        Returns True if the table or its database was dropped before, and the table not created
        since. The result is the same when the position is read again after a restart.
        """
        gone = self._all_dropped()
        places = gone.get(str(table), [0, 0])
        dropped = max(
            places[0], gone.get(_database(table.namespace), [0])[0], gone.get(FORGOTTEN, [0])[0]
        )
        if not 0 < dropped < position or dropped < places[1] < position:
            return False
        if not dropped < places[1]:
            gone[str(table)] = [dropped, position]
            self._put_dropped()
        return True

    def clear(self) -> None:
        """Delete all notes, for a new event log: its schemas have other numbers, its positions are
        new.
        """
        self._known, self._files, self._dropped = {}, {}, {}
        if self._state is not None:
            for key in [*self._state.keys(PREFIX), FILE_KEY, DROPPED_KEY]:
                self._state.delete(key)

    def _of(self, table: TableName) -> list[tuple[int, int]]:
        if table not in self._known:
            found = None if self._state is None else self._state.get(PREFIX + str(table))
            notes = [] if found is None else found.value
            self._known[table] = [
                (int(note[0]), int(note[1])) for note in notes if self._is_valid(*note[1:])
            ]
        return self._known[table]

    def _put(self, table: TableName) -> None:
        if self._state is not None:
            value = [[at, number, *self._fingerprint(number)] for at, number in self._known[table]]
            self._state.put(PREFIX + str(table), value, None)

    def _is_valid(self, number: int, fingerprint: str | None = None) -> bool:
        """Return True if the version of this number is still the noted one. Early versions of
        Tidelog noted no fingerprint.
        """
        if not number or self._registry is None:
            return True
        schema = self._schema(number)
        return schema is not None and fingerprint in (None, schema.fingerprint)

    def _fingerprint(self, number: int) -> tuple[str, ...]:
        schema = self._schema(number) if number else None
        return () if schema is None else (schema.fingerprint,)

    def _schema(self, number: int) -> TableSchema | None:
        try:
            return None if self._registry is None else self._registry.get(number)
        except EventLogError:
            return None

    def _all_files(self) -> dict[str, int]:
        if self._files is None:
            found = None if self._state is None else self._state.get(FILE_KEY)
            self._files = {} if found is None else dict(found.value)
        return self._files

    def _all_dropped(self) -> dict[str, list[int]]:
        """By name, the position where it was dropped, and where it was first created since (0: not
        yet).
        """
        if self._dropped is None:
            found = None if self._state is None else self._state.get(DROPPED_KEY)
            self._dropped = {} if found is None else {k: list(v) for k, v in found.value.items()}
        return self._dropped

    def _put_dropped(self) -> None:
        gone = self._all_dropped()
        for old in sorted(gone, key=lambda name: max(gone[name]))[:-KEPT_DROPPED]:
            # Any table may be one of the removed ones from now on: better one dump too many than
            # too few.
            gone[FORGOTTEN] = [max(*gone.pop(old), gone.get(FORGOTTEN, [0])[0]), 0]
        if self._state is not None:
            self._state.put(DROPPED_KEY, gone, None)


def _database(name: str) -> str:
    """A database's key, which no table has."""
    return f"{name}."
