"""Statistics are bounds of what a file holds, and are exact where they can be."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.lake_files import TYPES, column_of, plain_layout, plain_values, values_of

from tidelog.outputs.lake.data_files.layout import FileLayout
from tidelog.outputs.lake.data_files.parquet_files import file_statistics

ANY_TYPE = st.sampled_from(list(TYPES.values()))


def statistics_of(values: list[Any], kind: pa.DataType) -> dict[str, Any]:
    rows = pa.table({"a": column_of(values, kind)})
    text = file_statistics(rows, plain_layout({"a": kind}))
    found: dict[str, Any] = json.loads(text, parse_float=Decimal)
    assert "tightBounds" not in found
    return found


def as_value(bound: Any, kind: pa.DataType) -> Any:
    """A bound as `plain_values` has values."""
    if pa.types.is_temporal(kind):
        unit = "D" if pa.types.is_date32(kind) else "us"
        assert bound.endswith("Z") == bool(unit == "us" and kind.tz)
        return int(np.datetime64(bound.removesuffix("Z"), unit).astype(int))
    return float(bound) if pa.types.is_floating(kind) else bound


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.DataType, list[Any]]:
    kind = draw(ANY_TYPE)
    values = st.none() | values_of(kind, any_year=draw(st.booleans()))
    return kind, draw(st.lists(values, min_size=1, max_size=6))


@settings(max_examples=150)
@given(columns())
def test_bounds_hold_every_value(column: tuple[pa.DataType, list[Any]]) -> None:
    kind, values = column
    found = statistics_of(values, kind)
    assert found["numRecords"] == len(values)
    assert found["nullCount"] == {"a": values.count(None)}
    assert found["minValues"].keys() == found["maxValues"].keys()
    if "a" not in found["minValues"]:
        return
    least, greatest = (as_value(found[f"{each}Values"]["a"], kind) for each in ("min", "max"))
    known = [each for each in plain_values(column_of(values, kind)) if each is not None]
    assert all(least <= each <= greatest for each in known)
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        assert (least, greatest) == (min(known), max(known))


@pytest.mark.parametrize(
    ("kind", "values", "least", "greatest"),
    [
        (pa.string(), ["b" * 33, "c" * 33], "b" * 32, "c" * 32 + "\U0010ffff"),
        (pa.string(), ["\U0010ffff" * 33 + "a"], "\U0010ffff" * 32, "\U0010ffff" * 34),
        (pa.timestamp("us", "UTC"), [-1], "1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.000Z"),
        (pa.timestamp("us"), [1], "1970-01-01T00:00:00.000", "1970-01-01T00:00:00.001"),
        (pa.date32(), [-1, 1], "1969-12-31", "1970-01-02"),
        (pa.decimal128(38, 10), [Decimal("1E-10")], Decimal("1E-10"), Decimal("1E-10")),
        (pa.float64(), [0.0, 1e300], Decimal("-0.0"), Decimal("1E+300")),
    ],
)
def test_bounds_are_what_delta_writes(
    kind: pa.DataType, values: list[Any], least: Any, greatest: Any
) -> None:
    found = statistics_of(values, kind)
    assert (found["minValues"]["a"], found["maxValues"]["a"]) == (least, greatest)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.float64(), [1.0, float("nan")]),
        (pa.float64(), [1.0, float("inf")]),
        (pa.date32(), [0, 10_000_000]),
        (pa.timestamp("us"), [253_402_300_799_999_999]),
        (pa.bool_(), [True]),
        (pa.binary(), [b"a"]),
    ],
)
def test_what_has_no_bounds_in_json_has_none(kind: pa.DataType, values: list[Any]) -> None:
    found = statistics_of(values, kind)
    assert (found["minValues"], found["maxValues"]) == ({}, {})
    assert found["nullCount"] == {"a": 0}


def test_bounds_are_tight_where_vectors_may_come() -> None:
    columns = plain_layout({"a": pa.int64()}).columns
    layout = FileLayout(columns, (), (), "", "", ("a",), False, deletion_vectors=True)
    assert json.loads(file_statistics(pa.table({"a": [1]}), layout))["tightBounds"] is True
