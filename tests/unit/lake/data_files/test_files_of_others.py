"""Files that Spark and delta-rs write are read by the table's types."""

from __future__ import annotations

from pathlib import Path

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.lake_files import column_of, plain_layout

from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.data_files.file_reader import DataFileReader
from tidelog.outputs.lake.delta_log.table_state import TableState

YEAR_1_US, YEAR_9999_US = -62_135_596_800_000_000, 253_402_300_799_999_999


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.timestamp("us")])
def test_timestamps_of_96_bits_are_read_in_every_year(tmp_path: Path, kind: pa.DataType) -> None:
    values = column_of([YEAR_1_US, -1, 0, YEAR_9999_US, None], pa.timestamp("us"))
    pq.write_table(
        pa.table({"at": values}), tmp_path / "x.parquet", use_deprecated_int96_timestamps=True
    )
    reader = DataFileReader(open_file_store(str(tmp_path)), plain_layout({"at": kind}))
    found = reader.read(DataFile("x.parquet"))
    assert found["at"].combine_chunks() == values.cast(kind)


def test_files_of_delta_rs_are_read(tmp_path: Path) -> None:
    columns = {
        "id": pa.int64(), "text": pa.string(), "data": pa.binary(), "amount": pa.decimal128(20, 2),
        "at": pa.timestamp("us", "UTC"), "p": pa.date32(),
    }  # fmt: skip
    rows = pa.table(
        {
            "id": [1, 2], "text": ["a", None], "data": [b"\xff", None],
            "amount": pa.array(["1.50", None]).cast(columns["amount"]),
            "at": pa.array([1, None], columns["at"]), "p": column_of([1, 1], columns["p"]),
        }
    )  # fmt: skip
    large = pa.schema({**columns, "text": pa.large_string(), "data": pa.large_binary()})
    deltalake.write_deltalake(tmp_path, rows.cast(large), partition_by=["p"])
    state = TableState(open_file_store(str(tmp_path)))
    state.refresh()
    layout = plain_layout(columns, partitions=["p"])
    (file,) = state.files.values()
    found = DataFileReader(open_file_store(str(tmp_path)), layout).read(file)
    assert found.sort_by("id").equals(rows)


def test_rows_of_files_that_delta_rs_rewrote_are_read(tmp_path: Path) -> None:
    """It gives them types that Arrow can't take rows of."""
    columns = {"id": pa.int64(), "texts": pa.list_(pa.string()), "data": pa.binary()}
    rows = pa.table({"id": [1, 2], "texts": [["a"], None], "data": [b"\xff", None]})
    deltalake.write_deltalake(tmp_path, rows)
    deltalake.DeltaTable(tmp_path).update({"id": "id + 1"})
    state = TableState(open_file_store(str(tmp_path)))
    state.refresh()
    (file,) = state.files.values()
    assert pq.read_schema(tmp_path / file.path).field("data").type == pa.binary_view()
    reader = DataFileReader(open_file_store(str(tmp_path)), plain_layout(columns))
    found = reader.read(file, None, np.array([1]))
    assert found.to_pylist() == [{"id": 3, "texts": None, "data": None}]
    assert found.schema == reader.read(file).schema
