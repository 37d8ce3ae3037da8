"""The block ``source`` of Debezium's envelope, as the connector of each kind of source fills it.

Members that all connectors share (``version``, ``name``, ``ts_ms``, ``snapshot``) are not here. The
members are in Debezium's order.
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
    """The block's fields for ``n`` records of one table.

    Attributes:
        connector: Debezium's name of the connector.
        db: the database.
        sequence: JSON texts that order changes of one source.
        own: the connector's own fields: a JSON value that all records share, or TextCells of
            integers or JSON texts.
    """

    connector: str
    db: str
    sequence: TextCells
    own: dict[str, Any]


def source_block(source: SourceId, table: TableName, records: pa.RecordBatch) -> SourceBlock:
    """The origin of ``records``, all of ``table``."""
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
    """``file`` and ``pos`` are the transaction's beginning, ``row`` counts within the transaction.
    The files of a promoted server have higher numbers than those of the former one.

    Fields that are not captured have the values of Debezium's snapshots: ``server_id`` 0, the
    others null.
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
