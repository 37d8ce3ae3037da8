"""Files hold the rows that were written, where the log says, in the order of the key."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.lake_files import (
    TYPES,
    column_of,
    plain_layout,
    plain_rows,
    plain_values,
    table_folder,
    values_of,
)

from tidelog.errors import OutputError, OutputRefusedError, RowsLeftOutError
from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.lake.data_files.file_reader import DataFileReader
from tidelog.outputs.lake.data_files.layout import FileColumn, FileLayout, SortedBy
from tidelog.outputs.lake.data_files.parquet_files import ParquetFileWriter

ANY_TYPE = st.sampled_from(list(TYPES.values()))


@st.composite
def tables(draw: st.DrawFn) -> tuple[FileLayout, pa.Table]:
    kinds = draw(st.lists(ANY_TYPE, min_size=1, max_size=3))
    names = [f"c {i}" for i in range(len(kinds))]
    partitions = names[1 : 1 + draw(st.integers(0, 2))]
    count = draw(st.integers(0, 8))
    columns: dict[str, pa.Array] = {}
    for name, kind in zip(names, kinds, strict=True):
        values = values_of(kind)
        if name in partitions and pa.types.is_binary(kind):
            values = st.sampled_from([b"", b"a", "ü/".encode()])
        drawn = draw(st.lists(st.none() | values, min_size=count, max_size=count))
        columns[name] = column_of(drawn, kind)
    layout = plain_layout(
        dict(zip(names, kinds, strict=True)), key=names[:1], partitions=partitions
    )
    return layout, pa.table(columns, layout.schema)


def as_read(layout: FileLayout, rows: pa.Table) -> pa.Table:
    """Empty texts of a partition are null to every reader."""
    for at, column in enumerate(layout.columns):
        if column.name in layout.partitions and column.type in (pa.string(), pa.binary()):
            values = [each or None for each in rows[column.name].to_pylist()]
            rows = rows.set_column(at, column.name, pa.array(values, column.type))
    return rows


@settings(max_examples=40)
@given(tables(), st.integers(1, 4))
def test_rows_come_back_by_partition_in_the_order_of_the_key(
    table: tuple[FileLayout, pa.Table], max_rows: int
) -> None:
    layout, rows = table
    with table_folder() as root:
        store = open_file_store(root)
        files = ParquetFileWriter(store, layout, max_rows=max_rows).write(rows)
        reader = DataFileReader(store, layout)
        parts = [reader.read(file) for file in files]
        assert all(1 <= part.num_rows <= max_rows for part in parts)
        found = pa.concat_tables([layout.schema.empty_table(), *parts])
        assert plain_rows(found) == plain_rows(as_read(layout, rows))
        for file in files:
            assert (Path(root) / unquote(file.path)).stat().st_size == file.size
        for part in parts:
            known = part[layout.key[0]].drop_null()
            if not pa.types.is_floating(known.type):
                assert plain_values(known) == sorted(plain_values(known))


def test_rows_are_in_the_order_that_the_table_says(tmp_path: Path) -> None:
    """Floats as Iceberg's specification orders them; nulls where each column has them."""
    columns = {"id": pa.int64(), "f": pa.float64(), "t": pa.string()}
    by = (SortedBy("t", False, True), SortedBy("f", True, False))
    layout = replace(plain_layout(columns, key=("id",)), order=by)
    floats = [1.0, None, -0.0, 0.0, float("nan"), float("-inf"), 2.0]
    texts = [*["b"] * 6, None]
    rows = pa.table([pa.array(range(7)), pa.array(floats), pa.array(texts)], layout.schema)
    store = open_file_store(str(tmp_path))
    (file,) = ParquetFileWriter(store, layout).write(rows)
    assert DataFileReader(store, layout).read(file)["id"].to_pylist() == [6, 4, 0, 3, 2, 5, 1]


def test_files_are_of_about_equal_size(tmp_path: Path) -> None:
    layout = plain_layout({"id": pa.int64()}, key=["id"])
    store = open_file_store(str(tmp_path))
    rows = pa.table({"id": range(10, 0, -1)})
    files = ParquetFileWriter(store, layout, max_rows=4).write(rows)
    reader = DataFileReader(store, layout)
    assert [reader.read(file)["id"].to_pylist() for file in files] == [
        [1, 2, 3, 4], [5, 6, 7, 8], [9, 10],
    ]  # fmt: skip
    assert [file.path.split("-")[:2] for file in files] == [
        ["part", "00000"], ["part", "00001"], ["part", "00002"],
    ]  # fmt: skip


def test_only_texts_that_repeat_have_a_dictionary(tmp_path: Path) -> None:
    layout = plain_layout({"id": pa.int64(), "few": pa.string(), "many": pa.string()})
    rows = pa.table(
        {
            "id": range(1000),
            "few": [f"{i % 7}" for i in range(1000)],
            "many": [f"{i}" for i in range(1000)],
        }
    )
    (file,) = ParquetFileWriter(open_file_store(str(tmp_path)), layout).write(rows)
    group = pq.read_metadata(tmp_path / file.path).row_group(0)
    assert [group.column(i).has_dictionary_page for i in range(3)] == [False, True, False]
    assert group.column(0).compression == "ZSTD"


