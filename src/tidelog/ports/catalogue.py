"""The catalogue of the source: its tables, their schemas, and the source's load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tidelog.model.schema import TableName, TableSchema


@dataclass(frozen=True, slots=True)
class Retention:
    """How long the source keeps the part of its log that the reader still needs.

    Attributes:
        retained_bytes: the log that it keeps for the reader now; None: not known.
        spare_bytes: the log that may still be written until it removes what the reader needs; None:
            it never does so by size, or it is not known.
        kept_s: the age at which it removes log, whoever needs it; None: it does not do so by age.
    """

    retained_bytes: int | None = None
    spare_bytes: int | None = None
    kept_s: float | None = None


@dataclass(frozen=True, slots=True)
class SourceLoad:
    """The source's load now; None where it is not known.

    Attributes:
        lag_bytes: the bytes of its log that the reader has not read yet.
        replica_lag_s: the seconds that the slowest replica is behind.
        commits: a counter of committed transactions.
        end: the position of the log's end.
        reached: the reader's position in the server's form, e.g. ``0/208C0C0``.
        retention: the retention of the log.
    """

    lag_bytes: int
    end: int
    reached: str
    retention: Retention
    replica_lag_s: float | None = None
    commits: int | None = None


@dataclass(frozen=True, slots=True)
class TableShape:
    """The catalogue's description of a table, to notice changes of rows without row events.

    ``storage``: how the table is stored, without spaces; only for `Catalogue.rows_may_differ`.
    ``key_spelling``: how the texts of its keys are formed, if unusual. If it changes after a dump
    began, the bounds that the dump has read mean other rows.
    """

    schema: TableSchema
    storage: str
    estimated_rows: int
    estimated_bytes: int
    key_spelling: str = ""


class Catalogue(Protocol):
    """The tables of the source. Thread-safe; takes no lock that a writer waits for."""

    def tables(self, patterns: Sequence[str]) -> list[TableName]:
        """Return the matching tables, e.g. of ``public.*``, sorted; no system tables, no metadata
        tables.
        """
        ...

    def shape(self, table: TableName) -> TableShape | None:
        """Return the table as it is now; None if there is none.

        Raises TableRefusedError if the table can't be captured or dumped as it is.
        """
        ...

    def columns(self, tables: Sequence[TableName]) -> dict[TableName, tuple[str, ...]]:
        """Return the names of all columns of those of the tables that exist, also excluded ones.

        A few queries for all tables.
        """
        ...

    def estimated_rows(self, tables: Sequence[TableName]) -> dict[TableName, int]:
        """Return the rows by the source's statistics, for those of the tables that it has.

        Cheap: reads no table.
        """
        ...

    def check_condition(self, table: TableName, condition: str) -> None:
        """Raise ChunkRefusedError if the server refuses the dump's condition.

        For example, because of an unknown column. Reads no row. Raises nothing if the condition
        can't be checked.
        """
        ...

    def stamp(self) -> str | None:
        """Return a text that changes with the `shape` of any table, or whether it is published.

        Much cheaper than `versions`. None: the source has no such text.
        """
        ...

    def versions(self, patterns: Sequence[str]) -> dict[TableName, str]:
        """Return the `tables`, each with a text that changes with its `shape` (without estimates).

        A few queries for all tables.
        """
        ...

    def rows_may_differ(self, before: str, after: str) -> bool:
        """Return whether rows may have changed without row events between two `TableShape.storage`.

        True e.g. if the table was rewritten, or a partition was truncated, attached or detached.
        """
        ...

    def position(self) -> int:
        """Return the end of the source's log: all transactions committed by now are before it."""
        ...

    def load(self, reached: int) -> SourceLoad:
        """Return the source's load. ``reached``: the position up to which its log has been read."""
        ...

    def close(self) -> None: ...
