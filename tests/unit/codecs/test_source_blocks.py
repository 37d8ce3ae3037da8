"""What the envelope says of where a record came from, as Debezium's connectors spell it."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tidelog.codecs.columns.concatenation import TextCells
from tidelog.codecs.mysql.binlog.items import pack_position
from tidelog.codecs.source_blocks import SourceBlock, connector_of, source_block
from tidelog.model.schema import TableName
from tidelog.ports import SourceId

ORDERS = TableName("shop", "orders")


def block_of(kind: str, positions: list[int]) -> SourceBlock:
    n = len(positions)
    records = pa.record_batch(
        {
            "position": pa.array(positions, pa.int64()),
            "ordinal": pa.array(range(n), pa.int64()),
            "xid": pa.array(positions, pa.int64()),
        }
    )
    return source_block(SourceId(kind, "system", "db"), ORDERS, records)


def values(block: SourceBlock, record: int) -> dict[str, object]:
    found: dict[str, object] = {"db": block.db, "sequence": block.sequence.texts()[record].as_py()}
    for name, value in block.own.items():
        of_each = isinstance(value, TextCells)
        found[name] = json.loads(value.texts()[record].as_py()) if of_each else value
    return found


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_binlog_record_has_file_and_offset_and_no_schema(kind: str) -> None:
    block = block_of(kind, [pack_position(7, 4), pack_position(1_234_567, (1 << 39) - 1)])
    assert connector_of(SourceId(kind, "system", "db")) == kind
    assert values(block, 0) == {
        "db": "shop",
        "sequence": None,
        "table": "orders",
        "server_id": 0,
        "gtid": None,
        "file": "binlog.000007",
        "pos": 4,
        "row": 0,
        "thread": None,
        "query": None,
    }
    assert values(block, 1)["file"] == "binlog.1234567"
    assert values(block, 1)["pos"] == (1 << 39) - 1


def test_postgres_record_has_lsn_and_schema() -> None:
    block = block_of("postgres", [1001])
    assert connector_of(SourceId("postgres", "system", "db")) == "postgresql"
    assert values(block, 0) == {
        "db": "db", "sequence": '"[null,\\"1001\\"]"', "schema": "shop", "table": "orders",
        "txId": 1001, "lsn": 1001, "xmin": None,
    }  # fmt: skip
