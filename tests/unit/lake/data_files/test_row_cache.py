"""Rows of a table of history are cached beside the keys of their files."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.lake_files import plain_layout

from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.data_files.disk_cache import DiskCache, RowCache
from tidelog.outputs.lake.data_files.file_reader import DataFileReader

LAYOUT = plain_layout({"k": pa.int64(), "t": pa.string()}, key=["k"])
ROWS = pa.table({"k": list(range(10)), "t": [f"v{k}" for k in range(9)] + [None]}, LAYOUT.schema)


@pytest.mark.parametrize(
    "rows", [None, [], [0, 4, 9], [9, 0, 4, 4], [7]], ids=["all", "none", "some", "mixed", "one"]
)
@pytest.mark.parametrize("cuts", [(10,), (4, 6), (1, 8, 1)], ids=str)
def test_rows_come_back_as_they_were(
    tmp_path: Path, cuts: tuple[int, ...], rows: list[int] | None
) -> None:
    parts = [ROWS.slice(sum(cuts[:n]), count) for n, count in enumerate(cuts)]
    RowCache(tmp_path / "r").keep("t", "f", LAYOUT, parts)
    found = RowCache(tmp_path / "r").find("t", "f", LAYOUT)
    assert found is not None
    numbers = None if rows is None else np.array(rows, np.int64)
    expected = ROWS if rows is None else ROWS.take(pa.array(rows, pa.int64()))
    assert found.take(["k", "t"], numbers).equals(expected)
    assert found.take(["t"], numbers).equals(expected.select(["t"]))


def test_rows_of_a_table_with_other_columns_are_not_used(tmp_path: Path) -> None:
    cache = RowCache(tmp_path / "r")
    cache.keep("t", "f", LAYOUT, [ROWS])
    key, text = LAYOUT.columns
    for columns in (
        (key,),
        (key, replace(text, type=pa.binary())),
        (key, replace(text, field_id=7)),
        (key, replace(text, physical="col-1")),
        (text, key),
    ):
        assert cache.find("t", "f", replace(LAYOUT, columns=columns)) is None
    assert cache.find("t", "f", LAYOUT) is not None


@pytest.mark.parametrize(("rows", "cached"), [([1], False), ([1, 5, 9], True)])
def test_a_file_is_cached_when_most_of_it_is_read(
    tmp_path: Path, rows: list[int], cached: bool
) -> None:
    """It is then read as a whole, once."""
    pq.write_table(ROWS, tmp_path / "f.parquet", row_group_size=2)
    cache = RowCache(tmp_path / "r")
    store, numbers = open_file_store(str(tmp_path)), np.array(rows)
    reader, file = DataFileReader(store, LAYOUT, cache), DataFile("f.parquet")
    assert reader.read(file, None, numbers).equals(ROWS.take(pa.array(rows)))
    assert (cache.find(store.path, "f.parquet", LAYOUT) is not None) == cached
    shutil.rmtree(tmp_path / "r", ignore_errors=True)
    assert reader.read(file, ["t"], numbers).equals(ROWS.take(pa.array(rows)).select(["t"]))


def test_a_damaged_file_is_not_used_or_is_whole(tmp_path: Path) -> None:
    cache = RowCache(tmp_path / "r")
    cache.keep("t", "f", LAYOUT, [ROWS])
    (file,) = (tmp_path / "r").iterdir()
    whole = file.read_bytes()
    for at in range(len(whole)):
        for flips in (0x01, 0xFF):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ flips]) + whole[at + 1 :])
            found = cache.find("t", "f", LAYOUT)
            assert (found is None) == (not file.exists())
            for batch in [] if found is None else found.batches:
                batch.validate()


@contextmanager
def full_disk(most_bytes: int) -> Iterator[None]:
    """No file can grow beyond this."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("rows", [10, 10_000], ids=["at the end", "before"])
def test_a_disk_that_gets_full_is_no_error(tmp_path: Path, rows: int) -> None:
    cache, many = RowCache(tmp_path / "r"), pa.table({"k": range(rows), "t": ["x"] * rows})
    with full_disk(100):
        cache.keep("t", "f", LAYOUT, [many.cast(LAYOUT.schema)])
    assert cache.find("t", "f", LAYOUT) is None
    assert not [*(tmp_path / "r").iterdir()]


def test_the_cache_takes_no_more_of_a_disk_than_it_leaves_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = pa.record_batch({"n": pa.array(range(1000))})  # 8 KB
    disk = 40_000

    def usage(path: Path) -> shutil._ntuple_diskusage:
        used = sum(each.stat().st_size for each in path.iterdir())
        return shutil._ntuple_diskusage(disk, used, disk - used)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    cache = DiskCache(tmp_path, 1 << 30)
    for number in range(6):
        cache.keep(batch.schema, [batch], number)
        assert usage(tmp_path).free > disk // 2 - 1000, "without what describes the batches"
    assert [cache.find(number) is None for number in range(6)] == [False] * 2 + [True] * 4
