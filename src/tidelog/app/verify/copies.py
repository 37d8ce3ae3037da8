"""Reads the copies that outputs keep as DataFrames, to compare them with their source."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from tidelog.app.pipeline.outputs import make_output
from tidelog.app.sources.kinds import source_kind
from tidelog.config import Config
from tidelog.config.source import SOURCES
from tidelog.model.patterns import matches
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.outputs.base.sections import OutputSection
from tidelog.outputs.database.config import DatabaseSection
from tidelog.outputs.delivery_settings import transform_steps
from tidelog.outputs.lake.delta.config import DeltaSection
from tidelog.outputs.lake.iceberg.config import IcebergSection
from tidelog.ports import ChunkReader, ChunkRequest, TargetTable
from tidelog.sources.null_registry import NullRegistry

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.outputs.database.output import DatabaseOutput
    from tidelog.outputs.lake.delta.output import DeltaOutput
    from tidelog.outputs.lake.delta.reading import Bounds
    from tidelog.outputs.lake.output import LakeOutput
    from tidelog.verify.model import Copy, Range
    from tidelog.verify.range_sums import RowSource


Lake = TypeVar("Lake", bound="DeltaSection | IcebergSection")


class OpenReader:
    """Opens chunk readers of a database, source or copy, on executors.

    It has the connection string, so its text form shows nothing.
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
        """Return the copy of the source's table."""
        ...

    def close(self) -> None: ...


def has_copies(section: OutputSection) -> bool:
    """Return whether an output of this kind keeps rows by key, which can be compared."""
    return isinstance(section, DeltaSection | IcebergSection | DatabaseSection)


def is_compared(section: OutputSection, table: TableName) -> bool:
    """Return whether an output that `has_copies` has one of the table; changes are no copy."""
    if isinstance(section, DeltaSection) and not section.keeps_copy(table):
        return False
    return matches(section.tables, table)


def copies(config: Config, section: OutputSection, spark: SparkSession) -> Copies:
    """Return the copies of an output that `has_copies`."""
    if isinstance(section, DeltaSection):
        return _DeltaCopies(config, section, spark)
    if isinstance(section, IcebergSection):
        return _IcebergCopies(config, section, spark)
    assert isinstance(section, DatabaseSection)
    return _DatabaseCopies(config, section, spark)


class _LakeCopies(ABC, Generic[Lake]):
    """Copies in a lake, which Spark reads itself."""

    def __init__(self, config: Config, section: Lake, spark: SparkSession) -> None:
        self._section = section
        self._spark = spark
        self._output = make_output(config, section, spark)

    def of(self, schema: TableSchema) -> Copy:
        from tidelog.verify.model import Copy

        steps = transform_steps(self._section)
        target = self._lake.table_of(schema)
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

    @property
    def _lake(self) -> LakeOutput[Any]:
        return cast("LakeOutput[Any]", self._output)

    # See `tidelog.verify.model.Copy`.

    @abstractmethod
    def _columns(self, target: TargetTable) -> Collection[str] | None: ...

    @abstractmethod
    def _read(self, target: TargetTable, part: Range) -> DataFrame | None: ...

    def _row_sources(self, target: TargetTable, part: Range) -> Sequence[RowSource] | None:
        del target, part
        return None


class _DeltaCopies(_LakeCopies[DeltaSection]):
    """Copies in Delta tables."""

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
    """Copies in Iceberg tables."""

    def __init__(self, config: Config, section: IcebergSection, spark: SparkSession) -> None:
        from tidelog.outputs.lake.iceberg.output import catalog_conf

        super().__init__(config, section, spark)
        self._catalog, conf = catalog_conf(section.name, section.catalog_properties())
        for name, value in conf.items():
            spark.conf.set(name, value)

    def _columns(self, target: TargetTable) -> Collection[str] | None:
        rows = self._read(target, (None, None))
        return None if rows is None else rows.columns

    def _read(self, target: TargetTable, part: Range) -> DataFrame | None:
        from pyspark.errors import AnalysisException

        from tidelog.outputs.lake.iceberg.table import DELETED
        from tidelog.outputs.lake.table import parts_of
        from tidelog.spark.transforms import quoted

        del part  # the caller's filter is pushed down to the lake's files
        name = [self._catalog, *parts_of(target.source, target.name)]
        try:
            rows = self._spark.table(".".join(map(quoted, name)))
        except AnalysisException:
            return None
        if self._section.deletes == "soft":
            rows = rows.where(f"NOT coalesce({DELETED}, false)")
        return rows


