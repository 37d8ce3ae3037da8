"""Files on an object store have the names that the log says, and are read in few requests."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pytest
from tests.support.lake_files import plain_layout
from tests.support.s3 import S3Server

from tidelog.errors import OutputRefusedError
from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.lake.data_files.deletion_vectors import DeletionVectorWriter, read_rows
from tidelog.outputs.lake.data_files.file_reader import DataFileReader
from tidelog.outputs.lake.data_files.keys import KeyQuery
from tidelog.outputs.lake.data_files.look_up import KeyIndexCache, RowFinder
from tidelog.outputs.lake.data_files.parquet_files import ParquetFileWriter

pytestmark = pytest.mark.integration

# S3Proxy keeps objects in files, and Java names those in the locale's characters alone.
ODD = ["x/y%", "a b", ":?#", "__", "+&=", "%2F", "tab\t", "~!*'()", '[]{}^|<>"\\']


def test_partitions_of_any_name_are_written_and_read(s3: S3Server, tmp_path: Path) -> None:
    layout = plain_layout({"id": pa.int64(), "p": pa.string()}, key=["id"], partitions=["p"])
    store = open_file_store(s3.url("data-files"))
    rows = pa.table({"id": range(len(ODD)), "p": ODD})
    files = ParquetFileWriter(store, layout).write(rows)
    folder = s3.files("data-files")
    names = {str(each.relative_to(folder)) for each in folder.rglob("*.parquet")}
    assert names == {unquote(file.path) for file in files}
    reader = DataFileReader(store, layout)
    found = pa.concat_tables([reader.read(file) for file in files]).sort_by("id")
    assert found.equals(rows)
    query = KeyQuery(pa.table({"id": [3, 99]}), layout)
    (hit,) = RowFinder(store, layout, KeyIndexCache(str(tmp_path))).find(files, query)
    assert (hit.file.partition_values, hit.rows.tolist()) == ({"p": ODD[3]}, [0])


@pytest.mark.parametrize("content", [None, b"", b"\x01cut"])
def test_a_vector_that_is_lost_or_cut_leaves_one_table_out(
    s3: S3Server, content: bytes | None
) -> None:
    store = open_file_store(s3.url("vectors"))
    writer = DeletionVectorWriter(store)
    vector = writer.add(np.array([1, 5]))
    writer.close()
    assert read_rows(store, vector).tolist() == [1, 5]
    (name,) = store.names("")
    if content is None:
        store.delete([name])
    else:
        store.put(name, content)
    with pytest.raises(OutputRefusedError, match=f"{name} is damaged"):
        read_rows(store, vector)
    store.delete([name])


def test_a_large_file_is_read_by_ranges(s3: S3Server) -> None:
    layout = plain_layout({"id": pa.int64(), "text": pa.string()}, key=["id"])
    store = open_file_store(s3.url("large"))
    count = 700_000
    texts = [f"{each:032x}" for each in np.random.default_rng(1).integers(0, 2**62, count)]
    rows = pa.table({"id": range(count), "text": texts})
    (file,) = ParquetFileWriter(store, layout).write(rows)
    assert file.size == store.size(file.path) > 4 << 20
    asked = np.array([399_999, 0, 200_000])
    found = DataFileReader(store, layout).read(file, ["text"], asked)
    assert found["text"].to_pylist() == [texts[at] for at in asked]
