"""Avro schemas of keys and values: names, types, and the field of each column.

A record's fields except those of the key are unions of null with the default null, even for columns
that are NOT NULL: a delete has only the key. So a column that is added or dropped keeps schemas
compatible.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidelog.errors import TableLeftOutError
from tidelog.model.schema import Column
from tidelog.ports import TargetTable

# Kafka Connect's name of a schema, its version and its type are properties of the Avro schema, from
# which `AvroData` of Confluent and Apicurio builds the Connect schema that sinks use.
_CONNECT = "org.apache.kafka.connect.data."
_DEBEZIUM = "io.debezium."
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")
_TIME = re.compile(r"time(\(\d\))?( without time zone)?", re.IGNORECASE)
_UUID = re.compile(r"uuid", re.IGNORECASE)


def _named(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "connect.version": 1, "connect.name": name}


_SIMPLE: dict[pa.DataType, Any] = {
    pa.bool_(): "boolean",
    pa.int8(): {"type": "int", "connect.type": "int8"},
    pa.int16(): {"type": "int", "connect.type": "int16"},
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {**_named("int", _CONNECT + "Date"), "logicalType": "date"},
}
# A time of day may be 24:00:00, and MySQL's last for weeks, which `time-micros` can't represent.
_OF_DAY = _named("long", _DEBEZIUM + "time.MicroTime")
# Texts with a meaning, by the source's spelling of their type.
_TEXTS = (
    (re.compile("jsonb?", re.IGNORECASE), _DEBEZIUM + "data.Json"),
    (re.compile("xml", re.IGNORECASE), _DEBEZIUM + "data.Xml"),
)
_NAMES_LIST = {"type": "array", "items": "string"}


@dataclass(frozen=True)
class AvroField:
    """A delivered column and its field. ``of_day``: it is a text, and in Avro microseconds."""

    column: str
    kind: pa.DataType
    name: str
    type: Any
    nullable: bool
    of_day: bool = False

    @property
    def any_text(self) -> bool:
        """May the field have a value that is not of the source's type: Debezium's placeholder?"""
        if isinstance(self.type, str):
            return self.type in ("string", "bytes")
        return self.type["type"] == "string" and "logicalType" not in self.type

    def to_json(self) -> dict[str, Any]:
        found = nullable(self.name, self.type) if self.nullable else _field(self.name, self.type)
        return found if self.name == self.column else {**found, "doc": f"column {self.column}"}


def fields_of(
    table: TargetTable, columns: Iterable[str], reserved: Iterable[str] = (), *, plain_key: bool
) -> list[AvroField]:
    """Return the fields of ``columns``.

    Args:
        table: the columns' table.
        columns: names of columns, in order.
        reserved: names of other fields of the record.
        plain_key: whether columns of the key that are NOT NULL in the source are no unions.

    Raises:
        TableLeftOutError: Avro has no type for a column.
    """
    columns = list(columns)
    names = _unique_names(columns, reserved)
    found = []
    for column, name in zip(columns, names, strict=True):
        kind = table.columns.field(column).type
        source = table.unchanged.get(column)
        of_day = pa.types.is_string(kind) and _has_type(_TIME, source)
        required = plain_key and column in table.key and source is not None and not source.nullable
        avro = _OF_DAY if of_day else _type_of(table, column, kind, source, name)
        found.append(AvroField(column, kind, name, avro, not required, of_day))
    return found


def key_schema(table: TargetTable, fields: list[AvroField]) -> str:
    """Return the schema of the messages' keys: a record ``Key``."""
    return _text(_record("Key", namespace(table), fields))


def envelope_schema(table: TargetTable, fields: list[AvroField], source: dict[str, Any]) -> str:
    """Return the schema of Debezium's envelope, whose rows are records ``Value``."""
    block = {
        "type": "record",
        "name": "block",
        "namespace": "event",
        "fields": [
            _field("id", "string"),
            _field("total_order", "long"),
            _field("data_collection_order", "long"),
        ],
    }
    envelope = {
        "type": "record",
        "name": "Envelope",
        "namespace": namespace(table),
        "fields": [
            nullable("before", {"type": "record", "name": "Value", "fields": _json(fields)}),
            nullable("after", "Value"),
            _field("source", source),
            nullable("transaction", block),
            _field("op", "string"),
            nullable("ts_ms", "long"),
            nullable("ts_us", "long"),
            nullable("ts_ns", "long"),
            nullable("unavailable", _NAMES_LIST),
        ],
    }
    return _text(envelope)


