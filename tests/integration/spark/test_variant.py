"""The shape ``variant`` is what Spark itself makes of the same rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.integration.spark.test_source import ORDERS, fill, stream
from tests.support.build_log import BuiltLog

pytestmark = pytest.mark.spark

# Every logical type, in the server's texts, with what its VARIANT is by type and as JSON.
TYPES: dict[str, tuple[str, str, str]] = {
    "bool": ("t", "BOOLEAN", "true"),
    "int16": ("-3", "BIGINT", "-3"),
    "int32": ("-70000", "BIGINT", "-70000"),
    "int64": ("9223372036854775807", "BIGINT", "9223372036854775807"),
    "float32": ("1.5", "FLOAT", "1.5"),
    "float64": ("-0.1", "DOUBLE", "-0.1"),
    "decimal(9,2)": ("-1234567.89", "DECIMAL(9,2)", "-1234567.89"),
    "decimal(18,4)": ("99999999999999.9999", "DECIMAL(18,4)", "99999999999999.9999"),
    "decimal(38,2)": ("-123456789012345678901234567890.12", "DECIMAL(32,2)", ""),
    "date": ("2024-02-29", "DATE", '"2024-02-29"'),
    "timestamp": ("2024-02-29 01:02:03.000004", "TIMESTAMP_NTZ", ""),
    "timestamptz": ("2024-02-29 01:02:03.000004+00", "TIMESTAMP", ""),
    "binary": ("\\x00ff", "BINARY", '"AP8="'),
    "text": ('say "é" 𝄞\n', "STRING", '"say \\"é\\" 𝄞\\n"'),
}


def test_every_type_is_as_spark_has_it(
    spark: Any, built: BuiltLog, read: Callable[..., Any]
) -> None:
    names = {f"c{number}": kind for number, kind in enumerate(TYPES)}
    table = built.table("public.t", {"id": "int64", **names})
    built.insert(table, "1", *(text for text, _, _ in TYPES.values()))
    built.insert(table, "2", *(None for _ in TYPES))
    built.flush()
    typed = read(table="public.t").select("after.*").drop("id")
    frame = read(shape="variant")
    simple = {field.name: field.dataType.simpleString() for field in typed.schema}
    got = frame.selectExpr(*(f"variant_get(after, '$.{n}', '{simple[n]}') {n}" for n in names))
    assert [tuple(row) for row in got.collect()] == [tuple(row) for row in typed.collect()]
    parts = {name: f"variant_get(after, '$.{name}', 'variant')" for name in names}
    of = [f"schema_of_variant({part}) {name}_type" for name, part in parts.items()]
    shown = [f"to_json({part}) {name}_json" for name, part in parts.items()]
    full, empty = frame.selectExpr(*of, *shown).collect()
    for name, kind in names.items():
        assert full[f"{name}_type"] == TYPES[kind][1], kind
        assert full[f"{name}_json"] == (TYPES[kind][2] or full[f"{name}_json"]), kind
        assert empty[f"{name}_type"] == "VOID"


def test_rows_of_all_tables_come_in_one_frame(built: BuiltLog, read: Callable[..., Any]) -> None:
    fill(built)
    rows = read(shape="variant").collect()
    assert [row.version for row in rows] == sorted(row.version for row in rows)
    users = [row for row in rows if row.table == "public.users"]
    assert [row.op for row in users] == ["c", "d", "t", "r", "d"]
    assert [row.key and row.key.toPython() for row in users] == [
        {"id": 1}, {"id": 1}, None, {"id": 5}, {"id": 6},
    ]  # fmt: skip
    assert [row.after and row.after.toPython() for row in users][:2] == [
        {"id": 1, "mail": "u@x"}, None,
    ]  # fmt: skip
    assert users[0].source.position == 1002
    first = next(row for row in rows if row.table == "public.orders")
    after = first.after.toPython()
    assert list(after) == sorted(ORDERS)
    assert after["amount"] == Decimal("12.50")
    assert after["day"] == date(2024, 1, 1)
    assert [row.missing for row in rows if row.table == "public.orders"] == [None, ["name"], None]
    only = read(shape="variant", table="public.orders", columns="paid,id", key='{"id": 2}')
    assert [json.loads(str(row.after)) for row in only.collect()] == [{"id": 2, "paid": None}]


def test_wide_rows_are_searched_by_name(built: BuiltLog, read: Callable[..., Any]) -> None:
    """Spark searches an object of many fields by halves: the order of names has to be its own."""
    names = [f"{mark}{number}" for number in range(60) for mark in ("a", "Z", "ü", "字", "𝄞")]
    table = built.table("public.t", {"id": "int64", **dict.fromkeys(names, "int64")})
    built.insert(table, "0", *(str(number) for number in range(len(names))))
    built.flush()
    paths = [
        f"variant_get(after, '$[\"{name}\"]', 'bigint') AS c{n}" for n, name in enumerate(names)
    ]
    found = read(shape="variant").selectExpr(*paths).first()
    assert list(found) == list(range(len(names)))


def test_a_stream_of_variants(spark: Any, built: BuiltLog, tmp_path: Path) -> None:
    fill(built)
    [batch] = stream(spark, built, tmp_path / "c", shape="variant", tables="public.users")
    assert [row.op for row in batch] == ["c", "d", "t", "r", "d"]
