"""Values of extensions that no server here has, by the texts that their manuals and tests show."""

from __future__ import annotations

import base64
import json

import pyarrow as pa
import pytest

from tidelog.spark.formats.connect_schemas import type_of
from tidelog.spark.formats.json_values import ValueModes, json_values

# ST_SetSRID(ST_MakePoint(174.9479, -36.7208), 4326)
EWKB = "0101000020E61000001C7C613255DE6540787AA52C435C42C0"
WKB = "01010000001C7C613255DE6540787AA52C435C42C0"


def test_hstore_is_a_text_of_json() -> None:
    text = r'"a"=>"1", "b c"=>NULL, "q\"\\"=>"x, \"y\" => z"'
    (found,) = json_values(pa.array([text]), ValueModes(), "hstore").to_pylist()
    assert json.loads(json.loads(found)) == {"a": "1", "b c": None, 'q"\\': 'x, "y" => z'}
    assert json_values(pa.array(["", None]), ValueModes(), "ext.hstore").to_pylist() == [
        '"{}"',
        None,
    ]


@pytest.mark.parametrize(("text", "srid"), [(EWKB, 4326), (WKB, None)])
@pytest.mark.parametrize("name", ["geometry", "public.geometry(Point,4326)", "geography"])
def test_postgis_is_wkb_and_srid(name: str, text: str, srid: int | None) -> None:
    (found,) = json_values(pa.array([text]), ValueModes(), name).to_pylist()
    assert list(json.loads(found)) == ["wkb", "srid"]
    assert base64.b64decode(json.loads(found)["wkb"]).hex().upper() == text
    assert json.loads(found)["srid"] == srid
    schema = type_of(pa.string(), ValueModes(schemas=True), name)
    assert schema["name"].removeprefix("io.debezium.data.geometry.") in ("Geometry", "Geography")


@pytest.mark.parametrize(
    "name", ["integer[]", "numeric", "numeric(50,10)", "geometry", "numeric(50,10)[]", "text[]"]
)
def test_what_a_step_made_of_a_column_stays_a_text(name: str) -> None:
    """So does PostgreSQL's own ``point``."""
    masked = pa.array(["***", None])
    for mode in ("precise", "double", "string"):
        handling = ValueModes(decimal=mode)
        assert json_values(masked, handling, name).to_pylist() == ['"***"', None]
    assert json_values(pa.array(["(1,2)"]), ValueModes(), "point").to_pylist() == ['"(1,2)"']
