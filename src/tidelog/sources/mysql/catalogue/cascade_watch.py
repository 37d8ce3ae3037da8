"""Notices, while the log is read, what foreign keys change without a trace in it.

The log holds the parents' rows: where some are deleted, or their referenced keys changed, the
tables below are told to have changed (`RowsUnlogged`). Which keys there are is read from
``information_schema`` at start and after DDL that may concern them. That is of now, and the log may
lag behind: but a key that is gone by now did its work before now, so that it is enough to tell its
child when the log comes to the statement that dropped it, or renamed its parent.
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
from tidelog.sources.mysql.errors import translated
from tidelog.sources.mysql.stream.ddl.effects import RESHAPES, Effect, Statement

_ABOUT_KEYS = re.compile(r"\b(?:FOREIGN|REFERENCES|CONSTRAINT)\b", re.IGNORECASE)
# A statement about a foreign key alone leaves columns and rows as they are.
_SHAPES = RESHAPES | {Effect.KEPT}
_DROPS_KEY = re.compile(
    r"\bDROP\s+(?:FOREIGN\s+KEY|CONSTRAINT)\b|\bREPLACE\s+TABLE\b", re.IGNORECASE
)


class CascadeWatch:
    """Of one log reader. Used by one thread.

    Args:
        connected: gives an SQL connection.
        captures: is the table captured?
    """

    def __init__(
        self, connected: Callable[[], Connection], captures: Callable[[TableName], bool]
    ) -> None:
        self._connected = connected
        self._captures = captures
        self._graph = CascadeGraph()

    def read(self) -> None:
        """Read the keys anew."""
        with translated("reading foreign keys"):
            self._graph = CascadeGraph.read(self._connected())

    def bind(self, scanner: BinlogScanner, seen: TableMapSeen, schema: TableSchema | None) -> None:
        """Rows of the table follow; ``schema`` if it is captured."""
        noticed = self._graph.noticed(TableName(seen.database, seen.table))
        if noticed is None:
            return
        names = seen.metadata.names if schema is None else schema.column_names
        scanner.notice(
            seen.table_id,
            deletes=noticed.deletes,
            columns=noticed.indexes(names, len(seen.types)),
        )

    def rows(self, seen: RowsNoticed) -> Iterator[RowsUnlogged]:
        """A parent's rows were changed."""
        parent = TableName(seen.database, seen.table)
        yield from self._below(
            parent,
            f"a foreign key changes its rows with those of {parent}",
            seen.position,
            deleted=seen.deleted,
            updated=seen.rekeyed,
        )

    def statement(
        self, scanner: BinlogScanner, statement: Statement, seen: QuerySeen
    ) -> Iterator[RowsUnlogged]:
        """DDL: the keys may be others now."""
        shaped = [e for e in statement.effects if e.effect in _SHAPES]
        about_keys = bool(shaped) and _ABOUT_KEYS.search(seen.sql) is not None
        if not seen.durable:
            for effect in shaped:
                if about_keys and self._captures(effect.table) and _DROPS_KEY.search(seen.sql):
                    reason = "a foreign key was dropped that may have changed its rows"
                    yield RowsUnlogged(effect.table, reason, seen.position)
                if effect.effect is Effect.RENAMED_HERE:
                    yield from self._below(
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

    def _below(
        self, parent: TableName, reason: str, position: int, *, deleted: bool, updated: bool
    ) -> Iterator[RowsUnlogged]:
        for table in sorted(self._graph.below(parent, deleted=deleted, updated=updated)):
            if self._captures(table):
                yield RowsUnlogged(table, reason, position)
