"""ISO 8601 texts of dates and timestamps, beside NumPy's, which know every year."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.codecs.columns.times import SHORTEST, date_texts, timestamp_texts

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63) + 1, 2**63 - 1)  # NumPy keeps the least for NaT


def _signed(iso: str) -> str:
    """NumPy's text, with the sign and the four digits that years have in ISO 8601."""
    sign = "-" if iso.startswith("-") else ""
    year, rest = iso.removeprefix("-").split("-", 1)
    return f"{sign or '+' * (len(year) > 4)}{year.zfill(4)}-{rest}"


@settings(deadline=None)  # the first call compiles
@given(st.lists(INT32, min_size=1))
def test_every_date_is_spelled_as_numpy_does(days: list[int]) -> None:
    found = date_texts(pa.array(days, pa.int32()).view(pa.date32()))
    wanted = [_signed(str(np.datetime64(day, "D"))) for day in days]
    assert found.to_pylist() == wanted


@settings(deadline=None)  # the first call compiles
@given(st.lists(INT64, min_size=1))
def test_every_timestamp_is_spelled_as_numpy_does(micros: list[int]) -> None:
    found = timestamp_texts(pa.array(micros, pa.int64()).view(pa.timestamp("us")))
    wanted = [_signed(str(np.datetime64(each, "us"))) for each in micros]
    assert found.to_pylist() == wanted


@pytest.mark.parametrize(
    ("digits", "wanted"),
    [
        (0, ["2024-02-29 01:02:03", None, "1970-01-01 00:00:00"]),
        (3, ["2024-02-29 01:02:03.120", None, "1970-01-01 00:00:00.000"]),
        (6, ["2024-02-29 01:02:03.120400", None, "1970-01-01 00:00:00.000000"]),
        (SHORTEST, ["2024-02-29 01:02:03.1204", None, "1970-01-01 00:00:00"]),
    ],
)
def test_digits_of_the_fraction(digits: int, wanted: list[str | None]) -> None:
    values = pa.array(["2024-02-29 01:02:03.1204", None, "1970-01-01"], pa.string())
    instants = values.cast(pa.timestamp("us"))
    assert timestamp_texts(instants, " ", digits).to_pylist() == wanted
    assert timestamp_texts(instants.slice(1), " ", digits).to_pylist() == wanted[1:]
