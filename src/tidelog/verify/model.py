"""What is compared, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tidelog.errors import ChunkError
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import ChunkRequest, Digest, TargetTable
from tidelog.spark.source_rows import ReaderFactory
from tidelog.spark.transforms import Step
from tidelog.verify.range_sums import RowSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Key = tuple[str | None, ...]
Range = tuple[Key | None, Key | None]
"""``after < key <= upto``; None: open."""

BY_CHECKSUM, BY_ROWS = "checksum", "rows"
ALL: Range = (None, None)


@dataclass(slots=True)
class TableReport:
    """What the comparison of one table found; ``keys`` are for repair, not for logs.

    ``equal``: nothing differs. ``unsettled`` rows changed whenever they were looked at. ``method``:
    ``checksum``, or ``rows`` where all were read; ``because`` says why. ``ranges`` were summed up,
    ``ranges_read`` of them read row by row.
    """

    table: str
    equal: bool
    rows: int = 0
    missing: int = 0
    surplus: int = 0
    different: int = 0
    unsettled: int = 0
    keys: tuple[Key, ...] = ()
    method: str = BY_CHECKSUM
    because: str = ""
    ranges: int = 0
    ranges_read: int = 0
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__} | {"keys": list(self.keys)}


@dataclass(frozen=True)
class Copy:
    """An output's copy of a table.

    Attributes:
        target: its columns and key, after the steps.
        steps: what makes its rows of the source's.
        columns: names of the copy's columns; None if there is no such table.
        frame: the rows, those of a range of the key at least; None if there is no such table. They
            are as of when the frame is made, or as of when it is computed.
        committed: the offset below which everything of the table is in the copy by now.
        sources: the rows of a range at least, as tasks can read them: batches of the target's
            columns, in its order and types. None: Spark has to read them.
    """

    target: TargetTable
    steps: tuple[Step, ...]
    columns: Callable[[], Collection[str] | None]
    frame: Callable[[Range], DataFrame | None]
    committed: Callable[[], int]
    sources: Callable[[Range], Sequence[RowSource] | None] = lambda _: None


@dataclass(frozen=True)
class Ranges:
    """Of a table of the source, columns of these ranges of the key."""

    schema: TableSchema
    columns: tuple[str, ...]
    ranges: tuple[Range, ...]


class Source(Protocol):
    """What is asked of the source and the event log beside."""

    @property
    def open_reader(self) -> ReaderFactory:
        """Opens chunk readers on executors."""
        ...

    def why_not(self, schema: TableSchema, columns: Sequence[str]) -> str | None: ...

    def boundaries(
        self, requests: Sequence[ChunkRequest], count: int
    ) -> list[list[Key] | ChunkError]:
        """As `tidelog.ports.DigestReader.boundaries`, or the error, for each request."""
        ...

    def digests(self, tables: Sequence[Ranges]) -> Callable[[], list[list[Digest] | ChunkError]]:
        """Begin to sum up; what it returns waits for the digests of each table's ranges, or for the
        error.
        """
        ...

    def tell(self, table: TableName, stage: str) -> None:
        """What is done from now on, for whoever waits: it is shown until the next is told."""
        ...

    def caught_up(self, copies: Sequence[Copy]) -> list[bool]:
        """Wait until each copy has what is committed by now; False if it does not come."""
        ...

    def watch(self, table: TableName, copy: Copy) -> Callable[[SparkSession], DataFrame | bool]:
        """Call it before rows are read, and what it returns when they were: the keys that can't be
        judged by what was read, as `tidelog.spark.changes.changed_keys.changed_keys` gives them.
        """
        ...
