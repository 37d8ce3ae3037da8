"""Parses a statement: which tables it names, and its effects on them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from tidelog.model.schema import TableName
from tidelog.sources.mysql.stream.ddl.alter import AlterTable
from tidelog.sources.mysql.stream.ddl.effects import Effect, Statement, TableEffect, rename_effects
from tidelog.sources.mysql.stream.ddl.tokens import TokenCursor, tokens


def read_statement(sql: str, database: str, *, fold: bool = False, sql_mode: int = 0) -> Statement:
    """Parse a statement's effects.

    Args:
        sql: the statement's text.
        database: the session's database, for names without one.
        fold: True if the server keeps names in lower case (``lower_case_table_names``).
        sql_mode: the session's sql_mode, as the bits in the log.
    """
    parser = _StatementReader(TokenCursor(list(tokens(sql, sql_mode)), database))
    statement = parser.statement()
    if not fold:
        return statement
    effects = tuple(
        replace(effect, table=_lower_case(effect.table)) for effect in statement.effects
    )
    dropped = statement.database
    return replace(
        statement, effects=effects, database=None if dropped is None else dropped.lower()
    )


def _lower_case(table: TableName) -> TableName:
    return TableName(table.namespace.lower(), table.name.lower())


# ruff: noqa: SIM905
_WRITES = frozenset("INSERT REPLACE UPDATE DELETE LOAD WITH CALL DO SELECT VALUES".split())


class _StatementReader:
    def __init__(self, tokens: TokenCursor) -> None:
        self._tokens = tokens

    def statement(self) -> Statement:
        if self._tokens.take("SET") and self._tokens.take(
            "STATEMENT"
        ):  # MariaDB: SET STATEMENT … FOR …
            while not self._tokens.ended and not self._tokens.take("FOR"):
                self._tokens.at += 1
        else:
            self._tokens.at = 0
        if self._tokens.take("ANALYZE") and self._tokens.take(
            "FORMAT"
        ):  # MariaDB: ANALYZE FORMAT=JSON UPDATE …
            self._tokens.take("=")
            self._tokens.at += 1
        first = self._tokens.word()
        self._tokens.at += 1
        if first == "TRUNCATE":
            self._tokens.take("TABLE")
            return self._single_effect(Effect.TRUNCATED)
        if first == "CREATE":
            return self._create()
        if first == "ALTER":
            return AlterTable(self._tokens).statement()
        if first == "DROP":
            return self._drop()
        if first == "RENAME":
            return self._rename()
        if first in ("DELETE", "UPDATE", "INSERT", "REPLACE"):
            return self._write(first)
        if first == "LOAD":
            return self._load()
        if first in _WRITES:
            return Statement(unclear=True)
        return Statement()

    def _create(self) -> Statement:
        replaces = self._tokens.take("OR") and self._tokens.take("REPLACE")
        if self._tokens.take("TEMPORARY"):
            if not self._tokens.take("TABLE", "SEQUENCE"):
                return Statement()
            if self._tokens.take("IF"):
                self._tokens.take("NOT")
                self._tokens.take("EXISTS")
            made = self._single_effect(Effect.TEMPORARY_CREATED)
            filled = self._has_rows()
            return replace(made, effects=tuple(replace(e, filled=filled) for e in made.effects))
        while self._tokens.word() in (
            "ONLINE",
            "OFFLINE",
            "UNIQUE",
            "FULLTEXT",
            "SPATIAL",
            "VECTOR",
        ):
            self._tokens.at += 1
        if self._tokens.word() == "INDEX":
            return self._index_statement()
        if not self._tokens.take("TABLE"):
            return Statement()
        effect = Effect.REPLACED if replaces else Effect.CREATED
        if self._tokens.take("IF") and self._tokens.take("NOT") and self._tokens.take("EXISTS"):
            effect = Effect.CREATED_IF_MISSING
        reason = "the table was replaced by a new one" if replaces else None
        table = self._tokens.table()
        if table is None:
            return Statement()
        filled = self._has_rows()
        if reason is None and filled:
            reason = "the log holds the statement that made its rows, and not them"
        return Statement((TableEffect(table, effect, reason, filled=filled),))

    def _has_rows(self) -> bool:
        """Return True if CREATE TABLE continues with SELECT, VALUES (of rows, not of a partition)
        or TABLE.

        The server omits that for rows that it logs as row events.
        """
        words = [token.upper for token in self._tokens.tokens[self._tokens.at :]]
        return any(
            word in ("SELECT", "TABLE") or (word == "VALUES" and following not in ("LESS", "IN"))
            for word, following in pairwise([*words, ""])
        )

    def _drop(self) -> Statement:
        temporary = self._tokens.take("TEMPORARY")
        if self._tokens.take("DATABASE", "SCHEMA"):
            self._tokens.if_exists()
            name = self._tokens.name()
            return Statement() if name is None else Statement(database=name)
        if self._tokens.word() == "INDEX":
            return self._index_statement()
        effect = Effect.SEQUENCE_DROPPED if self._tokens.word() == "SEQUENCE" else Effect.DROPPED
        if temporary:
            effect = Effect.TEMPORARY_DROPPED
        if not self._tokens.take("TABLE", "TABLES", "SEQUENCE"):
            return Statement()
        self._tokens.if_exists()
        found = []
        while (table := self._tokens.table()) is not None:
            found.append(TableEffect(table, effect))
            if not self._tokens.take(","):
                break
        return Statement(tuple(found))

    def _rename(self) -> Statement:
        if not self._tokens.take("TABLE", "TABLES"):
            return Statement()
        self._tokens.if_exists()
        found: list[TableEffect] = []
        while (old := self._tokens.table()) is not None:
            if self._tokens.take("WAIT"):
                self._tokens.at += 1
            self._tokens.take("NOWAIT")
            self._tokens.take("TO")
            new = self._tokens.table()
            if new is None:
                break
            found += rename_effects(old, new)
            if not self._tokens.take(","):
                break
        return Statement(tuple(found), renames=True)

    def _index_statement(self) -> Statement:
        """Parse CREATE or DROP INDEX name ON table."""
        self._tokens.at += 1
        if self._tokens.names_primary():
            return self._single_effect(Effect.ALTERED) if self._tokens.take("ON") else Statement()
        while not self._tokens.ended:
            if self._tokens.take("ON"):
                return self._single_effect(Effect.KEPT)
            self._tokens.at += 1
        return Statement()

    def _write(self, first: str) -> Statement:
        """Parse a statement that changes rows, of one table in its simplest form."""
        while self._tokens.word() in (
            "LOW_PRIORITY", "QUICK", "IGNORE", "DELAYED", "HIGH_PRIORITY", "INTO", "FROM",
        ):  # fmt: skip
            self._tokens.at += 1
        table = self._tokens.table()
        if table is None:
            return Statement(unclear=True)
        rest = self._tokens.word()
        if first == "DELETE" and self._tokens.ended:
            # The server writes this when it finds a MEMORY table empty after a restart.
            return Statement((TableEffect(table, Effect.EMPTIED),))
        if first == "DELETE" and rest not in ("WHERE", "ORDER", "LIMIT", "PARTITION", "RETURNING"):
            return Statement(unclear=True)
        if first == "UPDATE" and rest != "SET":
            return Statement(unclear=True)
        return Statement((TableEffect(table, Effect.WRITTEN),))

    def _load(self) -> Statement:
        """Parse LOAD DATA … INTO TABLE …"""
        while not self._tokens.ended:
            if self._tokens.take("INTO") and self._tokens.take("TABLE"):
                found = self._single_effect(Effect.WRITTEN)
                return found if found.effects else Statement(unclear=True)
            self._tokens.at += 1
        return Statement(unclear=True)

    def _single_effect(self, effect: Effect, reason: str | None = None) -> Statement:
        table = self._tokens.table()
        return Statement() if table is None else Statement((TableEffect(table, effect, reason),))
