"""The copies that outputs keep, as DataFrames, to be compared with their source."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast

from tidelog.app.pipeline.outputs import make_output
from tidelog.app.sources.kinds import source_kind
from tidelog.config import Config
from tidelog.config.source import MySqlSourceSection, PostgresSourceSection
from tidelog.model.patterns import matches
from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.deliveries import transform_steps
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
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.outputs.database.output import DatabaseOutput
    from tidelog.verify.compare import Copy
    from tidelog.verify.digests import Range


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

    deleted: str  # the column of soft deletes

    def __init__(
        self, config: Config, section: Lake, spark: SparkSession, origin: SourceId
    ) -> None:
        self._section = section
        self._spark = spark
        self._origin = origin
        self._output = make_output(config, section, spark)

    def of(self, schema: TableSchema) -> Copy:
        from tidelog.spark.transforms import target_table
        from tidelog.verify.compare import Copy

        steps = transform_steps(self._section)
        target = target_table(self._spark, schema, steps, self._origin, keyed=True)

        def frame(part: Range) -> DataFrame | None:
            found = self._read(target, part)
            if found is None:
                return None
            if self._section.deletes == "soft":
                found = found.where(f"NOT coalesce({self.deleted}, false)")
            return found

        return Copy(target, steps, frame, lambda: self._output.committed(schema.table) or 0)

    def close(self) -> None:
        self._output.close()

    @abstractmethod
    def _read(self, target: TargetTable, part: Range) -> DataFrame | None:
        """Rows of the copy of a table, those of the range at least; None: there is none."""


class _DeltaCopies(_LakeCopies[DeltaSection]):
    def __init__(
        self, config: Config, section: DeltaSection, spark: SparkSession, origin: SourceId
    ) -> None:
        from tidelog.outputs.lake.delta.table import DELETED

        super().__init__(config, section, spark, origin)
        self.deleted = DELETED

    def _read(self, target: TargetTable, part: Range) -> DataFrame | None:
        from tidelog.outputs.lake.delta.output import DeltaOutput
        from tidelog.outputs.lake.delta.reading import bounds_of

        assert isinstance(self._output, DeltaOutput)
        return self._output.read(target, bounds_of(*part))


class _IcebergCopies(_LakeCopies[IcebergSection]):
    def __init__(
        self, config: Config, section: IcebergSection, spark: SparkSession, origin: SourceId
    ) -> None:
        from tidelog.outputs.lake.iceberg.output import catalog_conf
        from tidelog.outputs.lake.iceberg.table import DELETED

        super().__init__(config, section, spark, origin)
        self.deleted = DELETED
        self._catalog, conf = catalog_conf(section.name, section.catalog_properties())
        for name, value in conf.items():
            spark.conf.set(name, value)

    def _read(self, target: TargetTable, part: Range) -> DataFrame | None:
        from pyspark.errors import AnalysisException

        from tidelog.outputs.lake.table import parts_of
        from tidelog.spark.transforms import quoted

        del part  # the caller's filter goes down to the lake's files
        name = [self._catalog, *parts_of(target.source, target.name)]
        try:
            return self._spark.table(".".join(map(quoted, name)))
        except AnalysisException:
            return None


class _DatabaseCopies:
    """Read as a source is: by the chunk reader of its kind, on an executor."""

    def __init__(self, config: Config, section: DatabaseCopySection, spark: SparkSession) -> None:
        self._config = config
        self._section = section
        self._spark = spark

    def of(self, schema: TableSchema) -> Copy:
        from tidelog.outputs.database.layout import DELETED
        from tidelog.spark.source_rows import source_frame
        from tidelog.verify.compare import Copy

        section, spark = self._section, self._spark
        output = self._output()
        try:
            target, place = output.target_of(schema)
        finally:
            output.close()
        there = _as_source(self._config, section, place)

        def frame(part: Range) -> DataFrame | None:
            catalogue = source_kind(there).catalogue()
            try:
                shape = catalogue.shape(place)
            finally:
                catalogue.close()
            if shape is None:
                return None
            after, upto = part if shape.schema.match_key == target.key else (None, None)
            request = ChunkRequest(place, after=after, upto=upto)
            found = source_frame(spark, OpenReader(there), shape.schema, [request])
            found = _as_spelled(found, shape.schema, target)
            if section.deletes == "soft":
                found = found.where(f"NOT coalesce(CAST({DELETED} AS BOOLEAN), false)")
            return found

        def committed() -> int:
            output = self._output()  # anew: it remembers how far it was
            try:
                return output.committed(schema.table) or 0
            finally:
                output.close()

        return Copy(target, transform_steps(section), frame, committed)

    def close(self) -> None:
        pass

    def _output(self) -> DatabaseOutput:
        return cast("DatabaseOutput", make_output(self._config, self._section, self._spark))


# Types delivered as text that a copy in MySQL keeps with more digits than the source writes.
_DIGITS = ("time", "decimal")


def _as_spelled(rows: DataFrame, kept: TableSchema, target: TargetTable) -> DataFrame:
    """``rows`` of a copy in which times and numbers have the digits that the source writes: zeros
    behind them mean nothing.
    """
    from pyspark.sql import functions as f

    from tidelog.spark.transforms import quoted

    for column in kept.columns:
        source = target.unchanged.get(column.name)
        bare = column.type_name.partition("(")[0]
        if source is None or column.logical != "text" or bare not in _DIGITS:
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
