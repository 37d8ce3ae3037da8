"""Entries in Unity Catalog, and their configuration, without a server."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from tidelog.demo.servers.embedded import free_port
from tidelog.errors import OutputError
from tidelog.model.schema import TableName
from tidelog.outputs.lake.delta.config import UnitySection
from tidelog.outputs.lake.delta.registration import Entry, another_table
from tidelog.outputs.lake.delta.unity import UnityCatalog, columns_of
from tidelog.outputs.lake.delta_log.actions import TableMetadata

TABLE = TableName("shop", "orders")


def section(**options: str) -> UnitySection:
    return UnitySection.model_validate(
        {"type": "unity", "uri": "https://unity.example.org", "name": "main", **options}
    )


def field(name: str, kind: object, **metadata: str) -> dict[str, object]:
    return {"name": name, "type": kind, "nullable": name != "id", "metadata": metadata}


def test_columns_are_those_of_the_table() -> None:
    array = {"type": "array", "elementType": "integer", "containsNull": True}
    fields = [
        field("id", "integer"),
        field("price", "decimal(10,2)", comment="unit price"),
        field("at", "timestamp_ntz"),
        field("xs", array),
    ]
    metadata = TableMetadata("1", {"type": "struct", "fields": fields}, ("at",))
    found = columns_of(Entry(TABLE, "shop", "orders", "/lake/shop/orders", metadata))
    assert [(each["type_text"], each["type_name"], each["nullable"]) for each in found] == [
        ("int", "INT", False),
        ("decimal(10,2)", "DECIMAL", True),
        ("timestamp_ntz", "TIMESTAMP_NTZ", True),
        ("array<int>", "ARRAY", True),
    ]
    assert (found[1]["type_precision"], found[1]["type_scale"]) == (10, 2)
    assert found[1]["comment"] == "unit price"
    assert [each.get("partition_index") for each in found] == [None, None, 0, None]
    assert [json.loads(each["type_json"]) for each in found] == fields


@pytest.mark.parametrize("name", ["a.b", "a b", "a/b", "a\n", ""])
def test_a_name_that_the_catalog_can_not_have_is_refused(name: str) -> None:
    catalog = UnityCatalog("https://unity.example.org", "main", None)
    refused = catalog.refused_name(Entry(TABLE, "shop", name, "/lake"))
    assert refused is not None
    assert "route: SCHEMA.OTHER" in refused
    assert catalog.refused_name(Entry(TABLE, "shop", "orders-2", "/lake")) is None


def test_a_table_elsewhere_is_not_the_entry_s() -> None:
    entry = Entry(TABLE, "shop", "orders", "/lake")

    def why(found: str | None) -> str | None:
        return another_table(entry, "main.shop.orders", "Unity Catalog", "s3://b/lake", found)

    assert why("s3a://b/lake/") is None
    assert "is the Delta table at s3://b/other" in str(why("s3://b/other"))
    assert "is no Delta table" in str(why(None))


def test_a_server_that_is_away_is_a_finding_without_the_token() -> None:
    away = section(uri=f"http://127.0.0.1:{free_port()}", token="hidden-token")
    with pytest.raises(OutputError, match="does not answer: ConnectError"):
        away.probe()
    assert "hidden-token" not in f"{away!r} {away.model_dump_json()}"


@pytest.mark.parametrize(
    "wrong",
    [
        {"uri": "https://user:hidden@unity.example.org"},
        {"uri": "https://unity.example.org/api"},
        {"name": "main.shop"},
        {"token": "hidden\nline"},
    ],
)
def test_what_can_not_be_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        section(**wrong)