class _DatabaseCopies:
    """Copies in a database: read by the chunk reader of its kind, on an executor."""

    def __init__(self, config: Config, section: DatabaseSection, spark: SparkSession) -> None:
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
        copy_config = _as_source(self._config, section, place)

        def copy_schema() -> TableSchema | None:
            catalogue = source_kind(copy_config).catalogue()
            try:
                shape = catalogue.shape(place)
            finally:
                catalogue.close()
            return None if shape is None else shape.schema

        def columns() -> Collection[str] | None:
            schema_of_copy = copy_schema()
            return None if schema_of_copy is None else schema_of_copy.column_names

        def request(schema_of_copy: TableSchema, part: Range) -> ChunkRequest:
            after, upto = part if schema_of_copy.match_key == target.key else (None, None)
            return ChunkRequest(place, after=after, upto=upto)

        def frame(part: Range) -> DataFrame | None:
            schema_of_copy = copy_schema()
            if schema_of_copy is None:
                return None
            rows = source_frame(
                spark, OpenReader(copy_config), schema_of_copy, [request(schema_of_copy, part)]
            )
            rows = _with_source_digits(rows, schema_of_copy, target)
            if section.deletes == "soft":
                rows = rows.where(f"NOT coalesce(CAST({DELETED} AS BOOLEAN), false)")
            return rows

        def row_sources(part: Range) -> Sequence[RowSource] | None:
            schema_of_copy = copy_schema()
            if (
                schema_of_copy is None
                or section.deletes == "soft"
                or not _same_types(schema_of_copy, target)
            ):
                return None
            names = tuple(target.columns.names)
            return [
                _DatabaseRows(
                    OpenReader(copy_config), schema_of_copy, request(schema_of_copy, part), names
                )
            ]

        def committed() -> int:
            output = self._output()  # a new one: an output caches its progress
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
    """A `tidelog.verify.range_sums.RowSource` of a copy in a database."""

    open_reader: OpenReader
    schema: TableSchema
    request: ChunkRequest
    columns: tuple[str, ...]
    bytes: int = 1  # unknown

    def batches(self) -> Iterator[pa.RecordBatch]:
        from tidelog.spark.source_rows import read_rows

        for batch in read_rows(self.open_reader, self.schema, [self.request]):
            yield batch.select(self.columns)


def _same_types(schema_of_copy: TableSchema, target: TargetTable) -> bool:
    """Return whether a copy has the target's columns and types, as the source writes them."""
    from tidelog.spark.formats.shapes import row_type
    from tidelog.spark.sessions.versions import arrow_schema

    if any(
        _base_type(column) in _DIGITS and column.logical == "text"
        for column in schema_of_copy.columns
    ):
        return False
    copy_types = {field.name: field.type for field in arrow_schema(row_type(schema_of_copy))}
    return all(copy_types.get(field.name) == field.type for field in target.columns)


# Types delivered as text that a copy in MySQL keeps with more digits than the source writes.
_DIGITS = ("time", "decimal")


def _base_type(column: Column) -> str:
    return column.type_name.partition("(")[0]


def _with_source_digits(
    rows: DataFrame, schema_of_copy: TableSchema, target: TargetTable
) -> DataFrame:
    """Return the rows with times and numbers in the digits that the source writes.

    Trailing zeros mean nothing.
    """
    from pyspark.sql import functions as f

    from tidelog.spark.transforms import quoted

    for column in schema_of_copy.columns:
        source = target.unchanged.get(column.name)
        if source is None or column.logical != "text" or _base_type(column) not in _DIGITS:
            continue
        digits = 0  # the least number of digits: PostgreSQL omits zeros
        if schema_of_copy.wire_format == target.schema.wire_format:
            found = re.search(r"\((?:\d+,)?(\d+)\)", source.type_name)
            digits = int(found[1]) if found else 0
        zeros = f"([.][0-9]{{{digits}}}[0-9]*?)0+$" if digits else "([.][0-9]*[1-9])0+$|[.]0+$"
        value = f.regexp_replace(f.col(quoted(column.name)), zeros, "$1")
        rows = rows.withColumn(column.name, value)
    return rows


def _as_source(config: Config, section: DatabaseSection, place: TableName) -> Config:
    options = {"kind": section.kind, "url": section.url, "tables": [str(place)]}
    source = SOURCES[section.kind].model_validate(options)
    return config.model_copy(update={"source": source})
