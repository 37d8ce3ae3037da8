"""Finds changes of captured tables by foreign keys, which leave no trace in the binlog.

InnoDB runs ON DELETE and ON UPDATE actions below the binlog: the child's rows change, and no row
event is written (manual, "FOREIGN KEY Constraints"). MySQL 9.6 and later run them above the storage
engine and log them, unless ``innodb_native_foreign_keys`` is ON; a replica does what its source did
(https://dev.mysql.com/doc/refman/9.7/en/replication-features-foreign-keys.html).

The log holds the changes of parent tables. Where parent rows are deleted or their referenced keys
change, the child tables are reported as changed (`RowsUnlogged`). The foreign keys are read from
``information_schema`` at start and after DDL that may change them. They are the current ones, while
the log may lag behind. A key that was dropped since then acted before now, so it is enough to
report its child table when the log reaches the statement that dropped the key or renamed the
parent.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pymysql
from pymysql.constants import ER

from tidelog.codecs.mysql.binlog.items import QuerySeen, RowsNoticed, TableMapSeen
from tidelog.codecs.mysql.binlog.scanner import BinlogScanner
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.model.schema import TableName, TableSchema, backticked
from tidelog.ports import RowsUnlogged
from tidelog.sources.mysql.connect import Connection
from tidelog.sources.mysql.ddl import RESHAPES, Effect, Statement
from tidelog.sources.mysql.errors import number_of, translate_errors

_COLUMNS = """
SELECT TABLE_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, REFERENCED_TABLE_SCHEMA, REFERENCED_TABLE_NAME,
  COLUMN_NAME, REFERENCED_COLUMN_NAME
FROM information_schema.KEY_COLUMN_USAGE WHERE REFERENCED_TABLE_NAME IS NOT NULL
ORDER BY 1, 2, 3, ORDINAL_POSITION
"""
_RULES = """
SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, DELETE_RULE, UPDATE_RULE
FROM information_schema.REFERENTIAL_CONSTRAINTS
"""
_NAMES = """
SELECT COLUMN_NAME FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION
"""
_LOGGED_SINCE = (9, 6)
_GONE = (ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR)
_SILENT = ("CASCADE", "SET NULL", "SET DEFAULT")
_UNKNOWN = ("CASCADE", "CASCADE")
_RULE = re.compile(r" ON (DELETE|UPDATE) (CASCADE|SET NULL|SET DEFAULT|RESTRICT|NO ACTION)")


@dataclass(frozen=True, slots=True)
class Cascade:
    """A foreign key that changes rows of ``child`` when rows of ``parent`` change."""

    child: TableName
    parent: TableName
    constraint: str
    rules: tuple[str, ...]
    """E.g. ``ON DELETE CASCADE``."""
    columns: tuple[str, ...] = ()
    referenced: tuple[str, ...] = ()
    """The parent's columns that ``columns`` refer to, in order."""
    gone: bool = False
    """True if ``child`` was dropped while the keys were read. Its rules are unknown then, and the
    worst is assumed: rows of tables below it may have changed.
    """

    def rule(self, event: str) -> str | None:
        """The action on the child after ``DELETE`` or ``UPDATE``; None if there is none."""
        begin = f"ON {event} "
        return next((r.removeprefix(begin) for r in self.rules if r.startswith(begin)), None)


def cascades(connection: Connection, captured: Collection[TableName]) -> list[Cascade]:
    """The cascades whose child table is captured and exists; the parent may be any table. Raises
    PyMySQL's errors.
    """
    found = all_cascades(connection)
    return [each for each in found if each.child in captured and not each.gone]


def all_cascades(connection: Connection, *, logged_too: bool = False) -> list[Cascade]:
    """The cascades of all tables that the account may read.

    Returns none where the server logs their changes, unless ``logged_too`` is set: the server logs
    them as rows only for statements that it logs as rows.

    Raises PyMySQL's errors.
    """
    if not logged_too and _are_logged(connection):
        return []
    pairs: dict[tuple[TableName, str, TableName], list[tuple[str, str]]] = defaultdict(list)
    for schema, table, name, parent_schema, parent, column, referenced in connection.rows(_COLUMNS):
        child = TableName(str(schema), str(table))
        above = TableName(str(parent_schema), str(parent))
        pairs[child, str(name), above].append((str(column), str(referenced)))
    all_rules = {
        (TableName(str(schema), str(table)), str(name)): (str(on_delete), str(on_update))
        for schema, table, name, on_delete, on_update in connection.rows(_RULES)
    }
    gone: set[TableName] = set()
    if connection.flavor is Flavor.MARIADB:
        # MariaDB shows the rules only to accounts that may do more than SELECT.
        for table in {child for child, name, _ in pairs if (child, name) not in all_rules}:
            rules_of = _rules_of(connection, table)
            all_rules |= rules_of or {}
            if rules_of is None:
                gone.add(table)
    found = []
    for (child, name, above), columns in pairs.items():
        rules = tuple(
            f"ON {event} {rule}"
            for event, rule in zip(
                ("DELETE", "UPDATE"), all_rules.get((child, name), _UNKNOWN), strict=True
            )
            if rule in _SILENT
        )
        if rules:
            own, referred = zip(*columns, strict=True)
            found.append(Cascade(child, above, name, rules, own, referred, child in gone))
    return found


