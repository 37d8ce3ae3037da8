"""Deletion vectors, by the protocol's own examples and by numbers of rows of all kinds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from tidelog.errors import OutputRefusedError
from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.lake.data_files.data_file import DeletionVector
from tidelog.outputs.lake.data_files.deletion_vectors import (
    DeletionVectorWriter,
    decode,
    encode,
    read_rows,
)


def rows_of(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def test_the_protocols_inline_vector(tmp_path: Path) -> None:
    text = "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
    vector = DeletionVector("i", text, None, 44, 6)
    store = open_file_store(str(tmp_path))
    assert read_rows(store, vector).tolist() == [3, 4, 7, 11, 18, 29]


def test_the_protocols_file_name() -> None:
    assert decode("^-aqEH.-t@S}K{vb[*k^").hex() == "d2c639aa8816431aaaf6d3fe2512ff61"


@given(st.binary(max_size=64))
def test_base85_gives_back_what_it_was_given(data: bytes) -> None:
    assert decode(encode(data))[: len(data)] == data


def test_vectors_of_one_file(tmp_path: Path) -> None:
    store = open_file_store(str(tmp_path))
    writer = DeletionVectorWriter(store)
    given = [
        rows_of(0),
        rows_of(1, 5, 70_000, 2**31 + 3, 2**33),
        np.arange(200_000, dtype=np.int64),
        np.flatnonzero(np.random.default_rng(0).random(300_000) < 0.5),
    ]
    vectors = [writer.add(rows) for rows in given]
    assert not list(tmp_path.iterdir())
    writer.close()
    (found,) = tmp_path.iterdir()
    assert found.name.startswith("deletion_vector_")
    for rows, vector in zip(given, vectors, strict=True):
        back = read_rows(store, vector)
        assert back.dtype == np.int64
        assert np.array_equal(back, rows)
        assert vector.cardinality == len(rows)


def test_without_vectors_there_is_no_file(tmp_path: Path) -> None:
    DeletionVectorWriter(open_file_store(str(tmp_path))).close()
    assert not list(tmp_path.iterdir())


def test_bytes_are_those_of_the_library(tmp_path: Path) -> None:
    store = open_file_store(str(tmp_path))
    writer = DeletionVectorWriter(store)
    rows = np.arange(0, 500_000, 7, dtype=np.int64)
    vector = writer.add(rows)
    writer.close()
    bitmap = BitMap64(rows.tolist())
    bitmap.run_optimize()
    (found,) = tmp_path.iterdir()
    assert vector.offset == 1
    assert found.read_bytes()[9:-4] == bitmap.serialize()


def test_a_vector_in_a_folder_and_by_an_absolute_path(tmp_path: Path) -> None:
    store = open_file_store(str(tmp_path))
    writer = DeletionVectorWriter(store)
    vector = writer.add(rows_of(2, 4))
    writer.close()
    (made,) = tmp_path.iterdir()
    (tmp_path / "ab").mkdir()
    absolute = f"file:{made}"
    known = (vector.offset, vector.size_bytes, vector.cardinality)
    assert read_rows(store, DeletionVector("p", absolute, *known)).tolist() == [2, 4]
    made.rename(tmp_path / "ab" / made.name)
    moved = DeletionVector("u", f"ab{vector.location}", *known)
    assert read_rows(store, moved).tolist() == [2, 4]
    with pytest.raises(OutputRefusedError, match=f"{made.name} is damaged: the file is missing"):
        read_rows(store, vector)


@pytest.mark.parametrize(
    ("at", "why"),
    [(1, "the log says"), (5, "checksum"), (40, "checksum"), (-1, "checksum"), (None, "ends")],
)
def test_a_damaged_vector_is_refused_by_its_file(tmp_path: Path, at: int | None, why: str) -> None:
    store = open_file_store(str(tmp_path))
    writer = DeletionVectorWriter(store)
    vector = writer.add(rows_of(2, 4, 9))
    writer.close()
    (made,) = tmp_path.iterdir()
    data = bytearray(made.read_bytes())
    if at is None:
        del data[-3:]
    else:
        data[at] ^= 1
    made.write_bytes(data)
    with pytest.raises(OutputRefusedError, match=f"{made.name} is damaged: .*{why}"):
        read_rows(store, vector)


def test_a_vector_that_is_none_is_refused(tmp_path: Path) -> None:
    store = open_file_store(str(tmp_path))
    for vector, why in (
        (DeletionVector("i", encode(b"\x50" + bytes(20)), None, 21, 1), "later format"),
        (DeletionVector("i", encode(b"\xd1\xd39d" + b"\xff" * 20), None, 24, 1), "no Roaring"),
        (DeletionVector("i", "\N{EURO SIGN}" * 5, None, 4, 1), "no Base85"),
        (DeletionVector("x", "abc", None, 4, 1), "stored as 'x'"),
    ):
        with pytest.raises(OutputRefusedError, match=why):
            read_rows(store, vector)
