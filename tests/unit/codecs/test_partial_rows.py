"""Which columns an update's record may lack is decided by the log that it comes from."""

from __future__ import annotations

from tidelog.codecs.wire_formats import wire_format
from tidelog.model.schema import Column, TableName, TableSchema

COLUMNS = tuple(
    Column(name, 0, -1, logical, logical)
    for name, logical in (
        ("id", "int64"), ("n", "int32"), ("note", "text"), ("price", "decimal(10,2)"),
    )
)  # fmt: skip


def lacking(name: str) -> frozenset[str]:
    schema = TableSchema(TableName("shop", "t"), 0, COLUMNS, ("id",), ("id",), "d", name)
    return wire_format(schema).possibly_missing_columns(schema)


def test_postgres_leaves_out_only_what_is_stored_out_of_line() -> None:
    assert lacking("pgoutput") == {"note", "price"}


def test_binlog_may_leave_out_whatever_is_no_key() -> None:
    assert lacking("binlog") == {"n", "note", "price"}
