"""The copies that outputs keep, as DataFrames, to be compared with their source."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast

from tidelog.app.pipeline.outputs import make_output
from tidelog.app.sources.kinds import source_kind
from tidelog.config import Config
from tidelog.config.source import MySqlSourceSection, PostgresSourceSection
from tidelog.model.patterns import matches
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.outputs.delivery_settings import transform_steps
from tidelog.outputs.registry import (
    DeltaSection,
    IcebergSection,
    MySqlSection,
    OutputSection,
    PostgresSection,
)
from tidelog.ports import ChunkReader, ChunkRequest, SourceId, TargetTable
from tidelog.sources.null_registry import NullRegistry

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.outputs.database.output import DatabaseOutput
    from tidelog.outputs.lake.delta.output import DeltaOutput
    from tidelog.outputs.lake.delta.reading import Bounds
    from tidelog.verify.model import Copy, Range
    from tidelog.verify.range_sums import RowSource


Lake = TypeVar("Lake", bound="DeltaSection | IcebergSection")
DatabaseCopySection = PostgresSection | MySqlSection


class OpenReader:
    """Opens chunk readers of a database, source or copy, on executors; holds the connection string,
    so it is never shown.
    """

    def __init__(self, config: Config) -> None:
        self._config = config

    def __repr__(self) -> str:
        return "OpenReader()"

    def __call__(self) -> ChunkReader:
        return source_kind(self._config).plain_reader(NullRegistry())


class Copies(Protocol):
    """The copies that one output keeps."""

    def of(self, schema: TableSchema) -> Copy:
        """The source's table's."""
        ...

    def close(self) -> None: ...


def has_copies(section: OutputSection) -> bool:
    """Does an output of this kind keep rows by key, which can be compared?"""
    return isinstance(section, DeltaSection | IcebergSection | PostgresSection | MySqlSection)


def is_compared(section: OutputSection, table: TableName) -> bool:
    """Does an output that `has_copies` keep one of the table? Tables of changes are none."""
    if isinstance(section, DeltaSection) and not section.keeps_copy(table):
        return False
    return matches(section.tables, table)


def copies(config: Config, section: OutputSection, spark: SparkSession, origin: SourceId) -> Copies:
    """The copies of an output that `has_copies`."""
    if isinstance(section, DeltaSection):
        return _DeltaCopies(config, section, spark, origin)
    if isinstance(section, IcebergSection):
        return _IcebergCopies(config, section, spark, origin)
    assert isinstance(section, PostgresSection | MySqlSection)
    return _DatabaseCopies(config, section, spark)


class _LakeCopies(ABC, Generic[Lake]):
    """Tables of a lake, which Spark reads itself."""

    def __init__(
        self, config: Config, section: Lake, spark: SparkSession, origin: SourceId
    ) -> None:
        self._section = section
        self._spark = spark
        self._origin = origin
        self._output = make_output(config, section, spark)

    def of(self, schema: TableSchema) -> Copy:
        from tidelog.spark.transforms import target_table
        from tidelog.verify.model import Copy

        steps = transform_steps(self._section)
        target = target_table(self._spark, schema, steps, self._origin, keyed=True)
        return Copy(
            target,
            steps,
            lambda: self._columns(target),
            lambda part: self._read(target, part),
            lambda: self._output.committed(schema.table) or 0,
            lambda part: self._row_sources(target, part),
        )

    def close(self) -> None:
        self._output.close()

    # See `tidelog.verify.model.Copy`.

    @abstractmethod
    def _columns(self, target: TargetTable) -> Collection[str] | None: ...

    @abstractmethod
    def _read(self, target: TargetTable, part: Range) -> DataFrame | None: ...

    def _row_sources(self, target: TargetTable, part: Range) -> Sequence[RowSource] | None:
        del target, part
        return None


class _DeltaCopies(_LakeCopies[DeltaSection]):
    @property
    def _delta(self) -> DeltaOutput:
        return cast("DeltaOutput", self._output)

    def _columns(self, target: TargetTable) -> Collection[str] | None:
        return self._delta.columns(target.source)

    def _read(self, target: TargetTable, part: Range) -> DataFrame | None:
        return self._delta.read(target, self._bounds(part))

    def _row_sources(self, target: TargetTable, part: Range) -> Sequence[RowSource] | None:
        return self._delta.row_sources(target, self._bounds(part))

    def _bounds(self, part: Range) -> Bounds:
        from tidelog.outputs.lake.delta.reading import bounds_of

        return bounds_of(*part)


class _IcebergCopies(_LakeCopies[IcebergSection]):
    def __init__(
        self, config: Config, section: IcebergSection, spark: SparkSession, origin: SourceId
    ) -> None:
        from tidelog.outputs.lake.iceberg.output import catalog_conf

        super().__init__(config, section, spark, origin)
        self._catalog, conf = catalog_conf(section.name, section.catalog_properties())
        for name, value in conf.items():
            spark.conf.set(name, value)

    def _columns(self, target: TargetTable) -> Collection[str] | None:
        found = self._read(target, (None, None))
        return None if found is None else found.columns

    def _read(self, target: TargetTable, part: Range) -> DataFrame | None:
        from pyspark.errors import AnalysisException

        from tidelog.outputs.lake.iceberg.table import DELETED
        from tidelog.outputs.lake.table import parts_of
        from tidelog.spark.transforms import quoted

        del part  # the caller's filter goes down to the lake's files
        name = [self._catalog, *parts_of(target.source, target.name)]
        try:
            found = self._spark.table(".".join(map(quoted, name)))
        except AnalysisException:
            return None
        if self._section.deletes == "soft":
            found = found.where(f"NOT coalesce({DELETED}, false)")
        return found


class _DatabaseCopies:
    """Read as a source is: by the chunk reader of its kind, on an executor."""

    def __init__(self, config: Config, section: DatabaseCopySection, spark: SparkSession) -> None:
        self._config = config
        self._section = section
        self._spark = spark

    def of(self, schema: TableSchema) -> Copy:
        from tidelog.outputs.database.layout import DELETED
        from tidelog.spark.source_rows import source_frame
        from tidelog.verify.model import Copy

        section, spark = self._section, self._spark
        output = self._output()
        try:
            target, place = output.target_of(schema)
        finally:
            output.close()
        there = _as_source(self._config, section, place)

        def kept_as() -> TableSchema | None:
            catalogue = source_kind(there).catalogue()
            try:
                shape = catalogue.shape(place)
            finally:
                catalogue.close()
            return None if shape is None else shape.schema

        def columns() -> Collection[str] | None:
            found = kept_as()
            return None if found is None else found.column_names

        def request(kept: TableSchema, part: Range) -> ChunkRequest:
            after, upto = part if kept.match_key == target.key else (None, None)
            return ChunkRequest(place, after=after, upto=upto)

        def frame(part: Range) -> DataFrame | None:
            kept = kept_as()
            if kept is None:
                return None
            found = source_frame(spark, OpenReader(there), kept, [request(kept, part)])
            found = _as_spelled(found, kept, target)
            if section.deletes == "soft":
                found = found.where(f"NOT coalesce(CAST({DELETED} AS BOOLEAN), false)")
            return found

        def row_sources(part: Range) -> Sequence[RowSource] | None:
            kept = kept_as()
            if kept is None or section.deletes == "soft" or not _same_types(kept, target):
                return None
            names = tuple(target.columns.names)
            return [_DatabaseRows(OpenReader(there), kept, request(kept, part), names)]

        def committed() -> int:
            output = self._output()  # anew: it remembers how far it was
            try:
                return output.committed(schema.table) or 0
            finally:
                output.close()

        return Copy(target, transform_steps(section), columns, frame, committed, row_sources)

    def close(self) -> None:
        pass

    def _output(self) -> DatabaseOutput:
        return cast("DatabaseOutput", make_output(self._config, self._section, self._spark))


@dataclass(frozen=True)
class _DatabaseRows:
    """`tidelog.verify.range_sums.RowSource` of a copy in a database."""

    open_reader: OpenReader
    schema: TableSchema
    request: ChunkRequest
    columns: tuple[str, ...]
    bytes: int = 1  # unknown

    def batches(self) -> Iterator[pa.RecordBatch]:
        from tidelog.spark.source_rows import read_rows

        for batch in read_rows(self.open_reader, self.schema, [self.request]):
            yield batch.select(self.columns)


def _same_types(kept: TableSchema, target: TargetTable) -> bool:
    """Does a copy hold the target's columns in their types, and as the source writes them?"""
    from tidelog.spark.formats.shapes import row_type
    from tidelog.spark.sessions.versions import arrow_schema

    if any(_bare(column) in _DIGITS and column.logical == "text" for column in kept.columns):
        return False
    held = {field.name: field.type for field in arrow_schema(row_type(kept))}
    return all(held.get(field.name) == field.type for field in target.columns)


