"""Parses the effects of logged statements on tables, with only as much SQL as that needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from itertools import pairwise

from tidelog.model.schema import TableName

# The effects of a statement on tables: the parser's results.


class Effect(Enum):
    """What a statement did to one table."""

    CREATED = "created"
    CREATED_IF_MISSING = "created if missing"
    REPLACED = "replaced"
    DROPPED = "dropped"
    TRUNCATED = "truncated"
    RENAMED_AWAY = "renamed away"
    RENAMED_HERE = "renamed here"
    ALTERED = "altered"  # its columns may have changed
    KEPT = "kept"  # DDL that changes no columns or rows: an index, OPTIMIZE
    EMPTIED = "emptied"  # by a DELETE of all rows, which may have been rolled back
    WRITTEN = "written"  # the statement itself changed rows
    SEQUENCE_DROPPED = "sequence dropped"  # MariaDB's, which the log shows as a table
    TEMPORARY_CREATED = "temporary created"  # visible only to the session
    TEMPORARY_DROPPED = "temporary dropped"


# After these effects the table's columns may differ.
RESHAPES = frozenset(
    {
        Effect.CREATED,
        Effect.CREATED_IF_MISSING,
        Effect.REPLACED,
        Effect.DROPPED,
        Effect.RENAMED_AWAY,
        Effect.RENAMED_HERE,
        Effect.ALTERED,
    }
)


@dataclass(frozen=True, slots=True)
class TableEffect:
    """The effect of a statement on one table.

    Attributes:
        table: the table.
        effect: the effect.
        unlogged: why its rows may have changed without row events; None if they did not.
        added: the added columns, which may be NULL in all rows: a copy may hold values of an
            earlier column of the same name.
        filled: True if the table was created with the rows of a query.
    """

    table: TableName
    effect: Effect
    unlogged: str | None = None
    added: tuple[str, ...] = ()
    filled: bool = False


@dataclass(frozen=True, slots=True)
class Statement:
    """The effects of a statement.

    Attributes:
        effects: the effects on single tables.
        database: the database whose tables were all dropped.
        unclear: True if it writes rows of unknown tables.
        renames: True if it only renames tables; the effects are then pairs (old name, new name).
    """

    effects: tuple[TableEffect, ...] = ()
    database: str | None = None
    unclear: bool = False
    renames: bool = False

    def reshapes(self, table: TableName) -> bool:
        """Return True if the table's columns may differ after it."""
        if self.database == table.namespace:
            return True
        return any(e.table == table and e.effect in RESHAPES for e in self.effects)


def rename_effects(old: TableName, new: TableName) -> list[TableEffect]:
    """The pair of effects for a renamed table, as `Statement` has it."""
    return [
        TableEffect(old, Effect.RENAMED_AWAY),
        TableEffect(new, Effect.RENAMED_HERE, f"it was {old} before"),
    ]


def renames_of(statement: Statement) -> list[tuple[TableName, TableName]]:
    """The (old name, new name) pairs of RENAME TABLE, in order."""
    pairs = zip(statement.effects[::2], statement.effects[1::2], strict=True)
    return [(old.table, new.table) for old, new in pairs]


