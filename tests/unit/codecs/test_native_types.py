"""Texts of arrays, JSON and numbers without limits as columns of their own type."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from pyspark.sql.types import VariantVal
from tests.support.payloads import insert, record_batch, table_schema

from tidelog.codecs.columns.values import UnfitCellError, arrow_type, column
from tidelog.codecs.decode import decode
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.types import binlog_column
from tidelog.codecs.wire_formats import native_logicals
from tidelog.config import Config
from tidelog.errors import ConfigError, ValueRefusedError
from tidelog.model.option_values import ALL_TEXT, ColumnTypes
from tidelog.model.records import RecordKind
from tidelog.model.schema import Column, TableName, TableSchema, members_of, struct_of
from tidelog.outputs.base.targets import types_of
from tidelog.outputs.files.config import FilesSection
from tidelog.spark.datasource.options import SourceOptions

TEXTS = ALL_TEXT
DECIMALS = ColumnTypes(numeric=(38, 18))
PLACE = struct_of([("street", "text"), ("number", "int32"), ("note", "text")])
VARIANTS = ColumnTypes(json="variant")


def decoded(texts: list[str | None], logical: str, written: str = "text") -> pa.Array:
    encoded = [None if text is None else text.encode() for text in texts]
    length = np.array([-1 if e is None else len(e) for e in encoded], np.int32)
    start = (np.cumsum(np.maximum(length, 0)) - np.maximum(length, 0)).astype(np.int32)
    data = np.frombuffer(b"".join(e or b"" for e in encoded) + b"\0", np.uint8)
    return column(data, start, length, written, logical)


def array_text(elements: list[str | None]) -> str:
    """As PostgreSQL's array_out writes it."""

    def quoted(text: str) -> str:
        plain = text and text.upper() != "NULL" and not re.search(r'[{},"\\\s]', text)
        return text if plain else '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'

    return "{" + ",".join("NULL" if e is None else quoted(e) for e in elements) + "}"


ELEMENTS = st.lists(st.none() | st.text(alphabet='ab{},"\\ NULé\n', max_size=5), max_size=6)


@given(st.lists(st.none() | ELEMENTS, max_size=8))
def test_elements_are_those_that_were_written(arrays: list[list[str | None] | None]) -> None:
    found = decoded([None if each is None else array_text(each) for each in arrays], "array(text)")
    found.validate(full=True)
    assert found.type == arrow_type("array(text)")
    assert found.to_pylist() == arrays


SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=80)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    named = st.dictionaries(st.text("abé\ue000\n", max_size=3), inner, max_size=6)
    return st.lists(inner, max_size=6) | named


JSON = SCALARS | containers(SCALARS | containers(SCALARS))
NUMBERS = ["0", "-0", "127", "-128", "128", "-32769", "2147483648", "1.50", "-0.001", "-0.0"]
NUMBERS += ["123456789.1", "-1234567890.12"]
NUMBERS += [str(number) for number in (2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 10**38 - 1)]
NUMBERS += ["12345678901234567.89", f"-0.{'1' * 38}", "1e2", '[-1.5E-7, {"z": [2e+3]}]']


@given(st.lists(st.none() | JSON, max_size=4), st.booleans(), st.sampled_from([None, 1]))
def test_variants_are_those_of_spark(values: list[Any], ascii_only: bool, indent: Any) -> None:
    check_variants([json.dumps(each, ensure_ascii=ascii_only, indent=indent) for each in values])


def test_variants_of_numbers_and_of_large_documents_are_those_of_spark() -> None:
    many = {f"name {number}": number for number in range(300)}
    check_variants([*NUMBERS, None, json.dumps(many), json.dumps([list(range(30_000))] * 2)])


def check_variants(texts: list[str | None]) -> None:
    """Compare with what Spark's own parser in Python makes."""
    found = decoded(texts, "variant")
    found.validate(full=True)
    assert found.type == arrow_type("variant")
    parsed = [None if text is None else VariantVal.parseJson(text) for text in texts]
    assert found.to_pylist() == [
        None if each is None else {"value": each.value, "metadata": each.metadata}
        for each in parsed
    ]


