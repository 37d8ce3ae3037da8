"""What a task of the Delta output makes of changes, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyroaring import BitMap

from tidelog.errors import RowsLeftOutError
from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.lake.data_files.file_reader import DataFileReader
from tidelog.outputs.lake.data_files.layout import FileColumn, FileLayout
from tidelog.outputs.lake.data_files.look_up import shared_cache
from tidelog.outputs.lake.data_files.parquet_files import ParquetFileWriter
from tidelog.outputs.lake.settling import tasks
from tidelog.outputs.lake.settling.settle import SettleOptions
from tidelog.outputs.lake.settling.tasks import CopyFiles, RewriteWork, SettlePartition, SettleWork
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, CHANGE_VERSION

LAYOUT = FileLayout(
    columns=(
        FileColumn("id", "id", pa.int64()),
        FileColumn("v", "v", pa.string()),
        FileColumn("_version", "_version", pa.int64()),
    ),
    partitions=(),
    key=("id",),
    version="_version",
    deleted="",
    statistics=("id", "_version"),
    null_key=False,
)
ROWS = 3000


def changes() -> list[pa.RecordBatch]:
    """Of every key: a new state, every seventh a delete."""
    ids = list(range(ROWS))
    columns = {
        CHANGE_OP: ["d" if n % 7 == 0 else "u" for n in ids],
        CHANGE_VERSION: [10_000 + n for n in ids],
        "id": ids,
        "v": [f"new {n}" for n in ids],
        CHANGE_MISSING: pa.nulls(ROWS, pa.list_(pa.int16())),
    }
    return pa.table(columns).to_batches(max_chunksize=700)


@pytest.mark.parametrize("part_bytes", [1 << 30, 20_000], ids=["at once", "in parts"])
@pytest.mark.parametrize("below", [0, 5_000])
def test_changes_settled_by_parts_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int, below: int
) -> None:
    monkeypatch.setattr(tasks, "_PART_BYTES", part_bytes)
    store = open_file_store(str(tmp_path))
    old = {"id": list(range(0, 2 * ROWS, 2)), "v": ["old"] * ROWS, "_version": list(range(ROWS))}
    files = ParquetFileWriter(store, LAYOUT).write(pa.table(old, schema=LAYOUT.schema))
    copy = CopyFiles("t", store, LAYOUT, tuple(files), SettleOptions(deletion_vectors=True))
    work = SettleWork(copy, None, ("id", "v"), below, alone=False)
    result = SettlePartition(work)(iter(changes()))
    assert result.error is None
    settled: Any = result.settled
    reader = DataFileReader(store, LAYOUT)
    found = pa.concat_tables([reader.read(file) for file in settled.added]).to_pylist()
    by_id = {row["id"]: (row["v"], row["_version"]) for row in found}
    assert len(by_id) == len(found)
    assert by_id == {n: (f"new {n}", 10_000 + n) for n in range(ROWS) if n % 7}
    dead = BitMap.deserialize(settled.dead[files[0].path])
    gone = set(range(ROWS // 2)) if not below else set(range(ROWS))
    assert set(dead) == gone, "keys that changed, and those below"
    parts = 1 if below or part_bytes > 1 << 20 else 5
    assert len(settled.added) >= parts


@pytest.mark.parametrize("most_bytes", [1 << 20, 0])
def test_no_more_is_cached_than_the_option_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    scratch = tmp_path / "scratch"
    monkeypatch.setattr("tidelog.spark.session.scratch_directory", lambda: scratch)
    shared_cache.cache_clear()
    store = open_file_store(str(tmp_path / "t"))
    old = pa.table({"id": [1, 2], "v": ["a", "b"], "_version": [1, 2]}, schema=LAYOUT.schema)
    files = tuple(ParquetFileWriter(store, LAYOUT).write(old))
    options = SettleOptions(deletion_vectors=True, cache_bytes=most_bytes)
    work = SettleWork(CopyFiles("t", store, LAYOUT, files, options), None, ("id", "v"), 0)
    try:
        result = SettlePartition(work)(iter(changes()))
        shared_cache(most_bytes).rows.keep("t", "f", LAYOUT, [old])
    finally:
        shared_cache.cache_clear()
    assert result.settled is not None
    assert set(result.settled.dead) == {files[0].path}, "found without a cache, too"
    cached = {each.parent.name for each in scratch.rglob("*") if each.is_file()}
    assert cached == ({"key-indexes", "key-indexes-rows"} if most_bytes else set())


def test_a_file_that_can_not_be_rewritten_is_a_result_not_the_end_of_the_job(
    tmp_path: Path,
) -> None:
    store = open_file_store(str(tmp_path))
    old = pa.table({"id": [1, 2], "v": ["a", "b"], "_version": [1, 2]}, schema=LAYOUT.schema)
    (file,) = ParquetFileWriter(store, LAYOUT).write(old)
    whole = CopyFiles("t", store, LAYOUT, (file,), SettleOptions(deletion_vectors=False))
    (tmp_path / file.path).unlink()
    for dead in ({}, {file.path: BitMap([1]).serialize()}):
        found = tasks.rewrite_or_error(RewriteWork(whole, dead))
        assert found.files is None
        assert isinstance(found.error, RowsLeftOutError)
        assert file.path in str(found.error)
