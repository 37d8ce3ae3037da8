"""Tracks temporary tables by session: their statements must not be applied to permanent tables of
the same name.

The log holds statements of temporary tables where sessions do not log rows (``binlog_format`` MIXED
on MariaDB, STATEMENT on both). A temporary table hides the permanent table of its name from its own
session only, and only from some statements:

========================== ===================================================================
statement the table that it changes ==========================
=================================================================== INSERT, UPDATE, TRUNCATE … the
temporary table ALTER TABLE, CREATE INDEX the temporary table RENAME TABLE MySQL: the permanent
table; MariaDB: the temporary table CREATE TABLE, DROP TABLE the permanent table: for temporary ones
the log says TEMPORARY ==========================
===================================================================

An event's flag ``LOG_EVENT_THREAD_SPECIFIC_F`` says that a statement used temporary tables, but not
which (and is not set for RENAME TABLE). A session is identified by its server and its
``pseudo_thread_id``, as a replica's log also has its source's sessions. When a session ends, the
server logs DROP TEMPORARY TABLE; when the server stops, all its sessions end.

The tracker stores facts about the log: which name was temporary between which positions. So a
statement that is read again, or ahead of the stream, is judged by its own position.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tidelog.codecs.mysql.flavor import Flavor
from tidelog.model.schema import TableName
from tidelog.ports import StateStore
from tidelog.sources.mysql.ddl import Effect, Statement, TableEffect

KEY = "log-temporary"

_ON_TEMPORARY = frozenset(
    {Effect.TRUNCATED, Effect.ALTERED, Effect.KEPT, Effect.EMPTIED, Effect.WRITTEN}
)


@dataclass(slots=True)
class _TemporaryTable:
    """A temporary table: it exists after ``begin``, up to ``end`` (0: it still exists)."""

    server: int
    thread: int
    table: TableName
    begin: int
    end: int = 0


@dataclass(frozen=True, slots=True)
class StatementPosition:
    """The session that ran a statement, its end in the log, and its event's flag."""

    server: int
    thread: int
    end: int
    uses_temporary: bool
    keyword: str


class TemporaryTables:
    """The temporary tables of one event log. Used by one thread.

    Args:
        state: the store that keeps them; None: memory.
    """

    def __init__(self, state: StateStore | None = None) -> None:
        self._state = state
        found = None if state is None else state.get(KEY)
        self._tables = [
            _TemporaryTable(
                int(server), int(thread), TableName(database, name), int(begin), int(end)
            )
            for server, thread, database, name, begin, end in (found.value if found else ())
        ]
        self._changed = False
        self._durable = 0
        self.flavor = Flavor.MYSQL

    def permanent_effects(self, statement: Statement, position: StatementPosition) -> Statement:
        """The statement without its effects on temporary tables; those are recorded here."""
        if statement.renames:
            if self.flavor is not Flavor.MARIADB:
                return statement
            effects = tuple(self._rename(statement.effects, position))
            return replace(statement, effects=effects)
        effects = tuple(self._permanent(statement.effects, position))
        return statement if effects == statement.effects else replace(statement, effects=effects)

    def save(self) -> None:
        """Write new records to the state store; call it before the log's durable position passes
        them.
        """
        if not self._changed:
            return
        self._changed = False
        self._tables = [one for one in self._tables if not 0 < one.end < self._durable]
        if self._state is not None:
            value = [
                [one.server, one.thread, one.table.namespace, one.table.name, one.begin, one.end]
                for one in self._tables
            ]
            self._state.put(KEY, value, None)

    def set_durable(self, position: int) -> None:
        """Note that no statement before the position will be read again."""
        self._durable = max(self._durable, position)

    def server_started(self, position: int) -> None:
        """End all sessions' temporary tables: the server restarted."""
        for one in self._tables:
            if not one.end and one.begin < position:
                one.end, self._changed = position, True

    def clear(self) -> None:
        """Delete all records, for a new event log."""
        self._tables, self._changed, self._durable = [], False, 0
        if self._state is not None and self._state.get(KEY) is not None:
            self._state.delete(KEY)

    def _permanent(
        self, effects: tuple[TableEffect, ...], position: StatementPosition
    ) -> Iterator[TableEffect]:
        gone_away = False
        for effect in effects:
            kind, table = effect.effect, effect.table
            if kind is Effect.TEMPORARY_CREATED:
                self._begin(table, position)
            elif kind is Effect.TEMPORARY_DROPPED:
                self._end(table, position)
            elif kind is Effect.RENAMED_AWAY and self._is_temporary(effect, position):
                self._end(table, position)
                gone_away = True
            elif kind is Effect.RENAMED_HERE and gone_away:
                self._begin(table, position)
            elif kind not in _ON_TEMPORARY or not self._is_temporary(effect, position):
                yield effect

    def _is_temporary(self, effect: TableEffect, position: StatementPosition) -> bool:
        if not position.uses_temporary:
            return False
        if self._find(effect.table, position) is not None:
            return True
        # It was created before the log was read: these statements use no other table.
        return position.keyword in ("TRUNCATE", "ALTER", "CREATE", "DROP", "OPTIMIZE", "REPAIR")

    def _rename(
        self, effects: tuple[TableEffect, ...], position: StatementPosition
    ) -> Iterator[TableEffect]:
        """Process RENAME TABLE's pairs in order."""
        now: dict[TableName, bool] = {}
        for away, here in zip(effects[::2], effects[1::2], strict=True):
            if not now.get(away.table, self._find(away.table, position) is not None):
                yield from (away, here)
                continue
            self._end(away.table, position)
            self._begin(here.table, position)
            now[away.table], now[here.table] = False, True

    def _find(self, table: TableName, position: StatementPosition) -> _TemporaryTable | None:
        """The session's temporary table of this name at the beginning of the statement."""
        for one in reversed(self._tables):
            mine = (one.server, one.thread, one.table) == (position.server, position.thread, table)
            if mine and one.begin < position.end and (not one.end or position.end <= one.end):
                return one
        return None

    def _begin(self, table: TableName, position: StatementPosition) -> None:
        known = any(
            (one.server, one.thread, one.table) == (position.server, position.thread, table)
            and one.begin <= position.end
            and (not one.end or position.end < one.end)
            for one in self._tables
        )
        if not known:
            self._tables.append(
                _TemporaryTable(position.server, position.thread, table, position.end)
            )
            self._changed = True

    def _end(self, table: TableName, position: StatementPosition) -> None:
        one = self._find(table, position)
        if one is not None and not one.end:
            one.end, self._changed = position.end, True