def test_a_boolean_of_before_the_column_was_json_is_refused() -> None:
    data = np.frombuffer(b"t\0", np.uint8)
    with pytest.raises(UnfitCellError) as told:
        column(data, np.zeros(1, np.int32), np.ones(1, np.int32), "bool", "variant")
    assert told.value.reason == "is no JSON"


def test_names_of_a_variant_are_sorted_as_java_searches_them() -> None:
    (row,) = decoded(['{"\uffff": 1, "\U0001f600": 2, "a": 3}'], "variant").to_pylist()
    assert list(row["value"][2:5]) == [2, 1, 0]


@pytest.mark.parametrize(
    ("logical", "text", "reason"),
    [
        ("array(int32)", "{{1},{2}}", "is an array of several dimensions"),
        ("array(int32)", "[0:1]={1,2}", "is an array whose first index is not 1"),
        *[
            ("array(text)", text, "is no array")
            for text in ("", "{", "x", "{a", "{a,}", '{a"b,c"}')
        ],
        *[("array(text)", text, "is no array") for text in ('{"a}', '{"a"b}', "{a}}", '{"a\\"}')],
        ("array(int16)", "{1,99999}", "has an element that is no int16"),
        ("array(numeric(4,2))", "{1.00,NaN}", "has an element that is NaN"),
        *[
            ("variant", text, "is no JSON")
            for text in ("", "{", "[1,]", '{"a"}', '{"a":}', '{"a":1,}', "1 2", "01", "1.", ".5")
        ],
        *[
            ("variant", text, "is no JSON")
            for text in ("-", "1e", "tru", '"', '"\\x"', "[1}", '"\n"')
        ],
        ("variant", '"\\ud800x"', "has half of a surrogate pair"),
        ("variant", '{"a": 1, "b": 2, "a": 3}', "has an object with one name twice"),
        ("variant", "1" * 39, "has a number of more than 38 digits"),
        ("variant", f"[0.{'1' * 39}]", "has a number of more than 38 digits"),
        ("variant", "[1e2, 1e999]", "has a number that no double holds"),
        ("variant", "[" * 1001 + "]" * 1001, "has more than 1000 levels"),
        ("variant", f'"{"x" * (16 << 20)}"', "has more than 16 MiB"),
        ("numeric(38,18)", "NaN", "is NaN"),
        ("numeric(38,18)", "-Infinity", "is infinite, or has too many digits"),
        ("numeric(38,18)", "100000000000000000000", "is infinite, or has too many digits"),
        ("numeric(38,18)", "0.0000000000000000001", "is infinite, or has too many digits"),
    ],
)
def test_what_does_not_fit_is_reported_with_its_row(logical: str, text: str, reason: str) -> None:
    fit = "{1}" if logical.startswith("array") else "1"
    with pytest.raises(UnfitCellError) as told:
        decoded([None, fit, text, fit], logical)
    assert (told.value.row, told.value.reason) == (2, reason)


@pytest.mark.parametrize(
    ("type_id", "name", "types", "logical"),
    [
        (1007, "integer[]", ColumnTypes(), "array(int32)"),
        (1007, "integer[]", TEXTS, None),
        (1015, "character varying(9)[]", ColumnTypes(), "array(text)"),
        (1185, "timestamp(3) with time zone[]", ColumnTypes(), "array(timestamptz)"),
        (1231, "numeric(10,2)[]", ColumnTypes(), "array(numeric(10,2))"),
        (1231, "numeric(50,2)[]", ColumnTypes(), "array(text)"),
        (1231, "numeric[]", DECIMALS, "array(numeric(38,18))"),
        (1020, "box[]", ColumnTypes(), None),  # with another separator
        (20_000, "mood[]", ColumnTypes(), None),
        (1700, "numeric", ColumnTypes(), None),
        (1700, "numeric", DECIMALS, "numeric(38,18)"),
        (25, "text", DECIMALS, None),
        (3802, "jsonb", VARIANTS, "variant"),
        (114, "json", VARIANTS, "variant"),
        (3802, "jsonb", ColumnTypes(), None),
        (3807, "jsonb[]", VARIANTS, "array(text)"),
    ],
)
def test_types_by_option(type_id: int, name: str, types: ColumnTypes, logical: Any) -> None:
    columns = (Column("k", type_id, -1, name, "text"), Column("v", type_id, -1, name, "text"))
    schema = TableSchema(TableName("public", "t"), 1, columns, ("k",), ("k",), "d", "pgoutput")
    assert native_logicals(schema, types) == ({"v": logical} if logical else {})
    of_column = {"v": types}
    assert native_logicals(schema, TEXTS, of_column) == native_logicals(schema, types)


