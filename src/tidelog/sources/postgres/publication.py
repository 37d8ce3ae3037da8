"""The publications that a capture streams, and the watermark table.

There are two publications. Publishing updates of a table without a usable replica identity makes
the application's UPDATE and DELETE fail, so such tables go to a second one that publishes inserts
and truncates only. Both publish partitioned tables as their root.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from tidelog.errors import PreflightError
from tidelog.model.schema import TableName
from tidelog.sources.postgres.catalogue import matching_tables
from tidelog.sources.postgres.connect import quote_ident, quote_literal, translated
from tidelog.sources.postgres.marks import WATERMARK_COLUMN, WATERMARK_TABLE, Strategy
from tidelog.sources.postgres.members import members_of

# Debezium's signal table: what a signal is made of.
SIGNAL_COLUMNS = ("id", "type", "data")

# A publication with this comment is ours: tables that no pattern names are removed from it.
MANAGED = "managed by tidelog"
LOOKS = 20
"""At the tables: one may be dropped, or renamed, before it is published."""

_OPTIONS = {
    True: "publish = 'insert, update, delete, truncate', publish_via_partition_root = true",
    False: "publish = 'insert, truncate', publish_via_partition_root = true",
}

# Can updates of the table be published? Partitions are checked by the server each for itself.
# RelationGetReplicaIndex wants a valid index that is not deferrable.
_IDENTITY = """
WITH RECURSIVE tree AS (
  SELECT c.oid AS root, c.oid FROM pg_catalog.pg_class c WHERE c.oid = ANY (%s::oid[])
  UNION ALL
  SELECT tree.root, i.inhrelid FROM pg_catalog.pg_inherits i
  JOIN tree ON i.inhparent = tree.oid
  JOIN pg_catalog.pg_class p ON p.oid = tree.oid AND p.relkind = 'p'
)
SELECT tree.root::int8, bool_and(c.relreplident = 'f' OR EXISTS (
  SELECT FROM pg_catalog.pg_index i
  WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
    AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END))
FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid
GROUP BY tree.root
"""

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A captured table and where it stands."""

    table: TableName
    relation_id: int
    partitioned: bool
    identified: bool  # can updates and deletes be published?


