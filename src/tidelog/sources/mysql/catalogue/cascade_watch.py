"""Finds changes by foreign keys that leave no trace in the binlog, while the log is read.

The log holds the changes of parent tables. Where parent rows are deleted or their referenced keys
change, the child tables are reported as changed (`RowsUnlogged`). The foreign keys are read from
``information_schema`` at start and after DDL that may change them. They are the current ones, while
the log may lag behind. A key that was dropped since then acted before now, so it is enough to
report its child table when the log reaches the statement that dropped the key or renamed the
parent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tidelog.codecs.mysql.binlog.items import QuerySeen, RowsNoticed, TableMapSeen
from tidelog.codecs.mysql.binlog.scanner import BinlogScanner
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import RowsUnlogged
from tidelog.sources.mysql.catalogue.cascades import CascadeGraph
from tidelog.sources.mysql.connect import Connection
from tidelog.sources.mysql.errors import translate_errors
from tidelog.sources.mysql.stream.ddl.effects import RESHAPES, Effect, Statement

_ABOUT_KEYS = re.compile(r"\b(?:FOREIGN|REFERENCES|CONSTRAINT)\b", re.IGNORECASE)
# A statement about a foreign key alone does not change columns or rows.
_SHAPES = RESHAPES | {Effect.KEPT}
_DROPS_KEY = re.compile(
    r"\bDROP\s+(?:FOREIGN\s+KEY|CONSTRAINT)\b|\bREPLACE\s+TABLE\b", re.IGNORECASE
)


class CascadeWatch:
    """Reports changes by foreign keys for one log reader. Used by one thread.

    Args:
        connected: returns an SQL connection.
        captures: returns True for captured tables.
    """

    def __init__(
        self, connected: Callable[[], Connection], captures: Callable[[TableName], bool]
    ) -> None:
        self._get_connection = connected
        self._captures = captures
        self._graph = CascadeGraph()

    def read(self) -> None:
        """Read the foreign keys again."""
        with translate_errors("reading foreign keys"):
            self._graph = CascadeGraph.read(self._get_connection())

    def bind(self, scanner: BinlogScanner, seen: TableMapSeen, schema: TableSchema | None) -> None:
        """Tell the scanner which of the table's changes to report; ``schema`` is None for a table
        that is not captured.
        """
        noticed = self._graph.changes_to_notice(TableName(seen.database, seen.table))
        if noticed is None:
            return
        names = seen.metadata.names if schema is None else schema.whole.column_names
        scanner.notice(
            seen.table_id,
            deletes=noticed.deletes,
            columns=noticed.indexes(names, len(seen.types)),
        )

    def rows(self, seen: RowsNoticed) -> Iterator[RowsUnlogged]:
        """Yield the child tables that a change of a parent's rows may have changed."""
        parent = TableName(seen.database, seen.table)
        yield from self._report_affected(
            parent,
            f"a foreign key changes its rows with those of {parent}",
            seen.position,
            deleted=seen.deleted,
            updated=seen.rekeyed,
        )

    def statement(
        self, scanner: BinlogScanner, statement: Statement, seen: QuerySeen
    ) -> Iterator[RowsUnlogged]:
        """Yield the tables that a DDL statement affects by their foreign keys, and read the keys
        again if they may have changed.
        """
        shaped = [e for e in statement.effects if e.effect in _SHAPES]
        about_keys = bool(shaped) and _ABOUT_KEYS.search(seen.sql) is not None
        if not seen.durable:
            for effect in shaped:
                if about_keys and self._captures(effect.table) and _DROPS_KEY.search(seen.sql):
                    reason = "a foreign key was dropped that may have changed its rows"
                    yield RowsUnlogged(effect.table, reason, seen.position)
                if effect.effect is Effect.RENAMED_HERE:
                    yield from self._report_affected(
                        effect.table,
                        "the table that its foreign key refers to was renamed",
                        seen.position,
                        deleted=True,
                        updated=True,
                    )
        touched = [effect.table for effect in shaped]
        if about_keys or statement.database is not None or self._graph.concerns(touched):
            before = self._graph
            self.read()
            if self._graph != before:
                scanner.forget_tables()

    def _report_affected(
        self, parent: TableName, reason: str, position: int, *, deleted: bool, updated: bool
    ) -> Iterator[RowsUnlogged]:
        for table in sorted(self._graph.affected_tables(parent, deleted=deleted, updated=updated)):
            if self._captures(table):
                yield RowsUnlogged(table, reason, position)
