"""Rows of any values read back by an independent library (fastavro) as what they were."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.avro_messages import read

from tidelog.errors import OutputError, TableLeftOutError
from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.formatters import avro, avro_schema
from tidelog.outputs.formatters.avro import AvroRows
from tidelog.ports import SourceId, TargetTable

UTC = dt.UTC
_DAY = dt.date(1970, 1, 1)


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda n: Decimal(n).scaleb(-scale))


PLACE = pa.struct([("number", pa.int32()), ("since", pa.date32())])
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "truth": (pa.bool_(), st.booleans()),
    "tiny": (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    "small": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "whole": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "large": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "single": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "double": (pa.float64(), st.floats(allow_nan=False)),
    "money": (pa.decimal128(38, 9), _decimals(28, 9)),
    "count": (pa.decimal128(5, 0), _decimals(5, 0)),
    "day": (pa.date32(), st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31))),
    "local": (pa.timestamp("us"), st.datetimes()),
    "instant": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    "words": (pa.string(), st.text()),
    "blob": (pa.binary(), st.binary()),
    "clock": (pa.time64("us"), st.times()),
    "list": (pa.list_(pa.int32()), st.lists(st.none() | st.integers(0, 9), max_size=3)),
    "grid": (
        pa.list_(pa.list_(pa.string())),
        st.lists(st.none() | st.lists(st.none() | st.text(), max_size=2), max_size=3),
    ),
    "tags": (
        pa.map_(pa.string(), pa.string()),
        st.dictionaries(st.text(max_size=3), st.none() | st.text(), max_size=3),
    ),
    "place": (
        PLACE,
        st.fixed_dictionaries(
            {"number": st.none() | st.integers(0, 9), "since": st.none() | st.dates()}
        ),
    ),
    "places": (
        pa.list_(PLACE),
        st.lists(st.none() | st.just({"number": None, "since": _DAY}), max_size=3),
    ),
}


def table(columns: pa.Schema, key: tuple[str, ...] = (), name: str = "shop.things") -> TargetTable:
    source = TableName("shop", "things")
    schema = TableSchema(source, 1, (), (), (), "d", "pgoutput", 1)
    return TargetTable(source, name, schema, columns, key, SourceId("postgres", "1", "shop"))


@st.composite
def columns_of_rows(draw: st.DrawFn) -> pa.RecordBatch:
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=5, unique=True))
    n = draw(st.integers(0, 20))
    arrays = []
    for name in names:
        kind, values = VALUES[name]
        cells = draw(st.lists(st.none() | values, min_size=n, max_size=n))
        arrays.append(pa.array(cells, kind))
    batch = pa.RecordBatch.from_arrays(arrays, names=names)
    start = draw(st.integers(0, n))
    return batch.slice(start)  # with offsets into Arrow's buffers


@settings(max_examples=60, deadline=None)
@given(batch=columns_of_rows())
def test_any_rows_read_back_as_they_were(batch: pa.RecordBatch) -> None:
    target = table(batch.schema)
    fields = avro_schema.fields_of(target, batch.schema.names, plain_key=True)
    rows = AvroRows(batch.num_rows)
    for field, values in zip(fields, batch.columns, strict=True):
        rows.field(field.column, values, nullable=True)
    schema = avro_schema.key_schema(target, fields)
    found = [read(data, schema) for data in rows.finish().to_pylist()]
    assert found == batch.to_pylist(maps_as_pydicts="strict")


def test_records_of_attributes_and_of_columns_have_names_of_their_own() -> None:
    kind = pa.schema([("home", pa.struct([("place", PLACE)])), ("home_place", PLACE)])
    target = table(kind)
    schema = avro_schema.flat_schema(
        target, avro_schema.fields_of(target, kind.names, plain_key=False)
    )
    fastavro.parse_schema(json.loads(schema))  # raises where a name is taken


def test_decimals_and_integers_at_the_ends_of_their_sizes() -> None:
    edges = sorted({s * 2**k + d for k in range(120) for d in (-1, 0, 1) for s in (1, -1)})
    texts = pa.array([Decimal(n) for n in edges], pa.decimal128(38, 0))
    rows = AvroRows(len(edges))
    rows.field("n", texts, nullable=False)
    schema = '{"type":"bytes","logicalType":"decimal","precision":38,"scale":0}'
    found = rows.finish().to_pylist()
    assert [read(each, schema) for each in found] == edges
    assert [len(each) - 1 for each in found] == [
        (n if n >= 0 else ~n).bit_length() // 8 + 1 for n in edges
    ]
    longs = [n for n in edges if -(2**63) <= n < 2**63]
    rows = AvroRows(len(longs))
    rows.field("n", pa.array(longs), nullable=False)
    assert [read(each, '"long"') for each in rows.finish().to_pylist()] == longs


@settings(max_examples=30, deadline=None)
@given(st.integers(-(2**63), 2**63 - 1), st.text(), st.lists(st.text()))
def test_constants_are_encoded_as_columns_are(number: int, text: str, names: list[str]) -> None:
    assert read(avro.encode_number(number), '"long"') == number
    assert read(avro.encode_text(text), '"string"') == text
    assert read(avro.encode_names(names), '{"type":"array","items":"string"}') == names


@settings(max_examples=30, deadline=None)
@given(st.lists(st.booleans(), max_size=9), st.data())
def test_records_that_are_null_have_no_fields(there: list[bool], data: st.DataObject) -> None:
    n = len(there)
    numbers = data.draw(st.lists(st.integers(0, 300), min_size=n, max_size=n))
    inner = {"type": "record", "name": "I", "fields": [{"name": "a", "type": "long"}]}
    outer = {"type": "record", "name": "O", "fields": [{"name": "i", "type": ["null", inner]}]}
    rows = AvroRows(n)
    flags = np.array(there, np.bool_)
    rows.union_branch(flags)
    values = pa.array([v if t else None for v, t in zip(numbers, there, strict=True)], pa.int64())
    rows.field("a", values, nullable=False, there=flags)
    found = [read(each, json.dumps(outer))["i"] for each in rows.finish().to_pylist()]
    assert found == [{"a": v} if t else None for v, t in zip(numbers, there, strict=True)]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.large_binary()])
def test_sparks_large_columns_are_encoded_as_others(kind: pa.DataType) -> None:
    rows = AvroRows(3)
    rows.field("v", pa.array(["größe", None, ""]).cast(kind), nullable=True)
    found = [read(each, '["null","string"]') for each in rows.finish().to_pylist()]
    assert found == ["größe", None, ""]


def test_a_null_where_the_schema_has_no_place_is_an_error() -> None:
    with pytest.raises(OutputError, match="column id is null"):
        AvroRows(2).field("id", pa.array([1, None]), nullable=False)


names = st.lists(st.text(min_size=1), min_size=1, max_size=6, unique=True)


@settings(max_examples=30, deadline=None)
@given(names, names)
def test_any_names_make_a_schema_that_readers_take(columns: list[str], parts: list[str]) -> None:
    target = table(pa.schema([(name, pa.int32()) for name in columns]), name=".".join(parts))
    fields = avro_schema.fields_of(target, columns, avro_schema.FLAT, plain_key=False)
    assert len({field.name for field in fields}) == len(columns)
    schema = avro_schema.flat_schema(target, fields)
    row = b"\0" * len(columns) + avro.encode_text("c") * 2 + b"\0" * 5
    assert read(row, schema)["__op"] == "c"


def test_valid_names_stay_and_others_give_way() -> None:
    columns = ["a-b", "a_b", "1st", "__op", "größe", "A_B"]
    target = table(pa.schema([(name, pa.int32()) for name in columns]))
    fields = avro_schema.fields_of(target, columns, avro_schema.FLAT, plain_key=False)
    assert [field.name for field in fields] == ["a_b_", "a_b", "_1st", "__op_", "gr__e", "A_B"]
    assert fields[0].to_json()["doc"] == "column a-b"


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.duration("us")), pa.timestamp("ns"), pa.decimal256(50, 1)]
)
def test_a_type_without_a_place_says_what_to_do(kind: pa.DataType) -> None:
    target = table(pa.schema([("tags", kind)]))
    with pytest.raises(TableLeftOutError, match=r"column tags of shop\.things is .* cast it"):
        avro_schema.fields_of(target, ["tags"], plain_key=True)