# Words, names and marks of a statement, and a cursor over them.


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a statement. ``kind``: ``word`` (upper-cased text in ``upper``), ``name`` (in
    backticks or quotes), ``text`` (a literal), ``mark`` (one character).
    """

    kind: str
    text: str
    upper: str


# Bits of sql_mode: double quotes delimit names; a backslash does not escape.
_ANSI_QUOTES, _NO_BACKSLASH_ESCAPES = 1 << 2, 1 << 20

# Possessive quantifiers avoid backtracking: any user of the server may write a statement, and one
# that this reads differently from the server must still take linear time.
_ESCAPED = {
    quote: rf"[^{quote}\\]*+(?:(?:\\(?:(?s:.)|\Z)|{quote}{quote})[^{quote}\\]*+)*+"
    for quote in "\"'"
}
_PLAIN = {quote: rf"[^{quote}]*+(?:{quote}{quote}[^{quote}]*+)*+" for quote in "\"'`"}


@cache
def _token(sql_mode: int) -> re.Pattern[str]:
    """The pattern of a token under these two bits of sql_mode."""
    texts = _PLAIN if sql_mode & _NO_BACKSLASH_ESCAPES else _ESCAPED
    double = _PLAIN if sql_mode & _ANSI_QUOTES else texts
    return re.compile(
        rf"""
        (?P<space>\s+|\#[^\n]*|--(?=[\s\x00-\x1f\x7f]|\Z)[^\n]*)
        |(?P<open>/\*(?:M?!)\d*)|(?P<comment>/\*(?s:.*?)(?:\*/|\Z))|(?P<close>\*/)
        |`(?P<name>{_PLAIN["`"]})(?:`|\Z)
        |"(?P<double>{double['"']})(?:"|\Z)
        |'(?P<text>{texts["'"]})(?:'|\Z)
        |(?P<word>[\w$\u0080-\U0010ffff]+)
        |(?P<mark>(?s:.))
        """,
        re.VERBOSE,
    )


def tokens(sql: str, sql_mode: int = 0) -> Iterator[Token]:
    """The statement's tokens without comments; the content of ``/*! … */`` counts as code."""
    for found in _token(sql_mode & (_ANSI_QUOTES | _NO_BACKSLASH_ESCAPES)).finditer(sql):
        kind = found.lastgroup
        if kind == "name":
            yield Token("name", found["name"].replace("``", "`"), "")
        elif kind == "double":  # a literal, or a name under ANSI_QUOTES
            yield Token("name", found["double"].replace('""', '"'), "")
        elif kind == "text":
            yield Token("text", found["text"], "")
        elif kind == "word":
            yield Token("word", found["word"], found["word"].upper())
        elif kind == "mark":
            yield Token("mark", found["mark"], found["mark"])


class TokenCursor:
    """Reads a statement token by token.

    Attributes:
        tokens: all tokens.
        at: the current token's index; ``len(tokens)`` at the end.
    """

    def __init__(self, tokens: list[Token], database: str) -> None:
        self.tokens = tokens
        self.at = 0
        self._database = database

    @property
    def ended(self) -> bool:
        return self.at >= len(self.tokens)

    def word(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.tokens[at].upper if at < len(self.tokens) else ""

    def take(self, *words: str) -> bool:
        if self.word() in words and self.word():
            self.at += 1
            return True
        return False

    def if_exists(self) -> None:
        if self.take("IF"):
            self.take("EXISTS")

    def name(self) -> str | None:
        if self.at >= len(self.tokens) or self.tokens[self.at].kind not in ("word", "name"):
            return None
        self.at += 1
        return self.tokens[self.at - 1].text

    def table(self) -> TableName | None:
        first = self.name()
        if first is None:
            return None
        if self.take("."):
            second = self.name()
            return None if second is None else TableName(first, second)
        return TableName(self._database, first)

    def names_primary(self) -> bool:
        """Return True if the name of a primary key follows."""
        self.if_exists()
        name = self.name()
        return name is not None and name.upper() == "PRIMARY"


# ALTER TABLE, action by action.

# The first words of ALTER TABLE's actions that do not change rows or columns.
# ruff: noqa: SIM905
_HARMLESS = frozenset(
    "ALGORITHM LOCK WAIT NOWAIT COMMENT AUTO_INCREMENT AVG_ROW_LENGTH CHECKSUM COMPRESSION "
    "CONNECTION DELAY_KEY_WRITE ENCRYPTION ENGINE INSERT_METHOD KEY_BLOCK_SIZE MAX_ROWS MIN_ROWS "
    "PACK_KEYS PASSWORD ROW_FORMAT STATS_AUTO_RECALC STATS_PERSISTENT STATS_SAMPLE_PAGES "
    "TABLESPACE UNION ENABLE DISABLE FORCE ORDER DEFAULT CHARACTER CHARSET COLLATE REORGANIZE "
    "COALESCE REMOVE ANALYZE CHECK OPTIMIZE REBUILD REPAIR PARTITION WITH WITHOUT VALIDATION "
    "SECONDARY_LOAD SECONDARY_UNLOAD UPGRADE".split()
)
_INDEX_WORDS = frozenset(
    "INDEX KEY UNIQUE FULLTEXT SPATIAL CONSTRAINT FOREIGN CHECK PARTITION".split()
)
# Neither word is reserved: a column may have this name.
_VERSIONING = frozenset({("PERIOD", "FOR"), ("SYSTEM", "VERSIONING")})


class AlterTable:
    """Parses one statement from its second word."""

    def __init__(self, tokens: TokenCursor) -> None:
        self._tokens = tokens
        self._added: list[str] = []

    def statement(self) -> Statement:
        """The statement's effects, without the word ALTER."""
        ignores = False
        while self._tokens.take("ONLINE", "OFFLINE") or self._tokens.word() == "IGNORE":
            ignores |= self._tokens.take("IGNORE")
        if not self._tokens.take("TABLE"):
            return Statement()
        self._tokens.if_exists()
        table = self._tokens.table()
        if table is None:
            return Statement()
        if self._tokens.take("WAIT"):
            self._tokens.at += 1
        self._tokens.take("NOWAIT")
        effect, reasons, others = Effect.KEPT, list[str](), list[TableEffect]()
        if ignores:  # MariaDB
            reasons.append("ALTER IGNORE drops rows that share a key, and changes values")
        for action in self._actions():
            self._tokens.at = action
            kind, reason, more = self._action(table)
            effect = kind if kind is not Effect.KEPT else effect
            others += more
            if reason is not None:
                reasons.append(reason)
            if self._last_action(action):
                break
        reason = reasons[0] if reasons else None
        return Statement((TableEffect(table, effect, reason, tuple(self._added)), *others))

    def _last_action(self, at: int) -> bool:
        """Return True if the action at ``at`` extends to the statement's end, including commas."""
        words = [token.upper for token in self._tokens.tokens[at : at + 2]]
        return words[0] == "ORDER" or words[1:] == ["PARTITION"]

    def _action(self, table: TableName) -> tuple[Effect, str | None, list[TableEffect]]:
        """One action of ALTER TABLE."""
        word = self._tokens.word()
        self._tokens.at += 1
        following = self._tokens.word()
        if word in ("TRUNCATE", "DROP", "EXCHANGE", "CONVERT") and following == "PARTITION":
            others = []
            if word in ("EXCHANGE", "CONVERT"):
                while not self._tokens.ended and not self._tokens.take("TABLE"):
                    self._tokens.at += 1
                other = self._tokens.table()
                if other is not None:
                    effect = Effect.KEPT if word == "EXCHANGE" else Effect.CREATED
                    others = [TableEffect(other, effect, "a partition was exchanged with it")]
            return Effect.KEPT, "a partition was truncated, dropped or exchanged", others
        if word == "CONVERT" and following == "TABLE":
            return Effect.KEPT, "a table was made one of its partitions", []
        if word in ("DISCARD", "IMPORT"):
            return Effect.KEPT, "its tablespace was discarded or imported", []
        if word == "PARTITION" or (word == "REMOVE" and following == "PARTITIONING"):
            return Effect.KEPT, None, []
        if word == "RENAME":
            if following in ("INDEX", "KEY"):
                return Effect.KEPT, None, []
            if following == "COLUMN":
                return Effect.ALTERED, "a column was renamed", []
            self._tokens.take("TO", "AS", "=")
            new = self._tokens.table()
            if new is None:
                return Effect.ALTERED, None, []
            away, here = rename_effects(table, new)
            return away.effect, None, [here]
        if word == "ADD":
            return self._add()
        if word == "DROP":
            if following in ("INDEX", "KEY", "CONSTRAINT", "FOREIGN", "CHECK"):
                self._tokens.at += 1
                return (Effect.ALTERED if self._tokens.names_primary() else Effect.KEPT), None, []
            if following == "SYSTEM":
                return Effect.ALTERED, "its versions were dropped", []
            return Effect.ALTERED, None, []
        if word == "ALTER":  # a column's default, an index's visibility
            return Effect.KEPT, None, []
        if word in _HARMLESS:
            return Effect.KEPT, None, []
        if word in ("MODIFY", "CHANGE", "CONVERT"):
            return Effect.ALTERED, "a column's type was changed", []
        return Effect.ALTERED, "it was altered", []

    def _add(self) -> tuple[Effect, str | None, list[TableEffect]]:
        word = self._tokens.word()
        words = [token.upper for token in self._action_tokens()]
        # ADD CONSTRAINT [name] PRIMARY KEY …
        if word == "PRIMARY" or (word == "CONSTRAINT" and "PRIMARY" in words[1:3]):
            return Effect.ALTERED, None, []
        if not self._is_column():
            if (word, self._tokens.word(1)) in _VERSIONING:
                return Effect.ALTERED, None, []
            if word in _INDEX_WORDS or (
                word == "VECTOR" and self._tokens.word(1) in ("INDEX", "KEY")
            ):
                return Effect.KEPT, None, []
        self._added += self._added_columns()
        for i, one in enumerate(words):
            following = words[i + 1] if i + 1 < len(words) else ""
            filled = one == "DEFAULT" and following != "NULL"
            filled |= one == "NOT" and following == "NULL"
            filled |= one in ("AS", "GENERATED", "AUTO_INCREMENT", "SERIAL", "PRIMARY")
            # Without explicit_defaults_for_timestamp it has a default that the statement omits.
            filled |= one == "TIMESTAMP" and "NULL" not in words[i:]
            if filled:
                return Effect.ALTERED, "a column with values in it was added", []
        return Effect.ALTERED, None, []

    def _added_columns(self) -> list[str]:
        """The columns of ``ADD [COLUMN] [IF NOT EXISTS] name …``, or of a list in brackets."""
        found = list(self._action_tokens())
        at = int(bool(found) and found[0].upper == "COLUMN")
        if [token.upper for token in found[at : at + 3]] == ["IF", "NOT", "EXISTS"]:
            at += 3
        if at >= len(found):
            return []
        if (found[at].kind, found[at].text) != ("mark", "("):
            return [found[at].text]
        names, depth = [], 0
        for before, token in pairwise(found[at:]):
            text = before.text if before.kind == "mark" else ""
            depth += (text == "(") - (text == ")")
            if depth == 1 and text in ("(", ","):
                names.append(token.text)
        return names

    def _is_column(self) -> bool:
        """Return True for ADD COLUMN with a quoted name."""
        return not self._tokens.ended and self._tokens.tokens[self._tokens.at].kind != "word"

    def _actions(self) -> Iterator[int]:
        """The indexes of the tokens where ALTER TABLE's actions begin."""
        depth, begins = 0, True
        for at in range(self._tokens.at, len(self._tokens.tokens)):
            if begins:
                yield at
                begins = False
            text = self._tokens.tokens[at].text if self._tokens.tokens[at].kind == "mark" else ""
            depth += (text == "(") - (text == ")")
            begins = text == "," and depth == 0

    def _action_tokens(self) -> Iterator[Token]:
        depth = 0
        for token in self._tokens.tokens[self._tokens.at :]:
            text = token.text if token.kind == "mark" else ""
            depth += (text == "(") - (text == ")")
            if text == "," and depth == 0:
                return
            yield token


# Statements: which tables they name, and their effects on them.


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
        replace(effect, table=effect.table.lower_case()) for effect in statement.effects
    )
    dropped = statement.database
    return replace(
        statement, effects=effects, database=None if dropped is None else dropped.lower()
    )


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
        or TABLE. The server omits that for rows that it logs as row events.
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

    def _single_effect(self, effect: Effect) -> Statement:
        table = self._tokens.table()
        return Statement() if table is None else Statement((TableEffect(table, effect),))
