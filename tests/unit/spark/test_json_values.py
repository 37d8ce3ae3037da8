"""Texts of values that a step may have changed, while their column's type is still known."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from tidelog.spark.formats.json_values import json_values


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
