"""Avro messages as a reader with fastavro gets them."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from typing import Any

import fastavro


def decoded(message: bytes | None, schema_of: Callable[[int], str]) -> Any:
    """A message's key or value; None for none.

    Args:
        message: in Confluent's wire format.
        schema_of: the JSON text of a schema by its id.
    """
    if message is None:
        return None
    magic, schema_id = struct.unpack(">BI", message[:5])
    assert magic == 0
    return read(message[5:], schema_of(schema_id))


def read(data: bytes, schema: str) -> Any:
    """The record that ``data`` is, all of it."""
    stream = io.BytesIO(data)
    found = fastavro.schemaless_reader(stream, fastavro.parse_schema(json.loads(schema)), None)
    assert not stream.read(), "bytes are left behind the record"
    return found
