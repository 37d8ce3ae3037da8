"""Inputs and results of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidelog.errors import ChunkError
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import ChunkRequest, Digest, Output, TargetTable
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
    """The result of the comparison of one table; ``keys`` are for repair, not for logs.

    Attributes:
        equal: whether nothing differs.
        unsettled: rows that changed whenever they were read.
        method: ``checksum``, or ``rows`` if all rows were read; ``because`` is the reason.
        ranges: ranges that were summed up.
        ranges_read: those of them that were read row by row.
        left_out: whether the output leaves the table out now; ``note`` says why.
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
    left_out: bool | None = None


@dataclass(frozen=True)
class Copy:
    """An output's copy of a table.

    Attributes:
        target: its columns and key, after the steps.
        steps: the steps that convert the source's rows to its rows.
        columns: returns the names of the copy's columns; None if there is no such table.
        frame: returns the rows, at least those of a range of the key; None if there is no such
            table. Their state is that of the call, or of the computation of the frame.
        committed: returns the offset below which everything of the table is in the copy now.
        sources: returns the rows of at least a range, as tasks can read them: batches of the
            target's columns, in its order and types. None: only Spark can read them.
        left_out: returns why the output leaves the table out now; None if it does not.
    """

    target: TargetTable
    steps: tuple[Step, ...]
    columns: Callable[[], Collection[str] | None]
    frame: Callable[[Range], DataFrame | None]
    committed: Callable[[], int]
    sources: Callable[[Range], Sequence[RowSource] | None] = lambda _: None
    left_out: Callable[[], str | None] = lambda: None


class ReadableOutput(Output, Protocol):
    """An output that reads its copies itself."""

    def table_of(self, schema: TableSchema) -> TargetTable:
        """Return the table that it writes the source's table to."""
        ...

    def columns(self, table: TableName) -> Collection[str] | None:
        """See `Copy.columns`."""
        ...

    def read(self, target: TargetTable, part: Range) -> DataFrame | None:
        """See `Copy.frame`."""
        ...

    def row_sources(self, target: TargetTable, part: Range) -> Sequence[RowSource] | None:
        """See `Copy.sources`."""
        ...


@dataclass(frozen=True)
class SourceRanges:
    """Ranges of the key of a table of the source, and the columns to sum up."""

    schema: TableSchema
    columns: tuple[str, ...]
    ranges: tuple[Range, ...]


class Source(Protocol):
    """The source, together with its event log."""

    @property
    def open_reader(self) -> ReaderFactory:
        """Opens chunk readers on executors."""
        ...

    def why_not(self, schema: TableSchema, columns: Sequence[str]) -> str | None: ...

    def boundaries(
        self, requests: Sequence[ChunkRequest], count: int
    ) -> list[list[Key] | ChunkError]:
        """Return, for each request, the result of `tidelog.ports.DigestReader.boundaries`, or its
        error.
        """
        ...

    def digests(
        self, tables: Sequence[SourceRanges]
    ) -> Callable[[], list[list[Digest] | ChunkError]]:
        """Start to sum up; the returned function waits for the digests of each table's ranges, or
        for the error.
        """
        ...

    def report_stage(self, table: TableName, stage: str) -> None:
        """Report the current stage to the user; it is shown until the next one."""
        ...

    def caught_up(self, copies: Sequence[Copy]) -> list[bool]:
        """Wait until each copy has all that is committed now; False: it does not arrive."""
        ...

    def watch(self, table: TableName, copy: Copy) -> Callable[[SparkSession], DataFrame | bool]:
        """Call it before rows are read, and the function that it returns after that: it returns the
        keys for which these reads prove nothing, like `tidelog.spark.changed_keys.changed_keys`.
        """
        ...
