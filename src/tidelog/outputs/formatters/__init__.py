"""Event formats: adapters of `tidelog.ports.Formatter`, by name."""

from __future__ import annotations

from typing import get_args

from tidelog.errors import ConfigError
from tidelog.model.formats import EventFormat
from tidelog.outputs.formatters.avro import Avro, AvroFlat
from tidelog.outputs.formatters.cloudevents import CloudEvents
from tidelog.outputs.formatters.debezium import Debezium
from tidelog.outputs.formatters.flat import Flat
from tidelog.pipeline.json_values import PLAIN, Handling
from tidelog.ports import Formatter

FORMATS = get_args(EventFormat)


def formatter(
    name: str,
    *,
    topic: str = "{table}",
    tombstones: bool = True,
    handling: Handling = PLAIN,
) -> Formatter:
    """The format ``name``.

    Args:
        name: one of `FORMATS`.
        topic: of each message; ``{table}`` stands for the destination's name of the table,
            ``{namespace}`` and ``{name}`` for the source's.
        tombstones: after a delete, a message with its key and no value (log compaction).
        handling: of format ``debezium`` alone: how values are written that JSON has no type for.
    """
    if name == "avro":
        return Avro(topic, tombstones)
    if name == "avro_flat":
        return AvroFlat(topic, tombstones)
    if name == "debezium":
        return Debezium(topic, tombstones, handling)
    if name == "flat":
        return Flat(topic, tombstones)
    if name == "cloudevents":
        return CloudEvents(topic)
    raise ConfigError(f"format {name!r} is not one of {', '.join(FORMATS)}")
