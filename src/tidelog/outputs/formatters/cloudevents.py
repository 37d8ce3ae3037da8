"""Formats CloudEvents 1.0 as JSON, structured mode: the Debezium envelope is the ``data``."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pyarrow as pa

from tidelog.codecs.columns.instant_texts import timestamp_texts
from tidelog.outputs.formatters.debezium import Debezium
from tidelog.outputs.formatters.messages import HEADERS, EventColumns, messages, topic_of
from tidelog.ports import FormatOptions, TargetTable
from tidelog.spark.formats.envelope import join_texts
from tidelog.spark.formats.json_values import type_names

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
