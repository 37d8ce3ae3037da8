"""Texts of arrays, JSON and numbers without limits as columns of their own type."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from pyspark.sql.types import VariantVal

from tidelog.codecs.columns.values import UnfitCellError, arrow_type, column
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.types import binlog_column
from tidelog.codecs.wire_formats import native_logicals
from tidelog.config import Config
from tidelog.errors import ConfigError
from tidelog.model.option_values import ColumnTypes
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.outputs.base.targets import types_of
from tidelog.outputs.files.kind import FilesSection
from tidelog.spark.datasource.options import SourceOptions

TEXTS = ColumnTypes("text")
DECIMALS = ColumnTypes(numeric=(38, 18))
VARIANTS = ColumnTypes(json="variant")


def decoded(texts: list[str | None], logical: str) -> pa.Array:
    encoded = [None if text is None else text.encode() for text in texts]
    length = np.array([-1 if e is None else len(e) for e in encoded], np.int32)
    start = (np.cumsum(np.maximum(length, 0)) - np.maximum(length, 0)).astype(np.int32)
    data = np.frombuffer(b"".join(e or b"" for e in encoded) + b"\0", np.uint8)
    return column(data, start, length, "text", logical)


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
def test_what_does_not_fit_is_told_with_its_row(logical: str, text: str, reason: str) -> None:
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
        {"types": {"arrays": "native"}, "format": "json"},
        {"types": {"arrays": "native"}, "values": "json"},
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
        ColumnTypes("text", (20, 4), "variant"),
        ColumnTypes("text", None, "variant"),
        None,
        None,
    ]
    of_files = types_by_output({"types": {"json": "variant"}})[2:4]
    assert of_files == [ColumnTypes("text", None, "variant"), ColumnTypes(json="variant")]
    assert types_by_output({}) == [ColumnTypes(), ColumnTypes(), None, ColumnTypes(), None, None]


def test_an_option_of_the_spark_source_is_as_in_the_configuration() -> None:
    options = {"path": "x", "table": "public.t", "types": '{"numeric": {"decimal": [20, 4]}}'}
    assert SourceOptions.parse(options).types == ColumnTypes(numeric=(20, 4))
    for types in ('{"array": "text"}', "text", '{"arrays": "maybe"}'):
        with pytest.raises(ConfigError, match="option 'types'"):
            SourceOptions.parse({**options, "types": types})
    with pytest.raises(ConfigError, match="does not fit shape 'raw'"):
        SourceOptions.parse({**options, "shape": "raw"})
