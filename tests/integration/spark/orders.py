"""A small table that tests of outputs begin with."""

from __future__ import annotations

from tests.support.build_log import BuiltLog
from tests.support.pgoutput_messages import UNCHANGED

from tidelog.model.schema import TableSchema

COLUMNS = {"id": "int64", "name": "text", "amount": "decimal(10,2)"}


def orders(built: BuiltLog, rows: int = 4) -> TableSchema:
    """``public.orders`` with rows 0 to ``rows`` - 1."""
    table = built.table("public.orders", COLUMNS)
    for number in range(rows):
        built.insert(table, str(number), f"n{number}", "1.5")
    built.flush()
    return table


def change_orders(built: BuiltLog, table: TableSchema) -> int:
    """Changes of each kind, then a whole dump, of which this is the version of its first row."""
    built.update(table, "1", UNCHANGED, "2.00")
    built.update(table, "50", "moved", "9.00", key=["2"])
    built.delete(table, "3")
    built.flush()
    first = built.chunk(table, [["0", "n0", None]], absent=[["7"]]).first
    built.dump_completed("public.orders", first)
    return first


def drop_and_add_columns(built: BuiltLog) -> None:
    """Of two rows, while they are changed: ``amount`` goes and comes again, ``more`` is new."""
    table = orders(built, rows=2)
    built.update(table, "1", "b", "2.00")
    built.flush()
    fewer = built.table("public.orders", {"id": "int64", "name": "text"})
    built.update(fewer, "0", "c")
    more = built.table("public.orders", {**COLUMNS, "more": "int32"})
    built.update(more, "0", "d", "3.00", "7")
    built.update(more, "1", UNCHANGED, UNCHANGED, "8")
    built.flush()


DROPPED_AND_ADDED = [
    (0, "n0", "1.50", None), (0, "c", "None", None), (0, "d", "3.00", 7),
    (1, "n1", "1.50", None), (1, "b", "None", None), (1, "b", "None", 8),
]  # fmt: skip
"""The states in a history of `drop_and_add_columns`: ended ones keep their values."""
