"""Kafka Connect's schemas of Debezium's JSON, as the JSON converter writes them with
``schemas.enable=true``: Connect's JDBC sink and Debezium's transforms need them.

Each type here fits the text that `tidelog.spark.formats.json_values` writes of the same column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidelog.codecs.columns.values import arrow_type
from tidelog.model.option_values import TimeMode
from tidelog.model.schema import element_name
from tidelog.spark.formats import structured
from tidelog.spark.formats.json_values import (
    ValueModes,
    bits_of,
    holds_bits,
    is_bigint_unsigned,
    is_short,
    is_time,
)

Schema = dict[str, Any]

_PLAIN: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.float32(): "float",
    pa.float64(): "double",
}
_TIME = "io.debezium.time."
_CONNECT = "org.apache.kafka.connect.data."
# Texts with a meaning, by the source's spelling of their type.
_TEXTS = (
    (re.compile("jsonb?", re.IGNORECASE), "io.debezium.data.Json"),
    (re.compile("uuid", re.IGNORECASE), "io.debezium.data.Uuid"),
    (re.compile("xml", re.IGNORECASE), "io.debezium.data.Xml"),
)
TRANSACTION: Schema = {
    "type": "struct",
    "fields": [
        {"type": "string", "optional": False, "field": "id"},
        {"type": "int64", "optional": False, "field": "total_order"},
        {"type": "int64", "optional": False, "field": "data_collection_order"},
    ],
    "optional": True,
    "name": "event.block",
    "version": 1,
    "field": "transaction",
}


def key_schema(name: str, fields: Sequence[Schema]) -> Schema:
    """Return the schema of the messages' keys."""
    return struct(f"{name}.Key", fields, optional=False)


def envelope_schema(name: str, fields: Sequence[Schema], source: Schema) -> Schema:
    """Return the schema of Debezium's envelope.

    Args:
        name: name of the table, with its prefix in names of schemas.
        fields: fields of the row.
        source: schema of the block ``source``.
    """
    row = struct(f"{name}.Value", fields, optional=True)
    times = [{"type": "int64", "optional": True, "field": f"ts_{u}"} for u in ("ms", "us", "ns")]
    members = [
        {**row, "field": "before"},
        {**row, "field": "after"},
        {**source, "field": "source"},
        TRANSACTION,
        {"type": "string", "optional": False, "field": "op"},
        *times,
    ]
    return {**struct(f"{name}.Envelope", members, optional=False), "version": 2}


def source_schema(connector: str, fields: Sequence[tuple[str, str, bool]]) -> Schema:
    """Return the schema of the block ``source``; ``fields``: name, Connect's type, may it
    be null?
    """
    members = [{"type": kind, "optional": null, "field": name} for name, kind, null in fields]
    return struct(f"io.debezium.connector.{connector}.Source", members, optional=False)


def row_fields(
    row: pa.StructType,
    names: Sequence[str],
    required: Collection[str],
    how: ValueModes,
    types: Mapping[str, str],
) -> list[Schema]:
    """Return the columns ``names`` of a row, as its JSON has them.

    Args:
        row: the Arrow types.
        names: the columns, in their order.
        required: columns that are in every row and never null. All others may be missing in a
            delete, even if the source's are NOT NULL.
        how: the modes by which values are written.
        types: the result of `tidelog.spark.formats.json_values.type_names`.
    """
    found = []
    for name in names:
        kind = type_of(row.field(row.get_field_index(name)).type, how, types.get(name))
        base = kind.pop("type")
        optional = {"optional": name not in required}
        found.append({"type": base, **optional, **kind, "field": name})
    return found


def type_of(kind: pa.DataType, how: ValueModes, type_name: str | None) -> Schema:
    """Return type, name, version and parameters of a column's values."""
    spelled = type_name or ""
    bits = bits_of(spelled)
    if bits is not None and bits > 1 and holds_bits(kind):
        return {**_named("bytes", "io.debezium.data.Bits"), "parameters": {"length": str(bits)}}
    if bits == 1 and holds_bits(kind):
        return {"type": "boolean"}
    shaped = _structured(kind, how, spelled)
    if shaped is not None:
        return shaped
    plain = _PLAIN.get(kind)
    if plain is not None:
        return {"type": plain}
    if pa.types.is_date32(kind):
        if how.time == "isostring":
            return _named("string", _TIME + "IsoDate")
        return _named("int32", (_CONNECT if how.time == "connect" else _TIME) + "Date")
    if pa.types.is_timestamp(kind):
        if kind.tz is not None:
            return _named("string", _TIME + "ZonedTimestamp")
        return _instant(how.time, spelled, "Timestamp", of_day=False)
    if pa.types.is_decimal(kind):
        if is_bigint_unsigned(spelled) and how.bigint_unsigned == "long":
            return {"type": "int64"}
        return _decimal(kind, how)
    if pa.types.is_binary(kind):
        return {"type": "bytes" if how.binary == "bytes" else "string"}
    if is_time(spelled):
        return _instant(how.time, spelled, "Time", of_day=True)
    for pattern, name in _TEXTS:
        if pattern.fullmatch(spelled):
            return _named("string", name)
    return {"type": "string"}


def _structured(kind: pa.DataType, how: ValueModes, type_name: str) -> Schema | None:
    """Return the schema of a column that `tidelog.spark.formats.structured` writes; None for other
    columns.
    """
    shape = structured.geometry_of(kind, type_name)
    if shape is not None:
        return structured.geometry_schema(shape)
    element = element_name(type_name)
    if not pa.types.is_string(kind):
        return None
    if element is not None:
        of_element = arrow_type(structured.element_type(element))
        return structured.array_schema(type_of(of_element, how, element))
    scale = structured.number_scale(type_name)
    if scale is not None and how.decimal == "double":
        return {"type": "double"}
    if scale is not None and how.decimal == "precise":
        if scale[0] is None:
            return structured.variable_scale_schema()
        parameters = {"scale": str(scale[0])}
        return {**_named("bytes", _CONNECT + "Decimal"), "parameters": parameters}
    return _named("string", "io.debezium.data.Json") if structured.is_hstore(type_name) else None


def _instant(mode: TimeMode, type_name: str, what: str, *, of_day: bool) -> Schema:
    if mode == "isostring":
        return _named("string", f"{_TIME}Iso{what}")
    if mode == "connect":
        return _named("int32" if of_day else "int64", _CONNECT + what)
    if mode == "nanoseconds":
        return _named("int64", f"{_TIME}Nano{what}")
    if is_short(mode, type_name, of_day=of_day):
        return _named("int32" if of_day else "int64", _TIME + what)
    return _named("int64", f"{_TIME}Micro{what}")


def _decimal(kind: pa.Decimal128Type, how: ValueModes) -> Schema:
    if how.decimal == "precise":
        parameters = {"scale": str(kind.scale), "connect.decimal.precision": str(kind.precision)}
        return {**_named("bytes", _CONNECT + "Decimal"), "parameters": parameters}
    return {"type": "double" if how.decimal == "double" else "string"}


def _named(kind: str, name: str) -> Schema:
    return {"type": kind, "name": name, "version": 1}


def struct(name: str, fields: Sequence[Schema], *, optional: bool) -> Schema:
    """Return the schema of an object of ``fields``."""
    return {"type": "struct", "fields": list(fields), "optional": optional, "name": name}


def payload_prefix(schema: Schema) -> str:
    """Return the text before a payload; a brace follows the payload."""
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    return f'{{"schema":{text},"payload":'