def _are_logged(connection: Connection) -> bool:
    if connection.flavor is not Flavor.MYSQL or connection.version < _LOGGED_SINCE:
        return False
    row = connection.row("SHOW GLOBAL VARIABLES LIKE 'innodb_native_foreign_keys'")
    if row is not None and str(row[1]).upper() not in ("OFF", "0"):
        return False
    try:
        return not connection.rows("SHOW REPLICA STATUS")  # its source may be an older server
    except pymysql.MySQLError as error:
        if number_of(error) == ER.SPECIFIC_ACCESS_DENIED_ERROR:  # as on a server that logs nothing
            return False
        raise


def _rules_of(
    connection: Connection, table: TableName
) -> dict[tuple[TableName, str], tuple[str, str]] | None:
    """The rules from SHOW CREATE TABLE (one constraint a line); None if the table is gone."""
    try:
        row = connection.row(f"SHOW CREATE TABLE {backticked(table.namespace, table.name)}")
    except pymysql.MySQLError as error:
        if number_of(error) in _GONE:
            return None
        raise
    found = {}
    for line in str(row[1]).splitlines() if row is not None else ():
        if not line.startswith("  CONSTRAINT `") or " FOREIGN KEY (" not in line:
            continue
        name = re.match(r"  CONSTRAINT `((?:[^`]|``)*)`", line)
        rules = dict(_RULE.findall(line[line.rindex(")") :]))
        if name is not None:
            key = table, name[1].replace("``", "`")
            found[key] = rules.get("DELETE", "RESTRICT"), rules.get("UPDATE", "RESTRICT")
    return found


@dataclass(frozen=True, slots=True)
class NoticedChanges:
    """The parent's changes that affect a child: deletes, and updates of these columns."""

    deletes: bool
    columns: frozenset[str]
    names: tuple[str, ...] = ()
    """All current columns of the parent, in order."""

    def indexes(self, names: Sequence[str] | None, count: int) -> set[int]:
        """The indexes of the columns to watch, of ``count`` columns named ``names`` (None: not
        known). Returns all indexes if the columns can't be identified.
        """
        names = self.names if names is None else names
        if not self.columns:
            return set()
        if len(names) != count or not self.columns <= set(names):
            return set(range(count))
        return {i for i, name in enumerate(names) if name in self.columns}


@dataclass(frozen=True, slots=True)
class CascadeGraph:
    """The tables whose rows change without a trace in the log when another table's rows
    do. Pure.
    """

    found: tuple[Cascade, ...] = ()
    columns: dict[TableName, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, connection: Connection) -> CascadeGraph:
        """Read the current graph. Raises PyMySQL's errors."""
        found = all_cascades(connection)
        columns = {
            parent: tuple(str(row[0]) for row in connection.rows(_NAMES, _pair(parent)))
            for parent in {cascade.parent for cascade in found}
        }
        return cls(tuple(found), columns)

    def changes_to_notice(self, table: TableName) -> NoticedChanges | None:
        """The table's changes to watch; None if no foreign key refers to the table."""
        affected_tables = [cascade for cascade in self.found if cascade.parent == table]
        if not affected_tables:
            return None
        updates = [
            cascade.referenced for cascade in affected_tables if cascade.rule("UPDATE") is not None
        ]
        return NoticedChanges(
            any(cascade.rule("DELETE") is not None for cascade in affected_tables),
            frozenset(name for names in updates for name in names),
            self.columns.get(table, ()),
        )

    def affected_tables(self, table: TableName, *, deleted: bool, updated: bool) -> set[TableName]:
        """The tables whose rows may change when rows of ``table`` are deleted or their referenced
        columns updated: its children, their children and so on, possibly the table itself.
        """
        seen: set[tuple[TableName, str]] = set()
        todo = [(table, "DELETE")] * deleted + [(table, "UPDATE")] * updated
        changed: set[TableName] = set()
        while todo:
            parent, event = todo.pop()
            for cascade in self.found:
                rule = cascade.rule(event) if cascade.parent == parent else None
                if rule is None:
                    continue
                changed.add(cascade.child)
                gone = event == "DELETE" and rule == "CASCADE"
                then = (cascade.child, "DELETE" if gone else "UPDATE")
                if then not in seen:
                    seen.add(then)
                    todo.append(then)
        return changed

    def concerns(self, tables: Iterable[TableName]) -> bool:
        """Return True if one of the tables is a parent or a child."""
        wanted = set(tables)
        return any(cascade.parent in wanted or cascade.child in wanted for cascade in self.found)


