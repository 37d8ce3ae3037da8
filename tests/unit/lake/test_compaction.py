"""Which files are put together."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.lake_files import plain_layout

from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.lake.data_files import parquet_files
from tidelog.outputs.lake.data_files.data_file import DataFile, DeletionVector
from tidelog.outputs.lake.data_files.file_reader import DataFileReader
from tidelog.outputs.lake.data_files.parquet_files import ParquetFileWriter
from tidelog.outputs.lake.settling import rows
from tidelog.outputs.lake.settling.settle import rewrite
from tidelog.outputs.lake.table import FILES_OF_A_TIER, files_to_compact

KIB, MIB = 1 << 10, 1 << 20


def a_file(number: int, size: int, partition: str | None = None, dead: float = 0.0) -> DataFile:
    rows = 1000
    vector = DeletionVector("u", "x", 1, 40, int(rows * dead)) if dead else None
    return DataFile(
        f"part-{number}.parquet",
        {} if partition is None else {"p": partition},
        size,
        number,
        json.dumps({"numRecords": rows}),
        vector,
    )


def test_files_of_one_size_are_put_together_once_there_are_enough() -> None:
    few = [a_file(n, 10 * KIB) for n in range(FILES_OF_A_TIER - 1)]
    assert files_to_compact(few) == []
    enough = [*few, a_file(7, 200 * KIB)]
    assert files_to_compact(enough) == [enough]
    assert files_to_compact([*few, a_file(7, 1 * MIB)]) == []  # of another tier


def test_large_files_and_other_partitions_are_left_alone() -> None:
    assert files_to_compact(a_file(n, 200 * MIB) for n in range(20)) == []
    spread = [a_file(n, 10 * KIB, str(n % 4)) for n in range(4 * (FILES_OF_A_TIER - 1))]
    assert files_to_compact(spread) == []
    (group,) = files_to_compact([*spread, a_file(99, 10 * KIB, "2")])
    assert {file.partition_values["p"] for file in group} == {"2"}


def test_a_file_that_is_mostly_dead_is_rewritten() -> None:
    mostly, hardly = a_file(1, 500 * MIB, dead=0.6), a_file(2, 500 * MIB, dead=0.4)
    assert files_to_compact([mostly, hardly]) == [[mostly]]


def test_rows_are_rewritten_a_few_times_and_few_files_stay() -> None:
    """A batch of 100 KiB, 5,000 times."""
    files: list[DataFile] = []
    rewritten = most = 0
    for number in range(5000):
        files.append(a_file(number, 100 * KIB))
        for group in files_to_compact(files):
            size = sum(file.size for file in group)
            rewritten += size
            gone = {file.path for file in group}
            files = [file for file in files if file.path not in gone]
            files.append(a_file(10_000 + number, size))
        most = max(most, len(files))
    total = 5000 * 100 * KIB
    assert sum(file.size for file in files) == total
    assert rewritten / total <= math.log(total / (100 * KIB), FILES_OF_A_TIER)
    assert most <= 4 * FILES_OF_A_TIER + 10


def test_files_that_hold_as_many_rows_as_memory_allows_are_compacted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Well compressed rows fill the memory of a task before they make a large file."""
    monkeypatch.setattr(rows, "_MOST_BYTES", 32 * KIB)
    monkeypatch.setattr(parquet_files, "FULL_BYTES", 16 * KIB)
    layout = plain_layout({"id": pa.int64()}, key=["id"])
    store = open_file_store(str(tmp_path))
    files: list[DataFile] = []
    compactions = []
    for batch in range(100):
        ids = pa.table({"id": range(batch * 400, (batch + 1) * 400)})
        files += ParquetFileWriter(store, layout).write(ids)
        for group in files_to_compact(files):
            changes = rewrite(group, store, layout)
            assert len(changes.added) < len(changes.removed)
            files = [file for file in files if file not in changes.removed] + [*changes.added]
            compactions.append(len(changes.removed))
    assert sum(compactions) <= 100 + 2 * 100 / FILES_OF_A_TIER
    reader = DataFileReader(store, layout)
    found = pa.concat_tables([reader.read(file) for file in files])["id"].to_pylist()
    assert sorted(found) == list(range(100 * 400))
