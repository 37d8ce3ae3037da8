"""Definitions of tables, as texts; that Spark takes them is asked in tests/integration/spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from tidelog.outputs.lake.delta_log.actions import TableMetadata, TableProtocol
from tidelog.outputs.lake.delta_log.definition import TableDefinition, new_table
from tidelog.outputs.lake.delta_log.features import features_of, with_features

ID = StructField("id", LongType(), nullable=False)
TEXT = StructField("v", StringType())


def table(*fields: StructField, **options: Any) -> TableDefinition:
    known = {"properties": {}, "column_mapping": False, "deletion_vectors": False}
    return new_table(fields or (ID, TEXT), **{**known, **options})


def columns(of: TableDefinition) -> dict[str, Mapping[str, Any]]:
    return {each["name"]: each for each in of.metadata.schema["fields"]}


def physical(of: TableDefinition) -> dict[str, tuple[int, str]]:
    return {
        name: (
            each["metadata"]["delta.columnMapping.id"],
            each["metadata"]["delta.columnMapping.physicalName"],
        )
        for name, each in columns(of).items()
    }


def test_a_plain_table_asks_for_the_lowest_versions() -> None:
    made = table(properties={"a": "b"})
    assert made.protocol == TableProtocol(1, 2)
    assert made.metadata.configuration == {"a": "b"}
    assert json.loads(made.metadata.to_json()["schemaString"])["fields"] == [
        {"name": "id", "type": "long", "nullable": False, "metadata": {}},
        {"name": "v", "type": "string", "nullable": True, "metadata": {}},
    ]
    assert [next(iter(action)) for action in made.changes(None)] == ["protocol", "metaData"]


@pytest.mark.parametrize(
    ("options", "protocol"),
    [
        ({"deletion_vectors": True}, (3, 7, {"deletionVectors"}, set())),
        ({"column_mapping": True}, (2, 7, set(), {"columnMapping"})),
        ({"clusters": ["v"]}, (1, 7, set(), {"clustering", "domainMetadata"})),
        (
            {"properties": {"delta.enableChangeDataFeed": "true"}, "column_mapping": True},
            (2, 7, set(), {"changeDataFeed", "columnMapping"}),
        ),
        (
            {"deletion_vectors": True, "column_mapping": True},
            (3, 7, {"deletionVectors", "columnMapping"}, set()),
        ),
        ({"properties": {"delta.checkpointPolicy": "v2"}}, (3, 7, {"v2Checkpoint"}, set())),
        (
            {"properties": {"delta.enableInCommitTimestamps": "true"}},
            (1, 7, set(), {"inCommitTimestamp"}),
        ),
        ({"properties": {"delta.enableDeletionVectors": "false"}}, (1, 2, set(), None)),
    ],
)
def test_what_a_table_asks_of_readers_and_writers(
    options: dict[str, Any], protocol: tuple[int, int, set[str], set[str] | None]
) -> None:
    reader, writer, of_readers, of_writers = protocol
    listed = (
        frozenset[str]()
        if of_writers is None
        else frozenset(of_readers | of_writers | {"appendOnly", "invariants"})
    )
    expected = TableProtocol(reader, writer, frozenset(of_readers), listed)
    assert table(**options).protocol == expected


@pytest.mark.parametrize(
    "kind",
    [
        TimestampNTZType(),
        ArrayType(TimestampNTZType()),
        MapType(StringType(), StructType([StructField("t", TimestampNTZType())])),
    ],
)
def test_timestamps_without_a_zone_are_a_feature(kind: Any) -> None:
    field = StructField("t", kind)
    for made in (table(ID, field), table(ID).with_columns([field])):
        assert made.protocol.reader_features == {"timestampNtz"}


def test_new_columns_are_last_and_may_be_null() -> None:
    made = table().with_columns([StructField("n", IntegerType(), nullable=False)])
    assert list(columns(made)) == ["id", "v", "n"]
    assert columns(made)["n"]["nullable"] is True
    assert made.protocol == TableProtocol(1, 2)


def test_mapped_columns_have_ids_and_names_of_their_own() -> None:
    inner = StructType([StructField("x", IntegerType()), StructField("y", IntegerType())])
    made = table(ID, StructField("s", ArrayType(inner)), column_mapping=True)
    assert made.metadata.configuration == {
        "delta.columnMapping.mode": "name",
        "delta.columnMapping.maxColumnId": "4",
    }
    added = made.with_columns([TEXT])
    assert added.metadata.configuration["delta.columnMapping.maxColumnId"] == "5"
    within = columns(added)["s"]["type"]["elementType"]["fields"]
    ids = [each["metadata"]["delta.columnMapping.id"] for each in within]
    assert [*ids, *(at for at, _ in physical(added).values())] == [3, 4, 1, 2, 5]
    names = [name for _, name in physical(added).values()]
    assert all(name.startswith("col-") for name in names)
    assert len(set(names)) == 3
    assert physical(made).items() <= physical(added).items()


def test_columns_that_are_there_keep_their_names_in_files() -> None:
    made = table().with_column_mapping()
    assert physical(made) == {"id": (1, "id"), "v": (2, "v")}
    assert made.protocol.min_reader_version == 2
    assert made.with_column_mapping() is made
    added = made.with_columns([StructField("a b", LongType())])
    assert physical(added)["a b"][0] == 3
    assert physical(added)["a b"][1].startswith("col-")


def test_wider_types_are_remembered() -> None:
    made = table(StructField("n", ShortType()), TEXT)
    wide = made.with_type("n", IntegerType()).with_type("n", LongType())
    assert columns(wide)["n"]["type"] == "long"
    assert columns(wide)["n"]["metadata"] == {
        "delta.typeChanges": [
            {"toType": "integer", "fromType": "short"},
            {"toType": "long", "fromType": "integer"},
        ]
    }
    assert wide.metadata.configuration == {"delta.enableTypeWidening": "true"}
    assert wide.protocol.reader_features == {"typeWidening"}
    assert columns(wide)["v"] == columns(made)["v"]
    dates = table(StructField("d", DateType())).with_type("d", TimestampNTZType())
    assert dates.protocol.reader_features == {"typeWidening", "timestampNtz"}


def test_a_table_with_the_preview_of_a_feature_needs_no_other() -> None:
    protocol = with_features(TableProtocol(), {"typeWidening-preview"})
    assert with_features(protocol, {"typeWidening"}) is protocol


def test_clusters_are_named_as_in_files() -> None:
    for made in (table(clusters=["v"]), table(clusters=["v"], column_mapping=True)):
        name = columns(made)["v"]["metadata"].get("delta.columnMapping.physicalName", "v")
        assert json.loads(made.domains["delta.clustering"]) == {
            "clusteringColumns": [[name]],
            "domainName": "delta.clustering",
        }
    before = table(clusters=["v"])
    (action,) = before.with_clusters(["id", "v"]).changes(before)
    assert json.loads(action["domainMetadata"]["configuration"])["clusteringColumns"] == [
        ["id"],
        ["v"],
    ]


@pytest.mark.parametrize("mapped", [False, True])
def test_members_of_a_struct_come_and_widen(mapped: bool) -> None:
    row = StructType([StructField("id", IntegerType()), TEXT])
    made = table(StructField("row", row), ID, column_mapping=mapped)
    more = made.with_columns([StructField("n", LongType())], within="row")
    wide = more.with_type("id", LongType(), within="row")
    members = {each["name"]: each for each in columns(wide)["row"]["type"]["fields"]}
    assert {name: each["type"] for name, each in members.items()} == {
        "id": "long", "v": "string", "n": "long",
    }  # fmt: skip
    change = {"toType": "long", "fromType": "integer"}
    assert members["id"]["metadata"]["delta.typeChanges"] == [change]
    assert columns(wide)["id"] == columns(made)["id"], "which has the name of a member"
    if mapped:
        ids = [each["metadata"]["delta.columnMapping.id"] for each in members.values()]
        assert ids == [2, 3, 5]
        assert wide.metadata.configuration["delta.columnMapping.maxColumnId"] == "5"


def test_only_what_differs_is_an_action() -> None:
    before = table()
    assert before.changes(before) == []
    (action,) = before.with_properties({"a": "b"}).changes(before)
    assert action["metaData"]["configuration"] == {"a": "b"}
    assert action["metaData"]["id"] == before.metadata.id
    enabled = before.with_properties({"delta.enableDeletionVectors": "true"})
    assert [next(iter(each)) for each in enabled.changes(before)] == ["protocol", "metaData"]
    clustered = before.with_clusters(["v"])
    (_, removed) = before.changes(clustered)
    assert removed["domainMetadata"]["removed"] is True


@pytest.mark.parametrize("writer", range(1, 7))
def test_what_a_version_brought_along_is_listed(writer: int) -> None:
    old = TableProtocol(2 if writer > 4 else 1, writer)
    new = with_features(old, {"deletionVectors"})
    assert new.writer_features == features_of(old) | {"deletionVectors"}
    assert ("columnMapping" in new.reader_features) is (writer > 4)
    assert with_features(old, features_of(old)) is old


def test_what_is_parsed_is_what_was_written() -> None:
    made = table(column_mapping=True, partitions=["v"], deletion_vectors=True)
    assert TableMetadata.parse(made.metadata.to_json()) == made.metadata
    assert TableProtocol.parse(made.protocol.to_json()) == made.protocol
