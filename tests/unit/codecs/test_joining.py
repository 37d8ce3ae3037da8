"""Texts of rows, put together by kernels: against what Arrow's own functions make of the same."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidelog.codecs.columns.concatenation import TextCells, has_escapes, join

WORDS = ["", "a", "ä€\U0001f600", "line\nend", "x" * 300, None]
NUMBERS = [0, 9, 10, -1, 99, 100, 12345, -(2**63), 2**63 - 1, None, 10**18, -100]


def test_as_arrow_joins() -> None:
    random = np.random.default_rng(5)
    for n in (1, 7, 5_000):
        words = pa.array([WORDS[at] for at in random.integers(0, len(WORDS), n)])
        numbers = pa.array([NUMBERS[at] for at in random.integers(0, len(NUMBERS), n)], pa.int64())
        found = join(['{"w":', words, ',"n":', numbers, words, "}"], "null")
        texts = numbers.cast(pa.string())
        expected = pc.binary_join_element_wise(
            '{"w":', words, ',"n":', texts, words, "}", "",
            null_handling="replace", null_replacement="null",
        )  # fmt: skip
        found.validate(full=True)
        assert found.equals(expected)
        assert join([words, numbers], "null", large=True).equals(
            join([words, numbers], "null").cast(pa.large_string())
        )


def test_of_slices_and_of_no_rows() -> None:
    words = pa.array(["one", None, "three", "four"])
    assert join([words.slice(1, 2), "-"], "?").to_pylist() == ["?-", "three-"]
    assert join([words.slice(4), "-"], "?").to_pylist() == []
    nothing = pa.StringArray.from_buffers(0, pa.py_buffer(b""), pa.py_buffer(b""))
    assert not has_escapes(nothing)
    assert join([nothing, "-"], "?").to_pylist() == []
    assert join([pa.array([3], pa.int8()), pa.array([4], pa.uint64())], "").to_pylist() == ["34"]


def test_what_encloses_values_does_not_enclose_nulls() -> None:
    words = pa.array(["one", None, "three"])
    cells = TextCells(words, "<", ">", where=np.array([True, True, False]))
    assert join(["=", cells], "null").to_pylist() == ["=<one>", "=null", "=null"]
    assert cells.texts().to_pylist() == ["<one>", None, None]
    assert TextCells(pa.array([1, None])).texts().to_pylist() == ["1", None]


def test_columns_of_different_lengths_are_refused() -> None:
    words = pa.array(["one", "two"])
    for other in (pa.array(["three"]), TextCells(words, where=np.array([True]))):
        with pytest.raises(ValueError, match="different lengths"):
            join([words, "-", other], "")


def test_a_column_of_no_rows_goes_with_no_other() -> None:
    some, none = pa.array(["a", "b"]), pa.array([], pa.string())
    for pieces in ([some, none], [none, some], ["x", TextCells(none, "(", ")"), some]):
        with pytest.raises(ValueError, match="different lengths"):
            join(pieces, "NULL")
    assert join(["x", none, none], "NULL").to_pylist() == []


def test_of_numbers_of_any_width_enclosed_or_not() -> None:
    for kind in (pa.int8(), pa.uint8(), pa.int16(), pa.uint32(), pa.int64(), pa.uint64()):
        numbers = pa.array([1, None, 120, 7], kind).slice(1)
        assert join([TextCells(numbers, "<", ">")], "-").to_pylist() == ["-", "<120>", "<7>"]
        assert join(["=", numbers.slice(1), ";"], "-").to_pylist() == ["=120;", "=7;"]
    digits = pa.array([10**n for n in range(19)] + [10**n - 1 for n in range(1, 19)])
    assert join([digits], "").to_pylist() == [str(number) for number in digits.to_pylist()]


def test_more_than_offsets_hold_is_refused() -> None:
    word = pa.array(["x" * (1 << 20)])
    with pytest.raises(pa.ArrowCapacityError, match="1 texts are"):
        join([word] * 2048, "")


@pytest.mark.parametrize("text", ['"', "\\", "\x00", "\x1f", "\U00010000", "\U0010ffff"])
def test_escapes_are_found(text: str) -> None:
    assert has_escapes(pa.array(["plain", f"a{text}b", "plain"]))
    assert not has_escapes(pa.array(["plain", f"a{text}b", "\uffff € ~\x7f"]).slice(2))
