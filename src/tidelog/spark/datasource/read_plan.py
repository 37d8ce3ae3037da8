"""The plan of one read, which the planning process sends to executors."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.types import StructType

from tidelog.model.schema import TableSchema
from tidelog.spark.datasource.options import SourceOptions
from tidelog.spark.sessions.versions import arrow_schema


@dataclass
class ReadPlan:
    """The plan of one read: picklable, without open files or logs."""

    options: SourceOptions
    target: TableSchema | None
    spark_schema: StructType
    _arrow: pa.Schema | None = field(default=None, repr=False)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The shape's Arrow schema, exactly as Spark expects it."""
        if self._arrow is None:
            self._arrow = arrow_schema(self.spark_schema)
        return self._arrow
