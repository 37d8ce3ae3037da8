"""Sums of rows by ranges of the key: as Python computes them, and no change is missed."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidelog.ports import Digest
from tidelog.verify.range_sums import (
    HALF_BITS,
    PartitionSums,
    SumPlan,
    add_up,
    column_text,
    places_of,
    row_texts,
)

INSTANT = datetime(2024, 1, 1, tzinfo=UTC)
ROW: dict[str, tuple[pa.DataType, Any, Sequence[Any]]] = {
    # logical type: Arrow's, a value, and others that are no equal
    "int64": (pa.int64(), 7, (8, -7, None)),
    "float64": (pa.float64(), 0.0, (-0.0, float("nan"), 5e-324, None)),
    "float32": (pa.float32(), 1.5, (-1.5, float("nan"), None)),
    "bool": (pa.bool_(), False, (True, None)),
    "decimal(10,2)": (pa.decimal128(10, 2), Decimal("0.50"), (Decimal("-0.50"), None)),
    "date": (pa.date32(), date(1970, 1, 1), (date(1969, 12, 31), None)),
    "timestamptz": (pa.timestamp("us", "UTC"), INSTANT, (INSTANT.replace(microsecond=1), None)),
    "binary": (pa.binary(), b"", (b"\x00", None)),
    "array(int16)": (pa.list_(pa.int16()), [1, 2], ([12], [1], [1, None], [2, 1], [], None)),
    "array(text)": (pa.list_(pa.string()), ["a", "b"], (["a,1:b"], ["a", "b", ""], [None], None)),
    "numeric(9,8)": (pa.decimal128(9, 8), Decimal("1.5"), (Decimal("1.05"), Decimal(0), None)),
    "text": (pa.string(), "a,b", ("a,b ", "", "~", "!", None)),
}


def sums(rows: Sequence[Sequence[Any]], bounds: Sequence[pa.Array] = ()) -> list[Digest]:
    ranges = len(bounds[0]) + 1 if bounds else 1
    plan = SumPlan(tuple(ROW), (0,), tuple(bounds), ranges=ranges)
    return PartitionSums(plan)(batches(rows)).digests()


def batches(rows: Sequence[Sequence[Any]]) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), 3):
        columns = zip(*rows[start : start + 3], strict=True)
        arrays = [pa.array(c, kind) for c, (kind, _, _) in zip(columns, ROW.values(), strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=list(ROW))


def a_row(number: int) -> list[Any]:
    return [number, *(value for _, value, _ in list(ROW.values())[1:])]


@pytest.mark.parametrize("size", [0, 1, 55, 56, 63, 64, 65, 119, 120, 128, 1000])
def test_numbers_are_the_first_60_bits_of_sha_256(size: int) -> None:
    text = random.Random(size).randbytes(size)
    rows, upper, lower = (np.zeros(2, np.int64) for _ in range(3))
    starts, places = np.array([0, size, size]), np.array([1, 0])
    add_up(np.frombuffer(text or b"-", np.uint8), starts, places, rows, upper, lower)
    expected = [int(hashlib.sha256(each).hexdigest()[:15], 16) for each in (b"", text)]
    found = [(int(u) << HALF_BITS) + int(low) for u, low in zip(upper, lower, strict=True)]
    assert found == expected
    assert rows.tolist() == [1, 1]


def test_a_row_is_its_texts_with_a_comma_behind_each() -> None:
    columns = [pa.array([value], kind) for kind, value, _ in ROW.values()]
    data, starts = row_texts(columns, list(ROW), {})
    text = "7,0,1069547520,false,0.50,0,1704067200000000,,[1,2],[1:a,1:b],1.5,3:a,b,"
    assert (bytes(data).decode(), starts.tolist()) == (text, [0, len(text)])


@pytest.mark.parametrize(("precision", "scale"), [(38, 0), (10, 6), (20, 7), (38, 38)])
def test_decimals_have_all_digits_and_never_an_exponent(precision: int, scale: int) -> None:
    few = Decimal(1).scaleb(-scale)
    largest = Decimal("9" * precision).scaleb(-scale, Context(prec=precision))
    values = [
        few,
        -few,
        largest,
        largest.copy_negate(),
        None,
        *([few - few] if scale < precision else []),
    ]
    column = pa.array(values, pa.decimal128(precision, scale))
    found = column_text(column, f"decimal({precision},{scale})").to_pylist()
    assert found == [None if value is None else f"{value:f}" for value in values]


def test_each_other_cell_gives_another_sum() -> None:
    """So do a row that is lost, one too many, one twice, and two that have swapped their values."""
    rows = [a_row(number) for number in range(10)]
    whole = sums(rows)
    assert whole == sums(rows[::-1])  # in whatever order they come
    assert sum(each.rows for each in whole) == 10
    others = [rows[1:], [*rows, a_row(10)], [*rows, rows[3]], [*rows[:3], *rows[4:], rows[5]]]
    for place, (_, _, values) in enumerate(ROW.values()):
        for value in values:
            others.append([*rows[:4], [*rows[4][:place], value, *rows[4][place + 1 :]], *rows[5:]])
    others += [[*rows[:-2], [8, *rows[8][1:-1], "x"], rows[9]]]
    others += [[*rows[:-2], rows[8], [9, *rows[9][1:-1], "x"]]]
    found = [sums(each) for each in [rows, *others]]
    assert all(left != right for left, right in itertools.combinations(found, 2))


def test_nan_is_one_value() -> None:
    other = np.array([0x7FF8_0000_0000_0001], np.int64).view(np.float64)
    texts = [column_text(pa.array(each), "float64") for each in (other, [float("nan")])]
    assert texts[0] == texts[1]


def test_what_is_no_value_of_its_type_has_no_value_s_sum() -> None:
    columns = [pa.array([1, 1, None]), pa.array(["!", None, None])]
    data, starts = row_texts(columns, ["int64", "text"], {1: pa.array([True, False, True])})
    texts = [bytes(data[start:end]).decode() for start, end in itertools.pairwise(starts)]
    assert texts == ["1,1:!,", "1,!,", "~,~,"]


def test_rows_outside_the_ranges_count_nowhere() -> None:
    rows = [a_row(number) for number in range(100)]
    bounds = (pa.array([9, 19, 59]),)
    first, second = sums(rows, bounds)[1:3]
    plan = SumPlan(tuple(ROW), (0,), bounds, first=1, ranges=2)
    assert PartitionSums(plan)(batches(rows)).digests() == [first, second]
    assert (first.rows, second.rows) == (10, 40)


@pytest.mark.parametrize("seed", range(5))
def test_a_row_s_range_is_the_first_whose_end_it_does_not_pass(seed: int) -> None:
    chance = random.Random(seed)
    kinds = [pa.int32(), pa.decimal128(5, 1), pa.string(), pa.date32()]

    def value(kind: pa.DataType) -> Any:
        number = chance.randrange(-3, 4)
        of_kind = {"string": str, "date32[day]": lambda n: date(2024, 1, 10 + n)}
        return of_kind.get(str(kind), Decimal if pa.types.is_decimal(kind) else int)(number)

    chosen = chance.sample(kinds, chance.randrange(1, 4))
    ends = sorted({tuple(value(kind) for kind in chosen) for _ in range(chance.randrange(9))})
    keys = [tuple(value(kind) for kind in chosen) for _ in range(50)]
    lost = [(*key[:-1], None) for key in keys[:2]]
    columns = [
        pa.array([key[place] for key in [*keys, *lost]], kind) for place, kind in enumerate(chosen)
    ]
    bounds = [pa.array([end[n] for end in ends], kind) for n, kind in enumerate(chosen)]
    found = places_of(columns, bounds).tolist()
    expected = [sum(end < key for end in ends) for key in keys]
    assert found[:50] == expected, seed
    if len(chosen) == 1:
        assert found[50:] == [len(ends)] * 2
