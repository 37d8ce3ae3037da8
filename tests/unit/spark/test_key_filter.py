"""Which records a chosen key picks, also under versions of the table with another key."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.support.build_log import BuiltLog
from tests.support.payloads import table_schema
from tests.support.pgoutput_messages import Value

from tidelog.errors import ConfigError
from tidelog.model.schema import TableSchema
from tidelog.spark.datasource.options import KeyFilter


@pytest.fixture
def built(tmp_path: Any) -> BuiltLog:
    return BuiltLog(tmp_path / "log")


def picked(built: BuiltLog, key: dict[str, Any]) -> list[str]:
    """The kinds and payloads' places of the records, in log order, whatever their version."""
    log, chosen = built.log, KeyFilter.parse(json.dumps(key))
    chosen.check(log.schemas.versions(log.schemas.tables()[0]))
    found: list[int] = []
    numbers: list[int] = []
    for ref in log.segments(log.head_offset, log.latest_offset()):
        for schema_id in sorted(s.schema_id for s in log.schemas.versions(log.schemas.tables()[0])):
            for batch in log.batches(ref, schema_ids=(schema_id,)):
                numbers += batch.column("offset").to_pylist()
                found += (
                    chosen.select(batch, log.schemas.get(schema_id)).column("offset").to_pylist()
                )
    return [f"{sorted(numbers).index(offset)}" for offset in sorted(found)]


def of_type(built: BuiltLog, type_name: str, logical: str, *values: Value) -> TableSchema:
    """A table of the key ``k``, with rows of these."""
    schema = table_schema([("k", logical)], key=["k"])
    column = replace(schema.columns[0], type_name=type_name)
    known = built.writer.schemas.register(replace(schema, columns=(column,)))
    for value in values:
        built.insert(known, value)
    built.flush()
    return known


def test_the_key_of_now_finds_no_foreign_row_of_before_the_key_changed(built: BuiltLog) -> None:
    columns = {"id": "int64", "tenant": "int64", "v": "text"}
    old = built.table("public.t", columns)
    for row in range(5):
        built.insert(old, str(row), str(row % 2), "x")
    built.delete(old, "3")  # tells the key of then alone
    built.delete(old, "4")
    built.flush()
    new = built.table("public.t", columns, key=("tenant", "id"))
    for row in range(5):
        built.insert(new, str(row), "1", "y")
    built.flush()
    assert picked(built, {"tenant": 1, "id": 3}) == ["3", "5", "10"]


def test_the_key_of_before_may_be_asked_for(built: BuiltLog) -> None:
    """Also where its column is another's now, or gone."""
    old = built.table("public.t", {"id": "int64", "v": "text"})
    for row in range(3):
        built.insert(old, str(row), "x")
    built.delete(old, "2")
    built.flush()
    new = built.table("public.t", {"number": "int64", "v": "text"}, key=("number",))
    for row in range(3):
        built.insert(new, str(row), "y")
    built.truncate(new)
    built.flush()
    assert picked(built, {"id": 2}) == ["2", "3", "7"]
    assert picked(built, {"number": 2}) == ["6", "7"]
    with pytest.raises(ConfigError, match=r"'v' is not of the key of public\.t"):
        picked(built, {"v": "x"})


@pytest.mark.parametrize(
    ("type_name", "logical", "value", "others", "spellings"),
    [
        ("uuid", "text", "6ccd780c-baba-1026-9564-5b8c656024db",
         ["00000000-0000-0000-0000-000000000000"],
         ["6CCD780C-BABA-1026-9564-5B8C656024DB", "{6ccd780c-baba-1026-9564-5b8c656024db}"]),
        ("numeric", "text", "1.50", ["1.05", "15", "150", "NaN"], ["1.5", "1.50", 1.5, "01.500"]),
        ("numeric", "text", "100", ["1", "10"], [100, "100.0", "1e2"]),
        ("numeric(10,2)", "decimal(10,2)", "1.50", ["1.05"], ["1.5", "1.50", 1.5]),
        ("character(5)", "text", "ab   ", ["b    "], ["ab", "ab   "]),
        ("bytea", "binary", "\\x00ff", ["\\x00"], ["0x00FF", "\\x00ff"]),
        ("bytea", "binary", "\\x6162", ["\\x61"], ["ab", "0x6162"]),
        ("bigint", "int64", "7", ["70"], [7, "7"]),
        ("boolean", "bool", "t", ["f"], [True, "true"]),
        ("date", "date", "2026-01-31", ["2026-01-30"], ["2026-01-31"]),
    ],
)  # fmt: skip
def test_a_value_is_found_however_it_is_spelled(
    built: BuiltLog,
    type_name: str,
    logical: str,
    value: str,
    others: list[str],
    spellings: list[Any],
) -> None:
    of_type(built, type_name, logical, *others, value)
    for spelling in spellings:
        assert picked(built, {"k": spelling}) == [str(len(others))]


@pytest.mark.parametrize(
    ("type_name", "logical", "value", "wrong"),
    [
        ("uuid", "text", "6ccd780c-baba-1026-9564-5b8c656024db", "6ccd"),
        ("numeric", "text", "1.50", "secret"),
        ("bigint", "int64", "7", "secret"),
        ("bigint", "int64", "7", 7.5),
        ("bytea", "binary", "\\x00", 5),
    ],
)
def test_a_value_that_no_row_can_have_is_an_error_that_does_not_show_it(
    built: BuiltLog, type_name: str, logical: str, value: str, wrong: Any
) -> None:
    of_type(built, type_name, logical, value)
    with pytest.raises(ConfigError, match="the value of 'k' is not of type") as caught:
        picked(built, {"k": wrong})
    assert str(wrong) not in str(caught.value)


def test_numbers_keep_all_their_digits() -> None:
    found = KeyFilter.parse('{"k": 1.10000000000000000000000000001}')
    assert found.values == {"k": "1.10000000000000000000000000001"}