def test_dimensions_are_those_of_arrays_of_composites_too() -> None:
    columns = (Column("places", 20_001, -1, "place[]", "text"),)
    schema = TableSchema(TableName("public", "t"), 1, columns, (), (), "d", "pgoutput")
    schema = replace(schema, structures=(("places", f"array({PLACE})"),))
    types = ColumnTypes(composites="struct", dimensions=(("public.t.places", 2),))
    assert native_logicals(schema, types) == {"places": f"array(array({PLACE}))"}
    assert native_logicals(schema, replace(types, arrays="text")) == {}


def test_json_of_mysql_has_its_type_by_option() -> None:
    columns = tuple(
        binlog_column(name, kind, kind, flavor=Flavor.MYSQL)
        for name, kind in (("k", "int"), ("v", "json"), ("t", "longtext"))
    )
    schema = TableSchema(TableName("shop", "t"), 1, columns, ("k",), ("k",), "d", "binlog")
    assert native_logicals(schema, VARIANTS) == {"v": "variant"}
    assert native_logicals(schema, ColumnTypes()) == {}


def test_columns_keep_their_types() -> None:
    kept = types_of("variant", ColumnTypes())
    assert (kept.json, types_of("string", VARIANTS).json) == ("variant", "text")


@pytest.mark.parametrize(
    "given",
    [
        *[{"types": {"numeric": {"decimal": limits}}} for limits in ([39, 2], [5, 6], [0, 0])],
    ],
)
def test_types_that_files_can_not_have_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        FilesSection.model_validate({"kind": "files", "path": "x", **given})


def test_outputs_inherit_the_types_of_the_source_and_override_them() -> None:
    outputs: list[dict[str, Any]] = [
        {"kind": "delta", "path": "a"},
        {"kind": "delta", "name": "b", "path": "b", "types": {"arrays": "native"}},
        {"kind": "files", "path": "c"},
        {"kind": "files", "name": "d", "path": "d", "types": {"numeric": "text"}},
        {"kind": "files", "name": "e", "path": "e", "format": "json"},
        {"kind": "opensearch", "urls": ["http://localhost:9200"]},
        {"kind": "kafka", "servers": "localhost:9092"},
    ]
    types = {"arrays": "text", "json": "variant", "numeric": {"decimal": [20, 4]}}

    def types_by_output(of_source: dict[str, Any]) -> list[ColumnTypes | None]:
        source = {"kind": "postgres", "url": "postgresql://db/shop", **of_source}
        config = Config.model_validate({"source": source, "log": {"path": "x"}, "outputs": outputs})
        found = [getattr(each, "types", None) for each in config.outputs]
        return [None if each is None else each.column_types() for each in found]

    assert types_by_output({"types": types}) == [
        ColumnTypes("text", (20, 4), "variant"),
        ColumnTypes("native", (20, 4), "variant"),
        ColumnTypes("text", (20, 4), "variant", hstore="text"),
        ColumnTypes("text", None, "variant"),
        *[ColumnTypes("text", (20, 4), "variant", hstore="text")] * 2,
        None,
    ]
    of_files = types_by_output({"types": {"json": "variant"}})[2:4]
    assert of_files == [
        ColumnTypes("text", None, "variant", hstore="text"),
        ColumnTypes(json="variant"),
    ]
    rest = [None] * 3
    assert types_by_output({}) == [ColumnTypes(), ColumnTypes(), None, ColumnTypes(), *rest]


