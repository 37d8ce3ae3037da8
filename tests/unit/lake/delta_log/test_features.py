"""Tables that are written, and those that are refused by the feature's name."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.lake.delta_log.tables import FIELDS

from tidelog.errors import OutputRefusedError
from tidelog.outputs.lake.delta_log.actions import TableMetadata, TableProtocol
from tidelog.outputs.lake.delta_log.features import SUPPORTED, check_supported


def check(protocol: TableProtocol, **metadata: Any) -> None:
    known = {"schema": {"type": "struct", "fields": FIELDS}, **metadata}
    check_supported(protocol, TableMetadata("an-id", **known), "lake/t")


def features(*names: str) -> TableProtocol:
    return TableProtocol(3, 7, frozenset(names), frozenset(names))


@pytest.mark.parametrize("writer", range(1, 7))
def test_versions_without_features_are_written(writer: int) -> None:
    check(TableProtocol(2 if writer > 4 else 1, writer))


def test_features_that_are_listed_and_known_are_written() -> None:
    check(features(*SUPPORTED))
    check(features("columnMapping"), configuration={"delta.columnMapping.mode": "name"})
    check(features("deletionVectors"), configuration={"delta.appendOnly": "false"})


@pytest.mark.parametrize(
    "name", ["rowTracking", "catalogManaged", "variantShredding", "icebergCompatV2", "tomorrows"]
)
def test_features_that_are_not_known_are_refused(name: str) -> None:
    with pytest.raises(OutputRefusedError, match=f"lake/t uses the feature {name}.*DROP FEATURE"):
        check(features("deletionVectors", name))
    with pytest.raises(OutputRefusedError, match=name):
        check(TableProtocol(1, 7, frozenset(), frozenset({name})))


def test_later_protocols_are_refused() -> None:
    for protocol in (TableProtocol(4, 7), TableProtocol(3, 8)):
        with pytest.raises(OutputRefusedError, match="Update Tidelog"):
            check(protocol)


@pytest.mark.parametrize(
    ("configuration", "why"),
    [
        ({"delta.appendOnly": "true"}, "delta.appendOnly"),
        ({"delta.columnMapping.mode": "id"}, "column mapping by id"),
        ({"delta.constraints.positive": "id > 0"}, "the CHECK constraint positive"),
    ],
)
def test_properties_that_ask_more_are_refused(configuration: dict[str, str], why: str) -> None:
    with pytest.raises(OutputRefusedError, match=why):
        check(TableProtocol(2, 6), configuration=configuration)


@pytest.mark.parametrize(
    "key",
    ["delta.invariants", "delta.generationExpression", "delta.identity.start", "CURRENT_DEFAULT"],
)
def test_columns_that_ask_more_are_refused(key: str) -> None:
    asking = {"name": "c", "type": "long", "nullable": True, "metadata": {key: "1"}}
    within = {"type": "array", "elementType": {"type": "struct", "fields": [asking]}}
    for column, name in (
        (asking, "column c"),
        ({"name": "a", "type": within, "nullable": True, "metadata": {}}, r"column a\.c"),
    ):
        with pytest.raises(OutputRefusedError, match=name):
            check(TableProtocol(2, 6), schema={"type": "struct", "fields": [*FIELDS, column]})


def test_other_data_files_are_refused() -> None:
    with pytest.raises(OutputRefusedError, match="Use Parquet"):
        check(TableProtocol(), format="orc")
