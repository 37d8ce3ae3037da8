"""Avro messages hold what the log holds: read by fastavro with the schemas that they name."""

from __future__ import annotations

import io
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pytest
from tests.support.build_log import BuiltLog
from tests.support.pgoutput_messages import UNCHANGED, Value
from tests.unit.spark.avro_rows import CELLS, Told, everything, register

from tidelog.outputs.formatters import formatter
from tidelog.ports import SchemaFormatter, SourceId

UNTOLD = "__debezium_unavailable_value"


@pytest.fixture
def built(tmp_path: Path) -> BuiltLog:
    return BuiltLog(tmp_path / "log")


@pytest.fixture
def written(built: BuiltLog) -> Told:
    table = built.table("public.t", {"id": "int64", "v": "text"})
    built.insert(table, "1", 'say "a"\n')
    built.update(table, "1", UNCHANGED)
    built.update(table, "2", "moved", key=["1"])
    built.delete(table, "2")
    built.truncate(table)
    return Told(built, table)


def test_each_type_reads_back_as_its_own(built: BuiltLog) -> None:
    schema = register(built, everything())
    texts: list[Value] = [cell[2] for cell in CELLS.values()]
    built.insert(schema, "1", *texts)
    built.insert(schema, "2", *([None] * len(CELLS)))
    found = Told(built, schema).messages("avro")
    wanted = {name: cell[3] for name, cell in CELLS.items()}
    assert [key for key, _ in found] == [{"id": 1}, {"id": 2}]
    assert found[0][1]["after"] == {"id": 1, **wanted}
    assert found[1][1]["after"] == {"id": 2, **dict.fromkeys(wanted)}


@pytest.mark.parametrize("kind", ["postgres", "mysql", "mariadb", "another"])
def test_the_envelope_tells_what_debeziums_json_tells(written: Told, kind: str) -> None:
    written.table = replace(written.table, origin=SourceId(kind, "1", "shop"))
    json_ = formatter("debezium").format(written.table, written.events[0]).to_pylist()
    avro = written.messages("avro")
    assert len(avro) == len(json_) == 8
    for message, (key, value) in zip(json_, avro, strict=True):
        assert key == (message["key"] and json.loads(message["key"]))
        if message["value"] is None:
            assert value is None
            continue
        unavailable = value.pop("unavailable")
        assert unavailable == (["v"] if UNTOLD in message["value"].decode() else None)
        assert value == json.loads(message["value"])


def test_flat_rows_tell_what_their_json_tells(written: Told) -> None:
    json_ = formatter("flat", tombstones=True).format(written.table, written.events[0]).to_pylist()
    avro = written.messages("avro_flat")
    assert len(avro) == len(json_) == 8
    for message, (_, value) in zip(json_, avro, strict=True):
        if value is None:
            assert message["value"] is None
            continue
        unavailable = value.pop("__unavailable")
        wanted = json.loads(message["value"])
        assert unavailable == (["v"] if wanted.get("v") == UNTOLD else None)
        assert value == {"id": None, "v": None} | wanted


def test_what_the_log_does_not_tell_is_listed_whatever_its_type(built: BuiltLog) -> None:
    columns = everything()
    schema = register(built, columns)
    built.update(schema, "1", *([UNCHANGED] * len(CELLS)))
    built.update(schema, "2", *[UNCHANGED if n % 2 else c[2] for n, c in enumerate(CELLS.values())])
    (_, first), (_, second) = Told(built, schema).messages("avro")
    assert first["unavailable"] == list(CELLS)
    assert second["unavailable"] == list(CELLS)[1::2]
    placeholders = {n: v for n, v in first["after"].items() if v is not None}
    assert placeholders == {
        "id": 1, "blob": UNTOLD.encode(), "words": UNTOLD, "doc": UNTOLD,
    }  # fmt: skip


def test_the_wire_format_is_a_zero_the_id_and_the_record(written: Told) -> None:
    table = replace(written.table, schema_ids=(1, 0x01020304))
    batch = formatter("avro").format(table, written.events[0])
    assert batch.column("key")[0].as_py() == b"\0\0\0\0\1\2"  # {"id": 1}
    values = [value for value in batch.column("value").to_pylist() if value is not None]
    assert {value[:5] for value in values} == {struct.pack(">BI", 0, 0x01020304)}


def test_a_dumps_rows_say_so(built: BuiltLog) -> None:
    table = built.table("public.t", {"id": "int64", "v": "text"})
    built.chunk(table, [["1", "a"]], absent=[["2"]])
    found = [value for _, value in Told(built, table).messages("avro", tombstones=False)]
    assert [value["op"] for value in found] == ["r", "d"]
    assert {value["source"]["snapshot"] for value in found} == {"incremental"}


def test_a_table_without_a_key_has_messages_without_one(built: BuiltLog) -> None:
    table = built.table("public.t", {"a": "int32"}, key=(), identity_kind="f", identity=())
    built.insert(table, "1")
    written = Told(built, table)
    ((key, value),) = written.messages("avro")
    assert key is None
    assert value["after"] == {"a": 1}
    made = formatter("avro")
    assert isinstance(made, SchemaFormatter)
    assert made.schemas(written.table).key is None


def test_names_that_avro_has_not_are_made_valid(built: BuiltLog) -> None:
    table = built.table("public.t", {"id": "int64", "net-price": "int32", "2nd": "text"})
    built.insert(table, "1", "2", "x")
    written = Told(built, table)
    ((_, value),) = written.messages("avro")
    assert value["after"] == {"id": 1, "net_price": 2, "_2nd": "x"}
    made = formatter("avro")
    assert isinstance(made, SchemaFormatter)
    schema = json.loads(made.schemas(written.table).value)
    assert (schema["namespace"], schema["name"]) == ("sales.t_1", "Envelope")


@pytest.mark.parametrize("name", ["avro", "avro_flat"])
def test_an_added_column_and_a_wider_one_leave_older_messages_readable(
    built: BuiltLog, name: str
) -> None:
    old = built.table("public.t", {"id": "int32", "v": "int32"})
    built.insert(old, "1", "5")
    before = Told(built, old)
    new = built.table("public.t", {"new": "text", "id": "int32", "v": "int64"})
    built.insert(new, "x", "2", "6")
    after = Told(built, new)
    made = formatter(name)
    assert isinstance(made, SchemaFormatter)
    schemas = [json.loads(made.schemas(written.table).value) for written in (before, after)]
    message = made.format(before.table, before.events[0]).column("value")[0].as_py()
    found: Any = fastavro.schemaless_reader(io.BytesIO(message[5:]), schemas[0], schemas[1])
    row = found["after"] if name == "avro" else found
    assert (row["id"], row["v"], row["new"]) == (1, 5, None)


def test_schemas_depend_on_what_they_describe_alone(built: BuiltLog) -> None:
    columns = {"id": "int64", "v": "text"}
    first = built.table("public.t", columns)
    built.insert(first, "1", "a")
    one = Told(built, first)
    second = built.table("public.t", {**columns, "w": "text"})
    built.insert(second, "1", "a", "b")
    two = Told(built, second)
    made = formatter("avro", topic="anything")
    assert isinstance(made, SchemaFormatter)
    assert made.schemas(one.table).key == made.schemas(two.table).key
    assert made.schemas(one.table).value != made.schemas(two.table).value
    assert made.schemas(one.table) == made.schemas(replace(one.table, schema_ids=(3, 4)))
