"""Formats Debezium's JSON, CloudEvents and flat rows.

Debezium's JSON has key and envelope as in the source's shape ``envelope``. CloudEvents 1.0 are
JSON in structured mode, whose ``data`` is that envelope. Flat rows are the columns themselves, and
the operation in members that begin with ``__``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.columns.concatenation import KeyPiece, TextCells
from tidelog.codecs.columns.times import timestamp_texts
from tidelog.codecs.source_blocks import connector_of, source_fields
from tidelog.outputs.base.tasks import OTHER_KEY
from tidelog.outputs.formatters.messages import (
    HEADERS,
    ROW_TAKEN,
    EventColumns,
    messages,
    null_in_key,
    topic_of,
)
from tidelog.ports import FormatOptions, SourceId, TargetTable
from tidelog.spark.formats.connect_schemas import (
    envelope_schema,
    key_schema,
    payload_prefix,
    row_fields,
    source_schema,
)
from tidelog.spark.formats.envelope import envelope_json, join_texts, milliseconds
from tidelog.spark.formats.json_values import (
    PLAIN_HANDLING,
    ValueModes,
    json_rows,
    json_values,
    type_names,
)

# Debezium's JSON.

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
NEW_KEY, OLD_KEY = "__debezium.newkey", "__debezium.oldkey"


def context_headers(source: SourceId) -> tuple[tuple[str, bytes], ...]:
    """Return the headers that Debezium's connectors write with ``extended.headers.enabled``."""
    return (
        ("__debezium.context.connectorLogicalName", b"tidelog"),
        ("__debezium.context.taskId", b"0"),
        ("__debezium.context.connectorName", connector_of(source).encode()),
    )


@dataclass(frozen=True)
class Debezium:
    """`tidelog.ports.Formatter` of Debezium's JSON. After transforms, ``before`` is null except for
    deletes, for which it is the key, or the old row if the log has it.

    With ``handling.schemas`` key and value are Connect's objects of ``schema`` and ``payload``.
    """

    topic: str = "{table}"
    tombstones: bool = True
    handling: ValueModes = PLAIN_HANDLING

    @classmethod
    def of(cls, options: FormatOptions) -> Debezium:
        return cls(options.topic, options.tombstones, options.handling or PLAIN_HANDLING)

    def format(self, table: TargetTable, events: pa.RecordBatch) -> pa.RecordBatch:
        found = EventColumns(table, events)
        how = (self.handling, type_names(table.schema))
        key = found.key_texts(*how)
        rows = json_rows(found.row, found.names, found.missing, *how)
        after = TextCells(rows, where=found.has_row)
        if found.before is not None:
            olds = json_rows(found.before, table.schema.column_names, None, *how)
            # If a created row took another row's key, the delete before has the old row.
            created = pc.equal(found.op, "c").to_numpy(zero_copy_only=False)
            before = TextCells(olds, where=~created)
        else:
            if found.missing is not None:
                rows = json_rows(found.row, found.names, None, *how)
            before = TextCells(rows, where=found.deleted.to_numpy(zero_copy_only=False))
        value = envelope_json(
            before, after, found.op, found.source, found.commit_ts, table.origin, table.schema
        )
        if self.handling.schemas:
            schemas = self._schemas(table, found)
            key = pc.if_else(key.is_valid(), join_texts(schemas[0], key, "}"), None)
            value = join_texts(schemas[1], value, "}")
        topic = topic_of(self.topic, table)
        headers = None
        if OTHER_KEY in events.schema.names:
            headers = _headers(found, _header_texts(events.column(OTHER_KEY), table.key, *how))
        return messages(found, topic, key, value, headers, tombstones=self.tombstones)

    def _schemas(self, table: TargetTable, found: EventColumns) -> tuple[str, str]:
        """Return the texts before the payloads of keys and of values."""
        types = type_names(table.schema)
        required = {
            name
            for name in table.key
            if name in table.unchanged and not table.unchanged[name].nullable
        }
        for name in required:
            values = json_values(found.row.field(name), self.handling, types.get(name))
            if pc.any(pc.and_not(values.is_null(), found.truncate)).as_py():
                raise null_in_key("debezium with schemas", name)
        fields = row_fields(found.row.type, found.names, required, self.handling, types)
        own = [field for name in table.key for field in fields if field["field"] == name]
        name = f"tidelog.{table.source}"
        origin = source_schema(connector_of(table.origin), source_fields(table.origin))
        value = envelope_schema(name, fields, origin)
        return payload_prefix(key_schema(name, own)), payload_prefix(value)


