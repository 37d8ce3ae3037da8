"""Delta tables."""

from __future__ import annotations

import shutil
from typing import Any

from tests.behaviours.outputs.destinations import Context, Destination, Row
from tests.integration.spark.conftest import Lake

from tidelog.model.schema import TableName
from tidelog.outputs.lake.delta.table import path_of
from tidelog.ports import Output


def destination(context: Context, url: str = "", files: str = "", *traits: str) -> Destination:
    """``url``: where they are written, if not in a directory; ``files``: where those are kept."""
    lake, read = (Lake(context.spark, context.built, context.path) for _ in range(2))
    lake.path, read.path = url or lake.path, files or read.path

    def rows(table: str) -> list[Row]:
        frame = read.frame(table).drop("_version")
        return [row.asDict() for row in frame.orderBy("id").collect()]

    def open_(**how: Any) -> Output:
        options = lake.options(steps=how.get("steps", ()))
        output: Output = lake.output(options=options, state=lake.kept())
        return output

    def drop(table: str) -> None:
        shutil.rmtree(path_of(read.path, TableName.parse(table), table))

    return Destination(open_, rows, frozenset({"no-delivery", *traits}), drop)
