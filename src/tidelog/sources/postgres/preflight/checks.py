"""Runs `tidelog check` for a PostgreSQL source; every failure comes with its fix.

It changes nothing: all of it runs in one read-only transaction.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple

from psycopg.conninfo import conninfo_to_dict

from tidelog.codecs.postgres.pgoutput import lsn_text
from tidelog.errors import ConfigError, PreflightError, TidelogError
from tidelog.model.patterns import EXCLUDE
from tidelog.model.schema import TableName, double_quoted
from tidelog.sources.findings import (
    SPARE_CONNECTIONS,
    SUPERUSER,
    Finding,
    Level,
    connections_finding,
)
from tidelog.sources.postgres.catalogue import ddl_trigger
from tidelog.sources.postgres.catalogue.publication import Publications
from tidelog.sources.postgres.catalogue.schemas import PostgresSchemaFinder
from tidelog.sources.postgres.connect import Connection, connect, quote_literal
from tidelog.sources.postgres.errors import translate_errors
from tidelog.sources.postgres.preflight.tables import (
    PostgresTableChecks,
    PublicationChecks,
    one_row,
    setting_of,
)
from tidelog.sources.postgres.stream.replication import ReplicationStream
from tidelog.sources.postgres.stream.server import MIN_VERSION
from tidelog.sources.postgres.stream.slots import SlotOwner, find_slot, reader_of
from tidelog.sources.postgres.stream.standby import standby_findings

# What a role needs that the server refused.

_NAMED = re.compile(r'(?:[^!"*.][^*.]*\.(?:\*|[^*.]+)|"(?:[^"]|"")+"\.(?:\*|[^*]+))')
"""A pattern of one table, or of all tables of one schema."""


def refused_connection(
    error: TidelogError, dsn: str, *, tables: Sequence[str], watermark_schema: str | None
) -> Finding:
    """The finding for a connection that failed, with SQL if a statement can help; if the role may
    be missing, with the SQL that creates it, for a person to review.

    Args:
        error: of the connection.
        dsn: the server, the user and the database.
        tables: patterns of the tables to capture.
        watermark_schema: schema of the watermark table; None: capture writes none.
    """
    refused = error.refused if isinstance(error, ConfigError) else ""
    parameters = conninfo_to_dict(dsn) if refused else {}
    user = str(parameters.get("user") or "")
    database = double_quoted(str(parameters.get("dbname") or user))
    role = double_quoted(user)
    fixes = {
        "blocked": f"ALTER ROLE {role} LOGIN;",
        "database": f"GRANT CONNECT ON DATABASE {database} TO {role};",
        "login": "\n".join(_create_role(role, database, tables, watermark_schema)),
    }
    fix = fixes.get(refused, "") if user else ""
    by_hand = refused == "login"
    return Finding(
        "connection", "error", str(error), fix, SUPERUSER if fix else "", by_hand=by_hand
    )


def _create_role(
    role: str, database: str, tables: Sequence[str], watermark_schema: str | None
) -> Iterator[str]:
    """The statements; those for tables whose names are not known come with the next check."""
    yield "-- if there is no such role, with a password of yours in place of (...):"
    yield f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD '(...)';"
    yield f"GRANT CONNECT ON DATABASE {database} TO {role};"
    excluding = any(pattern.startswith(EXCLUDE) for pattern in tables)
    schemas = set()
    for pattern in tables:
        if not _NAMED.fullmatch(pattern):
            continue
        schema, table = astuple(TableName.parse(pattern))
        if table == "*" and excluding:
            continue
        if schema not in schemas:
            schemas.add(schema)
            yield f"GRANT USAGE ON SCHEMA {double_quoted(schema)} TO {role};"
        name = double_quoted(schema, table)
        what = f"ALL TABLES IN SCHEMA {double_quoted(schema)}" if table == "*" else name
        yield f"GRANT SELECT ON {what} TO {role};"
    if watermark_schema is not None:
        schema = double_quoted(watermark_schema)
        yield f"CREATE SCHEMA IF NOT EXISTS {schema};"
        yield f"GRANT CREATE, USAGE ON SCHEMA {schema} TO {role};"
    yield "-- then run tidelog check again: it prints what is still missing"


# Checks of the source.

# By the element's type, for arrays. A regclass is stored as an oid and written as a name.
_NAMING = """
SELECT a.attrelid::int8, string_agg(a.attname, ', ' ORDER BY a.attnum)
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
JOIN pg_catalog.pg_type e ON e.oid = coalesce(nullif(t.typelem, 0), t.oid)
JOIN pg_catalog.pg_namespace n ON n.oid = e.typnamespace AND n.nspname = 'pg_catalog'
WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
  AND (e.typname LIKE 'reg%%' OR e.typname = 'aclitem')
