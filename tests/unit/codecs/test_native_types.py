"""Texts of arrays and of numbers without limits as columns of their own type."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tidelog.codecs.columns.values import UnfitCellError, arrow_type, column
from tidelog.codecs.wire_formats import native_logicals
from tidelog.errors import ConfigError
from tidelog.model.option_values import ColumnTypes
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.outputs.files.kind import FilesSection
from tidelog.spark.datasource.options import SourceOptions

TEXTS = ColumnTypes("text")
DECIMALS = ColumnTypes(numeric=(38, 18))


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
    ],
)
def test_types_by_option(type_id: int, name: str, types: ColumnTypes, logical: Any) -> None:
    columns = (Column("k", type_id, -1, name, "text"), Column("v", type_id, -1, name, "text"))
    schema = TableSchema(TableName("public", "t"), 1, columns, ("k",), ("k",), "d", "pgoutput")
    assert native_logicals(schema, types) == ({"v": logical} if logical else {})
    of_column = {"v": types}
    assert native_logicals(schema, TEXTS, of_column) == native_logicals(schema, types)


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


def test_an_option_of_the_spark_source_is_as_in_the_configuration() -> None:
    options = {"path": "x", "table": "public.t", "types": '{"numeric": {"decimal": [20, 4]}}'}
    assert SourceOptions.parse(options).types == ColumnTypes(numeric=(20, 4))
    for types in ('{"array": "text"}', "text", '{"arrays": "maybe"}'):
        with pytest.raises(ConfigError, match="option 'types'"):
            SourceOptions.parse({**options, "types": types})
    with pytest.raises(ConfigError, match="does not fit shape 'raw'"):
        SourceOptions.parse({**options, "shape": "raw"})
