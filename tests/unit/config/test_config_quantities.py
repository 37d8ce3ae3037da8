"""Durations and sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.units import format_bytes, format_milliseconds, parse_bytes, parse_milliseconds


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("50ms", 50),
        ("1.5s", 1500),
        ("7d", 604_800_000),
        ("1h 30m", 5_400_000),
        (" 2w ", 2 * 604_800_000),
    ],
)
def test_duration_is_parsed(text: str, milliseconds: int) -> None:
    assert parse_milliseconds(text) == milliseconds


@pytest.mark.parametrize("text", ["", "7", "d", "7 days", "1h!", "-1s", "1h x 2m", "٣x"])
def test_bad_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        parse_milliseconds(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [("4MiB", 4 << 20), ("4 mib", 4 << 20), ("1.5KiB", 1536), ("500MB", 500_000_000), ("1B", 1)],
)
def test_size_is_parsed(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "4", "MiB", "4 Q", "-4MiB", "4MiB4"])
def test_bad_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size"):
        parse_bytes(text)


@given(st.integers(0, 10**15))
def test_formatted_duration_parses_to_itself(milliseconds: int) -> None:
    assert parse_milliseconds(format_milliseconds(milliseconds)) == milliseconds


@given(st.integers(0, 2**20), st.sampled_from([0, 10, 20, 30]))
def test_formatted_size_is_exact_or_has_one_decimal(number: int, shift: int) -> None:
    count = number << shift
    assert abs(parse_bytes(format_bytes(count)) - count) <= max(0.06 * count, 0)
