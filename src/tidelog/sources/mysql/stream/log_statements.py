"""Finds rows that statements of the stream changed without row events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidelog.codecs.mysql.binlog.items import Alter, QuerySeen, RolledBackSeen
from tidelog.codecs.mysql.binlog.position import text
from tidelog.codecs.mysql.binlog.scanner import BinlogScanner
from tidelog.errors import SourceError
from tidelog.model.schema import TableName
from tidelog.ports import LogEvent, Refusal, RowsUnlogged, SchemaRegistry, SchemaSeen, TableRefused
from tidelog.sources.mysql.catalogue.cascade_watch import CascadeWatch
from tidelog.sources.mysql.stream.affected_tables import WRITES, AffectedTables
from tidelog.sources.mysql.stream.ddl.effects import Effect, Statement, TableEffect
from tidelog.sources.mysql.stream.ddl.statements import read_statement
from tidelog.sources.mysql.stream.ddl.temporary import StatementPosition, TemporaryTables
from tidelog.sources.mysql.stream.log_tables import CapturedTables, LogTables
from tidelog.sources.mysql.stream.schemas.history import SchemaHistory

TEMPORARY_OR_NOT = (
    "the binlog holds statements of this name that use temporary tables: whether they changed this "
    "table can't be known, so it is dumped"
)
EMPTIED = "the log holds a DELETE of all its rows as a statement, which may have been rolled back"
ROW_FORMAT = "SET GLOBAL binlog_format = 'ROW'; -- sessions that are open keep theirs"


class LogStatements:
    """Processes the statements of one log. Used by one thread.

    Args:
        captured: the captured tables.
        tables: the tables that the stream has shown.
        registry: the tables' versions.
        history: the version of each table by position.
        temporary: the temporary tables of each session.
        cascades: receives DDL, if foreign keys are watched.
        affected: finds tables that statements change besides those that they name.
    """

    def __init__(
        self,
        captured: CapturedTables,
        tables: LogTables,
        registry: SchemaRegistry,
        history: SchemaHistory,
        temporary: TemporaryTables,
        cascades: CascadeWatch | None,
        affected: AffectedTables,
    ) -> None:
        self._captured = captured
        self._tables = tables
        self._registry = registry
        self._history = history
        self._temporary = temporary
        self._cascades = cascades
        self._affected = affected

    def start(self) -> None:
        """Clear caches: the stream starts, possibly at another position."""
        self._affected.forget()

    def read(self, scanner: BinlogScanner, seen: QuerySeen) -> Iterator[LogEvent]:
        """The events of one statement of the stream."""
        if seen.alter in (Alter.START, Alter.ROLLBACK):
            return  # the statement has no effect yet, or was abandoned
        named = read_statement(
            seen.sql, seen.database, fold=self._captured.fold, sql_mode=seen.sql_mode
        )
        place = StatementPosition(
            seen.server_id, seen.thread, seen.end, seen.uses_temporary, seen.keyword
        )
        statement = self._temporary.permanent_effects(named, place)
        self._affected.note(seen)
        schemas = self._tables.schemas
        schemas.note_statement(statement, seen.end)
        if not seen.durable:
            yield from self._unlogged_writes(seen, named, statement)
        if self._cascades is not None:
            yield from self._cascades.statement(scanner, statement, seen)
        if statement.database is not None:
            self._history.note_dropped(statement.database, seen.position)
        for effect in statement.effects:
            table = effect.table
            if table not in self._captured:
                continue
            if effect.effect is Effect.TRUNCATED:
                schema = schemas.any_version(table)
                batch = None if schema is None else scanner.truncate(schema.schema_id)
                if batch is not None and schema is not None:
                    self._temporary.save()
                    if self._tables.current.get(table) is None:
                        yield SchemaSeen(schema, schema)
                    yield batch
                continue
            reason = self._unlogged(effect, seen.position)
            if reason is not None and not seen.durable:
                yield RowsUnlogged(table, reason, seen.position)

    def _unlogged(self, effect: TableEffect, position: int) -> str | None:
        """Why the table's rows may have changed without row events."""
        table, kind = effect.table, effect.effect
        if kind in (Effect.DROPPED, Effect.RENAMED_AWAY):
            self._history.note_dropped(table, position)
            return None
        created = kind in (Effect.CREATED, Effect.CREATED_IF_MISSING)
        again = False
        if created or kind in (Effect.REPLACED, Effect.RENAMED_HERE):
            again = self._history.note_created(table, position)
        if created:
            known = kind is Effect.CREATED and self._registry.latest(table) is not None
            return "the table was dropped and recreated" if again or known else effect.unlogged
        if effect.unlogged is None and self._had_column(table, effect.added):
            return "a column was dropped and added again"
        return effect.unlogged

    def _had_column(self, table: TableName, columns: Sequence[str]) -> bool:
        """Return True if any version of the table had one of these columns.

        This includes versions that a chunk has read ahead of the log, so an unneeded dump follows
        where a chunk reads a column before the log adds it.
        """
        if not columns:
            return False
        wanted = {name.lower() for name in columns}
        return any(
            name.lower() in wanted
            for version in self._registry.versions(table)
            for name in version.whole.column_names
        )

    def _unlogged_writes(
        self, seen: QuerySeen, named: Statement, statement: Statement
    ) -> Iterator[LogEvent]:
        """Report rows that a statement may have changed when the log holds only the statement."""
        filled = any(effect.filled for effect in named.effects)
        if not seen.changes_rows and not filled:
            return
        tables = [effect.table for effect in statement.effects if effect.effect in WRITES]
        captured = [table for table in tables if table in self._captured]
        emptied = any(effect.effect is Effect.EMPTIED for effect in statement.effects)
        what = ", ".join(map(str, tables)) or "tables"
        if captured and not emptied and not seen.uses_temporary:
            raise _statement_error(seen, what)
        affected = self._affected.by_statement(seen, named, statement)
        if affected.objection is not None:
            touched = (
                self._affected.by_emptied_memory_table(captured[0]) if captured and emptied else ()
            )
            if not touched:
                raise _statement_error(seen, what, affected.objection)
            captured = list(touched)
        for table in affected.cascaded:
            reason = f"a foreign key changes its rows with those of {what}"
            yield RowsUnlogged(table, reason, seen.position)
        for table in captured:
            if seen.uses_temporary:
                # Possibly a temporary table of that name, created before the log was read: reported
                # with the same text each time, and fixed by a dump.
                yield TableRefused(table, Refusal(TEMPORARY_OR_NOT, ROW_FORMAT))
            else:
                # Part of its transaction may have been rolled back, so this is no TRUNCATE.
                yield RowsUnlogged(table, EMPTIED, seen.position)

    def report_rollback(self, seen: RolledBackSeen) -> Iterator[LogEvent]:
        """Report tables whose rows were yielded before their transaction was rolled back: they need
        a dump.
        """
        if seen.durable:
            return
        for database, name in seen.tables:
            table = TableName(database, name)
            if table in self._captured:
                yield RowsUnlogged(
                    table,
                    "a transaction was rolled back that the log holds rows of",
                    seen.position,
                )


def _statement_error(seen: QuerySeen, what: str, objection: str | None = None) -> SourceError:
    """The error that stops capture: it is unknown which rows of captured tables the statement
    changed.
    """
    why = "" if objection is None else f", which may have changed captured tables: {objection}"
    return SourceError(
        f"at {text(seen.position)} the binlog has a {seen.keyword} of {what} as a "
        f"statement, not as rows{why}: SET GLOBAL binlog_format = ROW (in the server's "
        "configuration as well; sessions that are open keep theirs), then start a new event log "
        "after it, which dumps the tables again"
    )
