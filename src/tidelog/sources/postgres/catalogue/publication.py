"""Maintains the publications that a capture streams, and the watermark table.

There are two publications. Publishing updates of a table without a usable replica identity makes
the application's UPDATE and DELETE fail, so such tables are in a second publication, for inserts
and truncates only. Both publish partitioned tables as their root.

A publication has one owner, the slot that its comment names. The owner's capture keeps the
publication correct. In a publication of another capture or of the operator, a capture adds its
tables and changes nothing else. No capture removes a table that its patterns don't match: another
one may read it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import replace

import psycopg

from tidelog.errors import PreflightError
from tidelog.model.schema import TableName, double_quoted
from tidelog.ports import LeftOutColumns, UnsupportedReason
from tidelog.sources.postgres.catalogue.identity import (
    GENERATED_VERSION,
    IdentityTrouble,
    identities,
    not_owned,
    publishing_refused,
)
from tidelog.sources.postgres.catalogue.metadata_tables import (
    SIGNAL_COLUMNS,
    create_signal_table,
    prepare_watermark_table,
    signal_columns,
)
from tidelog.sources.postgres.catalogue.publication_plan import (
    PublicationPlanner,
    PublicationStep,
    PublicationView,
    PublishedTable,
    managed_for,
    members_of,
    publications_now,
)
from tidelog.sources.postgres.catalogue.storage import FIRST_USER_OID
from tidelog.sources.postgres.catalogue.tables import matching_tables
from tidelog.sources.postgres.chunks.watermarks import WATERMARK_TABLE, Strategy
from tidelog.sources.postgres.connect import Connection, quote_literal
from tidelog.sources.postgres.errors import translate_errors

_NAMESPACES_SINCE = 150_000

_SUM = "(SELECT coalesce(sum(pg_catalog.hash_record_extended(ROW({columns}), 0)), 0) FROM {rows})"

_PUBLICATIONS = """
SELECT p.oid::text, p.pubname, pg_catalog.obj_description(p.oid, 'pg_publication'),
  pg_catalog.pg_has_role(p.pubowner, 'USAGE'), p.puballtables, p.pubviaroot, p.pubinsert,
  p.pubupdate, p.pubdelete, p.pubtruncate, to_jsonb(p) ->> 'pubgencols'
FROM pg_catalog.pg_publication p WHERE p.pubname = ANY (%s) ORDER BY 1
"""
# Without temporary tables, which are often created and dropped, and TOAST tables.
_LASTING = f"c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND c.oid >= {FIRST_USER_OID}"
_IDENTIFYING = (
    "pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indrelid "
    f"AND (i.indisprimary OR i.indisreplident) AND {_LASTING}"
)
# (columns, rows); a table's columns matter only if they are generated or identify rows.
_READ = (
    ("r.prpubid, r.prrelid, {filtered}, {listed}", "pg_catalog.pg_publication_rel r"),
    (
        "n.oid, n.nspname, pg_catalog.has_schema_privilege(n.oid, 'USAGE')",
        "pg_catalog.pg_namespace n WHERE n.nspname !~ '^pg_'",
    ),
    (
        "c.oid, c.relname, c.relnamespace, c.relkind, c.relpersistence, c.relispartition, "
        "c.relreplident, c.relowner, pg_catalog.pg_has_role(c.relowner, 'USAGE')",
        f"pg_catalog.pg_class c WHERE {_LASTING}",
    ),
    ("i.inhrelid, i.inhparent", "pg_catalog.pg_inherits i"),
    (
        "i.indexrelid, i.indrelid, i.indisprimary, i.indisreplident, i.indisvalid, "
        "i.indimmediate, i.indnkeyatts, i.indkey::text",
        _IDENTIFYING,
    ),
    (
        "a.attrelid, a.attnum, a.attname",
        f"{_IDENTIFYING} JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid "
        "AND a.attnum = ANY (i.indkey)",
    ),
    (
        "a.attrelid, a.attnum, a.attname, a.attgenerated, a.attisdropped",
        "pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid "
        f"AND a.attnum > 0 AND a.attgenerated <> '' AND {_LASTING}",
    ),
)
_OF_NAMESPACES = ("s.pnpubid, s.pnnspid", "pg_catalog.pg_publication_namespace s")


def inputs(connection: Connection, names: Sequence[str]) -> str:
    """A text that changes with everything that affects the publications of these names: their
    tables, and the rights of the role.
    """
    since_15 = connection.info.server_version >= _NAMESPACES_SINCE
    filtered = "r.prqual IS NOT NULL" if since_15 else "false"
    listed = "r.prattrs IS NOT NULL" if since_15 else "false"
    read = [*_READ, _OF_NAMESPACES] if since_15 else _READ
    sums = ", ".join(
        _SUM.format(columns=columns.format(filtered=filtered, listed=listed), rows=rows)
        for columns, rows in read
    )
    with connection.transaction():
        connection.execute(b"SET LOCAL jit = off")  # compiling takes longer than running
        publications = connection.execute(_PUBLICATIONS.encode(), (list(names),)).fetchall()
        row = connection.execute(
            "SELECT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE'), "
            f"concat_ws(' ', {sums})".encode()
        ).fetchone()
    return repr((publications, row))


__all__ = ["Publications", "PublishedTable"]

logger = logging.getLogger(__name__)

FULL_CHECK_S = 600.0
"""Seconds between complete checks, even if no input has changed."""

_TABLES = """
SELECT n.nspname, c.relname, c.oid::int8, c.relkind = 'p',
  pg_catalog.pg_has_role(c.relowner, 'USAGE'),
  (SELECT coalesce(json_object_agg(a.attname, a.attgenerated ORDER BY a.attnum), '{}')
   FROM pg_catalog.pg_attribute a
   WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> '')
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
  AND n.nspname = ANY (%s)
