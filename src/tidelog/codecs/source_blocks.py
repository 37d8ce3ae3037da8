"""The block ``source`` of Debezium's envelope, as the connector of each kind of source fills it.

Fields are in Debezium's order. Each kind's `SourceBlocks` is in the folder of its database, and
`tidelog.kinds.adapters` names it; a kind that has none has table and position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa

from tidelog.codecs.columns.concatenation import TextCells
from tidelog.kinds.adapters import SOURCE_BLOCKS
from tidelog.model.schema import TableName
from tidelog.ports import SourceId

BlockField = tuple[str, str, bool]
"""Name, Kafka Connect's type, may be null; as Debezium's connectors have them."""
_COMMON: tuple[BlockField, ...] = (
    ("version", "string", False),
    ("connector", "string", False),
    ("name", "string", False),
    ("ts_ms", "int64", False),
    ("snapshot", "string", False),
    ("db", "string", False),
    ("sequence", "string", True),
    ("ts_us", "int64", True),
    ("ts_ns", "int64", True),
)


@dataclass(frozen=True, slots=True)
class SourceBlock:
    """The block's fields for ``n`` records of one table, without those of all connectors.

    Attributes:
        db: the database.
        sequence: JSON texts that order changes of one source.
        own: the connector's own fields: a JSON value that all records share, or TextCells of
            integers or JSON texts.
    """

    db: str
    sequence: TextCells
    own: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SourceBlocks:
    """The blocks of one kind of source.

    Attributes:
        block: returns the block of records of a table.
        fields: the connector's own fields.
        connector: Debezium's name of the connector; None: that of the kind.
    """

    block: Callable[[SourceId, TableName, pa.RecordBatch], SourceBlock]
    fields: tuple[BlockField, ...]
    connector: str | None = None


def source_block(source: SourceId, table: TableName, records: pa.RecordBatch) -> SourceBlock:
    """The origin of ``records``, all of ``table``."""
    return _blocks(source.kind).block(source, table, records)


def source_fields(source: SourceId) -> tuple[BlockField, ...]:
    """Return all fields of the block, in order."""
    return (*_COMMON, *_blocks(source.kind).fields)


def connector_of(source: SourceId) -> str:
    """Return Debezium's name of the connector."""
    return _blocks(source.kind).connector or source.kind


@cache
def _blocks(kind: str) -> SourceBlocks:
    return SOURCE_BLOCKS.get(kind) if kind in SOURCE_BLOCKS.names else _OTHER


def _other(source: SourceId, table: TableName, records: pa.RecordBatch) -> SourceBlock:
    own = {
        "schema": table.namespace,
        "table": table.name,
        "position": TextCells(records.column("position")),
    }
    return SourceBlock(source.database, TextCells(pa.nulls(len(records), pa.string())), own)


_OTHER = SourceBlocks(
    _other, (("schema", "string", False), ("table", "string", False), ("position", "int64", False))
)
