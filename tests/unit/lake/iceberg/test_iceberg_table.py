"""What an Iceberg table refuses before its catalog is asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.build_log import BuiltLog

from tidelog.errors import TableLeftOutError
from tidelog.outputs.lake.iceberg.output import IcebergOptions
from tidelog.outputs.lake.iceberg.table import IcebergTable
from tidelog.spark.transforms import target_table


@pytest.mark.parametrize("holds", ["copy", "history"])
def test_a_table_with_a_duration_is_not_created(tmp_path: Path, holds: Any) -> None:
    """As a step `compute` makes one: the table could not be written, nor got rid of, then."""
    built = BuiltLog(tmp_path / "log")
    schema = built.table("public.t", {"id": "int64"})
    target = target_table(None, schema, (), built.log.source, keyed=True)  # type: ignore[arg-type]
    columns = target.columns.append(pa.field("took", pa.duration("us")))
    layout = IcebergOptions(holds={"*.*": holds}).layout_of(schema.table)
    catalog: Any = None
    table = IcebergTable(catalog, ("public", "t"), "public.t", layout, lambda works: [], "")
    with pytest.raises(TableLeftOutError, match=r"column took .* Cast it to string"):
        table.create(replace(target, columns=columns), "g")
