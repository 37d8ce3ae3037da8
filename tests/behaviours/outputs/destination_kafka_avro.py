"""Flat rows in Avro, read with the schemas that are kept beside the event log."""

from __future__ import annotations

from typing import Any

from tests.behaviours.outputs.destinations import Context, Destination
from tests.behaviours.outputs.kafka_topics import UNTOLD, kafka_destination
from tests.support.avro_messages import decoded

from tidelog.eventlog.schemas import MessageSchemaStore


def destination(context: Context) -> Destination:
    store = MessageSchemaStore(context.built.path)

    def decode(message: bytes) -> Any:
        """As the JSON of format ``flat`` has it."""
        found = decoded(message, lambda schema_id: store.by_id(schema_id)[0].text)
        untold = found.pop("__unavailable", None) or ()
        return found | dict.fromkeys(untold, UNTOLD)

    return kafka_destination(context, "avro_flat", decode)
