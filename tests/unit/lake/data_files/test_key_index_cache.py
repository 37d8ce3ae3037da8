"""Key indexes are kept for their owner, within bounds, and are made again when lost."""

from __future__ import annotations

import os
import pickle
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.lake_files import plain_layout

from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.lake.data_files import disk_cache
from tidelog.outputs.lake.data_files.file_reader import DataFileReader
from tidelog.outputs.lake.data_files.keys import KeyQuery
from tidelog.outputs.lake.data_files.layout import VALID_TO_VERSION as END
from tidelog.outputs.lake.data_files.layout import FileLayout
from tidelog.outputs.lake.data_files.look_up import (
    FileKeyIndex,
    KeyIndexCache,
    RowFinder,
    index_keys,
)
from tidelog.outputs.lake.data_files.parquet_files import ParquetFileWriter

NUMBERS = plain_layout({"k": pa.int64()}, key=["k"])
TEXTS = plain_layout({"k": pa.string(), "l": pa.decimal128(5, 1)}, key=["k", "l"])

STATES = replace(
    plain_layout({**{each.name: each.type for each in TEXTS.columns}, END: pa.int64()}, key="kl"),
    history=True,
)


def index_of(layout: FileLayout, rows: list[dict[str, object]]) -> FileKeyIndex:
    return index_keys(pa.Table.from_pylist(rows, layout.schema), layout)


def is_there(cache: KeyIndexCache, path: str, layout: FileLayout = NUMBERS) -> bool:
    return cache.find("t", path, layout) is not None


@pytest.mark.parametrize(
    ("layout", "rows"),
    [
        (NUMBERS, [{"k": 1}, {"k": 2}]),
        (NUMBERS, [{"k": 5}, {"k": None}, {"k": 2}]),
        (TEXTS, [{"k": "b", "l": 1}, {"k": None, "l": 2}, {"k": "a"}]),
        (NUMBERS, []),
        (STATES, [{"k": "b", END: 3}, {"k": "c"}, {"k": "a", "l": 1}, {"k": "a", "l": 1, END: 2}]),
    ],
)
def test_an_index_comes_back_as_it_was(
    tmp_path: Path, layout: FileLayout, rows: list[dict[str, object]]
) -> None:
    made = index_of(layout, rows)
    KeyIndexCache(str(tmp_path / "i")).keep("t", "f", layout, made)
    found = pickle.loads(pickle.dumps(KeyIndexCache(str(tmp_path / "i")))).find("t", "f", layout)
    assert found is not None
    assert found.places.tolist() == made.places.tolist()
    assert (found.rows is None) == (made.rows is None)
    assert made.rows is None or found.rows.tolist() == made.rows.tolist()
    assert found.keys == made.keys


def test_open_rows_of_a_key_of_many_columns_are_found_beside_ended_ones(tmp_path: Path) -> None:
    keys = [("b", 1), ("a", 2), ("a", 1), ("c", 3), ("a", 1)]
    ends = [None, 5, 5, None, None]
    rows = pa.Table.from_pylist(
        [{"k": k, "l": n, END: end} for (k, n), end in zip(keys, ends, strict=True)], STATES.schema
    )
    store, cache = open_file_store(str(tmp_path / "t")), KeyIndexCache(str(tmp_path / "i"))
    (file,) = ParquetFileWriter(store, STATES, cache=cache).write(rows)
    wanted = rows.select(["k", "l"]).slice(0, 4)
    reader = DataFileReader(store, STATES)
    for _ in range(2):
        (found,) = RowFinder(store, STATES, cache).find([file], KeyQuery(wanted, STATES))
        of = reader.read(file, ["k", "l", END], found.rows)
        assert of.column(END).null_count == 3
        assert of.select(["k", "l"]).equals(wanted.take(pa.array(found.keys)))
        shutil.rmtree(tmp_path / "i")  # then the file is read


