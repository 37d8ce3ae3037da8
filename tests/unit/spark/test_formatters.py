"""Formats are what their readers expect, message by message; no Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.build_log import BuiltLog
from tests.support.pgoutput_messages import UNCHANGED

from tidelog.outputs.base.tasks import prepare_rows
from tidelog.outputs.delivery_settings import handling_of, skipped_of
from tidelog.outputs.formatters import FORMATS, formatter
from tidelog.outputs.kafka.config import KafkaSection
from tidelog.ports import TargetTable
from tidelog.spark.datasource import executor
from tidelog.spark.datasource.executor import ReadPlan
from tidelog.spark.datasource.options import SourceOptions
from tidelog.spark.formats import shapes
from tidelog.spark.formats.json_values import ValueModes


@pytest.fixture
def built(tmp_path: Path) -> BuiltLog:
    built = BuiltLog(tmp_path / "log")
    table = built.table("public.t", {"id": "int64", "v": "text"})
    built.insert(table, "1", 'say "a"\n')
    built.update(table, "1", UNCHANGED)
    built.update(table, "2", "moved", key=["1"])
    built.delete(table, "2")
    built.truncate(table)
    built.flush()
    return built


def events(built: BuiltLog) -> tuple[TargetTable, pa.RecordBatch]:
    log = built.log
    (table,) = log.schemas.tables()
    schema = log.schemas.latest(table)
    assert schema is not None
    columns = pa.schema([("id", pa.int64()), ("v", pa.string())])
    target = TargetTable(table, "sales.t", schema, columns, ("id",), log.source)
    options = SourceOptions.parse({"path": built.path, "shape": "events", "table": "public.t"})
    plan = ReadPlan(options, schema, shapes.events(schema))
    refs = log.segments(log.head_offset, log.latest_offset())
    (batch,) = executor.batches(plan, log, list(refs))
    return target, prepare_rows(batch, target, {})


def formatted(built: BuiltLog, name: str, **options: Any) -> list[dict[str, Any]]:
    messages = formatter(name, **options).format(*events(built)).to_pylist()
    for message in messages:
        for part in ("key", "value"):
            if message[part] is not None:
                message[part] = json.loads(message[part])
    return messages


def test_an_update_of_the_key_is_a_delete_and_a_creation(built: BuiltLog) -> None:
    _, batch = events(built)
    assert batch.column("_tidelog_op").to_pylist() == ["c", "u", "d", "c", "d", "t"]
    assert batch.column("id").to_pylist() == [1, 1, 1, 2, 2, None]
    versions = batch.column("_tidelog_version").to_pylist()
    assert versions[2] == versions[3]
    assert versions == sorted(versions)
    assert batch.column("_tidelog_missing").to_pylist()[:2] == [None, ["v"]]


def test_debezium_is_the_envelope_shape_to_the_byte(built: BuiltLog) -> None:
    raw = formatter("debezium", tombstones=False).format(*events(built))
    options = SourceOptions.parse({"path": built.path, "shape": "envelope"})
    log = built.log
    refs = list(log.segments(log.head_offset, log.latest_offset()))
    (wanted,) = executor.batches(ReadPlan(options, None, shapes.ENVELOPE), log, refs)
    texts = wanted.column("value").to_pylist()
    found = [value.decode() for value in raw.column("value").to_pylist()]
    assert [found[0], found[1], found[4], found[5]] == [texts[0], texts[1], texts[3], texts[4]]
    keys = [None if k is None else k.decode() for k in raw.column("key").to_pylist()]
    assert [keys[0], keys[4], keys[5]] == [wanted.column("key")[n].as_py() for n in (0, 3, 4)]


def test_a_delete_is_followed_by_its_tombstone(built: BuiltLog) -> None:
    messages = formatted(built, "debezium", topic="{namespace}.cdc.{name}")
    assert [m["value"] and m["value"]["op"] for m in messages] == [
        "c", "u", "d", None, "c", "d", None, "t",
    ]  # fmt: skip
    assert messages[3]["key"] == messages[2]["key"] == {"id": 1}
    assert messages[3]["version"] == messages[2]["version"]
    assert {m["topic"] for m in messages} == {"public.cdc.t"}
    assert messages[-1]["key"] is None


def test_flat_rows_carry_what_happened(built: BuiltLog) -> None:
    messages = formatted(built, "flat", tombstones=False)
    first = messages[0]["value"]
    assert first["id"] == 1
    assert first["v"] == 'say "a"\n'
    assert first["__table"] == "sales.t"
    assert first["__version"] == messages[0]["version"]
    assert [m["value"]["__deleted"] for m in messages] == [False, False, True, False, True, False]
    assert messages[1]["value"]["v"] == "__debezium_unavailable_value"
    assert "id" not in messages[-1]["value"]


def test_cloudevents_have_ids_of_their_own(built: BuiltLog) -> None:
    messages = formatted(built, "cloudevents")
    ids = [m["value"]["id"] for m in messages]
    assert len(set(ids)) == len(ids) == 6
    value = messages[0]["value"]
    assert value["specversion"] == "1.0"
    assert value["time"].endswith("Z")
    assert value["data"]["op"] == "c"
    assert dict(messages[0]["headers"])["content-type"].startswith("application/cloudevents+json")


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_takes_no_rows(built: BuiltLog, name: str) -> None:
    table, batch = events(built)
    assert formatter(name).format(table, batch.slice(0, 0)).num_rows == 0


def test_modes_of_the_configuration_reach_the_messages(built: BuiltLog) -> None:
    section = KafkaSection.model_validate(
        {"kind": "kafka", "servers": "k:1", "debezium": {"decimal_handling_mode": "double"}}
    )
    table = built.table("public.d", {"id": "int64", "d": "decimal(5,2)"}, relation_id=9)
    built.insert(table, "1", "1.50")
    built.flush()
    log = built.log
    schema = log.schemas.latest(table.table)
    assert schema is not None
    columns = pa.schema([("id", pa.int64()), ("d", pa.decimal128(5, 2))])
    target = TargetTable(table.table, "public.d", schema, columns, ("id",), log.source)
    options = SourceOptions.parse({"path": built.path, "shape": "events", "table": "public.d"})
    plan = ReadPlan(options, schema, shapes.events(schema))
    refs = log.segments(log.head_offset, log.latest_offset(), tables=("public.d",))
    (batch,) = executor.batches(plan, log, list(refs))
    found = {}
    for name, handling in (("set", handling_of(section)), ("unset", ValueModes())):
        made = formatter("debezium", handling=handling).format(
            target, prepare_rows(batch, target, {})
        )
        found[name] = json.loads(made.column("value")[0].as_py())["after"]["d"]
    assert found == {"set": 1.5, "unset": "1.50"}


def test_truncates_are_left_out_of_what_debeziums_readers_read() -> None:
    """Debezium's `skipped.operations` is `t` by default; what is ours alone has all."""
    sections = {
        each: {"kind": "kafka", "name": each, "servers": "k:9092", "format": each}
        for each in ("debezium", "avro", "avro_flat", "flat", "cloudevents")
    }
    found = {name: skipped_of(KafkaSection.model_validate(each)) for name, each in sections.items()}
    assert found == {
        "debezium": {"t"}, "avro": {"t"}, "avro_flat": set(), "flat": set(), "cloudevents": set(),
    }  # fmt: skip
    asked = sections["debezium"] | {"skipped_operations": ["d", "u"]}
    assert skipped_of(KafkaSection.model_validate(asked)) == {"d", "u"}
    none = sections["avro"] | {"skipped_operations": []}
    assert skipped_of(KafkaSection.model_validate(none)) == set()
