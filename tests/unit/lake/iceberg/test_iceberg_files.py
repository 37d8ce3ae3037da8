"""Data files of Iceberg as JSON, and back."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidelog.errors import OutputRefusedError, TableLeftOutError
from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.data_files.file_reader import DataFileReader
from tidelog.outputs.lake.data_files.layout import FileColumn, FileLayout
from tidelog.outputs.lake.data_files.parquet_files import ParquetFileWriter, file_statistics
from tidelog.outputs.lake.errors import left_out_error
from tidelog.outputs.lake.iceberg import format as iceberg_format
from tidelog.outputs.lake.iceberg.files import (
    SPEC,
    DeleteFile,
    IcebergFile,
    as_iceberg,
    data_json,
    delete_file_of,
    delete_json,
    deletes_of,
    file_of,
    iceberg_path,
)
from tidelog.outputs.lake.iceberg.format import IcebergFormat
from tidelog.outputs.lake.settling.settle import rewrite

VALUES = {
    "i": pa.array([-7, 70_000, None], pa.int32()),
    "l": pa.array([-9_000_000_000, 5, None], pa.int64()),
    "s": pa.array(["a" * 40, "é🙂", None]),
    "d": pa.array([dt.date(1969, 12, 31), dt.date(2026, 1, 2), None]),
    "t": pa.array([dt.datetime(1999, 12, 31, 23, 59, 59, 123456), None, None], pa.timestamp("us")),
    "z": pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.UTC), None, None], pa.timestamp("us", "UTC")),
    "n": pa.array([Decimal("-1.25"), Decimal(f"{'9' * 36}.78"), None], pa.decimal128(38, 2)),
}
COLUMNS = {
    name: FileColumn(name, name, values.type, number)
    for number, (name, values) in enumerate(VALUES.items(), 1)
}
LAYOUT = FileLayout(
    tuple(COLUMNS.values()), (), ("i",), "l", "", tuple(COLUMNS), False,
    format=IcebergFormat("/lake/t", 2, 0),
)  # fmt: skip


@pytest.mark.parametrize("location", ["/lake/public/t", "s3://b/lake/t", "file:/lake/t"])
def test_a_file_keeps_its_statistics_partition_and_place(location: str) -> None:
    stats = file_statistics(pa.table(VALUES), LAYOUT)
    partition = {SPEC: "3", "1000": '"2026-01-02"', "1001": None}
    file = DataFile("data/a%20b.parquet", partition, 123, stats=stats)
    given = json.loads(data_json(file, COLUMNS, location))
    assert given["file-path"] == f"{location}/data/a b.parquet"
    assert given["partition"] == ["2026-01-02", None]
    by_id = {each.field_id or 0: each for each in COLUMNS.values()}
    found = file_of(given, (), {3: [1000, 1001]}, by_id, location)
    assert (found.path, found.partition_values, found.size) == (file.path, partition, 123)
    kept = json.loads(found.stats or "", parse_float=Decimal)
    expected = json.loads(stats, parse_float=Decimal)
    assert (kept["numRecords"], kept["nullCount"]) == (3, expected["nullCount"])
    for name in ("i", "l", "s", "d", "n"):
        for bounds in ("minValues", "maxValues"):
            assert kept[bounds][name] == expected[bounds][name]
    # As they are: Spark takes these bounds for the least and the greatest value.
    assert kept["minValues"]["t"] == kept["maxValues"]["t"] == "1999-12-31T23:59:59.123456"
    assert kept["maxValues"]["z"] == "2026-01-01T00:00:00.000000Z"


def test_a_file_elsewhere_keeps_the_path_that_the_metadata_have() -> None:
    for path in ("/other/a b.parquet", "s3a://b/x/y.parquet"):
        given = {
            "spec-id": 0, "file-format": "parquet", "file-path": path,
            "file-size-in-bytes": 1, "record-count": 1,
        }  # fmt: skip
        file = file_of(given, (), {0: []}, {}, "/lake/t")
        assert iceberg_path(file, "/lake/t") == path


def test_a_delete_file_comes_back_as_it_was() -> None:
    for offset, length in ((None, None), (4, 60)):
        file = DeleteFile("/t/d", {SPEC: "0"}, 9, 2, "/t/data/a.parquet", offset, length)
        assert delete_file_of(json.loads(delete_json(file)), {0: []}, "/t") == file


def test_deletes_by_equality_leave_the_table_out() -> None:
    with pytest.raises(TableLeftOutError, match="by equality"):
        delete_file_of({"content": "equality-deletes"}, {}, "/t")


def test_a_row_that_a_rewrite_changes_keeps_its_id_alone(tmp_path: Path) -> None:
    """Iceberg's specification, "Row Lineage": the number of its commit is inherited again."""
    store = open_file_store(str(tmp_path))
    layout = replace(LAYOUT, format=IcebergFormat(str(tmp_path), 3, 0))
    (written,) = ParquetFileWriter(store, layout).write(pa.table(VALUES))
    file = as_iceberg(written, first_row=10, sequence=4)
    (whole,) = rewrite([file], store, layout, null_columns=["d"]).added
    rows = pq.read_table(tmp_path / whole.path).sort_by("_row_id")
    assert rows["_row_id"].to_pylist() == [10, 11, 12]
    assert rows["d"].null_count == 3
    before = pq.read_table(tmp_path / written.path)["d"].to_pylist()
    numbers = rows["_last_updated_sequence_number"].to_pylist()
    assert numbers == [4 if value is None else None for value in before]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("content", [None, b"no Parquet, and no vector"])