def test_texts_within_rows_that_repeat_have_a_dictionary(tmp_path: Path) -> None:
    few, many = [f"{i % 7}" for i in range(1000)], [f"{i}" for i in range(1000)]
    row = pa.StructArray.from_arrays([few, many], ["a.b", "many"])
    rows = pa.table({"row": pa.StructArray.from_arrays([row, few], ["of", "few"])})
    layout = plain_layout({"row": rows.schema.field("row").type})
    (file,) = ParquetFileWriter(open_file_store(str(tmp_path)), layout).write(rows)
    group = pq.read_metadata(tmp_path / file.path).row_group(0)
    assert [group.column(i).has_dictionary_page for i in range(3)] == [True, False, True]


def test_column_mapping_writes_physical_names_and_field_ids(tmp_path: Path) -> None:
    kind = pa.struct([pa.field("x y", pa.int64())])
    stored = pa.struct([pa.field("c3", pa.int64(), metadata={"PARQUET:field_id": "3"})])
    columns = (
        FileColumn("a b", "c1", pa.int64(), 1),
        FileColumn("n", "c2", kind, 2, stored=stored),
        FileColumn("p=", "c4", pa.string(), 4),
    )
    layout = FileLayout(columns, ("p=",), ("a b",), "", "", ("a b",), False, True, prefix_length=2)
    store = open_file_store(str(tmp_path))
    rows = pa.table({"a b": [2, 1], "n": [{"x y": 7}, None], "p=": ["q", "q"]}, layout.schema)
    (file,) = ParquetFileWriter(store, layout).write(rows)
    folder, _, name = file.path.partition("/")
    assert (len(folder), folder.isalnum(), name[:5]) == (2, True, "part-")
    assert file.partition_values == {"c4": "q"}
    assert file.stats == (
        '{"numRecords":2,"minValues":{"c1":1},"maxValues":{"c1":2},"nullCount":{"c1":0},'
        '"tightBounds":true}'
    )
    schema = pq.read_schema(tmp_path / file.path)
    assert schema.names == ["c1", "c2"]
    assert schema.field("c2").metadata[b"PARQUET:field_id"] == b"2"
    assert schema.field("c2").type.field(0).name == "c3"
    assert DataFileReader(store, layout).read(file).to_pylist() == [
        {"a b": 1, "n": None, "p=": "q"}, {"a b": 2, "n": {"x y": 7}, "p=": "q"},
    ]  # fmt: skip


def test_folders_are_named_by_partition_as_hive_does(tmp_path: Path) -> None:
    layout = plain_layout({"id": pa.int64(), "a:b": pa.string()}, partitions=["a:b"])
    values = ["x y/ü%", None, "long" * 100]
    rows = pa.table({"id": [1, 2, 3], "a:b": values})
    writer = ParquetFileWriter(open_file_store(str(tmp_path)), layout)
    files = {file.partition_values["a:b"]: file for file in writer.write(rows)}
    folders = [files[value].path.rpartition("/")[0] for value in values]
    assert folders[0] == "a%253Ab=x%20y%252F%C3%BC%2525"
    assert folders[1] == "a%253Ab=__HIVE_DEFAULT_PARTITION__"
    assert len(folders[2]) == 2  # too long for a folder's name


def test_a_null_where_none_can_be_is_refused_and_no_file_is_left(tmp_path: Path) -> None:
    columns = (FileColumn("id", "id", pa.int64(), nullable=False),)
    layout = FileLayout(columns, (), ("id",), "", "", (), False)
    with pytest.raises(OutputRefusedError, match="column id of the table is NOT NULL"):
        ParquetFileWriter(open_file_store(str(tmp_path)), layout).write(pa.table({"id": [1, None]}))


def test_a_binary_partition_that_delta_cannot_hold_is_refused_and_no_file_is_left(
    tmp_path: Path,
) -> None:
    layout = plain_layout({"id": pa.int64(), "p": pa.binary()}, partitions=["p"])
    rows = pa.table({"id": [1, 2], "p": [b"a", b"\xff"]})
    with pytest.raises(OutputRefusedError, match="partition column p is no UTF-8"):
        ParquetFileWriter(open_file_store(str(tmp_path)), layout).write(rows)
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []


@pytest.mark.parametrize(
    ("narrow", "wide", "value", "widened"),
    [
        (pa.int32(), pa.int64(), 7, 7),
        (pa.int16(), pa.float64(), 7, 7.0),
        (pa.int32(), pa.decimal128(12, 2), 7, Decimal("7.00")),
        (pa.float32(), pa.float64(), 0.5, 0.5),
        (pa.decimal128(5, 1), pa.decimal128(20, 3), Decimal("7.5"), Decimal("7.500")),
        (pa.date32(), pa.timestamp("us"), -1, -86_400_000_000),
    ],
)
def test_a_file_of_a_narrower_type_is_read_as_the_wider_one(
    tmp_path: Path, narrow: pa.DataType, wide: pa.DataType, value: Any, widened: Any
) -> None:
    store = open_file_store(str(tmp_path))
    rows = pa.table({"a": column_of([value, None], narrow)})
    (file,) = ParquetFileWriter(store, plain_layout({"a": narrow})).write(rows)
    found = DataFileReader(store, plain_layout({"new": pa.string(), "a": wide})).read(file)
    assert found.schema == pa.schema({"new": pa.string(), "a": wide})
    assert found["a"].combine_chunks() == column_of([widened, None], wide)
    assert found["new"].null_count == 2


