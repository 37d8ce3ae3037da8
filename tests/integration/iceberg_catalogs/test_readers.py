"""PyIceberg and DuckDB read what the Iceberg output writes, all of it and by each column."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.table import StaticTable
from tests.integration.iceberg_catalogs.conftest import Delivered
from tests.support.iceberg_readers import by_duckdb, by_pyiceberg

pytestmark = [pytest.mark.spark, pytest.mark.integration]

# Of each type: two values, one of which is the greatest or the smallest, or long.
VALUES = {
    "small": ("int16", "-32768", "7"),
    "int": ("int32", "70000", "-1"),
    "big": ("int64", "-9223372036854775808", "5"),
    "real": ("float32", "1.5", "-0.25"),
    "double": ("float64", "-1e300", "2.5"),
    "yes": ("bool", "t", "f"),
    "digits": ("decimal(38,10)", "-1234567890123456789012345678.0123456789", "0.5"),
    "money": ("decimal(10,2)", "-12345678.90", "3.10"),
    "text": ("text", "é\n🙂" + "x" * 40, "a"),
    "bytes": ("binary", "\\x00ff", "\\x01"),
    "day": ("date", "1582-10-04", "9999-12-31"),
    "local": ("timestamp", "0001-01-01 23:59:59.123456", "2262-04-12 00:00:00"),
    "moment": ("timestamptz", "1999-12-31 23:59:59.123456+02", "1960-01-01 00:00:00+00"),
}


def metadata(delivered: Delivered, table: str) -> str:
    """The newest metadata file of a table in the catalog of files."""
    folder = Path(delivered.warehouse.removeprefix("file://")) / table / "metadata"
    version = (folder / "version-hint.text").read_text()
    return str(folder / f"v{version}.metadata.json")


def read(delivered: Delivered, table: str = "public/t") -> list[dict[str, Any]]:
    """The rows, which both readers see alike."""
    file = metadata(delivered, table)
    rows = by_pyiceberg(StaticTable.from_metadata(file))
    assert by_duckdb(file) == rows
    return rows


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"format_version": 2}, id="deletes"),
        pytest.param({"format_version": 3}, id="vectors"),
        pytest.param({"mode": "copy-on-write"}, id="copy", marks=pytest.mark.thorough),
        pytest.param(
            {"partition_by": {"*.*": ["days(moment)", "bucket(3, text)", "truncate(5, int)"]}},
            id="transforms",
        ),
        pytest.param(
            {"partition_by": {"*.*": ["money", "bytes", "day"]}},
            id="values",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_rows_of_every_type_are_read_by_others(delivered: Delivered, how: dict[str, Any]) -> None:
    built = delivered.built
    columns = {"id": "int64", **{name: kind for name, (kind, *_) in VALUES.items()}}
    table = built.table("public.t", columns)
    for number in range(12):
        which = 1 + number % 2
        built.insert(table, str(number), *(each[which] for each in VALUES.values()))
    built.insert(table, "12", *(None for _ in VALUES))
    built.flush()
    catalog = {"type": "hadoop"}
    delivered.run(catalog, **how)
    first = {row["id"]: row for row in read(delivered)}
    built.delete(table, "1")
    built.update(table, "2", *(each[2] for each in VALUES.values()))
    built.flush()
    delivered.run(catalog, **how)
    rows = {row["id"]: row for row in read(delivered)}
    assert rows == {
        number: {**first[number - number % 2 + 1 if number == 2 else number], "id": number}
        for number in range(13)
        if number != 1
    }
    assert [value for name, value in rows[12].items() if name != "id"] == [None] * len(VALUES)
    static = StaticTable.from_metadata(metadata(delivered, "public/t"))
    for name, value in rows[0].items():  # by bounds and partitions, which readers skip files by
        found = static.scan(row_filter=EqualTo(name, value), selected_fields=("id", name))
        expected = {number for number, row in rows.items() if row[name] == value}
        assert {row["id"] for row in found.to_arrow().to_pylist()} == expected, name


def test_columns_that_came_and_went_are_read_by_others(delivered: Delivered) -> None:
    built, catalog = delivered.built, {"type": "hadoop"}
    columns = {"id": "int32", "n": "int32", "d": "decimal(8,2)", "f": "float32"}
    built.insert(built.table("public.t", columns), "1", "10", "1.25", "0.5")
    built.flush()
    delivered.run(catalog)
    columns |= {"id": "int64", "n": "int64", "d": "decimal(12,2)", "f": "float64", "new": "text"}
    built.insert(built.table("public.t", columns), "2", "5000000000", "1234567890.25", "0.1", "x")
    built.flush()
    delivered.run(catalog)
    assert read(delivered) == [
        {"id": 1, "n": 10, "d": Decimal("1.25"), "f": 0.5, "new": None},
        {"id": 2, "n": 5_000_000_000, "d": Decimal("1234567890.25"), "f": 0.1, "new": "x"},
    ]
    columns.pop("n")
    built.insert(built.table("public.t", columns), "3", "2.00", "0.2", "y")
    built.flush()
    delivered.run(catalog)
    built.insert(built.table("public.t", columns | {"n": "int64"}), "4", "3.00", "0.3", "z", "44")
    built.flush()
    delivered.run(catalog)
    assert [(row["id"], row["n"]) for row in read(delivered)] == [
        (1, None),
        (2, None),
        (3, None),
        (4, 44),
    ]