def _pair(table: TableName) -> tuple[str, str]:
    return table.namespace, table.name


# While the log is read.

_ABOUT_KEYS = re.compile(r"\b(?:FOREIGN|REFERENCES|CONSTRAINT)\b", re.IGNORECASE)
# A statement about a foreign key alone does not change columns or rows.
_SHAPES = RESHAPES | {Effect.KEPT}
_DROPS_KEY = re.compile(
    r"\bDROP\s+(?:FOREIGN\s+KEY|CONSTRAINT)\b|\bREPLACE\s+TABLE\b", re.IGNORECASE
)


class CascadeWatch:
    """Reports changes by foreign keys for one log reader. Used by one thread.

    Args:
        connected: returns an SQL connection.
        captures: returns True for captured tables.
    """

    def __init__(
        self, connected: Callable[[], Connection], captures: Callable[[TableName], bool]
    ) -> None:
        self._get_connection = connected
        self._captures = captures
        self._graph = CascadeGraph()

    def read(self) -> None:
        """Read the foreign keys again."""
        with translate_errors("reading foreign keys"):
            self._graph = CascadeGraph.read(self._get_connection())

    def bind(self, scanner: BinlogScanner, seen: TableMapSeen, schema: TableSchema | None) -> None:
        """Tell the scanner which of the table's changes to report; ``schema`` is None for a table
        that is not captured.
        """
        noticed = self._graph.changes_to_notice(TableName(seen.database, seen.table))
        if noticed is None:
            return
        names = seen.metadata.names if schema is None else schema.whole.column_names
        scanner.notice(
            seen.table_id,
            deletes=noticed.deletes,
            columns=noticed.indexes(names, len(seen.types)),
        )

    def rows(self, seen: RowsNoticed) -> Iterator[RowsUnlogged]:
        """Yield the child tables that a change of a parent's rows may have changed."""
        parent = TableName(seen.database, seen.table)
        yield from self._report_affected(
            parent,
            f"a foreign key changes its rows with those of {parent}",
            seen.position,
            deleted=seen.deleted,
            updated=seen.rekeyed,
        )

    def statement(
        self, scanner: BinlogScanner, statement: Statement, seen: QuerySeen
    ) -> Iterator[RowsUnlogged]:
        """Yield the tables that a DDL statement affects by their foreign keys, and read the keys
        again if they may have changed.
        """
        shaped = [e for e in statement.effects if e.effect in _SHAPES]
        about_keys = bool(shaped) and _ABOUT_KEYS.search(seen.sql) is not None
        if not seen.durable:
            for effect in shaped:
                if about_keys and self._captures(effect.table) and _DROPS_KEY.search(seen.sql):
                    reason = "a foreign key was dropped that may have changed its rows"
                    yield RowsUnlogged(effect.table, reason, seen.position)
                if effect.effect is Effect.RENAMED_HERE:
                    yield from self._report_affected(
                        effect.table,
                        "the table that its foreign key refers to was renamed",
                        seen.position,
                        deleted=True,
                        updated=True,
                    )
        touched = [effect.table for effect in shaped]
        if about_keys or statement.database is not None or self._graph.concerns(touched):
            before = self._graph
            self.read()
            if self._graph != before:
                scanner.forget_tables()

    def _report_affected(
        self, parent: TableName, reason: str, position: int, *, deleted: bool, updated: bool
    ) -> Iterator[RowsUnlogged]:
        for table in sorted(self._graph.affected_tables(parent, deleted=deleted, updated=updated)):
            if self._captures(table):
                yield RowsUnlogged(table, reason, position)
