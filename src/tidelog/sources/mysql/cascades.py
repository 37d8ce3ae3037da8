"""Foreign keys that change rows of captured tables without a trace in the binlog.

InnoDB carries out ON DELETE and ON UPDATE actions below the binlog: the child's rows change, and no
row event says so (manual, "FOREIGN KEY Constraints"; MySQL 9.6 and later log them).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tidelog.model.schema import TableName
from tidelog.sources.mysql.connect import Connection

_RULES = """
SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, UNIQUE_CONSTRAINT_SCHEMA,
  REFERENCED_TABLE_NAME, DELETE_RULE, UPDATE_RULE
FROM information_schema.REFERENTIAL_CONSTRAINTS
WHERE DELETE_RULE IN ({silent}) OR UPDATE_RULE IN ({silent})
ORDER BY 1, 2, 3
""".format(silent="'CASCADE', 'SET NULL', 'SET DEFAULT'")
_SILENT = ("CASCADE", "SET NULL", "SET DEFAULT")


@dataclass(frozen=True, slots=True)
class Cascade:
    """A foreign key of ``child`` whose rows change with those of ``parent``."""

    child: TableName
    parent: TableName
    constraint: str
    rules: tuple[str, ...]
    """E.g. ``ON DELETE CASCADE``."""


def cascades(connection: Connection, captured: Collection[TableName]) -> list[Cascade]:
    """Those whose child is captured; the parent may be any table. Raises PyMySQL's errors."""
    found = []
    for schema, table, name, parent_schema, parent, on_delete, on_update in connection.rows(_RULES):
        child = TableName(str(schema), str(table))
        if child not in captured:
            continue
        pairs = (("ON DELETE", on_delete), ("ON UPDATE", on_update))
        rules = tuple(f"{event} {rule}" for event, rule in pairs if rule in _SILENT)
        above = TableName(str(parent_schema), str(parent))
        found.append(Cascade(child, above, str(name), rules))
    return found
