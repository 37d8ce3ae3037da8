"""Texts of values that a step may have changed, while their column's type is still known."""

from __future__ import annotations

import json
from datetime import time
from decimal import Decimal

import pyarrow as pa
import pytest

from tidelog.spark.formats.json_values import json_rows, json_values


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (pa.array(["***", None]), ['"***"', None]),
        (pa.array([-1, 3]), ["-1", "3"]),
        (pa.array([Decimal(2**65)]), ['"AAAAAAAAAAAC"']),
        (pa.array([True]), ["true"]),
    ],
)
def test_what_a_step_makes_of_bits_is_no_error(values: pa.Array, wanted: list[str]) -> None:
    assert json_values(values, type_name="bit(10)").to_pylist() == wanted


def test_arrays_maps_and_structs_are_those_of_json() -> None:
    place = pa.struct([("street", pa.string()), ("sizes", pa.list_(pa.decimal128(5, 2)))])
    columns = {
        "numbers": ([[1, None], [], None], pa.list_(pa.int32())),
        "grid": ([[["a"], None], [[]], None], pa.list_(pa.list_(pa.string()))),
        "tags": ([[('a "b"', "1"), ("", None)], [], None], pa.map_(pa.string(), pa.string())),
        "place": ([{"street": "x", "sizes": [1, None]}, {"street": None}, None], place),
        "clock": ([time(12, 30, 0, 250_000), time(0, 0), None], pa.time64("ns")),
    }
    arrays = [pa.array(values, kind) for values, kind in columns.values()]
    rows = pa.StructArray.from_arrays(arrays, list(columns))
    expected = [
        {
            "numbers": [1, None],
            "grid": [["a"], None],
            "tags": {'a "b"': "1", "": None},
            "place": {"street": "x", "sizes": ["1.00", None]},
            "clock": "12:30:00.250000",
        },
        {
            "numbers": [],
            "grid": [[]],
            "tags": {},
            "place": {"street": None, "sizes": None},
            "clock": "00:00:00.000000",
        },
        dict.fromkeys(columns),
    ]
    for start in range(3):
        found = json_rows(rows.slice(start), list(columns))
        assert [json.loads(text) for text in found.to_pylist()] == expected[start:]
