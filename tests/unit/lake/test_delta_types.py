"""What Delta has no type for is refused before there is a table that no reader could open."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import types
from tests.support.payloads import table_schema

from tidelog.errors import TableLeftOutError
from tidelog.outputs.lake.contents import TableContents
from tidelog.outputs.lake.delta.options import DeltaLayout
from tidelog.outputs.lake.delta.table import DeltaTable
from tidelog.ports import SourceId, TargetTable


@pytest.mark.skipif(not hasattr(types, "TimeType"), reason="Spark has no TIME before 4.1")
@pytest.mark.parametrize("holds", ["copy", "changes", "history"])
@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (pa.time64("us"), "time(6)"),
        (pa.list_(pa.struct([("at", pa.time64("us"))])), "time(6)"),
        (pa.duration("us"), "interval day to second"),
    ],
    ids=str,
)
def test_times_of_day_and_intervals_of_steps_are_refused(
    tmp_path: Path, holds: TableContents, kind: pa.DataType, named: str
) -> None:
    schema = table_schema([("id", "int32"), ("v", "text")], ["id"])
    columns = pa.schema([("id", pa.int32()), ("v", kind)])
    origin = SourceId("postgres", "7400", "shop", 1)
    target = TargetTable(schema.table, "public.t", schema, columns, ("id",), origin)
    table = DeltaTable(str(tmp_path / "t"), DeltaLayout(holds=holds), lambda works: [])
    with pytest.raises(TableLeftOutError) as refused:
        table.create(target, "generation")
    assert f"Delta has no type for column v, {named}: cast it by a step" in str(refused.value)
    assert not table.exists()
