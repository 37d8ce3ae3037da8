"""Reads DDL between a position of the log and its end, ahead of the stream."""

from __future__ import annotations

from tidelog.codecs.mysql.binlog.events.statements import first_words
from tidelog.codecs.mysql.server_urls import ServerUrl
from tidelog.model.schema import TableName
from tidelog.sources.mysql.stream.ddl.effects import Effect, Statement, renames_of
from tidelog.sources.mysql.stream.ddl.statements import read_statement
from tidelog.sources.mysql.stream.ddl.temporary import StatementPosition, TemporaryTables
from tidelog.sources.mysql.stream.log_parts import queries, read_part
from tidelog.sources.mysql.stream.positions import LogFiles


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
