"""Stores the schema version of each table by position of the log.

A table map with MINIMAL metadata has no column names, so the log reader notes what it learns: from
a position on, rows of a table have a version; from a DDL statement on, the version is unknown. Such
a note is a fact about the source's log, so it stays true whatever is durable. But an event log that
was restored to an earlier state assigns version numbers again. So each note contains the
fingerprint of its version, and is valid only where the version of this number has it. ``tidelog
schema`` adds notes by hand in the same place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.binlog.items import pack_position, parse_file_name, position_text
from tidelog.codecs.mysql.charsets import bytes_per_character
from tidelog.codecs.mysql.server_urls import ServerUrl
from tidelog.errors import ConfigError, EventLogError, SourceError, UsageError
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.ports import SchemaRegistry, StateStore
from tidelog.sources.mysql.catalogue.schemas import MySqlSchemaFinder
from tidelog.sources.mysql.connect import Connection, connect
from tidelog.sources.mysql.errors import translate_errors

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
        """(position, version) in order; version 0: the version is unknown from there on."""
        return list(self._of(table))

    def last_before(self, table: TableName, schema_id: int) -> int | None:
        """The version before the table's newest one, which is ``schema_id``."""
        older = [number for _, number in self._of(table) if number not in (0, schema_id)]
        return older[-1] if older else None

    def note(self, table: TableName, position: int, schema_id: int) -> None:
        """Store the version of the table's rows from ``position`` on; 0: it is not known."""
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
        dropped = max(self._dropped_at(table), gone.get(FORGOTTEN, [0])[0])
        if not 0 < dropped < position or dropped < places[1] < position:
            return False
        if not dropped < places[1]:
            gone[str(table)] = [dropped, position]
            self._put_dropped()
        return True

    def is_gone(self, table: TableName) -> bool:
        """Was the table or its database dropped, or the table renamed, and none created since?"""
        return self._dropped_at(table) > self._all_dropped().get(str(table), [0, 0])[1]

    def _dropped_at(self, table: TableName) -> int:
        gone = self._all_dropped()
        return max(gone.get(name, [0])[0] for name in (str(table), _database(table.namespace)))

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
        """By name, the position of its drop, and of its first creation since (0: not yet)."""
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


# Notes by hand, for `tidelog schema`.


@dataclass(frozen=True, slots=True)
class ColumnFact:
    """A column given by hand, as in ``information_schema.columns``. ``collation``: its name, or its
    id in the server's list.
    """

    name: str
    column_type: str
    nullable: bool = True
    collation: str | int | None = None


def fix_version(
    connection: Connection,
    registry: SchemaRegistry,
    history: SchemaHistory,
    table: TableName,
    position: int,
    columns: Sequence[ColumnFact],
    key: Sequence[str],
    finder: MySqlSchemaFinder | None = None,
) -> TableSchema:
    """Note by hand the columns that a table has from ``position`` on (`tidelog schema`).

    Args:
        connection: a connection to the source, which knows its collations.
        registry: stores the version.
        history: the notes of the event log; capture must not run at the same time.
        table: the table.
        position: where the records with these columns begin, as the error named it.
        columns: all columns, in order.
        key: the primary key's columns, in key order.
        finder: finds schemas, of all columns by default; the same one for all of a source.

    Returns the stored version; the log reader checks it against the table map.
    Raises ConfigError for a type or key that is not understood.
    """
    finder = finder or MySqlSchemaFinder()
    built: list[Column] = []
    for fact in columns:
        data_type = fact.column_type.split("(")[0].split()[0].lower()
        collation = fact.collation
        if isinstance(collation, str):
            collation = finder.collation_id(connection, collation)
        try:
            column = types.binlog_column(
                fact.name,
                data_type,
                fact.column_type,
                flavor=connection.flavor,
                octet_length=_octets(fact.column_type, collation),
                collation_id=collation,
                nullable=fact.nullable,
            )
        except (types.UnknownTypeError, ValueError) as error:
            raise ConfigError(f"{table}: {error}") from None
        built.append(column)
    missing = [name for name in key if name not in {column.name for column in built}]
    if missing:
        raise ConfigError(f"{table}: no column {', '.join(missing)}, which the key names")
    schema = registry.register(finder.schema(table, built, key))
    history.note(table, position, schema.schema_id)
    return schema


def _octets(column_type: str, collation: int | None) -> int | None:
    """CHARACTER_OCTET_LENGTH of ``varchar(20)`` and the like."""
    kind, bracket, rest = column_type.partition("(")
    if kind.lower() not in ("char", "varchar", "binary", "varbinary"):
        return None
    count = int(rest.split(")")[0]) if bracket else 1
    return count * (bytes_per_character(collation) if collation is not None else 1)


_COLLATED = frozenset(
    {"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set"}
)


class MySqlSchemaNotes:
    """See `tidelog.app.sources.kinds.SchemaNotes`. Used by one thread."""

    def __init__(
        self,
        url: str | ServerUrl,
        registry: SchemaRegistry,
        state: StateStore,
        finder: MySqlSchemaFinder,
    ) -> None:
        self._url = url
        self._registry = registry
        self._history = SchemaHistory(state, registry)
        self._finder = finder

    def of(self, table: TableName) -> list[tuple[str, int | None]]:
        """(position, version) pairs: the table's version from the position on; None: not known."""
        return [(position_text(at), number or None) for at, number in self._history.of(table)]

    def describe(self, column: Column) -> dict[str, Any]:
        """The column in the form that `fix` takes."""
        found: dict[str, Any] = {"name": column.name, "type": column.type_name}
        found["nullable"] = column.nullable
        if _kind(column.type_name) in _COLLATED and types.collation(column):
            found["collation"] = types.collation(column)
        return found

    def fix(
        self, table: TableName, at: str, columns: Sequence[Mapping[str, Any]], key: Sequence[str]
    ) -> TableSchema:
        """Note that the table's rows have these columns from position ``at`` on."""
        position = _position(at)
        facts = []
        for column in columns:
            collation = column.get("collation")
            if _kind(column["type"]) in _COLLATED and collation is None:
                raise UsageError(
                    f"{table}: the collation of column {column['name']} is missing, which "
                    "determines the character set of its texts: COLLATION_NAME of "
                    "information_schema.COLUMNS"
                )
            facts.append(ColumnFact(column["name"], column["type"], column["nullable"], collation))
        twice = {f.name for f in facts if [g.name for g in facts].count(f.name) > 1}
        if twice:
            raise UsageError(
                f"{table}: {', '.join(sorted(twice))} is listed twice among the columns"
            )
        with (
            connect(self._url, purpose="schema") as connection,
            translate_errors("reading collations"),
        ):
            try:
                return fix_version(
                    connection,
                    self._registry,
                    self._history,
                    table,
                    position,
                    facts,
                    key,
                    self._finder,
                )
            except SourceError as error:  # the given collation is unknown
                raise UsageError(f"{table}: {error}") from None


def _kind(column_type: str) -> str:
    return (column_type.split("(")[0].split() or [""])[0].lower()


def _position(text_: str) -> int:
    """Parse ``000012:4711`` or ``binlog.000012:4711``."""
    file, _, offset = text_.rpartition(":")
    try:
        number = int(file) if file.isdigit() else parse_file_name(file)[1]
        return pack_position(number, int(offset))
    except ValueError:
        raise UsageError(
            f"--at: {text_!r} is no position; expected the one that the error names, e.g. "
            "000012:4711 (the binlog file's number and the offset in it)"
        ) from None
