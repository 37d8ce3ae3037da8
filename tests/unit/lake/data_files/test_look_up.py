"""The rows of given keys are found, all of them and no others, whatever the key's types."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.lake_files import (
    TYPES,
    column_of,
    plain_layout,
    plain_values,
    table_folder,
    values_of,
)

from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.lake.data_files import keys
from tidelog.outputs.lake.data_files import look_up as key_index
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.data_files.deletion_vectors import DeletionVectorWriter
from tidelog.outputs.lake.data_files.file_reader import DataFileReader
from tidelog.outputs.lake.data_files.keys import KeyQuery
from tidelog.outputs.lake.data_files.layout import FileLayout
from tidelog.outputs.lake.data_files.look_up import KeyIndexCache, RowFinder, files_to_search
from tidelog.outputs.lake.data_files.parquet_files import ParquetFileWriter

ANY_TYPE = st.sampled_from(list(TYPES.values()))
NO_BINARY = st.sampled_from([kind for kind in TYPES.values() if kind != pa.binary()])


_OTHER_NAN = np.array(0x7FF8_0000_0000_0001).view(np.float64)[()]


class Case:
    """Files of a table, and keys that are looked for in them."""

    def __init__(self, draw: st.DrawFn) -> None:
        kinds = draw(st.lists(NO_BINARY, min_size=1, max_size=3))
        names = [f"k{i}" for i in range(len(kinds))]
        partitions = draw(st.sets(st.sampled_from(names))) if draw(st.booleans()) else set()
        kinds = [
            kind if name in partitions else draw(st.sampled_from([kind, pa.binary()]))
            for name, kind in zip(names, kinds, strict=True)
        ]
        columns = dict(zip(names, kinds, strict=True))
        few = [
            draw(st.lists(st.none() | values_of(kind), min_size=1, max_size=4)) for kind in kinds
        ]
        rows = st.lists(st.tuples(*map(st.sampled_from, few)), max_size=12)
        self.layout: FileLayout = plain_layout(
            {**columns, "row": pa.int64()},
            key=names,
            partitions=sorted(partitions),
            null_key=draw(st.booleans()),
        )
        self.rows = draw(rows)
        self.keys = list({self.plain(key): key for key in draw(rows)}.values())

    def plain(self, key: tuple[Any, ...]) -> tuple[Any, ...]:
        """Equal for equal keys; an empty text is null in a partition."""
        found = []
        for column, value in zip(self.layout.columns, key, strict=False):
            (known,) = plain_values(pa.chunked_array([column_of([value], column.type)]))
            empty = column.name in self.layout.partitions and known == ""
            found.append(None if empty else known)
        return tuple(found)

    def matches(self, key: tuple[Any, ...], row: tuple[Any, ...]) -> bool:
        if not self.layout.null_key and None in key:
            return False
        return self.plain(key) == self.plain(row)

    def table(self, rows: list[tuple[Any, ...]]) -> pa.Table:
        columns = self.layout.columns[:-1]
        values = list(zip(*rows, strict=True)) or [[] for _ in columns]
        return pa.table(
            {
                each.name: column_of(list(column), each.type)
                for each, column in zip(columns, values, strict=True)
            }
        )


@settings(max_examples=60)
@given(st.composite(lambda draw: Case(draw))(), st.integers(1, 6), st.integers(0, 2))
def test_rows_of_keys_are_found_in_every_file(case: Case, max_rows: int, known: int) -> None:
    layout = case.layout
    expected = {
        (number, at)
        for number, key in enumerate(case.keys)
        for at, row in enumerate(case.rows)
        if case.matches(key, row)
    }
    with table_folder() as root, table_folder() as indexes:
        store, cache = open_file_store(root), KeyIndexCache(indexes)
        rows = case.table(case.rows).append_column(
            "row", pa.array(range(len(case.rows)), pa.int64())
        )
        writer = ParquetFileWriter(
            store, layout, max_rows=max_rows, cache=cache if known == 0 else None
        )
        files = writer.write(rows)
        if known == 1:
            files = [replace(file, stats=None) for file in files]
        reader = DataFileReader(store, layout)
        for _ in range(2):  # the second time by indexes of the cache
            query = KeyQuery(case.table(case.keys), layout)
            found = RowFinder(store, layout, cache).find(files, query)
            pairs = [
                (int(number), row)
                for each in found
                for number, row in zip(
                    each.keys,
                    reader.read(each.file, ["row"], each.rows)["row"].to_pylist(),
                    strict=True,
                )
            ]
            assert sorted(pairs) == sorted(expected)
            assert all((np.diff(each.rows) >= 0).all() for each in found)


@pytest.mark.parametrize(
    ("kind", "stored", "asked"),
    [
        (pa.float64(), [float("nan"), -0.0], [0.0, float("nan")]),
        (pa.float64(), [_OTHER_NAN, 1.0], [1.0, float("nan")]),
        (pa.float32(), [np.float32("nan"), np.float32("-0.0")], [0.0, float("nan")]),
        (
            pa.decimal128(10, 2),
            [Decimal("1.50"), Decimal("-2.00")],
            [Decimal("-2"), Decimal("1.5")],
        ),
        (pa.string(), ["a ", "ä"], ["ä", "a "]),
    ],
)
def test_equal_keys_are_those_that_spark_takes_for_equal(
    tmp_path: Path, kind: pa.DataType, stored: list[Any], asked: list[Any]
) -> None:
    layout = plain_layout({"k": kind, "row": pa.int64()}, key=["k"])
    store = open_file_store(str(tmp_path))
    rows = pa.table({"k": pa.array(stored, kind), "row": [0, 1]})
    files = ParquetFileWriter(store, layout).write(rows, sorted_by_key=True)
    query = KeyQuery(pa.table({"k": pa.array(asked, kind)}), layout)
    (found,) = RowFinder(store, layout, KeyIndexCache(str(tmp_path / "i"))).find(files, query)
    assert (found.rows.tolist(), found.keys.tolist()) == ([0, 1], [1, 0])


@pytest.mark.parametrize("null_key", [False, True])
def test_an_empty_text_is_found_where_a_partition_has_null(tmp_path: Path, null_key: bool) -> None:
    layout = plain_layout(
        {"p": pa.string(), "k": pa.int64()}, key=["p", "k"], partitions=["p"], null_key=null_key
    )
    store = open_file_store(str(tmp_path))
    rows = pa.table({"p": ["", None, "a"], "k": [1, 2, 1]})
    files = ParquetFileWriter(store, layout).write(rows)
    query = KeyQuery(pa.table({"p": ["", None], "k": [1, 2]}), layout)
    found = RowFinder(store, layout, KeyIndexCache(str(tmp_path / "i"))).find(files, query)
    assert {each.file.partition_values["p"] for each in found} == {None}
    numbers = sorted(number for each in found for number in each.keys.tolist())
    assert numbers == ([0, 1] if null_key else [0])


def test_equal_hashes_of_different_keys_find_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "key_hashes", lambda columns, count: np.zeros(count, np.uint64))
    layout = plain_layout({"k": pa.string()}, key=["k"])
    store = open_file_store(str(tmp_path))
    files = ParquetFileWriter(store, layout).write(pa.table({"k": ["a", "b", "c"]}))
    query = KeyQuery(pa.table({"k": ["c", "x", "a"]}), layout)
    (found,) = RowFinder(store, layout, KeyIndexCache(str(tmp_path / "i"))).find(files, query)
    assert (found.rows.tolist(), found.keys.tolist()) == ([0, 2], [2, 0])


def test_keys_of_a_file_with_a_narrower_type_are_found(tmp_path: Path) -> None:
    narrow = plain_layout({"k": pa.int32()}, key=["k"])
    wide = plain_layout({"k": pa.int64()}, key=["k"])
    store, cache = open_file_store(str(tmp_path)), KeyIndexCache(str(tmp_path / "i"))
    files = ParquetFileWriter(store, narrow, cache=cache).write(
        pa.table({"k": [3, 1]}, narrow.schema)
    )
    query = KeyQuery(pa.table({"k": [2**40, 3]}), wide)
    (found,) = RowFinder(store, wide, cache).find(files, query)
    assert (found.rows.tolist(), found.keys.tolist()) == ([1], [1])


def test_files_are_left_out_by_statistics_of_every_key_column_and_by_partition() -> None:
    layout = plain_layout(
        {"p": pa.int32(), "a": pa.string(), "b": pa.timestamp("us", "UTC")},
        key=["p", "a", "b"],
        partitions=["p"],
    )

    def file(name: str, partition: str | None, stats: str | None) -> DataFile:
        return DataFile(name, {"p": partition}, stats=stats)

    inside = (
        '{"minValues":{"a":"k","b":"1970-01-01T00:00:00.000Z"},'
        '"maxValues":{"a":"m","b":"1970-01-01T00:00:00.000Z"}}'
    )
    files = [
        file("inside", "1", inside),
        file("other partition", "2", inside),
        file("no statistics", "1", None),
        file("above", "1", inside.replace('"k"', '"l\U0010ffff"')),
        file("below", "1", inside.replace('"m"', '"l"')),
        file("later", "1", inside.replace("1970", "1971")),
        file("odd", "1", inside.replace("1970-01", "no date")),
        file("half", "1", '{"numRecords":1,"minValues":{"a":"k"}}'),
        file("null", None, inside),
    ]
    wanted = pa.table(
        {
            "p": pa.array([1, 3], pa.int32()),
            "a": ["l \U0010ffff", "k"],
            "b": pa.array([999, 0], pa.timestamp("us", "UTC")),
        }
    )
    found = files_to_search(files, KeyQuery(wanted, layout), layout)
    assert [each.path for each in found] == ["inside", "no statistics", "odd", "half"]


def test_rows_that_a_vector_marks_are_not_found(tmp_path: Path) -> None:
    layout = plain_layout({"k": pa.int64()}, key=["k"])
    store = open_file_store(str(tmp_path))
    (file,) = ParquetFileWriter(store, layout).write(pa.table({"k": range(0, 20, 2)}))
    vectors = DeletionVectorWriter(store)
    marked = replace(file, deletion_vector=vectors.add(np.array([0, 3, 9])))
    vectors.close()
    query = KeyQuery(pa.table({"k": [18, 8, 7, 6, 4]}), layout)
    look_up = RowFinder(store, layout, KeyIndexCache(str(tmp_path / "i")))
    (found,) = look_up.find([marked], query)
    assert (found.file, found.rows.tolist(), found.keys.tolist()) == (marked, [2, 4], [4, 1])
    assert DataFileReader(store, layout).deleted_rows(marked).tolist() == [0, 3, 9]
    assert look_up.find([marked], KeyQuery(pa.table({"k": [0, 18]}), layout)) == []


def test_a_file_without_null_is_left_out_for_a_key_that_is_null() -> None:
    layout = plain_layout({"k": pa.string()}, key=["k"], null_key=True)
    stats = '{"minValues":{"k":"a"},"maxValues":{"k":"b"},"nullCount":{"k":0}}'
    files = [
        DataFile("none", stats=stats),
        DataFile("some", stats=stats.replace("0", "1")),
        DataFile("unknown", stats=stats.replace("nullCount", "other")),
    ]
    query = KeyQuery(pa.table({"k": pa.array([None], pa.string())}), layout)
    assert [each.path for each in files_to_search(files, query, layout)] == ["some", "unknown"]


def test_one_key_of_many_is_enough_for_a_file() -> None:
    layout = plain_layout({"k": pa.string()}, key=["k"])
    file = DataFile("x", stats='{"minValues":{"k":"z"},"maxValues":{"k":"z"}}')
    keys = [*(f"a{number}" for number in range(2000)), "z"]
    query = KeyQuery(pa.table({"k": keys}), layout)
    assert files_to_search([file], query, layout) == [file]


def test_a_large_query_is_answered_as_a_small_one(tmp_path: Path) -> None:
    left, right = np.array([1, 1, 2, 5, 5, 9]), np.array([0, 1, 5, 5, 8])
    expected = [(0, 1), (1, 1), (3, 2), (3, 3), (4, 2), (4, 3)]
    ours, theirs = key_index._pairs(left, right)
    assert sorted(zip(ours.tolist(), theirs.tolist(), strict=True)) == expected
    theirs, ours = key_index._pairs(right, left)
    assert sorted(zip(ours.tolist(), theirs.tolist(), strict=True)) == expected