def test_a_type_that_cannot_become_the_columns_is_refused(tmp_path: Path) -> None:
    store = open_file_store(str(tmp_path))
    (file,) = ParquetFileWriter(store, plain_layout({"a": pa.string()})).write(
        pa.table({"a": ["x"]})
    )
    with pytest.raises(OutputRefusedError, match=r"column a is of type int64 .* has it as string"):
        DataFileReader(store, plain_layout({"a": pa.int64()})).read(file)
    parted = replace(file, partition_values={"p": "no date"})
    layout = plain_layout({"a": pa.string(), "p": pa.date32()}, partitions=["p"])
    with pytest.raises(OutputRefusedError, match=r"partition of type date32.* can't read"):
        DataFileReader(store, layout).read(parted)


def test_names_with_dots_are_names(tmp_path: Path) -> None:
    inner = pa.struct([pa.field("b", pa.string())])
    layout = plain_layout({"a": inner, "a.b": pa.string(), "A": pa.int64(), "c.d": pa.int64()})
    store = open_file_store(str(tmp_path))
    values = [{"a": {"b": f"{n}"}, "a.b": "x", "A": n, "c.d": -n} for n in range(100)]
    rows = pa.Table.from_pylist(values, layout.schema)
    (file,) = ParquetFileWriter(store, layout).write(rows)
    reader = DataFileReader(store, layout)
    assert reader.read(file).equals(rows)
    for name in layout.schema.names:
        assert reader.read(file, [name]).equals(rows.select([name]))
    group = pq.read_metadata(tmp_path / file.path).row_group(0)
    found = {group.column(at).path_in_schema: group.column(at) for at in range(4)}
    assert group.num_columns == 4
    assert group.column(1).has_dictionary_page
    assert found["c.d"].statistics.min == -99


def test_chosen_rows_come_in_the_order_asked_for(tmp_path: Path) -> None:
    layout = plain_layout({"id": pa.int64(), "p": pa.string()}, key=["id"], partitions=["p"])
    store = open_file_store(str(tmp_path))
    count = 300_000  # three row groups
    rows = pa.table({"id": range(count), "p": pa.repeat("x", count)})
    (file,) = ParquetFileWriter(store, layout).write(rows)
    assert pq.read_metadata(tmp_path / file.path).num_row_groups == 3
    reader = DataFileReader(store, layout)
    asked = np.array([299_999, 5, 131_072, 131_071, 5])
    found = reader.read(file, ["p", "id"], asked)
    assert found["id"].to_pylist() == asked.tolist()
    assert found.schema.names == ["p", "id"]
    assert reader.read(file, ["p"], asked)["p"].to_pylist() == ["x"] * 5
    assert reader.read(file, ["id"], np.zeros(0, np.int64)).num_rows == 0


def test_a_torn_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    layout = plain_layout({"id": pa.int64()})
    store = open_file_store(str(tmp_path))
    (file,) = ParquetFileWriter(store, layout).write(pa.table({"id": [1]}))
    (tmp_path / file.path).write_bytes(b"PAR1 torn")
    with pytest.raises(OutputError, match=file.path):
        DataFileReader(store, layout).read(file)


@pytest.mark.parametrize("codec", ["snappy", "gzip", "zstd"])
def test_a_damaged_file_of_any_writer_leaves_one_table_out(tmp_path: Path, codec: str) -> None:
    layout = plain_layout({"id": pa.int64()})
    store, rows = open_file_store(str(tmp_path)), pa.table({"id": range(1000)})
    (file,) = ParquetFileWriter(store, layout).write(rows)
    path = tmp_path / file.path
    pq.write_table(rows, path, compression=codec, use_dictionary=False)
    content, reader = path.read_bytes(), DataFileReader(store, layout)
    assert reader.read(file).equals(rows)
    header, page = content[:4] + b"\xff" * 40 + content[44:], content[:300] + bytes(40)
    for damaged in (b"", content[:-30], header, page + content[340:]):
        path.write_bytes(damaged)
        with pytest.raises(RowsLeftOutError, match=file.path):
            reader.read(file)


def test_a_file_of_another_table_is_read_where_its_url_says(tmp_path: Path) -> None:
    layout = plain_layout({"id": pa.int64()})
    theirs = open_file_store(str(tmp_path / "their's"))
    (file,) = ParquetFileWriter(theirs, layout).write(pa.table({"id": [1]}))
    cloned = replace(file, path=(tmp_path / "their's" / file.path).as_uri().replace("//", ""))
    ours = open_file_store(str(tmp_path / "ours"))
    assert DataFileReader(ours, layout).read(cloned)["id"].to_pylist() == [1]
