import json
import math
from decimal import Decimal

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tidelog.spark.formats.envelope import json_rows, json_values


@given(st.lists(st.text() | st.none(), min_size=1))
def test_texts_are_json_whatever_they_hold(texts: list[str | None]) -> None:
    found = json_values(pa.array(texts, pa.string())).to_pylist()
    assert [None if t is None else json.loads(t) for t in found] == texts


@given(st.lists(st.floats() | st.none(), min_size=1))
def test_floats_are_json(values: list[float | None]) -> None:
    for text, value in zip(
        json_values(pa.array(values, pa.float64())).to_pylist(), values, strict=True
    ):
        if value is None:
            assert text is None
        elif math.isfinite(value):
            assert json.loads(text) == value
        else:
            assert float(json.loads(text)) == value or math.isnan(value)


def test_decimals_keep_every_digit() -> None:
    values = pa.array([Decimal("12345678901234567890.12"), None], pa.decimal128(38, 2))
    assert json_values(values).to_pylist() == ['"12345678901234567890.12"', None]


def test_rows_are_objects_and_null_rows_null() -> None:
    rows = pa.array(
        [{"a b": 1, 'q"': None}, None], pa.struct([("a b", pa.int64()), ('q"', pa.string())])
    )
    found = json_rows(rows, ["a b", 'q"']).to_pylist()
    assert json.loads(found[0]) == {"a b": 1, 'q"': None}
    assert found[1] is None
