"""Confluent's own deserializer, with its own client of the registry, reads our Avro: every type."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.build_log import BuiltLog
from tests.support.pgoutput_messages import Value
from tests.unit.spark.avro_rows import CELLS, Told, everything, register

from tidelog.app.web.http_server import RestServer
from tidelog.config import RestSection
from tidelog.eventlog.schemas import MessageSchemaStore
from tidelog.outputs.formatters import formatter
from tidelog.ports import SchemaFormatter

pytest.importorskip("authlib", reason="what confluent-kafka's registry client needs is missing")

TOKEN = "hunter2-token"
TOPIC = "shop.public.t"


def written(built: BuiltLog) -> list[dict[str, Any]]:
    """An insert of every type and a delete, as messages whose schemas are registered."""
    schema = register(built, everything())
    texts: list[Value] = [cell[2] for cell in CELLS.values()]
    built.insert(schema, "1", *texts)
    built.delete(schema, "1")
    told = Told(built, schema)
    made = formatter("avro")
    assert isinstance(made, SchemaFormatter)
    schemas = made.schemas(told.table)
    store = MessageSchemaStore(built.log.storage)
    ids = (
        store.register(f"{TOPIC}-key", schemas.key or ""),
        store.register(f"{TOPIC}-value", schemas.value),
    )
    table = replace(told.table, schema_ids=ids)
    found: list[dict[str, Any]] = []
    for events in told.events:
        found += made.format(table, events).to_pylist()
    return found


def test_confluents_deserializer_reads_every_type(tmp_path: Path) -> None:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    built = BuiltLog(tmp_path / "log")
    first, second, tombstone = written(built)
    rest = RestSection.model_validate({"port": 0, "token": TOKEN})
    server = RestServer(rest, lambda: None, built.path)
    server.start()
    try:
        settings = {"url": server.url, "basic.auth.user.info": f"reader:{TOKEN}"}
        read = AvroDeserializer(SchemaRegistryClient(settings))

        def decoded(message: dict[str, Any], field: str) -> Any:
            return read(message[field], SerializationContext(TOPIC, field))

        assert decoded(first, MessageField.KEY) == decoded(second, MessageField.KEY) == {"id": 1}
        value = decoded(first, MessageField.VALUE)
        assert (value["op"], value["before"]) == ("c", None)
        assert value["after"] == {"id": 1, **{name: cell[3] for name, cell in CELLS.items()}}
        gone = decoded(second, MessageField.VALUE)
        assert (gone["op"], gone["before"]["id"], gone["after"]) == ("d", 1, None)
        assert decoded(tombstone, MessageField.VALUE) is None
    finally:
        server.close()