"""


class Publications:
    """Keeps both publications in line with the table patterns. Thread-safe; has no connection of
    its own.

    Args:
        name: the publication; the second one is called ``<name>_inserts``.
        patterns: patterns of the tables to capture.
        watermark_schema: schema of the watermark table, which is also published.
        strategy: ``table`` needs a watermark table; with ``snapshot`` nothing is ever created or
            altered.
        signal_table: ``schema.name`` of the table whose inserted rows are commands.
        slot: the slot of the capture that owns the publications; None: any owner.
        exclude_columns: patterns of columns that nobody wants.
    """

    def __init__(
        self,
        name: str,
        patterns: Sequence[str],
        watermark_schema: str = "tidelog",
        *,
        strategy: Strategy = "table",
        signal_table: str | None = None,
        slot: str | None = None,
        exclude_columns: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.inserts_name = f"{name[:55]}_inserts"
        self.patterns = tuple(patterns)
        self.watermark = TableName(watermark_schema, WATERMARK_TABLE)
        self.strategy = strategy
        self.signals = None if signal_table is None else TableName.parse(signal_table)
        self.slot = slot
        self._exclude_columns = tuple(exclude_columns)
        self.refused: dict[TableName, UnsupportedReason] = {}
        self.inserts_only: dict[TableName, UnsupportedReason] = {}
        self.left_out_columns: dict[TableName, LeftOutColumns] = {}
        self._lock = threading.Lock()
        self._unreported: list[TableName] = []  # newly published, not yet returned by `sync`
        self._lossy: set[TableName] = set()  # not published correctly at the last check
        self._warned: set[str] = set()
        self._settled: object = None  # the inputs of the last check that left nothing to retry
        self._settled_at = 0.0
        self._refused_then: dict[TableName, UnsupportedReason] = {}

    @property
    def names(self) -> list[str]:
        return [self.name, self.inserts_name]

    # ------------------------------------------------------------------ reading

    def captured(self, connection: Connection) -> list[PublishedTable]:
        """The tables of the catalogue that match now, sorted."""
        return list(self.planner(connection).view.captured)

    def planner(self, connection: Connection) -> PublicationPlanner:
        """The current state and the steps to do, by a few queries for any number of tables."""
        publications = publications_now(connection, self.names)
        captured = matching_tables(
            connection, self.patterns, ["information_schema", self.watermark.namespace]
        )
        captured = [name for name in captured if name != self.signals]
        own = [self.watermark] if self.strategy == "table" else []
        own += [self.signals] if self.signals else []
        held: set[TableName] = set().union(*(state.members for state in publications.values()))
        tables = self._published_tables(
            connection,
            {*captured, *own, *held},
            bool(publications) and all(state.generated for state in publications.values()),
        )
        row = connection.execute(
            b"SELECT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')"
        ).fetchone()
        assert row is not None
        view = PublicationView(
            publications=publications,
            own=[tables[name] for name in own if name in tables],
            captured=[tables[name] for name in captured if name in tables],
            others=[tables[name] for name in sorted(held - {*captured, *own}) if name in tables],
            may_create=row[0],
            logs_generated=connection.info.server_version >= GENERATED_VERSION,
        )
        return PublicationPlanner(
            view, self.name, self.inserts_name, self.slot, self._exclude_columns
        )

    def members(self, connection: Connection) -> dict[str, set[TableName]]:
        """Tables by publication; only publications that exist."""
        return members_of(connection, self.names)

    def exist(self, connection: Connection) -> bool:
        return len(self.members(connection)) == len(self.names)

    def _published_tables(
        self, connection: Connection, names: Collection[TableName], generated: bool
    ) -> dict[TableName, PublishedTable]:
        """The existing tables among these names; partitions are left out, as they belong to their
        roots.
        """
        namespaces = sorted({name.namespace for name in names})
        rows = connection.execute(_TABLES.encode(), (namespaces,)).fetchall()
        rows = [row for row in rows if TableName(row[0], row[1]) in names]
        known = identities(
            connection,
            [row[2] for row in rows],
            generated=generated,
            exclude_columns=self._exclude_columns,
        )
        return {
            TableName(namespace, name): PublishedTable(
                TableName(namespace, name),
                oid,
                partitioned,
                owned,
                tuple(column for column, kind in generated_columns.items() if kind == "s"),
                tuple(column for column, kind in generated_columns.items() if kind == "v"),
                known[oid],
            )
            for namespace, name, oid, partitioned, owned, generated_columns in rows
            if oid in known
        }

    # ------------------------------------------------------------------ changing

    def sync(
        self, connection: Connection, *, strict: bool = False, report: bool = True
    ) -> list[TableName]:
        """Create missing publications, add tables, and fix the publications that this capture owns.

        Returns the captured tables whose changes were not all published until now: new tables, and
        tables that were fixed. Steps that this capture may not do are logged once, with their SQL;
        with strategy ``snapshot`` these are all steps. Afterwards `refused` has the tables that
        can't be published, `inserts_only` the tables of which only inserts can be or are, and
        `left_out_columns` the columns that the log lacks.

        Args:
            connection: a connection with autocommit.
            strict: raise PreflightError if the watermark table or all captured tables are refused;
                with strategy ``snapshot``, for anything that is not correct.
            report: True to return the tables now; False: the next call returns them.

        Raises PreflightError if the user lacks a right, SourceError if a lock was not available.
        """
        self.refused = {}
        self._require_signal_table(connection)
        with self._lock:
            if self.strategy == "table":
                with translate_errors(f"preparing {self.watermark}"):
                    refusal = prepare_watermark_table(connection, self.watermark, strict)
                if refusal is not None:
                    self.refused[self.watermark] = refusal
            with translate_errors(f"reading publication {self.name!r}"):
                decides = inputs(connection, self.names), dict(self.refused)
            if strict or not self._is_unchanged(decides):
                self._update(connection, decides, strict)
            tables = list(dict.fromkeys(self._unreported))
            if report:
                self._unreported.clear()
            return tables

    def _is_unchanged(self, decides: object) -> bool:
        """Return True if a check would have the same result as the last one."""
        if decides != self._settled or time.monotonic() > self._settled_at + FULL_CHECK_S:
            return False
        self.refused = {**self._refused_then, **self.refused}
        return True

    def _update(self, connection: Connection, decides: object, strict: bool) -> None:
        self._settled, self._settled_at = None, time.monotonic()
        if self.strategy == "snapshot":
            with translate_errors(f"reading publication {self.name!r}"):
                planner = self.planner(connection)
                self._note_problems(planner)
                steps = planner.steps()
                if any(step.kind == "create" for step in steps):
                    raise self._left_error(steps)
                self._report_left(steps, strict)
            all_run = True
        else:
            all_run = self._change(connection, strict)
        if all_run:  # a step refused now may succeed soon, which no catalogue row shows
            self._settled, self._refused_then = decides, dict(self.refused)

    def _change(self, connection: Connection, strict: bool) -> bool:
        """Run the automatic steps; True if the server accepted all of them."""
        all_run = True
        with translate_errors(f"preparing publication {self.name!r} and {self.watermark}"):
            planner = self.planner(connection)
            self._claim(connection, planner.view)
            steps = planner.steps(automatic=True)
            for step in steps:
                if self._run_step(connection, step, planner.view):
                    if step.kind == "fix":
                        logger.warning("%s: fixed", step.why)
                    self._unreported += step.lost
                else:
                    all_run = False
            if steps:
                planner = self.planner(connection)
            self._note_problems(planner)
            left = planner.steps()
            if any(step.kind == "create" for step in left):
                raise self._left_error(left)  # nothing could be captured
            self._note_refused(connection, left, planner.view)
            if strict:
                self._require_any(planner.view)
            self._report_left(left, strict=False)
        return all_run

    def _run_step(
        self, connection: Connection, step: PublicationStep, view: PublicationView
    ) -> bool:
        """Run the step; False if the server refuses it for this table, now in `refused`."""
        try:
            with connection.transaction():
                for statement in step.statements:
                    connection.execute(statement.encode())
        except psycopg.Error as error:
            table = view.by_name.get(step.table)
            if table is None:
                raise
            name = step.publications[0]
            refusal = publishing_refused(connection, error, table.relation_id, name)
            if refusal is None:
                raise
            self._add_refused(table.table, refusal)
            return False
        return True

    def _note_refused(
        self, connection: Connection, left: Sequence[PublicationStep], view: PublicationView
    ) -> None:
        """Add to `refused` the tables that are not published and that this capture may
        not publish.
        """
        tables = view.by_name
        found = [(step, tables[step.table]) for step in left if step.table in tables]
        found = [
            (step, table)
            for step, table in found
            if step.kind == "add" and table.table not in self.refused
        ]
        wanted = {table.relation_id: step.publications[0] for step, table in found}
        why = not_owned(connection, wanted) if wanted else {}
        for step, table in found:
            stated = UnsupportedReason(step.why, " ".join(step.statements))
            self._add_refused(table.table, why.get(table.relation_id) or stated)

    def _note_problems(self, planner: PublicationPlanner) -> None:
        self.inserts_only = {
            table: UnsupportedReason(trouble.why, trouble.remedy)
            for table, trouble in _identity_problems(planner.view).items()
        }
        self.left_out_columns = planner.left_out_columns()

    def _add_refused(self, table: TableName, refusal: UnsupportedReason) -> None:
        self.refused[table] = replace(refusal, all_dumps=table == self.watermark)

    def _require_any(self, view: PublicationView) -> None:
        wanted = [table.table for table in [*view.own, *view.captured]]
        none = wanted and all(table in self.refused for table in wanted)
        for table in self.refused if none else [t for t in self.refused if t == self.watermark]:
            refusal = self.refused[table]
            raise PreflightError(f"{table}: {refusal.reason}: {refusal.remedy}")

    def _report_left(self, steps: Sequence[PublicationStep], strict: bool) -> None:
        """Log the steps left to others; tables that others have fixed since are
        reported by `sync`.
        """
        harmful = [step for step in steps if step.table is not None or step.lost]
        if strict and harmful:
            raise self._left_error(harmful)
        lossy = {table for step in steps for table in step.lost}
        self._unreported += sorted(self._lossy - lossy)
        self._lossy = lossy
        for step in steps:
            what = " ".join(step.statements)
            self._warn_once(f"{step.why}; this capture may not change it: {what}")
            if step.table is not None and step.kind == "fix":
                why = step.why.removeprefix(f"{step.table}: ")
                self.inserts_only |= {table: UnsupportedReason(why, what) for table in step.lost}

    def _warn_once(self, message: str) -> None:
        """Log a message once for each capture, as checks are frequent."""
        if message not in self._warned:
            self._warned.add(message)
            logger.warning("%s", message)

    def _left_error(self, steps: Sequence[PublicationStep]) -> PreflightError:
        missing = " ".join(sql for step in steps for sql in step.statements)
        if self.strategy == "snapshot":
            return PreflightError(
                "not everything is published correctly, and with source.watermarks: snapshot "
                f"Tidelog changes nothing in the source: let the owner run: {missing}"
            )
        return PreflightError(
            f"{steps[0].why}, and this capture may not change it: let a superuser, or the owner "
            f"of both table and publication, run: {missing}"
        )

    def _claim(self, connection: Connection, view: PublicationView) -> None:
        """Set the owner's slot in the comments of publications that were created without one."""
        if self.slot is None:
            return
        for name, state in view.publications.items():
            if state.slot == "" and state.alterable:
                connection.execute(
                    f"COMMENT ON PUBLICATION {double_quoted(name)} IS "
                    f"{quote_literal(managed_for(self.slot))}".encode()
                )
            elif state.slot and state.slot != self.slot:
                self._warn_once(foreign_warning(name, state.slot))

    def _require_signal_table(self, connection: Connection) -> None:
        if self.signals is None:
            return
        with translate_errors(f"looking up {self.signals}"):
            columns = signal_columns(connection, self.signals)
        if not set(SIGNAL_COLUMNS) <= columns:
            raise PreflightError(
                f"signal table {self.signals} does not exist or lacks columns: "
                f"{create_signal_table(self.signals)}"
            )


def _identity_problems(view: PublicationView) -> dict[TableName, IdentityTrouble]:
    return {
        table.table: table.identity.trouble
        for table in view.captured
        if table.identity.trouble is not None
    }


def foreign_warning(name: str, slot: str) -> str:
    """The warning about a publication that another capture owns."""
    return (
        f"publication {name} belongs to the capture of slot {slot}: this one adds its tables to it "
        "and changes nothing else there; give each capture a publication of its own "
        "(source.publication)"
    )
