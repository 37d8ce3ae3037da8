"""Formats the application's logical messages (``pg_logical_emit_message``) as Debezium's events
``op: m``.

Debezium has them in one topic, with the prefix as the key:
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-message-events
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidelog.codecs.source_blocks import connector_of, source_fields
from tidelog.model.patterns import glob
from tidelog.model.schema import TableName
from tidelog.outputs.formatters.messages import HEADERS, MESSAGES
from tidelog.ports import SourceId, TargetTable
from tidelog.spark.formats import connect_schemas
from tidelog.spark.formats.envelope import join_texts, milliseconds, source_pieces
from tidelog.spark.formats.json_values import PLAIN, Handling, binary_text

_NO_TABLE = TableName("", "")
_NAME = "io.debezium.connector.postgresql.Message"


@dataclass(frozen=True)
class LogicalMessages:
    """`tidelog.ports.Formatter` of records of kind MESSAGE as the log has them.

    Attributes:
        topic: topic of all messages.
        prefixes: prefixes of the wanted messages; ``*`` stands for any text.
        handling: how the content is written.
    """

    topic: str
    prefixes: tuple[str, ...] = ("*",)
    handling: Handling = PLAIN

    def format(self, table: TargetTable, events: pa.RecordBatch) -> pa.RecordBatch:
        documents = [json.loads(payload) for payload in events.column("payload").to_pylist()]
        wanted = [any(glob(p, each["prefix"]) for p in self.prefixes) for each in documents]
        records = events.filter(pa.array(wanted, pa.bool_()))
        documents = [each for each, kept in zip(documents, wanted, strict=True) if kept]
        xids = pa.array([each.get("xid") for each in documents], pa.int64())
        records = records.set_column(records.schema.get_field_index("xid"), "xid", xids)
        n, times = records.num_rows, records.column("commit_ts")
        key = _texts([_text({"prefix": each["prefix"]}) for each in documents])
        value = join_texts(
            '{"op":"m","ts_ms":',
            milliseconds(times),
            *source_pieces(records, times, table.origin, _NO_TABLE),
            ',"transaction":null,"message":',
            _texts([self._message(each) for each in documents]),
            "}",
        )
        if self.handling.schemas:
            of_key, of_value = self._schemas(table.origin)
            key, value = join_texts(of_key, key, "}"), join_texts(of_value, value, "}")
        arrays = [
            key.cast(pa.binary()),
            value.cast(pa.binary()),
            pa.nulls(n, HEADERS),
            pa.repeat(pa.scalar(self.topic), n),
            records.column("offset"),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=MESSAGES)

    def _message(self, document: dict[str, Any]) -> str:
        content = None  # it was too long to be stored
        if "omitted" not in document:
            content = binary_text(base64.b64decode(document["content"]), self.handling.binary)
        return _text({"prefix": document["prefix"], "content": content})

    def _schemas(self, origin: SourceId) -> tuple[str, str]:
        """Returns the texts before the payloads of keys and of values."""
        prefix = {"type": "string", "optional": True, "field": "prefix"}
        bytes_ = "bytes" if self.handling.binary == "bytes" else "string"
        content = {"type": bytes_, "optional": True, "field": "content"}
        message = connect_schemas.struct(_NAME, [prefix, content], optional=False)
        source = connect_schemas.source_schema(connector_of(origin), source_fields(origin))
        members = [
            {"type": "string", "optional": False, "field": "op"},
            {"type": "int64", "optional": True, "field": "ts_ms"},
            {**source, "field": "source"},
            connect_schemas.TRANSACTION,
            {**message, "version": 1, "field": "message"},
        ]
        key = connect_schemas.struct(f"{_NAME}Key", [prefix], optional=False)
        value = connect_schemas.struct(f"{_NAME}Value", members, optional=False)
        both = (connect_schemas.payload_prefix({**each, "version": 1}) for each in (key, value))
        of_key, of_value = both
        return of_key, of_value


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _texts(values: list[str]) -> pa.StringArray:
    return pa.array(values, pa.string())