# Types delivered as text that a copy in MySQL keeps with more digits than the source writes.
_DIGITS = ("time", "decimal")


def _bare(column: Column) -> str:
    return column.type_name.partition("(")[0]


def _as_spelled(rows: DataFrame, kept: TableSchema, target: TargetTable) -> DataFrame:
    """``rows`` of a copy in which times and numbers have the digits that the source writes: zeros
    behind them mean nothing.
    """
    from pyspark.sql import functions as f

    from tidelog.spark.transforms import quoted

    for column in kept.columns:
        source = target.unchanged.get(column.name)
        if source is None or column.logical != "text" or _bare(column) not in _DIGITS:
            continue
        digits = 0  # that are written at least: PostgreSQL leaves zeros away
        if kept.wire_format == target.schema.wire_format:
            found = re.search(r"\((?:\d+,)?(\d+)\)", source.type_name)
            digits = int(found[1]) if found else 0
        zeros = f"([.][0-9]{{{digits}}}[0-9]*?)0+$" if digits else "([.][0-9]*[1-9])0+$|[.]0+$"
        value = f.regexp_replace(f.col(quoted(column.name)), zeros, "$1")
        rows = rows.withColumn(column.name, value)
    return rows


def _as_source(config: Config, section: DatabaseCopySection, place: TableName) -> Config:
    options = {"kind": section.kind, "url": section.url, "tables": [str(place)]}
    kind = PostgresSourceSection if section.kind == "postgres" else MySqlSourceSection
    source = kind.model_validate(options)
    return config.model_copy(update={"source": source})