def _header_texts(
    keys: pa.StructArray, names: Sequence[str], handling: ValueModes, types: Mapping[str, str]
) -> pa.StringArray:
    """Return keys as Connect's ``SimpleHeaderConverter``, the default, writes their structs:
    without a schema, decimals as digits, and texts in which only quotes and backslashes are escaped
    (`org.apache.kafka.connect.data.Values.append`).
    """
    pieces: list[KeyPiece] = []
    for number, name in enumerate(names):
        values = keys.field(keys.type.get_field_index(name))
        precise = pa.types.is_decimal(values.type) and handling.decimal == "precise"
        cells = (
            values.cast(pa.string()) if precise else json_values(values, handling, types.get(name))
        )
        pieces += [f"{',' if number else '{'}{json.dumps(name)}:", TextCells(cells)]
    texts = join_texts(*pieces, "}").to_pylist()
    is_valid = keys.is_valid().to_pylist()
    return pa.array(
        [
            (_STRING.sub(_header_string, text) if "\\" in text else text) if is_there else None
            for text, is_there in zip(texts, is_valid, strict=True)
        ],
        pa.string(),
    )


def _header_string(found: re.Match[str]) -> str:
    return _escaped(json.loads(found[0]))


def _escaped(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _headers(events: EventColumns, other: pa.StringArray) -> pa.MapArray:
    """Return the headers of a key change: the delete of the old key has the new one, the creation
    of the new key the old one.
    """
    names = pc.if_else(events.deleted, NEW_KEY, OLD_KEY).to_pylist()
    pairs = zip(names, other.to_pylist(), strict=True)
    return pa.array([None if text is None else [(name, text)] for name, text in pairs], HEADERS)


# CloudEvents.

_CONTENT_TYPE = ("content-type", "application/cloudevents+json; charset=UTF-8")


@dataclass(frozen=True)
class CloudEvents:
    """`tidelog.ports.Formatter` of CloudEvents. ``id`` is the version with the operation, unique in
    ``source``, so that receivers can recognize a repeated message.
    """

    topic: str = "{table}"

    @classmethod
    def of(cls, options: FormatOptions) -> CloudEvents:
        return cls(options.topic)

    def format(self, table: TargetTable, events: pa.RecordBatch) -> pa.RecordBatch:
        found = EventColumns(table, events)
        data = Debezium(self.topic, tombstones=False).format(table, events).column("value")
        origin = table.origin
        fixed = {
            "specversion": "1.0",
            "source": f"/tidelog/{origin.kind}/{origin.system}/{origin.database}",
            "type": f"io.tidelog.change.{table.source}",
            "subject": table.name,
            "datacontenttype": "application/json",
            "dataschema": f"/tidelog/schemas/{table.schema.schema_id}",
        }
        value = join_texts(
            json.dumps(fixed, ensure_ascii=False, separators=(",", ":"))[:-1],
            ',"id":"',
            found.version.cast(pa.string()),
            "-",
            found.op,
            '","time":"',
            timestamp_texts(found.commit_ts.view(pa.timestamp("us"))),
            'Z","data":',
            data.cast(pa.string()),
            "}",
        )
        headers = pa.array([[_CONTENT_TYPE]], HEADERS)
        headers = headers.take(pa.repeat(pa.scalar(0), found.n))
        topic = topic_of(self.topic, table)
        key = found.key_texts(types=type_names(table.schema))  # as in the envelope
        return messages(found, topic, key, value, headers, tombstones=False)


# Flat rows.


@dataclass(frozen=True)
class Flat:
    """`tidelog.ports.Formatter`: ``{columns…, "__op", "__table", "__version", "__schema_version",
    "__ts_ms", "__deleted"}``, as Debezium's ``unwrap`` with rewritten deletes. Missing columns are
    ``__debezium_unavailable_value``; a truncate has no columns.
    """

    topic: str = "{table}"
    tombstones: bool = False

    @classmethod
    def of(cls, options: FormatOptions) -> Flat:
        return cls(options.topic, options.tombstones)

    def format(self, table: TargetTable, events: pa.RecordBatch) -> pa.RecordBatch:
        found = EventColumns(table, events)
        rows = pc.fill_null(json_rows(found.row, found.names, found.missing), "{}")
        opened = pc.utf8_slice_codeunits(rows, 0, -1)
        comma = pc.if_else(pc.equal(opened, "{"), "", ",")
        name = table.name.replace("\\", "\\\\").replace('"', '\\"')
        value = join_texts(
            opened,
            comma,
            '"__op":"',
            found.op,
            f'","__table":"{name}","__version":',
            found.version.cast(pa.string()),
            ',"__schema_version":',
            found.source.column("schema_id").cast(pa.string()),
            ',"__ts_ms":',
            milliseconds(found.commit_ts),
            ',"__deleted":',
            pc.if_else(found.deleted, "true", "false"),
            "}",
        )
        if ROW_TAKEN in events.schema.names:
            value = pc.if_else(events.column(ROW_TAKEN), None, value)
        topic = topic_of(self.topic, table)
        return messages(found, topic, found.key, value, None, tombstones=self.tombstones)
