"""Parses ALTER TABLE, action by action."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tidelog.model.schema import TableName
from tidelog.sources.mysql.stream.ddl.effects import Effect, Statement, TableEffect, rename_effects
from tidelog.sources.mysql.stream.ddl.tokens import Token, TokenCursor

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
