"""Iceberg tables; with the Spark that Iceberg needs only: `make test-iceberg`."""

from __future__ import annotations

from typing import Any

import pytest
from tests.behaviours.outputs.destinations import Context, Destination, Row
from tests.integration.iceberg.conftest import IcebergLake
from tests.support.iceberg_sql import SPARK_OF_ICEBERG

from tidelog.ports import Output
from tidelog.spark.sessions.versions import SPARK_VERSION


def destination(context: Context) -> Destination:
    if SPARK_VERSION != SPARK_OF_ICEBERG:
        pytest.skip(f"Iceberg needs Spark {SPARK_OF_ICEBERG}: make test-iceberg")
    lake = IcebergLake(context.spark, context.built, context.path)

    def rows(table: str) -> list[Row]:
        frame = lake.frame(table).drop("_version")
        return [row.asDict() for row in frame.orderBy("id").collect()]

    def open_(**how: Any) -> Output:
        options = lake.options(steps=how.get("steps", ()))
        output: Output = lake.output(options=options, state=lake.kept())
        return output

    def drop(table: str) -> None:
        lake.session().sql(f"DROP TABLE {lake.name(table)} PURGE")

    return Destination(open_, rows, frozenset({"no-delivery"}), drop)
