"""Finds the schema of a table at a position of the log, or refuses the table if it is uncertain.

A table map has the types but, with ``binlog_row_metadata=MINIMAL``, no names;
``information_schema`` has everything, but only its current state. A schema is certain if

- it was noted at an earlier position and no DDL of the table comes in between (`SchemaHistory`);
- or the table map has FULL metadata, which is enough;
- or ``information_schema`` has it and the binlog, read ahead to its end after that query, holds no
  DDL that reshapes the table. RENAME TABLE may have renamed it since, as tools for online schema
  changes do (pt-online-schema-change, gh-ost): then the table is searched by its new name.

In addition it must fit the table map. Everything else is an error that names the table, the
position and what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from shlex import quote
from typing import NoReturn

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.binlog.events import first_words
from tidelog.codecs.mysql.binlog.items import TableMapSeen, position_text
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.server_urls import ServerUrl
from tidelog.errors import SourceError, UnsupportedTableError
from tidelog.model.patterns import exclusion, pattern_of
from tidelog.model.schema import TableName, TableSchema, backticked
from tidelog.ports import SchemaRegistry
from tidelog.sources.mysql.catalogue.schemas import (
    MySqlSchemaFinder,
    count_hash_columns,
    expression_indexes,
    first_columns,
    hidden_columns,
    key_in_map,
    logs_hidden_columns,
    mismatch,
    remove_hash_columns,
)
from tidelog.sources.mysql.catalogue.storage import check_row_image
from tidelog.sources.mysql.connect import Connection
from tidelog.sources.mysql.ddl import RESHAPES, Effect, Statement, read_statement, renames_of
from tidelog.sources.mysql.errors import translate_errors
from tidelog.sources.mysql.stream.log_parts import queries, read_part
from tidelog.sources.mysql.stream.positions import LogFiles, log_end, log_files
from tidelog.sources.mysql.stream.schema_history import SchemaHistory
from tidelog.sources.mysql.stream.temporary_tables import StatementPosition, TemporaryTables

# DDL ahead of the stream.


class DdlLookahead:
    """The statements between a position of the log and its end; each part is read once."""

    def __init__(
        self, url: ServerUrl, *, fold: bool, temporary: TemporaryTables | None = None
    ) -> None:
        self._url = url
        self._temporary = temporary or TemporaryTables()
        self._fold = fold
        self._begin = self._end = 0
        self._found: list[tuple[int, Statement]] = []

    def reshapes(self, table: TableName, files: LogFiles, begin: int, end: int) -> bool:
        """Return True if a statement in ``[begin, end)`` reshapes the table. Both positions are
        between groups.
        """
        self._read(files, begin, end)
        return any(at <= end and found.reshapes(table) for at, found in self._found)

    def name_at_end(
        self, table: TableName, files: LogFiles, begin: int, end: int, place: int
    ) -> TableName | None:
        """The name at ``end`` of the table that is called ``table`` at ``place``.

        None if a statement in between may have done more than rename it. ``begin`` and ``end`` are
        between groups; ``place`` may be in the first one.
        """
        self._read(files, begin, end)
        for at, statement in self._found:
            if not place < at <= end or not statement.reshapes(table):
                continue
            if not statement.renames:
                return None
            for old, new in renames_of(statement):
                table = new if table == old else table
        return table

    def only_renames(
        self, table: TableName, files: LogFiles, begin: int, end: int, place: int
    ) -> bool:
        """Return True if only RENAME TABLE may reshape what has this name. Arguments as
        `name_at_end`.
        """
        self._read(files, begin, end)
        return all(
            found.renames
            for at, found in self._found
            if place < at <= end and found.reshapes(table)
        )

    def drops_sequence(
        self, table: TableName, files: LogFiles, begin: int, end: int, place: int
    ) -> bool:
        """Return True if the next statement on a name after ``place`` drops it as a sequence."""
        self._read(files, begin, end)
        effects = (
            effect.effect
            for at, statement in self._found
            if place < at <= end
            for effect in statement.effects
            if effect.table == table
        )
        return next(effects, None) is Effect.SEQUENCE_DROPPED

    def _read(self, files: LogFiles, begin: int, end: int) -> None:
        if not self._begin <= begin <= self._end:
            self._begin = self._end = begin
            self._found.clear()
        if end > self._end:
            for _, part in read_part(self._url, files, self._end, end):
                for at, header, query in queries(part):
                    statement = read_statement(
                        query.text(),
                        query.database,
                        fold=self._fold,
                        sql_mode=query.status.sql_mode,
                    )
                    place = StatementPosition(
                        header.server_id,
                        query.thread,
                        at,
                        header.uses_temporary,
                        first_words(query.text())[0],
                    )
                    statement = self._temporary.permanent_effects(statement, place)
                    if statement.effects or statement.database:
                        self._found.append((at, statement))
            self._end = end
        self._found = [found for found in self._found if found[0] > begin]
        self._begin = begin


# Schemas of table maps.


def unknown_columns_advice(table: TableName, where: str) -> str:
    """What to do where a table's columns can't be known."""
    return (
        f"stop capture, `tidelog schema CONFIG --table {quote(pattern_of(table))} --at {where} "
        "--columns FILE` (docs/how-to/schema-unknown.md)"
    )


FULL_METADATA = "SET GLOBAL binlog_row_metadata = 'FULL';"


# Most tables whose schemas are noted at the beginning of a new log.
MAX_NOTED = 2000

# Number of attempts to find a table that is being renamed.
ATTEMPTS = 5

# The column types of MariaDB's sequences: seven numbers and a flag.
_SEQUENCE = bytes([types.LONGLONG] * 6 + [types.TINY, types.LONGLONG])


class LogSchemas:
    """Finds the schemas of table maps. Used by one thread.

    Args:
        finder: builds schemas.
        registry: numbers schemas.
        history: the notes of earlier schemas.
        connected: returns an SQL connection.
        ahead: reads DDL ahead of the stream.
    """

    def __init__(
        self,
        finder: MySqlSchemaFinder,
        registry: SchemaRegistry,
        history: SchemaHistory,
        connected: Callable[[], Connection],
        ahead: DdlLookahead,
    ) -> None:
        self._finder = finder
        self._registry = registry
        self._history = history
        self._get_connection = connected
        self._ahead = ahead
        self._unique_keys: dict[tuple[TableName, int], tuple[str, ...]] = {}
        """What table maps name as the primary key of versions that have none."""

    def is_sequence(self, seen: TableMapSeen, group: int) -> bool:
        """Return True for one of MariaDB's sequences, which are logged as tables of one row.
        ``group``: see `at`.
        """
        if seen.types != _SEQUENCE:
            return False
        table = TableName(seen.database, seen.table)
        with translate_errors(f"looking up {table}"):
            connection = self._get_connection()
            kind = connection.value(
                "SELECT TABLE_TYPE FROM information_schema.TABLES "
                "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
                (seen.database, seen.table),
            )
            if kind is not None:
                return bool(kind == "SEQUENCE")
            end = log_end(connection).position
            files = log_files(connection)
        return self._ahead.drops_sequence(table, files, group, end, seen.position)

    def at(self, seen: TableMapSeen, group: int) -> TableSchema:
        """The stored version of the rows after a table map.

        Args:
            seen: the table map.
            group: the beginning of its transaction, or any earlier position between groups.

        Raises:
            UnsupportedTableError: the version is uncertain.
            SourceError: the server can't be queried now.
        """
        table = TableName(seen.database, seen.table)
        if seen.unknown is not None:
            self._refuse_type(seen, table)
        if seen.malformed is not None:
            raise UnsupportedTableError(
                table,
                f"at {position_text(seen.position)} of the binlog: {seen.malformed} can't be read, "
                "so it is not known what its rows hold: it may be that the server is newer than "
                f"Tidelog. Install a newer version of Tidelog, or {exclusion(table)}",
            )
        with translate_errors(f"looking up {table}"):
            check_row_image(self._get_connection(), table, self._finder.surrogate)
        noted = self._history.find(table, seen.position)
        reason: str | None = None
        if noted is not None:
            schema = self._as_configured(self._registry.get(noted))
            unique_key = self._unique_keys.get((table, schema.schema_id), ())
            reason = mismatch(schema, self._without_hidden(seen, table, schema), unique_key)
            if reason is None:
                self._history.note(table, seen.position, schema.schema_id)
                return schema
        schema = self._find_schema(seen, table, group, "" if reason is None else f" ({reason})")
        schema = self._registry.register(schema)
        if key_in_map(seen) not in ((), schema.key):
            self._unique_keys[table, schema.schema_id] = key_in_map(seen)
        self._history.note(table, seen.position, schema.schema_id)
        return schema

    def note_all(self, captures: Callable[[TableName], bool], begin: int) -> None:
        """Note the schemas of all captured tables at the beginning of a new log, so that rows
        before a later DDL statement have a certain schema.
        """
        with translate_errors("looking up the captured tables"):
            connection = self._get_connection()
            rows = connection.rows(
                "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES "
                "WHERE TABLE_TYPE = 'BASE TABLE'"
            )
            tables = [name for name in (TableName(*row) for row in rows) if captures(name)]
            found: dict[TableName, TableSchema] = {}
            for table in tables[:MAX_NOTED]:
                try:
                    one = self._finder.find(connection, table)
                except SourceError:
                    continue  # its type is unknown: an error follows once it has rows
                if one is not None:
                    found[table] = one.schema
            end = log_end(connection).position
            files = log_files(connection)
        for table, schema in found.items():
            if not self._ahead.reshapes(table, files, begin, end):
                numbered = self._registry.register(schema)
                self._history.note(table, begin, numbered.schema_id)

    def note_statement(self, statement: Statement, position: int) -> None:
        """Note that a statement at ``position`` may have reshaped or renamed tables."""
        if statement.renames:
            self._renamed(statement, position)
            return
        for effect in statement.effects:
            made = effect.effect is not Effect.CREATED_IF_MISSING or self._history.note_created(
                effect.table, position
            )
            if effect.effect in RESHAPES and made:
                self._history.note(effect.table, position, 0)
        # Tables of a dropped database have no rows before a CREATE TABLE recreates them.

    def _renamed(self, statement: Statement, position: int) -> None:
        """Move the notes of renamed tables to their new names."""
        known: dict[TableName, int] = {}
        for old, new in renames_of(statement):
            # The version just before: the statement may be read again after a restart.
            version = known.get(old, self._history.find(old, position - 1) or 0)
            if version:
                schema = replace(self._registry.get(version), table=new, schema_id=0)
                version = self._registry.register(schema).schema_id
            known[old], known[new] = 0, version
        for table, version in known.items():
            self._history.note(table, position, version)

    def _as_configured(self, schema: TableSchema) -> TableSchema:
        """The schema with the surrogate key that it does not have yet, and without the columns that
        are excluded now: the table was renamed since, or the configuration changed.

        Raises UnsupportedTableError if a column of its key is excluded.
        """
        names = schema.whole.column_names
        key = schema.key or self._finder.surrogate(schema.table, names)
        configured = self._finder.exclusion.apply(replace(schema, key=key))
        if configured == schema:
            return schema
        return self._registry.register(replace(configured, schema_id=0))

    def any_version(self, table: TableName) -> TableSchema | None:
        """A version for a record without columns (TRUNCATE): any version of the table will do."""
        schema = self._registry.latest(table)
        if schema is not None:
            return schema
        with translate_errors(f"looking up {table}"):
            found = self._finder.find(self._get_connection(), table)
        return None if found is None else self._registry.register(found.schema)

    def _find_schema(
        self, seen: TableMapSeen, table: TableName, group: int, unlike: str
    ) -> TableSchema:
        where = position_text(seen.position)
        name: TableName | None = table
        for _ in range(ATTEMPTS):
            assert name is not None
            with translate_errors(f"looking up {table}"):
                connection = self._get_connection()
                found = self._finder.find(connection, name, called=table)
                end = log_end(connection).position
                files = log_files(connection)
            known, name = name, table
            if seen.metadata.names is None:
                name = self._ahead.name_at_end(table, files, group, end, seen.position)
            if name in (known, None):
                break
        if (
            found is None
            and name == known != table
            and connection.flavor is Flavor.MARIADB
            and self._ahead.only_renames(table, files, group, end, seen.position)
        ):
            # No table has that name: a temporary table was renamed; if its session logs rows,
            # MariaDB's log has no other statement of it.
            with translate_errors(f"looking up {table}"):
                found = self._finder.find(connection, table)
        unique_key: tuple[str, ...] = ()
        if found is not None:
            seen = self._without_hidden(seen, known, found.schema)
            unique_key = () if found.has_primary_key else key_in_map(seen)
        reason = "" if found is None else mismatch(found.schema, seen, unique_key)
        if reason is not None:
            self._refuse_hidden(seen, table)
        if seen.metadata.names is not None:
            if found is not None and reason is None:
                return found.schema
            like = found.schema if found is not None else self._registry.latest(table)
            if connection.flavor is Flavor.MARIADB:
                hashes = count_hash_columns(
                    seen, () if found is None else found.schema.whole.column_names
                )
                seen = first_columns(seen, len(seen.types) - hashes)
            try:
                built = self._finder.schema_of_map(
                    seen,
                    connection.flavor,
                    like,
                    primary_key=found is None or found.has_primary_key,
                )
            except types.UnknownTypeError as error:
                raise UnsupportedTableError(table, f"at {where} of the binlog: {error}") from None
            assert built is not None
            return built
        if name != known:
            state = "is gone" if found is None else "was altered"
            raise UnsupportedTableError(
                table,
                f"it {state} after {where} of the binlog, which holds rows of it as it was "
                "before, and the binlog does not contain its column names"
                + (f"; the version noted for that place does not fit{unlike}" if unlike else "")
                + ": they are left out, and then the table is dumped; to prevent this in the "
                "future",
                FULL_METADATA,
            )
        if found is None:
            raise UnsupportedTableError(
                table,
                f"it has rows at {where} of the binlog, but information_schema does not show it: "
                "the capture's user lacks the right to SELECT",
                f"GRANT SELECT ON {backticked(table.namespace, table.name)} TO ...;",
            )
        if reason is not None:
            raise UnsupportedTableError(
                table,
                f"at {where} of the binlog its columns differ from information_schema, "
                f"although there is no DDL in between ({reason})",
                unknown_columns_advice(table, where),
            )
        return found.schema

    def _without_hidden(
        self, seen: TableMapSeen, table: TableName, schema: TableSchema
    ) -> TableMapSeen:
        """The table map without the columns that MariaDB hides. ``table``: its current name."""
        columns = len(schema.whole.columns)
        if len(seen.types) <= columns:
            return seen
        with translate_errors(f"looking up {table}"):
            return remove_hash_columns(self._get_connection(), table, seen, columns)

    def _refuse_type(self, seen: TableMapSeen, table: TableName) -> NoReturn:
        self._refuse_hidden(seen, table)
        with translate_errors(f"looking up {table}"):
            self._finder.find(self._get_connection(), table)  # which may name the column
        raise UnsupportedTableError(
            table,
            f"at {position_text(seen.position)} of the binlog: Tidelog does not know the binlog's "
            f"type {seen.unknown}: change the column's type, or {exclusion(table)}",
        )

    def _refuse_hidden(self, seen: TableMapSeen, table: TableName) -> None:
        with translate_errors(f"looking up {table}"):
            connection = self._get_connection()
            if not logs_hidden_columns(connection, table, seen):
                return
            indexes = expression_indexes(connection, table)
        raise UnsupportedTableError(
            table,
            f"at {position_text(seen.position)} of the binlog: {hidden_columns(table, indexes)}",
        )
