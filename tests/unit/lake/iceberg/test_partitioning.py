"""Values of Iceberg's partition transforms: those of its specification, and of odd values."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidelog.outputs.lake.iceberg import partitioning
from tidelog.outputs.lake.iceberg.partitioning import Partition, partition_keys, value_json

AT = dt.datetime(2017, 11, 16, 22, 31, 8)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [  # specification, "Appendix B: 32-bit Hash Requirements"
        (34, pa.int32(), 2017239379),
        (34, pa.int64(), 2017239379),
        (Decimal("14.20"), pa.decimal128(9, 2), -500754589),
        (dt.date(2017, 11, 16), pa.date32(), -653330422),
        (AT, pa.timestamp("us"), -2047944441),
        (AT.replace(tzinfo=dt.UTC), pa.timestamp("us", "UTC"), -2047944441),
        ("iceberg", pa.string(), 1210000089),
        (b"\x00\x01\x02\x03", pa.binary(), -188683207),
    ],
)
def test_hashes_are_those_of_the_specification(
    value: Any, kind: pa.DataType, expected: int
) -> None:
    values = pa.array([None, value, value], kind).slice(1)
    data, starts = partitioning._bytes(values)
    hashes = np.zeros(2, np.int64)
    partitioning._murmur3(data, starts, hashes)
    assert hashes.astype(np.int32).tolist() == [expected] * 2


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("bucket(16, c)", pa.array([34, None, -1], pa.int64()), ["3", None, "8"]),
        ("truncate(10, c)", pa.array([1, -1, None], pa.int32()), ["0", "-10", None]),
        ("truncate(3, c)", pa.array(["iceberg", "é🙂xy"]), ['"ice"', '"é🙂x"']),
        ("truncate(50, c)", pa.array([Decimal("10.65"), Decimal("-0.05")]), ['"10.50"', '"-0.50"']),
        ("truncate(10, c)", pa.array([Decimal(-(10**37) - 1)]), [f'"-1{"0" * 35}10"']),
        ("truncate(1, c)", pa.array([b"\x00\xff"]), ['"00"']),
        ("years(c)", pa.array([dt.date(1969, 12, 31), dt.date(2017, 1, 1)]), ["-1", "47"]),
        ("months(c)", pa.array([AT, dt.datetime(1969, 12, 1)], pa.timestamp("us")), ["574", "-1"]),
        ("days(c)", pa.array([AT, None], pa.timestamp("us", "UTC")), ['"2017-11-16"', None]),
        ("hours(c)", pa.array([AT], pa.timestamp("us")), ["419686"]),
        ("c", pa.array([AT], pa.timestamp("us", "UTC")), ['"2017-11-16T22:31:08.000000+00:00"']),
        # As Java reads years, infinite times among them.
        ("days(c)", pa.array([2**63 - 1], pa.timestamp("us")), ['"+294247-01-10"']),
        ("c", pa.array([-719_529], pa.int32()).cast(pa.date32()), ['"-0001-12-31"']),
        ("c", pa.array([2_932_897], pa.int32()).cast(pa.date32()), ['"+10000-01-01"']),
        ("c", pa.array([Decimal("1.50")]), ['"1.50"']),
        ("c", pa.array([True, None]), ["true", None]),
    ],
)
def test_keys_are_serialized_as_the_specification_says(
    text: str, values: pa.Array, expected: list[str | None]
) -> None:
    keys = partition_keys(values, Partition.parse(text))
    assert [value_json(keys.slice(at, 1)) for at in range(len(keys))] == expected
