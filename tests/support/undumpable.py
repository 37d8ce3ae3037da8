"""A table of PostgreSQL that is captured and that no dump can read."""

from __future__ import annotations

KEYS = "{'*.*': [absent]}"  # of the section `source`


def undumpable(table: str) -> str:
    """SQL that makes the table, with a column ``n``: its rows are matched by an index, and
    `KEYS` name another column of it.
    """
    index = f"{table.rpartition('.')[2]}_n"
    return (
        f"CREATE TABLE {table} (n int NOT NULL); CREATE UNIQUE INDEX {index} ON {table} (n); "
        f"ALTER TABLE {table} REPLICA IDENTITY USING INDEX {index}"
    )