class Publications:
    """Keeps both publications in step with the table patterns. Holds no connection.

    Args:
        name: the publication; the second one is called ``<name>_inserts``.
        patterns: tables to capture.
        watermark_schema: where the watermark table is, also published.
        strategy: only ``table`` needs a watermark table, and with ``snapshot`` nothing is ever
            created or altered.
        signal_table: ``schema.name`` of the table whose inserted rows are commands.
    """

    def __init__(
        self,
        name: str,
        patterns: Sequence[str],
        watermark_schema: str = "tidelog",
        *,
        strategy: Strategy = "table",
        signal_table: str | None = None,
    ) -> None:
        self.name = name
        self.inserts_name = f"{name[:55]}_inserts"
        self.patterns = tuple(patterns)
        self.watermark = TableName(watermark_schema, WATERMARK_TABLE)
        self.strategy = strategy
        self.signals = None if signal_table is None else TableName.parse(signal_table)

    @property
    def names(self) -> list[str]:
        return [self.name, self.inserts_name]

    def captured(self, connection: Connection) -> list[PublishedTable]:
        """Tables of the catalogue that match now, sorted."""
        names = matching_tables(
            connection, self.patterns, ["information_schema", self.watermark.namespace]
        )
        return self._described(connection, [name for name in names if name != self.signals])

    def own(self, connection: Connection) -> list[PublishedTable]:
        """Our tables that are to be published too, as far as they exist."""
        names = [self.watermark] if self.strategy == "table" else []
        return self._described(connection, [*names, *([self.signals] if self.signals else [])])

    def _described(
        self, connection: Connection, names: Sequence[TableName]
    ) -> list[PublishedTable]:
        rows = connection.execute(
            b"SELECT n.nspname, c.relname, c.oid::int8, c.relkind = 'p' "
            b"FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
            b"WHERE c.relkind IN ('r', 'p') AND n.nspname = ANY (%s)",
            ([name.namespace for name in names],),
        ).fetchall()
        found = {TableName(row[0], row[1]): (row[2], row[3]) for row in rows}
        names = [name for name in names if name in found]
        identified: dict[int, bool] = dict(
            connection.execute(_IDENTITY.encode(), ([found[name][0] for name in names],)).fetchall()
        )
        return [
            PublishedTable(name, *found[name], bool(identified.get(found[name][0])))
            for name in names
        ]

    def members(self, connection: Connection) -> dict[str, set[TableName]]:
        """Tables by publication; only publications that exist."""
        return members_of(connection, self.names)

    def exist(self, connection: Connection) -> bool:
        return len(self.members(connection)) == len(self.names)

    def sync(self, connection: Connection, *, strict: bool = False) -> list[TableName]:
        """Create what is missing, add and remove tables; which captured tables are newly added.

        With strategy ``snapshot`` nothing is changed, and tables that are not published are not
        captured; ``strict``: raise PreflightError with the SQL for them.

        Raises PreflightError if the user may not, SourceError if a lock could not be had.
        """
        self._require_signal_table(connection)
        if self.strategy == "snapshot":
            self._require_published(connection, strict)
            return []
        with translated(f"preparing publication {self.name!r} and {self.watermark}"):
            if self.strategy == "table":
                self._create_watermark_table(connection)
            self._create_publications(connection)
            for _ in range(LOOKS):
                with suppress(psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                    return self._sync_tables(connection)
            return self._sync_tables(connection)

    def set_up(self, connection: Connection) -> list[str]:
        """The SQL that publishes what is not published; nothing if all is."""
        members = self.members(connection)
        statements = []
        for name, updates in ((self.name, True), (self.inserts_name, False)):
            if name not in members:
                statements.append(
                    f"CREATE PUBLICATION {quote_ident(name)} WITH ({_OPTIONS[updates]});"
                )
        published: set[TableName] = set().union(*members.values())
        for table in [*self.own(connection), *self.captured(connection)]:
            if table.table in published:
                continue
            name = self.name if table.identified else self.inserts_name
            statements.append(f"ALTER PUBLICATION {quote_ident(name)} ADD TABLE {_target(table)};")
        return statements

    def _require_published(self, connection: Connection, strict: bool) -> None:
        with translated(f"looking at publication {self.name!r}"):
            missing = self.set_up(connection)
            if missing and (strict or not self.exist(connection)):
                raise PreflightError(
                    "not everything is published, and with source.watermarks: snapshot Tidelog "
                    f"changes nothing in the source: let the owner run: {' '.join(missing)}"
                )

    def _require_signal_table(self, connection: Connection) -> None:
        if self.signals is None:
            return
        with translated(f"looking up {self.signals}"):
            columns = signal_columns(connection, self.signals)
        if not set(SIGNAL_COLUMNS) <= columns:
            raise PreflightError(
                f"signal table {self.signals} does not exist or lacks columns: "
                f"{create_signal_table(self.signals)}"
            )

    def _create_watermark_table(self, connection: Connection) -> None:
        table = quote_ident(self.watermark.namespace, self.watermark.name)
        exists = connection.execute("SELECT to_regclass(%s)", (table,)).fetchone()
        if exists is not None and exists[0] is not None:
            return
        schema = quote_ident(self.watermark.namespace)
        has_schema = connection.execute(
            b"SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s", (self.watermark.namespace,)
        ).fetchone()
        if has_schema is None:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}".encode())
        # Room on the page keeps each new mark a HOT update.
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {table} (id int PRIMARY KEY CHECK (id = 1), "
            f"{WATERMARK_COLUMN} text NOT NULL) WITH (fillfactor = 10)".encode()
        )

    def _create_publications(self, connection: Connection) -> None:
        existing = self.members(connection)
        for name, updates in ((self.name, True), (self.inserts_name, False)):
            if name in existing:
                continue
            quoted = quote_ident(name)
            with connection.transaction():
                connection.execute(
                    f"CREATE PUBLICATION {quoted} WITH ({_OPTIONS[updates]})".encode()
                )
                connection.execute(
                    f"COMMENT ON PUBLICATION {quoted} IS {quote_literal(MANAGED)}".encode()
                )

    def _sync_tables(self, connection: Connection) -> list[TableName]:
        members = self.members(connection)
        managed = self._managed(connection)
        captured = self.captured(connection)
        everywhere = members[self.name] | members[self.inserts_name]
        own = self.own(connection)
        added = []
        for table in [*own, *captured]:
            right = self.name if table.identified else self.inserts_name
            wrong = self.inserts_name if table.identified else self.name
            steps = []
            if table.table in members[wrong] and wrong in managed:
                steps.append((wrong, "DROP", table.table, not table.partitioned))
            if table.table not in members[right]:
                if right == self.inserts_name and table.table in members[wrong] and not steps:
                    raise PreflightError(
                        f"{table.table} is in publication {wrong!r} and has no replica identity: "
                        "its updates and deletes fail. ALTER TABLE "
                        f"{quote_ident(table.table.namespace, table.table.name)} REPLICA IDENTITY "
                        "FULL, or add a primary key"
                    )
                steps.append((right, "ADD", table.table, not table.partitioned))
            if steps:
                self._alter(connection, steps)
            if table.table not in everywhere and table not in own:
                added.append(table.table)
        wanted = {table.table for table in [*own, *captured]}
        for name in managed:
            for table_name in sorted(members[name] - wanted):
                self._alter(connection, [(name, "DROP", table_name, True)])
        return added

    def _alter(self, connection: Connection, steps: list[tuple[str, str, TableName, bool]]) -> None:
        """ALTER PUBLICATION … ADD/DROP TABLE, all steps at once. ONLY: without inheritors, which
        are captured tables of their own.
        """
        with connection.transaction():
            for publication, action, table, only in steps:
                target = quote_ident(table.namespace, table.name)
                connection.execute(
                    f"ALTER PUBLICATION {quote_ident(publication)} {action} TABLE "
                    f"{'ONLY ' if only else ''}{target}".encode()
                )

    def _managed(self, connection: Connection) -> list[str]:
        rows = connection.execute(
            b"SELECT pubname FROM pg_catalog.pg_publication WHERE pubname = ANY (%s) AND NOT "
            b"puballtables AND pg_catalog.obj_description(oid, 'pg_publication') = %s",
            (self.names, MANAGED),
        ).fetchall()
        return [row[0] for row in rows]


def signal_columns(connection: Connection, table: TableName) -> set[str]:
    """The table's columns; none if it does not exist."""
    rows = connection.execute(
        b"SELECT a.attname FROM pg_catalog.pg_class c "
        b"JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        b"JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid "
        b"WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p') "
        b"AND c.relpersistence = 'p' AND a.attnum > 0 AND NOT a.attisdropped",
        (table.namespace, table.name),
    ).fetchall()
    return {row[0] for row in rows}


def create_signal_table(table: TableName) -> str:
    """The SQL that makes it, as Debezium's manual has it."""
    return (
        f"CREATE TABLE {quote_ident(table.namespace, table.name)} "
        "(id varchar(42) PRIMARY KEY, type varchar(32) NOT NULL, data varchar(2048));"
    )


def _target(table: PublishedTable) -> str:
    quoted = quote_ident(table.table.namespace, table.table.name)
    return quoted if table.partitioned else f"ONLY {quoted}"
