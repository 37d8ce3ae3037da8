"""The layout of a Delta table's files follows its schema and its properties."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidelog.errors import OutputRefusedError
from tidelog.outputs.lake.data_files.file_reader import from_file, to_file
from tidelog.outputs.lake.data_files.layout import FileLayout, delta_layout


@dataclass
class Metadata:
    schema: dict[str, Any]
    partition_columns: tuple[str, ...] = ()
    configuration: dict[str, str] = field(default_factory=dict)


def column(name: str, kind: Any, **mapping: Any) -> dict[str, Any]:
    notes = {f"delta.columnMapping.{each}": value for each, value in mapping.items()}
    return {"name": name, "type": kind, "nullable": True, "metadata": notes}


def table(*columns: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": [*columns, column("_version", "long")]}


def layout_of(metadata: Metadata, *key: str) -> FileLayout:
    return delta_layout(metadata, key=key, version="_version", deleted="", null_key=False)


def test_every_type_that_can_be_written_has_its_arrow_type() -> None:
    kinds = {
        "string": pa.string(), "long": pa.int64(), "integer": pa.int32(), "short": pa.int16(),
        "byte": pa.int8(), "float": pa.float32(), "double": pa.float64(), "boolean": pa.bool_(),
        "binary": pa.binary(), "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"), "decimal(20,3)": pa.decimal128(20, 3),
    }  # fmt: skip
    found = layout_of(Metadata(table(*(column(kind, kind) for kind in kinds))), "long")
    assert {each.name: each.type for each in found.columns[:-1]} == kinds
    assert found.schema.names == [*kinds, "_version"]
    assert pickle.loads(pickle.dumps(found)) == found


def test_a_type_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(OutputRefusedError, match=r"column v .* is of type geometry"):
        layout_of(Metadata(table(column("v", "geometry"))))


def test_members_of_a_variant_are_never_null_in_files() -> None:
    kind = {"type": "array", "elementType": "variant", "containsNull": True}
    inner = {"type": "struct", "fields": [column("v", "variant"), column("l", kind)]}
    found = layout_of(Metadata(table(column("after", inner)))).column("after")
    value = {"value": b"\x00", "metadata": b"\x01\x00\x00"}
    rows = [{"v": value, "l": [None, value]}, None, {"v": None, "l": None}, {"v": value, "l": []}]
    whole = pa.array(rows, found.type)
    for values in (whole, whole[1:], whole.take(pa.array([2, None, 0, 3]))):
        file = BytesIO()
        stored = to_file(pa.chunked_array([values]), found)
        schema = pa.schema([found.file_field])
        pq.write_table(pa.Table.from_arrays([stored], schema=schema), file, store_schema=False)
        written = pq.read_table(file)["after"]
        members = written.type.field("v").type
        assert not any(member.nullable for member in members)
        assert from_file(written, found).to_pylist() == values.to_pylist()


def test_column_mapping_gives_names_and_ids_of_columns_and_of_fields_inside() -> None:
    inner = {"type": "struct", "fields": [column("x y", "long", id=3, physicalName="col-3")]}
    listed = {"type": "array", "elementType": inner, "containsNull": True}
    schema = {
        "type": "struct",
        "fields": [
            column("a b", "long", id=1, physicalName="col-1"),
            column("n", listed, id=2, physicalName="col-2"),
        ],
    }
    found = layout_of(Metadata(schema, configuration={"delta.columnMapping.mode": "name"}), "a b")
    plain, nested = found.columns
    assert (plain.physical, plain.field_id) == ("col-1", 1)
    assert nested.type == pa.list_(pa.struct([pa.field("x y", pa.int64())]))
    item = nested.file_field.type.value_type.field(0)
    assert (item.name, item.metadata) == ("col-3", {b"PARQUET:field_id": b"3"})
    assert found.prefix_length == 2  # folders named by partition would show physical names


def test_statistics_are_kept_of_listed_columns_of_the_key_and_of_the_version() -> None:
    columns = table(*(column(name, "long") for name in ("id", "a,b", "c`d", "e", "f")))
    listed = {"delta.dataSkippingStatsColumns": "`a,b`, `c``d`, e"}
    assert layout_of(Metadata(columns, configuration=listed), "id").statistics == (
        "id", "a,b", "c`d", "e", "_version",
    )  # fmt: skip
    first = {"delta.dataSkippingNumIndexedCols": "2"}
    found = layout_of(Metadata(columns, ("id",), first), "id")
    assert found.statistics == ("a,b", "c`d", "_version")
    assert [each.name for each in found.in_files] == ["a,b", "c`d", "e", "f", "_version"]
    assert found.file_key == ()