def test_an_option_of_the_spark_source_is_as_in_the_configuration() -> None:
    options = {"path": "x", "table": "public.t", "types": '{"numeric": {"decimal": [20, 4]}}'}
    assert SourceOptions.parse(options).types == ColumnTypes(numeric=(20, 4))
    for types in ('{"array": "text"}', "text", '{"arrays": "maybe"}'):
        with pytest.raises(ConfigError, match="option 'types'"):
            SourceOptions.parse({**options, "types": types})
    with pytest.raises(ConfigError, match="does not fit shape 'raw'"):
        SourceOptions.parse({**options, "shape": "raw"})


@pytest.mark.parametrize(
    ("logical", "text", "found"),
    [
        ("map", r'"a"=>"1", "b\"\\"=>NULL, ""=>"NULL"', [("a", "1"), ('b"\\', None), ("", "NULL")]),
        ("map", "", []),
        ("array(array(int32))", "{{1,2},{3,NULL}}", [[1, 2], [3, None]]),
        ("array(array(array(text)))", r'{{{a,"b,{"}},{{"\"",NULL}}}',
         [[["a", "b,{"]], [['"', None]]]),
        ("array(array(int32))", "{}", []),
        ("array(text)", '{null,"null",nulls}', [None, "null", "nulls"]),
        (f"array(array({PLACE}))", r'{{"(a,1,\"b c\")",NULL}}', [[("a", 1, "b c"), None]]),
        ("range(int32)", "(,5]", (None, 5, False, True, False)),
        ("range(int32)", "empty", (None, None, False, False, True)),
        ("range(text)", r'["a ""b""","\\)")', ('a "b"', "\\)", True, False, False)),
        ("multirange(int32)", "{[1,3),(,)}",
         [(1, 3, True, False, False), (None, None, False, False, False)]),
        (PLACE, r'("a ""b"" \\",,"")', ('a "b" \\', None, "")),
        (PLACE, "(,,)", (None, None, None)),
        (f"array({PLACE})", r'{"(\"a b\",1,x)",NULL}', [("a b", 1, "x"), None]),
        ("interval", "1 year 2 mons -3 days -04:05:06.7", (14, -3, -14_706_700_000)),
        ("interval", "-1 days +02:03:00", (0, -1, 7_380_000_000)),
        ("interval", "00:00:00", (0, 0, 0)),
        ("time", "23:59:59.999999", time(23, 59, 59, 999_999)),
    ],
)  # fmt: skip
def test_parts_are_those_that_the_server_wrote(logical: str, text: str, found: Any) -> None:
    values = decoded([None, text, None, text], logical)
    values.validate(full=True)
    assert values.type == arrow_type(logical)
    assert [plain(each) for each in values.to_pylist()] == [None, found, None, found]


SHORT = struct_of([("road", "text"), ("number", "int32")])
LONG = struct_of([*members_of(PLACE), ("since", "date")])  # type: ignore[misc]


@pytest.mark.parametrize(
    ("written", "logical", "text", "found"),
    [
        (SHORT, PLACE, "(a,1)", ("a", 1, None)),
        (LONG, PLACE, "(a,1,b,2026-01-01)", ("a", 1, "b")),
        (f"array({SHORT})", f"array({PLACE})", '{"(a,1)",NULL}', [("a", 1, None), None]),
        (f"array({SHORT})", f"array(array({PLACE}))", '{{"(a,1)"}}', [[("a", 1, None)]]),
        (struct_of([("of", SHORT)]), struct_of([("of", PLACE)]), '("(a,1)")', (("a", 1, None),)),
    ],
)
def test_attributes_are_matched_in_their_order(
    written: str, logical: str, text: str, found: Any
) -> None:
    """A composite whose type got more of them since it was written, or had more, or other names."""
    values = decoded([None, text], logical, written)
    values.validate(full=True)
    assert values.type == arrow_type(logical)
    assert [plain(each) for each in values.to_pylist()] == [None, found]


def test_text_of_a_type_that_has_lost_an_attribute_is_not_read_by_the_names_it_had() -> None:
    names = [("k", "int32"), ("p", "text")]
    before = replace(table_schema(names, ["k"]), structures=(("p", SHORT),))
    after = table_schema(names, ["k"], schema_id=2)
    target = before.with_logicals({"p": SHORT})
    records = record_batch([(RecordKind.INSERT, insert(["1", "(a,1)"]))])
    found = decode(records, before, target=target).after
    assert found is not None
    assert found.to_pylist() == [{"k": 1, "p": {"road": "a", "number": 1}}]
    with pytest.raises(ValueRefusedError, match="has other attributes than its type had"):
        decode(records, after, target=target)


