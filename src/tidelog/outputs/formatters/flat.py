"""Formats flat rows: the columns themselves, and the operation in members that begin with
``__``.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.outputs.formatters.messages import ROW_TAKEN, EventColumns, messages, topic_of
from tidelog.ports import FormatOptions, TargetTable
from tidelog.spark.formats.envelope import join_texts, json_rows, milliseconds


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
