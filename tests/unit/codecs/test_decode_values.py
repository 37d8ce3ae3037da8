"""Texts of each logical type → Arrow values: edges, and what is no value."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidelog.codecs.columns.values import CellError, arrow_type, column
from tidelog.model.schema import decimal_parameters


def convert(texts: list[str | None], logical: str, target: str | None = None) -> pa.Array:
    raw = [b"" if text is None else text.encode() for text in texts]
    length = np.array([-1 if t is None else len(r) for t, r in zip(texts, raw, strict=True)])
    start = np.concatenate([[0], np.cumsum([len(r) for r in raw])])[: len(raw)]
    data = np.frombuffer(b"".join(raw), dtype=np.uint8)
    array = column(data, start.astype(np.int32), length.astype(np.int32), logical, target)
    array.validate(full=True)
    assert array.type == arrow_type(target or logical)
    return array


def micros(text: str, logical: str = "timestamptz") -> int:
    value: int = convert([text], logical).cast(pa.int64())[0].as_py()
    return value


GOOD: list[tuple[str, str, Any]] = [
    ("bool", "t", True),
    ("bool", "f", False),
    ("int16", "-32768", -32768),
    ("int16", "32767", 32767),
    ("int32", "-2147483648", -(2**31)),
    ("int64", "9223372036854775807", 2**63 - 1),
    ("int64", "-9223372036854775808", -(2**63)),
    ("int64", "0", 0),
    ("float64", "0.1", 0.1),
    ("float64", "1e-05", 1e-05),
    ("float64", "5e-324", 5e-324),
    ("float64", "2.2250738585072014e-308", 2.2250738585072014e-308),
    ("float64", "1.7976931348623157e+308", 1.7976931348623157e308),
    ("float64", "0.30000000000000004", 0.30000000000000004),
    ("float64", "-9007199254740993", -9007199254740992.0),
    ("float64", "123456789012345678901234567890", 123456789012345678901234567890.0),
    ("float64", "Infinity", math.inf),
    ("float64", "-Infinity", -math.inf),
    ("float32", "3.4028235e+38", float(np.float32(3.4028235e38))),
    ("float32", "1e-45", float(np.float32(1e-45))),
    ("float32", "0.1", float(np.float32(0.1))),
    ("decimal(10,2)", "-12345678.90", Decimal("-12345678.90")),
    ("decimal(10,2)", "0.01", Decimal("0.01")),
    ("decimal(10,2)", "5", Decimal("5.00")),
    ("decimal(3,3)", "0.999", Decimal("0.999")),
    ("decimal(38,0)", "9" * 38, Decimal("9" * 38)),
    ("decimal(38,0)", "-" + "9" * 38, Decimal("-" + "9" * 38)),
    ("decimal(38,38)", "0." + "9" * 38, Decimal("0." + "9" * 38)),
    ("decimal(38,10)", "-1234567890123456789012345678.0123456789",
     Decimal("-1234567890123456789012345678.0123456789")),
    ("decimal(10,2)", "NaN", None),
    ("date", "2024-02-29", dt.date(2024, 2, 29)),
    ("date", "0001-01-01", dt.date(1, 1, 1)),
    ("date", "infinity", dt.date(9999, 12, 31)),
    ("date", "-infinity", dt.date(1, 1, 3)),
    ("timestamp", "2024-01-01 12:34:56.789", dt.datetime(2024, 1, 1, 12, 34, 56, 789000)),
    ("timestamp", "infinity", dt.datetime(9999, 12, 31)),
    ("timestamptz", "1969-12-31 23:59:59.999999+00",
     dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC)),
    ("timestamptz", "2024-01-01 00:00:00+05:30", dt.datetime(2023, 12, 31, 18, 30, tzinfo=dt.UTC)),
    ("timestamptz", "-infinity", dt.datetime(1, 1, 3, tzinfo=dt.UTC)),
    ("binary", "\\x", b""),
    ("binary", "\\xdeadBEEF00", b"\xde\xad\xbe\xef\x00"),
    ("text", "", ""),
    ("text", "grüße 🌊", "grüße 🌊"),
    ("some_new_type", "as it came", "as it came"),
]  # fmt: skip


@pytest.mark.parametrize(("logical", "text", "value"), GOOD)
def test_value(logical: str, text: str, value: Any) -> None:
    assert convert([text, None, text], logical).to_pylist() == [value, None, value]


def test_nan_and_negative_zero_of_floats() -> None:
    for logical in ("float32", "float64"):
        values = convert(["NaN", "-0", "-0.0"], logical).to_pylist()
        assert math.isnan(values[0])
        assert [math.copysign(1, v) for v in values[1:]] == [-1, -1]


def test_float32_is_rounded_once() -> None:
    # As a float64 this lies midway between two float32s and would be rounded down to even.
    assert convert(["16777217.0000000001"], "float32").to_pylist() == [16777218.0]


def test_days_and_instants_beyond_pythons_calendar() -> None:
    days = convert(["0001-12-31 BC", "4714-11-24 BC", "5874897-12-31", "10000-01-01"], "date")
    assert days.cast(pa.int32()).to_pylist() == [-719163, -2440588, 2145042905, 2932897]
    assert micros("0001-12-31 23:59:59+00 BC") == -719163 * 86_400_000_000 + 86_399_000_000
    assert micros("4713-01-01 00:00:00 BC", "timestamp") == -210866803200000000 + 38 * 86400000000
    assert micros("294246-12-31 23:59:59.999999+00") == 9223371244799999999
    # Years that int64 microseconds can't hold are infinite.
    assert micros("294276-12-31 23:59:59.999999+00") == micros("infinity")


@pytest.mark.parametrize(
    ("logical", "texts"),
    [
        ("bool", ["", "true", "x", "1"]),
        ("int16", ["", "-", "32768", "-32769", "1.0", "1e3", " 1", "+1", "x"]),
        ("int32", ["2147483648"]),
        ("int64", ["9223372036854775808", "-9223372036854775809", "1" * 40]),
        ("float64", ["", "-", ".", "e5", "1e", "1e+", "1.2.3", "-NaN", "nan", "Inf", "1e999999",
                     "1e400", "0x10"]),
        ("float32", ["1e39"]),
        ("decimal(5,2)", ["", ".", "-", "1234.00", "1.234", "1e2", "Infinity", "1.2.3", "9999"]),
        ("decimal(38,0)", ["1" + "0" * 38]),
        ("date", ["", "2024-1-01", "2024-13-01", "2024-02-30", "2023-02-29", "24-01-01",
                  "2024-01-01 00:00:00", "infinit", "infinity BC", "0000-01-01", "9999999-01-01"]),
        ("timestamp", ["2024-01-01 ", "2024-01-01 1:00:00", "2024-01-01 00:00:00.",
                       "2024-01-01 00:00:00.1234567", "2024-01-01 00:00:00+", "2024-01-01T00:00:00",
                       "2024-01-01 00:61:00", "-infinity BC"]),
        ("binary", ["", "x", "\\", "\\x0", "\\x0g", "\\000"]),
    ],
)  # fmt: skip
def test_what_is_no_value_names_its_row(logical: str, texts: list[str]) -> None:
    good = next(text for kind, text, _ in GOOD if kind.split("(")[0] == logical.split("(")[0])
    if logical.startswith("decimal"):
        good = "1"
    for text in texts:
        with pytest.raises(CellError) as caught:
            convert([good, None, text, good], logical)
        assert caught.value.row == 2


def test_rounding_that_does_not_fit_is_an_error() -> None:
    assert convert(["9.94", "-0.05"], "text", "decimal(2,1)").to_pylist() == [
        Decimal("9.9"),
        Decimal("-0.1"),
    ]
    with pytest.raises(CellError):
        convert(["9.95"], "text", "decimal(2,1)")


def test_arrow_types() -> None:
    assert arrow_type("decimal(38,10)") == pa.decimal128(38, 10)
    assert arrow_type("timestamptz") == pa.timestamp("us", "UTC")
    assert arrow_type("timestamp") == pa.timestamp("us")
    assert arrow_type("whatever") == pa.string()
    assert decimal_parameters("decimal(5,2)") == (5, 2)
    assert decimal_parameters("text") is None
