"""Keys' texts of Spark, as the source reads them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidelog.codecs.wire_formats import source_spellings
from tidelog.model.schema import Column, TableName, TableSchema


def schema(wire_format: str, *logical: str) -> TableSchema:
    names = tuple(f"k{place}" for place in range(len(logical)))
    columns = tuple(Column(n, 0, -1, "", kind) for n, kind in zip(names, logical, strict=True))
    found = TableSchema(TableName("shop", "t"), 1, columns, names, names, "d", wire_format)
    return replace(found, schema_id=1)


@pytest.mark.parametrize(
    ("logical", "text", "found"),
    [
        ("int64", "12", ["12"]),
        ("binary", "\\x00FF", ["\\x00FF"]),
        ("date", "2024-01-01", ["2024-01-01"]),
        ("date", "9999-12-31", ["9999-12-31", "infinity"]),
        ("date", "0001-01-03", ["0001-01-03", "-infinity"]),
        ("timestamp", "9999-12-31 00:00:00", ["9999-12-31 00:00:00", "infinity"]),
        ("timestamptz", "9999-12-31 00:00:00+00", ["9999-12-31 00:00:00+00", "infinity"]),
        ("timestamp", "9999-12-31 12:00:00", ["9999-12-31 12:00:00"]),
        ("text", "9999-12-31", ["9999-12-31"]),
    ],
)
def test_postgres(logical: str, text: str, found: list[str]) -> None:
    of = schema("pgoutput", logical)
    assert [key for (key,) in source_spellings((text,), of, of.match_key)] == found


@pytest.mark.parametrize(
    ("logical", "text", "found"),
    [
        ("bytes", "\\x00FF", "0x00FF"),
        ("text", "\\x00FF", "\\x00FF"),
        ("date", "9999-12-31", "9999-12-31"),
        ("float32", "0.1", "0.10000000149011612"),
        ("float64", "0.1", "0.1"),
    ],
)
def test_mysql(logical: str, text: str, found: str) -> None:
    of = schema("binlog", logical)
    assert source_spellings((text,), of, of.match_key) == [(found,)]


def test_each_column_of_a_key_has_its_own() -> None:
    of = schema("pgoutput", "int64", "timestamptz", "date")
    keys = source_spellings(("1", "9999-12-31 00:00:00+00", None), of, of.match_key)
    assert keys == [("1", "9999-12-31 00:00:00+00", None), ("1", "infinity", None)]
