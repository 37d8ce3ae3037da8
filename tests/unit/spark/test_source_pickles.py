"""What Spark sends of the source to its workers is all that these need."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.build_log import BuiltLog

from tidelog.spark.datasource.source import TidelogSource


def _batch(source: TidelogSource) -> tuple[Any, Any]:
    reader = source.reader(source.schema())
    return reader, reader.partitions()


def _stream(source: TidelogSource) -> tuple[Any, Any]:
    reader = source.streamReader(source.schema())
    return reader, reader.partitions(reader.initialOffset(), reader.latestOffset())


@pytest.mark.parametrize("shape", ["typed", "envelope", "segments"])
@pytest.mark.parametrize("readers", [_batch, _stream])
def test_a_reader_reads_at_a_worker(tmp_path: Path, readers: Any, shape: str) -> None:
    built = BuiltLog(tmp_path / "log")
    table = built.table("public.t", {"id": "int64"})
    built.insert(table, "1")
    built.flush()
    source = TidelogSource({"path": built.path, "table": "public.t", "shape": shape})
    if shape == "segments":
        source = TidelogSource({"path": built.path, "shape": shape})
    reader, partitions = readers(source)
    sent: Any = pickle.loads(pickle.dumps(reader))
    parts = pickle.loads(pickle.dumps(partitions))
    rows: list[pa.RecordBatch] = [batch for part in parts for batch in sent.read(part)]
    assert sum(batch.num_rows for batch in rows) == 1
