"""Files are summed up whatever their table is like, and each change of a row is found."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.lake.data_files import parquet_files
from tidelog.outputs.lake.data_files.deletion_vectors import DeletionVectorWriter
from tidelog.outputs.lake.data_files.file_reader import DataFileReader
from tidelog.outputs.lake.data_files.layout import FileColumn, FileLayout
from tidelog.outputs.lake.data_files.parquet_files import ParquetFileWriter
from tidelog.outputs.lake.settling import reading
from tidelog.outputs.lake.settling.reading import file_rows
from tidelog.outputs.lake.settling.settle import SettleOptions
from tidelog.outputs.lake.settling.tasks import CopyFiles
from tidelog.ports import Digest
from tidelog.verify.range_sums import PartitionSums, RangeSums, SumPlan

NAMES = ("id", "p art", "ö,`x", "day", "n")
TYPES = (pa.int64(), pa.string(), pa.string(), pa.date32(), pa.float64())
LOGICALS = ("int64", "text", "text", "date", "float64")
PLAN = SumPlan(LOGICALS, (0,), (pa.array([9, 21, 50]),), ranges=4)
NUMBERS = (None, -0.0, float("nan"), 1.5)
DEAD, MARKED = range(20, 25), range(90, 100)


def a_row(number: int) -> tuple[Any, ...]:
    part = f"ü {number % 3}" if number % 3 else None
    day = date(2024, 2, 29) if number % 2 else None
    return number, part, f"{number}," if number % 7 else None, day, NUMBERS[number % 4]


ROWS = {number: a_row(number) for number in range(100)}


def batch_of(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(each, kind) for each, kind in zip(columns, TYPES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(NAMES))


def expected() -> list[Digest]:
    live = [row for number, row in ROWS.items() if number not in (*DEAD, *MARKED)]
    return PartitionSums(PLAN)([batch_of(live)]).digests()


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several row groups in a file, each for a task of its own."""
    monkeypatch.setattr(parquet_files, "_GROUP_ROWS", 7)
    monkeypatch.setattr(reading, "_TASK_BYTES", 1)


def copy_of(path: Path, rows: list[tuple[Any, ...]], *, null_marks: bool = False) -> CopyFiles:
    """A table with partitions, mapped names, deletion vectors and rows that are marked."""
    kinds = (*zip(NAMES, TYPES, strict=True), ("_version", pa.int64()), ("_deleted", pa.bool_()))
    columns = tuple(
        FileColumn(name, f"col-{n}", kind, field_id=n) for n, (name, kind) in enumerate(kinds)
    )
    layout = FileLayout(
        columns, ("p art", "day"), ("id",), "_version", "_deleted", ("id",), False, True
    )
    store = open_file_store(str(path))
    marks = [None if null_marks or row[0] not in MARKED else True for row in rows]
    table = pa.Table.from_batches([batch_of(rows)])
    table = table.append_column("_version", pa.array([1] * len(rows), pa.int64()))
    table = table.append_column("_deleted", pa.array(marks, pa.bool_()))
    files, vectors = [], DeletionVectorWriter(store)
    for file in ParquetFileWriter(store, layout).write(table):
        ids = DataFileReader(store, layout).read(file, ["id"])["id"].to_pylist()
        dead = [place for place, number in enumerate(ids) if number in DEAD]
        vector = vectors.add(np.array(dead)) if dead else None
        files.append(replace(file, deletion_vector=vector))
    vectors.close()
    return CopyFiles("a test", store, layout, tuple(files), SettleOptions(deletion_vectors=True))


def summed(copy: CopyFiles, tasks: int = 1) -> list[Digest]:
    sums = RangeSums.none(PLAN.ranges)
    for rows in file_rows(copy, NAMES, tasks=tasks):
        assert rows.bytes > 0
        sums.add(PartitionSums(PLAN)(rows.batches()))
    return sums.digests()


def test_partitions_mapped_names_vectors_and_marked_rows(tmp_path: Path) -> None:
    copy = copy_of(tmp_path, list(ROWS.values()))
    assert len(copy.files) == 6
    assert len(file_rows(copy, NAMES, tasks=3)) == 18
    assert [each.rows for each in expected()] == [10, 10, 26, 39]
    assert summed(copy) == summed(copy, tasks=3) == expected()


def test_rows_outside_the_bounds_may_be_left_out(tmp_path: Path) -> None:
    copy = copy_of(tmp_path, list(ROWS.values()))
    found = [
        number
        for rows in file_rows(copy, ["n", "id"], ("21", "50"), tasks=2)
        for batch in rows.batches()
        for number in batch.column(1).to_pylist()
    ]
    assert set(range(25, 51)) <= set(found)
    assert len(found) < 85


@pytest.mark.parametrize(
    ("change", "places"),
    [
        ({1: (1, "ü 1", "1,", date(2024, 2, 29), 0.0)}, {0}),  # −0.0 is another value
        ({2: (2, "ü 2", "2,", None, None)}, {0}),
        ({14: (14, "ü 2", "", None, float("nan"))}, {1}),  # NULL is no empty text
        ({30: None}, {2}),
        ({40: (41, *ROWS[40][1:])}, {2}),  # one lost, one twice
        ({-1: (-1, None, None, None, None)}, {0}),
        ({60: (60, "ü 1", *ROWS[60][2:])}, {3}),  # in another partition
    ],
)
def test_each_change_is_found(
    tmp_path: Path, change: dict[int, tuple[Any, ...] | None], places: set[int]
) -> None:
    rows = [row for row in (ROWS | change).values() if row is not None]
    pairs = zip(summed(copy_of(tmp_path, rows)), expected(), strict=True)
    assert {place for place, (ours, theirs) in enumerate(pairs) if ours != theirs} == places


def test_a_mark_that_is_lost_is_found(tmp_path: Path) -> None:
    copy = copy_of(tmp_path, list(ROWS.values()), null_marks=True)
    assert [each.rows for each in summed(copy)] == [10, 10, 26, 49]
