"""Which columns an update's record may lack is decided by the log that it comes from."""

from __future__ import annotations

from tidelog.codecs.missing_columns import possibly_missing_columns
from tidelog.model.schema import Column, TableName, TableSchema

COLUMNS = tuple(
    Column(name, 0, -1, logical, logical)
    for name, logical in (
        ("id", "int64"), ("n", "int32"), ("note", "text"), ("price", "decimal(10,2)"),
    )
)  # fmt: skip


def schema(wire_format: str) -> TableSchema:
    return TableSchema(TableName("shop", "t"), 0, COLUMNS, ("id",), ("id",), "d", wire_format)


def test_postgres_leaves_out_only_what_is_stored_out_of_line() -> None:
    assert possibly_missing_columns(schema("pgoutput")) == {"note", "price"}


def test_binlog_may_leave_out_whatever_is_no_key() -> None:
    assert possibly_missing_columns(schema("binlog")) == {"n", "note", "price"}