def plain(value: Any) -> Any:
    """Structs as tuples."""
    if isinstance(value, dict):
        return tuple(plain(each) for each in value.values())
    return [plain(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("logical", "text", "why"),
    [
        ("map", '"a"', "is no hstore"),
        ("map", '"a"=>"1', "is no hstore"),
        ("array(array(int32))", "{1,2}", "is an array of fewer dimensions"),
        ("array(array(int32))", "{{{1}}}", "has an element that is an array of several dimensions"),
        ("range(int32)", "[1", "is no range"),
        (PLACE, "(a,1)", "has other attributes than its type has now"),
        (PLACE, "(a,1,b,c)", "has other attributes than its type has now"),
        (PLACE, "(a,x,b)", "has an attribute that is no int32"),
        ("interval", "infinity", "is infinite, or no interval"),
        ("interval", "5 minutes", "is infinite, or no interval"),
        ("interval", "1 decade", "is infinite, or no interval"),
        ("array(text)", "{a, b}", "is no array"),
        ("array(text)", r"{a\"b}", "is no array"),
        ("array(text)", r"{a\,b}", "is no array"),
        ("map", '"a"=>NONE', "is no hstore"),
        ("time", "24:00:00", "is no time of day before 24:00"),
        ("time", "-01:00:00", "is no time of day before 24:00"),
    ],
)
def test_a_text_of_other_parts_is_refused(logical: str, text: str, why: str) -> None:
    with pytest.raises(UnfitCellError) as caught:
        decoded([None, text], logical)
    assert (caught.value.row, caught.value.reason) == (1, why)


def test_a_copy_keeps_the_parts_that_its_columns_have() -> None:
    """Whatever the option says now."""
    texts = [types_of(kind, ColumnTypes()) for kind in ("string", "list<element: string>")]
    assert texts == [ALL_TEXT, replace(ALL_TEXT, arrays="native", dimensions=(("*.*.*", 1),))]
    assert types_of("array<array<int>>", ColumnTypes()).dimensions == (("*.*.*", 2),)
    assert types_of("map<string,string>", ALL_TEXT).hstore == "map"
    assert types_of("struct<months:int>", ALL_TEXT).interval == "struct"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"kind": "delta", "path": "x", "types": {"time": "time"}}, "no type for times of day"),
        ({"kind": "iceberg", "path": "x", "types": {"json": "variant"}}, "no VARIANT"),
        ({"kind": "kafka", "servers": "x:9092", "types": {}}, "debezium has the types of Debezium"),
        (
            {"kind": "http", "url": "http://x/", "format": "flat", "types": {"json": "variant"}},
            "messages have no VARIANT",
        ),
    ],
)
def test_what_an_output_can_not_hold_is_refused(given: dict[str, Any], why: str) -> None:
    source = {"kind": "postgres", "url": "postgresql://db/shop"}
    with pytest.raises(ValidationError, match=why):
        Config.model_validate({"source": source, "log": {"path": "x"}, "outputs": [given]})


def test_outputs_take_from_the_source_what_they_can_hold() -> None:
    types = {"json": "variant", "time": "time", "ranges": "struct"}
    outputs = [
        {"kind": "delta", "path": "a"},
        {"kind": "iceberg", "path": "b"},
        {"kind": "kafka", "servers": "x:9092", "format": "flat"},
        {"kind": "kafka", "name": "c", "servers": "x:9092"},
    ]
    source = {"kind": "postgres", "url": "postgresql://db/shop", "types": types}
    config = Config.model_validate({"source": source, "log": {"path": "x"}, "outputs": outputs})
    delta, iceberg, flat, debezium = (getattr(each, "types", None) for each in config.outputs)
    assert (delta.time, delta.json_, delta.ranges) == ("text", "variant", "struct")
    assert (iceberg.time, iceberg.json_, iceberg.ranges) == ("time", "text", "struct")
    assert (flat.time, flat.arrays, flat.ranges) == ("time", "text", "struct")
    assert debezium is None
