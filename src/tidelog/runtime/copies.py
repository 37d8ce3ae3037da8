"""The copies that outputs keep, as DataFrames, to be compared with their source."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidelog.config import Config
from tidelog.configsource import MySqlSource, PostgresSource
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import ChunkReader, ChunkRequest, SourceId
from tidelog.runtime.outputs import make_output, transform_steps
from tidelog.runtime.sources import source_kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.pipeline.verify import Copy

CopyOf = Callable[[TableSchema], "Copy"]


def copies(config: Config, section: Any, spark: SparkSession, origin: SourceId) -> CopyOf | None:
    """What gives an output's copy of a table; None for kinds that keep no rows by key."""
    if section.kind == "delta":
        return lambda schema: _delta(section, spark, origin, schema)
    if section.kind in ("postgres", "mysql"):
        return lambda schema: _database(config, section, spark, schema)
    return None


def _delta(section: Any, spark: SparkSession, origin: SourceId, schema: TableSchema) -> Copy:
    from tidelog.outputs.delta_table import DELETED, path_of
    from tidelog.pipeline.transforms import target_table
    from tidelog.pipeline.verify import Copy

    steps = transform_steps(section)
    target = target_table(spark, schema, steps, origin, keyed=True)
    location = path_of(str(section.path), schema.table, target.name)

    def frame() -> DataFrame | None:
        from pyspark.errors import AnalysisException

        try:
            found = spark.read.format("delta").load(location)
        except AnalysisException:
            return None
        if section.deletes == "soft":
            found = found.where(f"NOT coalesce({DELETED}, false)")
        return found

    return Copy(target, steps, frame)


def _database(config: Config, section: Any, spark: SparkSession, schema: TableSchema) -> Copy:
    """Read as a source is: by the chunk reader of its kind, on an executor."""
    from tidelog.outputs.database.layout import DELETED
    from tidelog.outputs.database.output import DatabaseOutput
    from tidelog.pipeline.verify import Copy, source_frame

    output = make_output(config, section, spark)
    assert isinstance(output, DatabaseOutput)
    try:
        target, place = output.target_of(schema)
    finally:
        output.close()
    there = _as_source(config, section, place)

    def frame() -> DataFrame | None:
        catalogue = source_kind(there).catalogue()
        try:
            shape = catalogue.shape(place)
        finally:
            catalogue.close()
        if shape is None:
            return None
        found = source_frame(spark, _OpenCopy(there), shape.schema, [ChunkRequest(place)])
        if section.deletes == "soft":
            found = found.where(f"NOT coalesce(CAST({DELETED} AS BOOLEAN), false)")
        return found

    return Copy(target, transform_steps(section), frame)


def _as_source(config: Config, section: Any, place: TableName) -> Config:
    options = {"kind": section.kind, "url": section.url, "tables": [str(place)]}
    kind = PostgresSource if section.kind == "postgres" else MySqlSource
    source = kind.model_validate(options)
    return config.model_copy(update={"source": source})


class _OpenCopy:
    """Opens chunk readers of a copy; holds the connection string, so it is never shown."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def __repr__(self) -> str:
        return "OpenCopy()"

    def __call__(self) -> ChunkReader:
        return source_kind(self._config).plain_reader(_Unregistered())


class _Unregistered:
    """Numbers schemas for one reader, who keeps them: a copy's are nobody else's business."""

    def __init__(self) -> None:
        self._schemas: list[TableSchema] = []

    def register(self, schema: TableSchema) -> TableSchema:
        numbered = schema.numbered(len(self._schemas) + 1)
        self._schemas.append(numbered)
        return numbered

    def get(self, schema_id: int) -> TableSchema:
        return self._schemas[schema_id - 1]

    def latest(self, table: TableName) -> TableSchema | None:
        found = [schema for schema in self._schemas if schema.table == table]
        return found[-1] if found else None

    def versions(self, table: TableName) -> list[TableSchema]:
        return [schema for schema in self._schemas if schema.table == table]
