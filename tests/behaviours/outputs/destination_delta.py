"""Delta tables."""

from __future__ import annotations

from tests.behaviours.outputs.destinations import Context, Destination, Row
from tests.integration.spark.conftest import Lake


def destination(context: Context) -> Destination:
    lake = Lake(context.spark, context.built, context.path)

    def rows(table: str) -> list[Row]:
        frame = lake.frame(table).drop("_version")
        return [row.asDict() for row in frame.orderBy("id").collect()]

    return Destination(lambda **_: lake.output(), rows, frozenset({"no-delivery"}))