GROUP BY 1
"""


def naming_columns(connection: Connection, publications: Publications) -> Iterator[Finding]:
    """Report captured tables with columns of ``regclass`` and similar types."""
    tables = {table.relation_id: table.table for table in publications.captured(connection)}
    rows = connection.execute(_NAMING.encode(), (list(tables),)).fetchall()
    for relation_id, columns in sorted(rows):
        yield Finding(
            f"table {tables[relation_id]}",
            "warning",
            f"values of {columns} are names of other objects: when one is renamed, the copies of "
            "rows that were read before keep the old name, and nothing reports it",
            "after a rename dump the table again, or store the name as text",
        )


def superuser_reads_others(connection: Connection, publications: Publications) -> Iterator[Finding]:
    """Report a superuser role that reads other owners' tables.

    To plan a SELECT the server runs functions of the table's indexes with the reader's rights; SET
    ROLE would not help, as such a function may undo it.
    """
    tables = [table.relation_id for table in publications.captured(connection)]
    count, owner = one_row(
        connection,
        "SELECT count(*), min(o.rolname) FROM pg_catalog.pg_class c "
        "JOIN pg_catalog.pg_roles o ON o.oid = c.relowner "
        "WHERE c.oid = ANY (%s::oid[]) AND NOT o.rolsuper AND EXISTS "
        "(SELECT FROM pg_catalog.pg_roles u WHERE u.rolname = current_user AND u.rolsuper)",
        (tables,),
    )
    if count:
        yield Finding(
            "role",
            "warning",
            f"capture's role is a superuser, and {count} captured tables have other owners "
            f"(e.g. {owner}): to read a table the server may run functions of its owner, with "
            "capture's rights",
            "give capture a role of its own with REPLICATION and SELECT (the page on PostgreSQL "
            "has the SQL)",
        )


TESTED_VERSIONS = (15, 16, 18)
CLOCK_SKEW_LIMIT_S = 5.0
RETAINED_LIMIT_BYTES = 10 << 30
LEAST_CONNECTIONS = 5
"""With one connection fewer, a dump reads nothing."""
DECODING_MEMORY_BYTES = 256 << 20


# The minor release of each major one from which a newly published table loses no changes of
# transactions that were open then (PostgreSQL 18 has it from the start); see ADR 6.
_PUBLICATION_FIX = {14: 18, 15: 13, 16: 9, 17: 5}


class PostgresPreflight:
    """Checks a source. Args as `PostgresLogReader`'s, and ``owner``: the slot's owner, which knows
    its event log's generation, or that there is none yet; None: the slot's owner is not checked.
    ``needs_slot``: the event log has a position, from which only the slot keeps the changes.
    """

    def __init__(
        self,
        dsn: str,
        publications: Publications,
        *,
        slot: str,
        needs_slot: bool = False,
        finder: PostgresSchemaFinder,
        owner: SlotOwner | None = None,
    ) -> None:
        self._dsn = dsn
        self._owner = owner
        self._slot = slot
        self._needs_slot = needs_slot
        self._publications = publications
        self._published = PublicationChecks(publications)
        self._tables = PostgresTableChecks(publications, finder)

    def check(self) -> list[Finding]:
        """All findings, each after those that it depends on. Never raises for what it checks; if
        the connection fails, that is the only finding.
        """
        try:
            connection = connect(self._dsn, purpose="check", autocommit=False)
        except TidelogError as error:
            publications = self._publications
            writes = publications.strategy == "table"
            return [
                refused_connection(
                    error,
                    self._dsn,
                    tables=publications.patterns,
                    watermark_schema=publications.watermark.namespace if writes else None,
                )
            ]
        findings = [Finding("connection", "ok", "the server accepts the connection")]
        with connection:
            connection.read_only = True
            for part in self._checks():
                findings += self._run(connection, part)
        return findings

    def _checks(self) -> list[Callable[[Connection], Iterator[Finding]]]:
        return [
            self._version,
            self._wal_level,
            self._standby,
            self._replication,
            self._capacity,
            self._connections,
            self._clock,
            self._published.watermark_table,
            self._published.signal_table,
            self._tables.tables,
            self._published.publications,
            self._published.identities,
            self._published.left_out_columns,
            self._tables.unlogged,
            self._naming_columns,
            self._rights,
            self._event_trigger,
            self._slot_state,
            self._retention,
            self._decoding_memory,
        ]

    def _run(
        self, connection: Connection, part: Callable[[Connection], Iterator[Finding]]
    ) -> list[Finding]:
        name = part.__name__.strip("_").replace("_", " ")
        try:
            with translate_errors(f"checking {name}"), connection.transaction():
                return list(part(connection))
        except TidelogError as error:
            return [Finding(name, "error", str(error))]

    # ------------------------------------------------------------------ server

    def _version(self, connection: Connection) -> Iterator[Finding]:
        major = connection.info.server_version // 10_000
        if major < MIN_VERSION:
            yield Finding("version", "error", f"PostgreSQL {major}; {MIN_VERSION} is the oldest")
        elif major not in TESTED_VERSIONS:
            tested = ", ".join(str(version) for version in TESTED_VERSIONS)
            yield Finding("version", "warning", f"PostgreSQL {major}; {tested} are tested")
        else:
            yield Finding("version", "ok", f"PostgreSQL {major}")
        fixed = _PUBLICATION_FIX.get(major)
        if fixed is not None and connection.info.server_version % 10_000 < fixed:
            yield Finding(
                "minor version",
                "warning",
                f"PostgreSQL {major} before {major}.{fixed} may lose changes of a table that is "
                "published while transactions write to it",
                f"upgrade to {major}.{fixed}, or create tables before capture starts",
            )

    def _wal_level(self, connection: Connection) -> Iterator[Finding]:
        level = setting_of(connection, "wal_level")
        if level == "logical":
            yield Finding("wal_level", "ok", "wal_level is logical")
            return
        fix = "ALTER SYSTEM SET wal_level = 'logical'; -- then restart the server"
        yield Finding("wal_level", "error", f"wal_level is {level}", fix, SUPERUSER)

    def _standby(self, connection: Connection) -> Iterator[Finding]:
        for level, message, fix in standby_findings(connection, self._publications.strategy):
            # A warning's fix is a statement for the primary, then one for this server.
            role = SUPERUSER if "ALTER SYSTEM" in fix else ""
            yield Finding("standby", level, message, fix, role, by_hand=level == "warning")

    def _replication(self, connection: Connection) -> Iterator[Finding]:
        """Try to stream instead of reading pg_roles: pg_hba.conf decides too."""
        user = double_quoted(connection.info.user)
        try:
            ReplicationStream(self._dsn, purpose="check").close()
        except TidelogError as error:
            # Without a free WAL sender the role may still have the right: `_capacity` has the SQL.
            refused = isinstance(error, PreflightError)
            fix = f"ALTER ROLE {user} REPLICATION;" if refused else ""
            yield Finding("replication", "error", str(error), fix, SUPERUSER if fix else "")
            return
        yield Finding("replication", "ok", f"{user} may stream the log")

    def _capacity(self, connection: Connection) -> Iterator[Finding]:
        row = one_row(
            connection,
            "SELECT (SELECT count(*) FROM pg_replication_slots), "
            "(SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s), "
            "(SELECT count(*) FROM pg_stat_replication), "
            "(SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s AND active)",
            (self._slot, self._slot),
        )
        used, ours, senders, our_senders = row
        for name, setting, taken, have in (
            ("slots", "max_replication_slots", used, ours),
            ("senders", "max_wal_senders", senders, our_senders),
        ):
            most = int(setting_of(connection, setting))
            if most - taken < 1 and not have:
                fix = f"ALTER SYSTEM SET {setting} = {most + 5}; -- then restart the server"
                yield Finding(name, "error", f"all {most} of {setting} are in use", fix, SUPERUSER)
            else:
                yield Finding(name, "ok", f"{taken} of {most} ({setting}) are in use")

    def _connections(self, connection: Connection) -> Iterator[Finding]:
        superuser, of_role, of_database = one_row(
            connection,
            "SELECT rolsuper, rolconnlimit, datconnlimit FROM pg_roles, pg_database "
            "WHERE rolname = session_user AND datname = current_database()",
        )
        limits = [] if superuser else [each for each in (of_role, of_database) if each >= 0]
        enough = LEAST_CONNECTIONS + SPARE_CONNECTIONS
        user, database = map(double_quoted, (connection.info.user, connection.info.dbname))
        fixes = [
            f"ALTER {what} CONNECTION LIMIT {enough};"
            for what, limit in ((f"ROLE {user}", of_role), (f"DATABASE {database}", of_database))
            if 0 <= limit < enough
        ]
        yield connections_finding(
            min(limits, default=-1), LEAST_CONNECTIONS, " ".join(fixes), SUPERUSER
        )

    def _clock(self, connection: Connection) -> Iterator[Finding]:
        before = time.time()
        (server,) = one_row(connection, "SELECT extract(epoch FROM clock_timestamp())::float8")
        skew = server - (before + time.time()) / 2
        text = f"the server's clock differs from ours by {skew:+.2f} s"
        level: Level = "ok" if abs(skew) < CLOCK_SKEW_LIMIT_S else "warning"
        fix = "" if level == "ok" else "synchronise both hosts (NTP): latency is shown wrong"
        yield Finding("clock", level, text, fix)

    def _naming_columns(self, connection: Connection) -> Iterator[Finding]:
        yield from naming_columns(connection, self._publications)

    def _rights(self, connection: Connection) -> Iterator[Finding]:
        yield from superuser_reads_others(connection, self._publications)

    def _event_trigger(self, connection: Connection) -> Iterator[Finding]:
        if self._publications.strategy != "snapshot":  # else others publish
            yield from ddl_trigger.findings(connection, self._publications)

    # ------------------------------------------------------------------ slot

    def _slot_state(self, connection: Connection) -> Iterator[Finding]:
        state = find_slot(connection, self._slot)
        if state is None:
            if self._needs_slot:
                text = f"{self._slot} does not exist any more, and changes were lost"
                yield Finding("slot", "error", text, "tidelog reset CONFIG")
                return
            yield Finding("slot", "ok", f"{self._slot} will be created at the first start")
            return
        another = "name another one in source.slot"
        if state.kind != "logical" or state.plugin != "pgoutput" or state.two_phase:
            text = f"{self._slot} exists and is not a pgoutput slot without two_phase"
            yield Finding("slot", "error", f"{text}: another program's", another)
        elif state.database != connection.info.dbname:
            text = f"{self._slot} belongs to database {state.database}"
            yield Finding("slot", "error", text, another)
        elif (ownership := self._ownership_finding(connection)) is not None:
            yield ownership
        elif state.lost is not None:
            yield self._lost_finding(state.lost)
        else:
            level: Level = "warning" if state.retained_bytes > RETAINED_LIMIT_BYTES else "ok"
            active = "being read" if state.active_pid else "not being read"
            text = (
                f"{self._slot} is {active}, confirmed up to {lsn_text(state.confirmed)}, and keeps "
                f"{state.retained_bytes / 2**20:,.0f} MiB of WAL"
            )
            fix = "start the capture, or drop the slot" if level == "warning" else ""
            yield Finding("slot", level, text, fix)

    def _lost_finding(self, why: str) -> Finding:
        """The finding for a lost slot that is this capture's, or may be: its owner is not known."""
        text = f"{self._slot} is invalid: {why}; changes were lost"
        if self._owner is not None:
            return Finding("slot", "error", text, "tidelog reset CONFIG")
        drop = f"SELECT pg_drop_replication_slot({quote_literal(self._slot)});"
        fix = f"{drop} -- if it is this capture's; then a new event log and a new dump"
        return Finding("slot", "error", text, fix, by_hand=True)

    def _ownership_finding(self, connection: Connection) -> Finding | None:
        """Why capture won't use the slot: it serves another event log, or may."""
        if self._owner is None:
            return None
        reader = reader_of(connection, self._slot)
        try:
            self._owner.require(reader)
            if self._owner.generation is None:
                raise self._owner.refuse_new(reader)
        except PreflightError as error:
            fix = "source.slot: another_name  # and source.publication, if it is set"
            return Finding("slot", "error", str(error), fix)
        return None

    def _retention(self, connection: Connection) -> Iterator[Finding]:
        kept = setting_of(connection, "max_slot_wal_keep_size")
        if kept == "-1":
            text = "max_slot_wal_keep_size is unlimited: a stopped capture can fill the disk"
            fix = "ALTER SYSTEM SET max_slot_wal_keep_size = '100GB'; SELECT pg_reload_conf();"
            yield Finding("disk", "warning", text, fix, SUPERUSER, by_hand=True)
        else:
            text = f"a stopped capture loses its position after {kept} of WAL"
            yield Finding("disk", "ok", text)

    def _decoding_memory(self, connection: Connection) -> Iterator[Finding]:
        (kib,) = one_row(
            connection,
            "SELECT setting::int8 FROM pg_settings WHERE name = 'logical_decoding_work_mem'",
        )
        text = f"logical_decoding_work_mem is {kib // 1024} MiB"
        if kib * 1024 >= DECODING_MEMORY_BYTES:
            yield Finding("decoding memory", "ok", text)
            return
        fix = "ALTER SYSTEM SET logical_decoding_work_mem = '256MB'; SELECT pg_reload_conf();"
        yield Finding(
            "decoding memory",
            "warning",
            f"{text}: larger transactions spill to the server's disk",
            fix,
            SUPERUSER,
            by_hand=True,
        )
