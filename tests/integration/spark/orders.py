"""A small table that tests of outputs begin with."""

from __future__ import annotations

from tests.support.build_log import BuiltLog

from tidelog.model.schema import TableSchema

COLUMNS = {"id": "int64", "name": "text", "amount": "decimal(10,2)"}


def orders(built: BuiltLog, rows: int = 4) -> TableSchema:
    """``public.orders`` with rows 0 to ``rows`` - 1."""
    table = built.table("public.orders", COLUMNS)
    for number in range(rows):
        built.insert(table, str(number), f"n{number}", "1.5")
    built.flush()
    return table
