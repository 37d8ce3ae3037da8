"""The effects of a statement on tables: the parser's results."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tidelog.model.schema import TableName


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
