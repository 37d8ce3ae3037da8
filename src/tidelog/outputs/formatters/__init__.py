"""Event formats: adapters of `tidelog.ports.Formatter`, by name."""

from __future__ import annotations

from typing import get_args

from tidelog.kinds.adapters import FORMATTERS
from tidelog.model.option_values import EventFormat
from tidelog.ports import FormatOptions, Formatter
from tidelog.spark.formats.json_values import PLAIN_HANDLING, ValueModes

FORMATS = get_args(EventFormat)


def formatter(
    name: str,
    *,
    topic: str = "{table}",
    tombstones: bool = True,
    handling: ValueModes = PLAIN_HANDLING,
) -> Formatter:
    """Return the format ``name``.

    Args:
        name: one of `FORMATS`, or of a format that another distribution provides.
        topic: the topic of each message; ``{table}`` stands for the destination's name of the
            table, ``{namespace}`` and ``{name}`` for the source's.
        tombstones: whether a message with the key and no value follows each delete (log
            compaction).
        handling: for format ``debezium`` only: how values are written that JSON has no type for.

    Raises ConfigError: there is no such format.
    """
    return FORMATTERS.get(name)(FormatOptions(topic, tombstones, handling))
