"""What tables the source has, what they look like now, and how hard the source works."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tidelog.model.schema import TableName, TableSchema


@dataclass(frozen=True, slots=True)
class Retention:
    """How long the source keeps the part of its log that the reader still needs.

    Attributes:
        retained_bytes: what it keeps for the reader now; None: not known.
        spare_bytes: what may still be written until it removes what the reader needs; None: it
            never does so by size, or it is not known.
        kept_s: it removes what is older, whoever needs it; None: it does not do so by age.
    """

    retained_bytes: int | None = None
    spare_bytes: int | None = None
    kept_s: float | None = None


@dataclass(frozen=True, slots=True)
class SourceLoad:
    """The source's load now; None where it is not known.

    Attributes:
        lag_bytes: bytes of its log that the reader has not read yet.
        replica_lag_s: seconds that the slowest replica is behind.
        commits: a counter of committed transactions.
        end: the position of the log's end.
        reached: the reader's position as the server writes it, e.g. ``0/208C0C0``.
        retention: of the log.
    """

    lag_bytes: int
    end: int
    reached: str
    retention: Retention
    replica_lag_s: float | None = None
    commits: int | None = None


@dataclass(frozen=True, slots=True)
class TableShape:
    """What the catalogue says of a table now, to notice changes of rows without row events.

    ``storage``: how the table is stored, without spaces; only for `Catalogue.rows_may_differ`.
    ``key_spelling``: how the texts of its keys are made, if not as ever; where it is another one
    than when a dump began, the bounds that the dump has read up to mean other rows.
    """

    schema: TableSchema
    storage: str
    estimated_rows: int
    estimated_bytes: int
    key_spelling: str = ""


class Catalogue(Protocol):
    """Which tables there are. Thread-safe; takes no lock that a writer waits for."""

    def tables(self, patterns: Sequence[str]) -> list[TableName]:
        """The tables that match, e.g. ``public.*``, sorted; none of the system's or Tidelog's."""
        ...

    def shape(self, table: TableName) -> TableShape | None:
        """The table now; None if there is none. Raises TableRefusedError if the table can't be
        captured or dumped as it is.
        """
        ...

    def estimated_rows(self, tables: Sequence[TableName]) -> dict[TableName, int]:
        """Rows by the source's statistics, of those of the tables that it has. Cheap: reads no
        table.
        """
        ...

    def check_condition(self, table: TableName, condition: str) -> None:
        """Raises ChunkRefusedError if the server refuses the dump's condition, e.g. because of an
        unknown column. Reads no row. Raises nothing if the condition can't be checked.
        """
        ...

    def stamp(self) -> str | None:
        """A text that changes whenever the `shape` of any table changes, or whether it is
        published. Much cheaper than `versions`. None: the source has no such text.
        """
        ...

    def versions(self, patterns: Sequence[str]) -> dict[TableName, str]:
        """The `tables`, each with a text that changes whenever its `shape` changes (estimates
        aside). A few queries for all tables.
        """
        ...

    def rows_may_differ(self, before: str, after: str) -> bool:
        """May rows have changed without row events between two `TableShape.storage`s of a table?
        True e.g. if it was rewritten, or a partition was truncated, attached or detached.
        """
        ...

    def position(self) -> int:
        """The end of the source's log: every transaction committed by now lies before it."""
        ...

    def load(self, reached: int) -> SourceLoad:
        """The source's load. ``reached``: the position up to which its log has been read."""
        ...

    def close(self) -> None: ...
