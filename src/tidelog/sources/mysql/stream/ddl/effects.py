"""What a statement does to tables: the values that reading it gives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tidelog.model.schema import TableName


class Effect(Enum):
    """What happened to one table."""

    CREATED = "created"
    CREATED_IF_MISSING = "created if missing"
    REPLACED = "replaced"
    DROPPED = "dropped"
    TRUNCATED = "truncated"
    RENAMED_AWAY = "renamed away"
    RENAMED_HERE = "renamed here"
    ALTERED = "altered"  # its columns may be others now
    KEPT = "kept"  # DDL that leaves columns and rows as they are: an index, OPTIMIZE
    EMPTIED = "emptied"  # by a DELETE of all rows, which may have been rolled back
    WRITTEN = "written"  # rows were changed by the statement itself
    SEQUENCE_DROPPED = "sequence dropped"  # MariaDB's, which the log shows as a table
    TEMPORARY_CREATED = "temporary created"  # for the session alone
    TEMPORARY_DROPPED = "temporary dropped"


# From here on the table's columns may be others.
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
    """One table and what a statement does to it.

    ``unlogged``: why its rows may have changed without row events; None if they did not. ``added``:
    the columns that are new, which may be NULL in all rows: a copy may hold values under such a
    name, of a column that was there before. ``filled``: it was created with the rows of a query.
    """

    table: TableName
    effect: Effect
    unlogged: str | None = None
    added: tuple[str, ...] = ()
    filled: bool = False


@dataclass(frozen=True, slots=True)
class Statement:
    """What a statement does. ``database``: all tables of it were dropped. ``unclear``: it writes
    rows, but its tables can't be told. ``renames``: it gives names and does nothing else; effects
    are in pairs, from and to, one pair after the other.
    """

    effects: tuple[TableEffect, ...] = ()
    database: str | None = None
    unclear: bool = False
    renames: bool = False

    def reshapes(self, table: TableName) -> bool:
        """May the table's columns be others after it?"""
        if self.database == table.namespace:
            return True
        return any(e.table == table and e.effect in RESHAPES for e in self.effects)


def renamed(old: TableName, new: TableName) -> list[TableEffect]:
    """What giving a table another name does: the pair that it is in a `Statement`."""
    return [
        TableEffect(old, Effect.RENAMED_AWAY),
        TableEffect(new, Effect.RENAMED_HERE, f"it was {old} before"),
    ]


def renames_of(statement: Statement) -> list[tuple[TableName, TableName]]:
    """(old name, new name)s of RENAME TABLE, in order."""
    pairs = zip(statement.effects[::2], statement.effects[1::2], strict=True)
    return [(old.table, new.table) for old, new in pairs]