FLAT = {
    "__op": "string",
    "__table": "string",
    "__version": "long",
    "__schema_version": "int",
    "__ts_ms": "long",
    "__deleted": "boolean",
}
FLAT_UNAVAILABLE = "__unavailable"


def flat_schema(table: TargetTable, fields: list[AvroField]) -> str:
    """Return the schema of flat rows."""
    value = _record("Value", namespace(table), fields)
    value["fields"] += [_field(name, kind) for name, kind in FLAT.items()]
    value["fields"].append(nullable(FLAT_UNAVAILABLE, _NAMES_LIST))
    return _text(value)


def namespace(table: TargetTable) -> str:
    """Return the namespace of the table's records: its name in the destination."""
    return ".".join(_valid_name(part) for part in table.name.split("."))


def nullable(name: str, kind: Any) -> dict[str, Any]:
    """Return a field that is null or of ``kind``."""
    return {"name": name, "type": ["null", kind], "default": None}


def _field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind}


def _json(fields: list[AvroField]) -> list[dict[str, Any]]:
    return [field.to_json() for field in fields]


def _record(name: str, within: str, fields: list[AvroField]) -> dict[str, Any]:
    return {"type": "record", "name": name, "namespace": within, "fields": _json(fields)}


def _text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def _type_of(
    table: TargetTable, column: str, kind: pa.DataType, source: Column | None, name: str
) -> Any:
    """Return the type of a field; ``name`` is that of a record, if it is one."""
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", _part(table, column, kind.value_type, name)]}
    if pa.types.is_map(kind):
        return {"type": "map", "values": ["null", _part(table, column, kind.item_type, name)]}
    if pa.types.is_struct(kind):
        names = _unique_names([field.name for field in kind], ())
        members = [
            nullable(member, _part(table, column, field.type, f"{name}_record_{member}"))
            for member, field in zip(names, kind, strict=True)
        ]
        return {"type": "record", "name": f"{name}_record", "fields": members}
    if pa.types.is_time(kind):
        return {**_OF_DAY, "logicalType": "time-micros"}
    if pa.types.is_decimal128(kind):
        parameters = {
            "scale": str(kind.scale),
            "connect.decimal.precision": str(kind.precision),
        }
        return {
            **_named("bytes", _CONNECT + "Decimal"),
            "connect.parameters": parameters,
            "logicalType": "decimal",
            "precision": kind.precision,
            "scale": kind.scale,
        }
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        local = "local-" if kind.tz is None else ""
        named = _named("long", _DEBEZIUM + "time.MicroTimestamp")
        return {**named, "logicalType": f"{local}timestamp-micros"}
    if pa.types.is_string(kind) and _has_type(_UUID, source):
        return {**_named("string", _DEBEZIUM + "data.Uuid"), "logicalType": "uuid"}
    if pa.types.is_string(kind):
        for pattern, name in _TEXTS:
            if _has_type(pattern, source):
                return _named("string", name)
    found = _SIMPLE.get(kind)
    if found is None:
        raise TableLeftOutError(
            f"avro: column {column} of {table.source} is {kind} after the output's steps, which "
            "Avro's schema does not allow: cast it, e.g. to string, or drop it"
        )
    return found


def _part(table: TargetTable, column: str, kind: pa.DataType, name: str) -> Any:
    return _type_of(table, column, kind, None, name)


def _has_type(pattern: re.Pattern[str], source: Column | None) -> bool:
    return source is not None and pattern.fullmatch(source.type_name) is not None


def _valid_name(name: str) -> str:
    """Return a name that Avro allows, with ``_`` for other characters as Debezium has it."""
    found = _NOT_IN_NAMES.sub("_", name)
    return found if found and not found[0].isdigit() else f"_{found}"


def _unique_names(columns: list[str], reserved: Iterable[str]) -> list[str]:
    """Return valid names, the columns' own if they are valid; equal names get additional ``_``."""
    taken = set(reserved) | {column for column in columns if _valid_name(column) == column}
    found = []
    for column in columns:
        name = _valid_name(column)
        if name != column or name in reserved:
            while name in taken:
                name += "_"
            taken.add(name)
        found.append(name)
    return found
