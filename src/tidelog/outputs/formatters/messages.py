"""Splits events into columns and builds batches of messages, for all formats.

The application's logical messages (``pg_logical_emit_message``) become Debezium's events ``op: m``,
in one topic, with the prefix as the key:
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-message-events
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.source_blocks import connector_of, source_fields
from tidelog.errors import OutputRefusedError
from tidelog.model.patterns import matches_glob
from tidelog.model.records import Bools, bitmap
from tidelog.model.schema import TableName
from tidelog.ports import SourceId, TargetTable
from tidelog.spark.formats import connect_schemas
from tidelog.spark.formats.envelope import join_texts, milliseconds, source_pieces
from tidelog.spark.formats.json_values import PLAIN_HANDLING, ValueModes, binary_text, json_rows
from tidelog.spark.formats.shapes import (
    CHANGE_MISSING,
    CHANGE_OP,
    CHANGE_VERSION,
    EVENT_BEFORE,
    EVENT_SOURCE,
)

ROW_TAKEN = "_tidelog_row_taken"
"""A column of events: true where a transform removed the new row. Missing if none did."""
HEADERS = pa.map_(pa.string(), pa.string())
MESSAGES = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("topic", pa.string()),
        pa.field("version", pa.int64()),
    ]
)


class EventColumns:
    """A batch of the shape `events` of one table, by part; each of ``n`` rows.

    Attributes:
        row: struct of the delivered columns (of a delete: the known ones of the old row), null for
            a truncate.
        before: struct, or None if transforms removed it.
        missing: bool[n, columns] or None.
        key: JSON texts, null for a truncate and for tables without a key.
        has_row: bool[n], whether there is a new row.
    """

    def __init__(self, table: TargetTable, events: pa.RecordBatch) -> None:
        self.table = table
        self.n = events.num_rows
        self.op = events.column(CHANGE_OP)
        self.version = events.column(CHANGE_VERSION)
        self.names = tuple(table.columns.names)
        columns = [events.column(name) for name in self.names]
        fields = [pa.field(n, c.type) for n, c in zip(self.names, columns, strict=True)]
        self.truncate = pc.equal(self.op, "t")
        self.deleted = pc.equal(self.op, "d")
        without_row = pc.or_(self.truncate, self.deleted)
        if ROW_TAKEN in events.schema.names:
            without_row = pc.or_(without_row, events.column(ROW_TAKEN))
        self.has_row: Bools = pc.invert(without_row).to_numpy(zero_copy_only=False)
        self.row = pa.StructArray.from_arrays(columns, fields=fields, mask=self.truncate)
        self.before: pa.StructArray | None = None
        if EVENT_BEFORE in events.schema.names:
            self.before = events.column(EVENT_BEFORE)
        self.missing = _flags(events.column(CHANGE_MISSING), self.names)
        source = events.column(EVENT_SOURCE)
        self.source = pa.RecordBatch.from_arrays(
            source.flatten(), names=[field.name for field in source.type]
        )
        self.commit_ts = self.source.column("commit_ts")

    @property
    def key(self) -> pa.StringArray:
        return self.key_texts()

    def key_texts(
        self, handling: ValueModes = PLAIN_HANDLING, types: Mapping[str, str] | None = None
    ) -> pa.StringArray:
        """Return `key` with values written as `json_rows` writes those of the row."""
        if not self.table.key:
            return pa.nulls(self.n, pa.string())
        return json_rows(self.row, self.table.key, None, handling, types)


def null_in_key(form: str, column: str) -> OutputRefusedError:
    """Return the error of a schema that does not allow null in the messages' key."""
    return OutputRefusedError(
        f"{form}: column {column} is null in a row, and a column of the key that is NOT NULL in "
        "the source: check the output's steps; or it is NaN in a numeric(p,s), which no decimal "
        "has: leave the table to an output without schemas"
    )


def topic_of(pattern: str, table: TargetTable) -> str:
    """Return the topic of a table's messages."""
    source = table.source
    return pattern.format(table=table.name, namespace=source.namespace, name=source.name)


def messages(
    events: EventColumns,
    topic: str,
    key: pa.Array,
    value: pa.Array,
    headers: pa.Array | None,
    *,
    tombstones: bool,
) -> pa.RecordBatch:
    """Return one message per event and, with ``tombstones``, one more after each delete with a
    key, with the delete's headers.
    """
    n = events.n
    arrays = [
        key.cast(pa.binary()),
        value.cast(pa.binary()),
        pa.nulls(n, HEADERS) if headers is None else headers,
        pa.repeat(pa.scalar(topic), n),
        events.version,
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=MESSAGES)
    if not tombstones or not events.table.key or not events.deleted.true_count:
        return batch
    deleted = events.deleted.to_numpy(zero_copy_only=False)
    at = np.repeat(np.arange(n), 1 + deleted)
    second = np.zeros(len(at), np.bool_)
    second[np.flatnonzero(deleted[at])[1::2]] = True
    spread = batch.drop_columns("value").take(pa.array(at))
    columns = list(spread.columns)
    columns.insert(1, _with_nulls(batch.column("value"), second))
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)


def _with_nulls(values: pa.BinaryArray, null: Bools) -> pa.BinaryArray:
    """Return the values, none of them null, at the positions that are not ``null``; their bytes
    are not copied.
    """
    _, offsets, content = values.buffers()
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    ends = bounds[np.concatenate([[0], np.cumsum(~null)])]
    valid = bitmap(~null)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(null), [valid, pa.py_buffer(ends), content], null_count=int(null.sum())
    )


def _flags(missing: pa.Array, names: Sequence[str]) -> Bools | None:
    if missing.null_count == len(missing):
        return None
    counts = pc.fill_null(pc.list_value_length(missing), 0).to_numpy(zero_copy_only=False)
    at = pc.index_in(missing.flatten(), value_set=pa.array(list(names), pa.string()))
    rows = np.repeat(np.arange(len(missing)), counts)
    known = at.is_valid().to_numpy(zero_copy_only=False)
    flags = np.zeros((len(missing), len(names)), np.bool_)
    flags[rows[known], at.drop_null().to_numpy(zero_copy_only=False)] = True
    return flags


# Logical messages.

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
    handling: ValueModes = PLAIN_HANDLING

    def format(self, table: TargetTable, events: pa.RecordBatch) -> pa.RecordBatch:
        documents = [json.loads(payload) for payload in events.column("payload").to_pylist()]
        wanted = [any(matches_glob(p, each["prefix"]) for p in self.prefixes) for each in documents]
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
        """Return the texts before the payloads of keys and of values."""
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