def test_an_index_is_of_one_table_file_and_key(tmp_path: Path) -> None:
    cache = KeyIndexCache(str(tmp_path))
    cache.keep("t", "f", NUMBERS, index_of(NUMBERS, [{"k": 1}]))
    assert is_there(cache, "f")
    assert cache.find("u", "f", NUMBERS) is None
    assert cache.find("t", "g", NUMBERS) is None
    assert not is_there(cache, "f", plain_layout({"k": pa.int32()}, key=["k"]))
    assert not is_there(cache, "f", plain_layout({"k": pa.int64()}, key=["k"], null_key=True))
    assert not is_there(cache, "f", replace(NUMBERS, history=True))
    (key,) = NUMBERS.columns
    for other in (replace(key, physical="col-1"), replace(key, field_id=7)):
        assert not is_there(cache, "f", replace(NUMBERS, columns=(other,)))


def test_an_index_of_an_earlier_start_of_the_host_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = KeyIndexCache(str(tmp_path / "i"))
    cache.keep("t", "f", NUMBERS, index_of(NUMBERS, [{"k": 1}]))
    monkeypatch.setattr(disk_cache, "_boot_id", lambda: "another")
    assert not is_there(cache, "f")


def test_a_torn_index_is_not_used_and_goes(tmp_path: Path) -> None:
    cache = KeyIndexCache(str(tmp_path))
    cache.keep("t", "f", NUMBERS, index_of(NUMBERS, [{"k": 1}]))
    (file,) = tmp_path.iterdir()
    for torn in (b"", file.read_bytes()[:-20]):
        file.write_bytes(torn)
        assert not is_there(cache, "f")
        assert not file.exists()


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    index = index_of(NUMBERS, [{"k": k} for k in range(1000)])  # about 8 KB
    cache = KeyIndexCache(str(tmp_path), most_bytes=30_000)
    for age, path in enumerate("abc"):
        cache.keep("t", path, NUMBERS, index)
        (fresh,) = [each for each in tmp_path.iterdir() if each.stat().st_mtime > 10_000]
        os.utime(fresh, (age, age))
    assert is_there(cache, "a")  # used just now
    cache.keep("t", "d", NUMBERS, index)
    assert [path for path in "abcd" if is_there(cache, path)] == ["a", "c", "d"]
    cache.keep("t", "large", NUMBERS, index_of(NUMBERS, [{"k": k} for k in range(5000)]))
    assert not is_there(cache, "large")
    assert is_there(cache, "a")


def test_of_a_table_that_is_larger_than_the_cache_a_part_stays_cached(tmp_path: Path) -> None:
    index = index_of(NUMBERS, [{"k": k} for k in range(1000)])  # about 8 KB
    cache = KeyIndexCache(str(tmp_path), most_bytes=30_000)
    hits = []
    for _batch in range(3):
        hits.append([path for path in "abcdefgh" if is_there(cache, path)])
        for path in "abcdefgh":
            if not is_there(cache, path):
                cache.keep("t", path, NUMBERS, index)
    assert hits == [[], ["a", "b", "c"], ["a", "b", "c"]]


def test_an_index_stays_readable_when_its_file_goes(tmp_path: Path) -> None:
    cache = KeyIndexCache(str(tmp_path))
    cache.keep("t", "f", NUMBERS, index_of(NUMBERS, [{"k": k} for k in range(100_000)]))
    found = cache.find("t", "f", NUMBERS)
    assert found is not None
    for file in tmp_path.iterdir():
        file.unlink()
    assert (found.places == np.arange(100_000)).all()


def test_keys_on_disk_are_for_their_owner_alone(tmp_path: Path) -> None:
    cache = KeyIndexCache(str(tmp_path / "i"))
    cache.keep("t", "f", NUMBERS, index_of(NUMBERS, [{"k": 1}]))
    modes = [
        stat.S_IMODE(each.stat().st_mode) for each in [tmp_path / "i", *(tmp_path / "i").iterdir()]
    ]
    assert modes == [0o700, 0o600]


def test_a_disk_that_takes_nothing_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = KeyIndexCache(str(tmp_path / "file" / "i"))
    cache.keep("t", "f", NUMBERS, index_of(NUMBERS, [{"k": 1}]))
    assert not is_there(cache, "f")