def test_a_lost_or_damaged_delete_file_leaves_one_table_out(
    tmp_path: Path, version: int, content: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules, store = IcebergFormat(str(tmp_path), version, 0), open_file_store(str(tmp_path))
    writer = rules.marks_writer(store)
    writer.mark(IcebergFile("data/a.parquet", {SPEC: "0"}), np.array([2, 5]), 9)
    ((_, marked),) = writer.close()
    in_another_process(monkeypatch)
    assert rules.deleted_rows(store, marked).tolist() == [2, 5]
    (found,) = (tmp_path / "data").iterdir()
    found.unlink()
    if content is not None:
        found.write_bytes(content)
    in_another_process(monkeypatch)
    with pytest.raises(OutputRefusedError) as raised:
        rules.deleted_rows(store, marked)
    assert left_out_error(raised.value) is not None


@pytest.mark.parametrize("version", [2, 3])
def test_a_process_reads_no_delete_file_that_it_wrote_or_has_read(
    tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch marks rows of the files of which the one before has marked others."""
    rules, store = IcebergFormat(str(tmp_path), version, 0), open_file_store(str(tmp_path))
    in_another_process(monkeypatch)
    writer = rules.marks_writer(store)
    writer.mark(IcebergFile("data/a.parquet", {SPEC: "0"}), np.array([2, 5]), 9)
    ((before, marked),) = writer.close()
    content = {path: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    shutil.rmtree(tmp_path / "data")
    assert rules.deleted_rows(store, marked).tolist() == [2, 5]
    assert rules.deleted_rows(store, before).tolist() == []
    (tmp_path / "data").mkdir()
    for path, data in content.items():
        path.write_bytes(data)
    in_another_process(monkeypatch)
    assert rules.deleted_rows(store, marked).tolist() == [2, 5]
    shutil.rmtree(tmp_path / "data")
    assert replace(rules).deleted_rows(store, marked).tolist() == [2, 5]


def test_deleted_rows_are_kept_of_the_files_that_were_asked_for_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules, store = IcebergFormat(str(tmp_path), 2, 0), open_file_store(str(tmp_path))
    in_another_process(monkeypatch)
    monkeypatch.setattr(iceberg_format, "_MOST_KEPT", 2 * (1024 + 16))
    marked = []
    for name in "abc":
        writer = rules.marks_writer(store)
        writer.mark(IcebergFile(f"data/{name}.parquet", {SPEC: "0"}), np.array([2, 5]), 9)
        marked += [after for _, after in writer.close()]
        if name == "b":
            assert rules.deleted_rows(store, marked[0]).tolist() == [2, 5]
    shutil.rmtree(tmp_path / "data")
    for file in (marked[0], marked[2]):
        assert rules.deleted_rows(store, file).tolist() == [2, 5]
    with pytest.raises(OutputRefusedError):
        rules.deleted_rows(store, marked[1])


def in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_format, "_known", iceberg_format._KnownRows())


def test_each_deletion_vector_has_a_file_of_its_own(tmp_path: Path) -> None:
    """Iceberg's library removes a file as a whole, when a vector in it was replaced."""
    store = open_file_store(str(tmp_path))
    writer = IcebergFormat(str(tmp_path), 3, 0).marks_writer(store)
    for name in "ab":
        writer.mark(IcebergFile(f"data/{name}.parquet", {SPEC: "0"}), np.array([1]), 9)
    paths = {delete.path for _, file in writer.close() for delete in deletes_of(file)}
    assert {Path(path) for path in paths} == set((tmp_path / "data").iterdir())
    assert len(paths) == 2


def _map(kind: pa.DataType) -> pa.DataType:
    return pa.map_(pa.field("key", pa.string(), nullable=False), kind)


@pytest.mark.parametrize(
    ("nested", "value"),
    [
        (lambda kind: kind, lambda row: row),
        (pa.list_, lambda row: [None, row]),
        (_map, lambda row: [("k", row), ("none", None)]),
        (lambda kind: pa.list_(_map(kind)), lambda row: [[("k", row)], None, []]),
    ],
    ids=["struct", "list", "map", "list of maps"],
)
def test_members_of_structs_are_found_by_their_ids(
    tmp_path: Path,
    nested: Callable[[pa.DataType], pa.DataType],
    value: Callable[[dict[str, Any] | None], Any],
) -> None:
    """Others may rename one, give its name to another, or put them in another order."""

    def layout(**members: tuple[pa.DataType, int]) -> FileLayout:
        fields = [pa.field(name, kind) for name, (kind, _) in members.items()]
        ids = [number for _, number in members.values()]
        stored = [
            each.with_metadata({"PARQUET:field_id": str(number)})
            for each, number in zip(fields, ids, strict=True)
        ]
        kind, in_files = nested(pa.struct(fields)), nested(pa.struct(stored))
        column = FileColumn("row", "row", kind, 1, stored=in_files)
        rules = IcebergFormat(str(tmp_path), 2, 0)
        return FileLayout((column,), (), (), "", "", (), False, format=rules)

    text, store = pa.string(), open_file_store(str(tmp_path))
    before = layout(a=(text, 2), b=(text, 3), n=(pa.int32(), 4), gone=(text, 5))
    rows = [value({"a": "1", "b": "2", "n": 3, "gone": "4"}), None, value({"b": "5"})]
    written = pa.table({"row": pa.array(rows, before.schema.field("row").type)})
    (file,) = ParquetFileWriter(store, before).write(written)
    after = layout(b=(text, 2), n=(pa.int64(), 4), a=(text, 6), c=(text, 3))
    for numbers in (None, np.array([0, 1, 2])):
        found = DataFileReader(store, after).read(file, rows=numbers)
        assert found["row"].to_pylist() == [
            value({"b": "1", "n": 3, "a": None, "c": "2"}),
            None,
            value({"b": None, "n": None, "a": None, "c": "5"}),
        ]
