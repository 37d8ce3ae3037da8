"""The block ``source`` of Debezium's envelope, as the connector of each kind of source fills it.

What is the same for all connectors (``version``, ``name``, ``ts_ms``, ``snapshot``) is not here.
Members stand in Debezium's order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.columns.concatenation import TextCells
from tidelog.codecs.mysql.binlog.position import OFFSET_BITS
from tidelog.model.schema import TableName
from tidelog.ports import SourceId

_FILE_DIGITS = 6


@dataclass(frozen=True, slots=True)
class SourceBlock:
    """Fields of ``n`` records of one table.

    Attributes:
        connector: what Debezium calls it.
        db: the database.
        sequence: what orders changes of one source, JSON texts.
        own: the connector's own fields: a JSON value that all records have, or Cells of integers or
            JSON texts.
    """

    connector: str
    db: str
    sequence: TextCells
    own: dict[str, Any]


def source_block(source: SourceId, table: TableName, records: pa.RecordBatch) -> SourceBlock:
    """What says of ``records``, all of ``table``, where they came from."""
    return _BLOCKS.get(source.kind, _other)(source, table, records)


def _postgres(source: SourceId, table: TableName, records: pa.RecordBatch) -> SourceBlock:
    lsn = records.column("position")
    return SourceBlock(
        "postgresql",
        source.database,
        TextCells(lsn, '"[null,\\"', '\\"]"'),
        {
            "schema": table.namespace,
            "table": table.name,
            "txId": TextCells(records.column("xid")),
            "lsn": TextCells(lsn),
            "xmin": None,
        },
    )


def _binlog(source: SourceId, table: TableName, records: pa.RecordBatch) -> SourceBlock:
    """``file`` and ``pos`` are where the transaction begins, ``row`` counts in the transaction.
    Files of a server that was promoted are numbered behind those of the one before.

    What is not captured is as Debezium's snapshots have it: ``server_id`` 0, the others null.
    """
    position = records.column("position")
    number = pc.shift_right(position, OFFSET_BITS)
    offset = pc.subtract(position, pc.shift_left(number, OFFSET_BITS))
    name = pc.utf8_lpad(number.cast(pa.string()), _FILE_DIGITS, "0")
    return SourceBlock(
        source.kind,
        table.namespace,
        TextCells(pa.nulls(len(position), pa.string())),
        {
            "table": table.name,
            "server_id": 0,
            "gtid": None,
            "file": TextCells(name, '"binlog.', '"'),
            "pos": TextCells(offset),
            "row": TextCells(records.column("ordinal")),
            "thread": None,
            "query": None,
        },
    )


def _other(source: SourceId, table: TableName, records: pa.RecordBatch) -> SourceBlock:
    own = {
        "schema": table.namespace,
        "table": table.name,
        "position": TextCells(records.column("position")),
    }
    sequence = TextCells(pa.nulls(len(records), pa.string()))
    return SourceBlock(source.kind, source.database, sequence, own)


_BLOCKS: dict[str, Callable[[SourceId, TableName, pa.RecordBatch], SourceBlock]] = {
    "postgres": _postgres,
    "mysql": _binlog,
    "mariadb": _binlog,
}
