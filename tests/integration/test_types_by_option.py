"""Columns whose types the option `types` gives, in messages of every format and as VARIANT."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from pyspark.sql.types import VariantVal
from tests.integration.event_messages import capturing, events, wait_for
from tests.integration.spark.test_native_types import (
    CASES,
    CLOCK,
    COLUMNS,
    DEFINITIONS,
    NESTED,
    database,  # noqa: F401 - a fixture, as the next
    insert,
    server_with_extensions,  # noqa: F401
)
from tests.support.avro_messages import decoded
from tests.support.mysql import MySqlFamilyServer

from tidelog.outputs.files.writer import json_lines, records
from tidelog.outputs.formatters.avro import AvroFlat
from tidelog.outputs.formatters.json_formats import Flat
from tidelog.outputs.formatters.messages import EventColumns
from tidelog.outputs.opensearch.documents import json_texts
from tidelog.ports import Formatter, TargetTable

pytestmark = pytest.mark.integration

EXPECTED = {name: found for name, (*_, found) in zip(COLUMNS, CASES, strict=True)} | {
    CLOCK: time(12, 30, 0, 250_000)
}
EXPECTED["c7"] = [each.quantize(Decimal("1e-18")) for each in EXPECTED["c7"]]
STRUCTS = {"ranges": "struct", "composites": "struct", "interval": "struct", "time": "time"}
TYPES = json.dumps(
    {**STRUCTS, "numeric": {"decimal": [38, 18]}, "dimensions": {f"public.t.{NESTED}": 2}}
)


def test_messages_have_arrays_objects_and_records(
    database: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    """A row that is dumped, and one that is logged; JSON's reader is Python's, Avro's fastavro."""
    with psycopg.connect(database, autocommit=True) as sql:
        for definition in DEFINITIONS:
            sql.execute(definition)
        columns = ", ".join(f"{n} {kind}" for n, (kind, *_) in zip(COLUMNS, CASES, strict=True))
        sql.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
        insert(sql, 1)
        with capturing(tmp_path, "postgres", database) as config:
            wait_for(config, 1)
            insert(sql, 2)
            wait_for(config, 2)
        target, batches = events(config, types=TYPES)
    of_json = [json.loads(value) for value in column_of(Flat(), target, batches)]
    assert [row["id"] for row in of_json] == [1, 2]
    for row in of_json:
        found = {name: row[name] for name in COLUMNS}
        assert found == {name: as_json(value) for name, value in EXPECTED.items()}
    in_files = [
        json.loads(line)["after"]
        for batch in batches
        for line in bytes(json_lines(records(target, batch, typed=False, named=False))).splitlines()
    ]
    rows = EventColumns(target, pa.concat_batches(batches)).row
    searched = {name: json_texts(rows.field(name)).to_pylist() for name in COLUMNS}
    for number, row in enumerate(in_files):
        found = {name: row[name] for name in COLUMNS}
        assert found == {name: as_json(value, iso=True) for name, value in EXPECTED.items()}
        assert found == {name: json.loads(texts[number]) for name, texts in searched.items()}
    schemas = AvroFlat().schemas(target)
    by_id = {1: schemas.key or "", 2: schemas.value}
    target = replace(target, schema_ids=(1, 2))
    of_avro = [
        decoded(value, by_id.__getitem__) for value in column_of(AvroFlat(), target, batches)
    ]
    assert [row["id"] for row in of_avro] == [1, 2]
    for row in of_avro:
        found = {name: row[name] for name in COLUMNS}
        assert found == {name: without_pairs(value) for name, value in EXPECTED.items()}


def column_of(
    formatter: Formatter, target: TargetTable, batches: list[pa.RecordBatch]
) -> list[Any]:
    """The values of messages."""
    found = [formatter.format(target, each).column("value").to_pylist() for each in batches]
    return [value for each in found for value in each]


def without_pairs(value: Any) -> Any:
    """A map as a dictionary."""
    pairs = isinstance(value, list) and value and isinstance(value[0], tuple)
    return dict(value) if pairs else value


def as_json(value: Any, *, iso: bool = False) -> Any:
    """A value as the page about Kafka says that JSON has it; ``iso``: dates as texts, as in files
    and documents.
    """
    if isinstance(value, dict):
        return {name: as_json(each, iso=iso) for name, each in value.items()}
    if isinstance(value, list):
        mapped = without_pairs(value)
        return mapped if isinstance(mapped, dict) else [as_json(each, iso=iso) for each in value]
    if iso and isinstance(value, datetime) and value.tzinfo is None:
        return value.isoformat(timespec="microseconds")
    if iso and isinstance(value, date) and not isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return (value - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    if isinstance(value, date):
        return (value - date(1970, 1, 1)).days
    if isinstance(value, time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and math.isinf(value):
        return "-Infinity"
    if isinstance(value, float) and float(np.float32(min(value, 1e30))) == value:
        return float(str(np.float32(value)))  # a `real` has its own shortest digits
    return f"{value:f}" if isinstance(value, Decimal) else value


DOCUMENTS = [
    """'{"b": [1.50, true, null, {"c": "é"}], "a": -1e3}'""",
    "JSON_OBJECT('n', 123456789012345678, 't', 'x')",
    "JSON_ARRAY()",
    "'null'",
    "'\"x\"'",
]


def test_json_of_mysql_is_variant_and_that_of_mariadb_text(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, tmp_path: Path
) -> None:
    """A VARIANT as PySpark reads it is the document as the server prints it, dumped or logged."""
    name = mysql_family_database
    kind = mysql_family.dsn().split(":")[0]
    with mysql_family.connect(name) as session, session.cursor() as sql:
        sql.execute("CREATE TABLE t (id int PRIMARY KEY, doc json)")

        def insert_all(first: int) -> None:
            for number, document in enumerate(DOCUMENTS, first):
                sql.execute(f"INSERT INTO t VALUES ({number}, {document})")
            session.commit()

        insert_all(1)
        with capturing(tmp_path, kind, mysql_family.dsn(name), f"{name}.t") as config:
            wait_for(config, len(DOCUMENTS))
            insert_all(11)
            wait_for(config, 2 * len(DOCUMENTS))
        sql.execute("SELECT id, doc FROM t ORDER BY id")
        printed = {key: json.loads(text) for key, text in sql.fetchall()}
    _, batches = events(config, types='{"json": "variant"}')
    rows = {row["id"]: row["doc"] for batch in batches for row in batch.to_pylist()}
    read = json.loads if mysql_family.flavor == "mariadb" else variant
    assert {key: read(doc) for key, doc in rows.items()} == printed


def variant(value: dict[str, bytes]) -> Any:
    return json.loads(VariantVal(value["value"], value["metadata"]).toJson())
