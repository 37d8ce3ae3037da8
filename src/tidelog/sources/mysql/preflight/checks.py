"""Runs `tidelog check` for a MySQL or MariaDB source; every failure comes with its fix.

It changes nothing, and no transaction outlasts a statement.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import pymysql

from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.server_urls import parse_url
from tidelog.errors import ConfigError, TidelogError
from tidelog.model.dump_options import DumpMode
from tidelog.sources.findings import (
    ADMINISTRATOR,
    SPARE_CONNECTIONS,
    Finding,
    Level,
    connections_finding,
)
from tidelog.sources.mysql.connect import SESSION_FIX, Connection, connect, session_fault
from tidelog.sources.mysql.errors import translate_errors
from tidelog.sources.mysql.preflight.account import (
    Check,
    CheckContext,
    Grants,
    privilege_checks,
    read_grants,
    refused_connection,
    refused_database,
)
from tidelog.sources.mysql.preflight.binlog import binlog_checks
from tidelog.sources.mysql.preflight.tables import table_checks

OLDEST = {Flavor.MYSQL: (5, 7), Flavor.MARIADB: (10, 3)}
TESTED = {Flavor.MYSQL: ((8, 0), (9, 7)), Flavor.MARIADB: ((10, 11), (11, 4))}
CLOCK_SKEW_LIMIT_S = 5.0
LEAST_CONNECTIONS = 6
"""With one connection fewer, a dump reads nothing."""
SETTINGS = {"lock_wait_timeout": "2"}


class MySqlPreflight:
    """Checks a source.

    Args:
        url: the server, with the password.
        server_id: the id with which capture will read the binlog.
        kind: the kind of server that the configuration expects.
        tables: patterns of the tables to capture.
        watermark_schema: database of the watermark table.
        strategy: ``source.watermarks``.
        signal_table: ``database.table``.
        keys: surrogate keys by table pattern.
        exclude_columns: see `MySqlSchemaFinder`.
        cascades: ``dump`` or ``accept`` allows foreign keys that cascade.
        snapshot_mode: the mode of the dump at start.
    """

    def __init__(
        self,
        url: str,
        *,
        server_id: int,
        kind: Flavor,
        tables: Sequence[str] = ("*.*",),
        watermark_schema: str = "tidelog",
        strategy: Literal["table", "gtid"] = "table",
        signal_table: str | None = None,
        keys: Mapping[str, Sequence[str]] | None = None,
        exclude_columns: Sequence[str] = (),
        cascades: Literal["refuse", "dump", "accept"] = "refuse",
        snapshot_mode: DumpMode = "incremental",
    ) -> None:
        self._url = url
        self._server_id = server_id
        self._kind = kind
        self._tables = tuple(tables)
        self._watermark_schema = watermark_schema
        self._strategy = strategy
        self._signal_table = signal_table
        self._keys = keys or {}
        self._exclude_columns = exclude_columns
        self._cascades = cascades
        self._snapshot_mode = snapshot_mode

    def check(self) -> list[Finding]:
        """All findings, each after those that it depends on.

        Never raises for what it checks; if the connection fails, that is the only finding. If it
        fails at the URL's database alone, the others are those of a connection without it.
        """
        findings = [Finding("connection", "ok", "the server accepts the connection")]
        refusal: TidelogError | None = None
        try:
            connection = self._connect()
        except TidelogError as error:
            refusal = error
            if not isinstance(error, ConfigError) or "database" not in error.refused:
                return [self._refused_connection(error)]
            try:
                connection = self._connect(database="")
            except TidelogError as other:
                return [self._refused_connection(other)]
        with connection:
            if refusal is not None:
                findings = [self._refused_database(connection, refusal)]
            try:
                with translate_errors("reading the server's variables"):
                    rows = connection.rows("SHOW GLOBAL VARIABLES")
            except TidelogError as error:
                return [*findings, Finding("variables", "error", str(error))]
            context = CheckContext(
                url=self._url,
                connection=connection,
                variables={str(name).lower(): str(value) for name, value in rows},
                server_id=self._server_id,
                kind=self._kind,
                tables=self._tables,
                watermark_schema=self._watermark_schema,
                strategy=self._strategy,
                signal_table=self._signal_table,
                keys=self._keys,
                exclude_columns=self._exclude_columns,
                cascades=self._cascades,
                snapshot_mode=self._snapshot_mode,
                database_is_refused=refusal is not None,
            )
            checks: list[Check] = [_replica, _sessions, _connections, _clock, *privilege_checks()]
            for part in (_version, *binlog_checks(), *checks, *table_checks()):
                findings += _run(context, part)
        return findings

    def _connect(self, *, database: str | None = None) -> Connection:
        return connect(
            self._url, purpose="check", settings=SETTINGS, verify=False, database=database
        )

    def _refused_connection(self, error: TidelogError) -> Finding:
        schema = self._watermark_schema if self._strategy == "table" else None
        url = parse_url(self._url)
        return refused_connection(error, url, tables=self._tables, watermark_schema=schema)

    def _refused_database(self, connection: Connection, error: TidelogError) -> Finding:
        database = parse_url(self._url).database
        exists = not isinstance(error, ConfigError) or error.refused == "database"
        grants = read_grants(Grants.of(connection), database, self._tables) if exists else []
        return refused_database(error, "\n".join(grants))


def _run(context: CheckContext, part: Check) -> list[Finding]:
    name = part.__name__.strip("_").replace("_", " ")
    found: list[Finding] = []
    try:
        with translate_errors(f"checking {name}"):
            # One by one: findings before an error are kept.
            for finding in part(context):
                found.append(finding)
    except TidelogError as error:
        found.append(Finding(name, "error", str(error)))
    return found


def _version(context: CheckContext) -> Iterator[Finding]:
    connection, flavor = context.connection, context.connection.flavor
    text = f"{flavor.product} {'.'.join(map(str, connection.version))}"
    if flavor is not context.kind:
        fix = f"source.kind: {flavor.value}"
        yield Finding("kind", "error", f"the server is {text}, not {context.kind.value}", fix)
    oldest = OLDEST[flavor]
    if connection.version < oldest:
        least = ".".join(map(str, oldest))
        yield Finding("version", "error", f"{text}; {least} is the oldest")
    elif connection.version[:2] not in TESTED[flavor]:
        tested = " and ".join(".".join(map(str, version)) for version in TESTED[flavor])
        yield Finding("version", "warning", f"{text}; {tested} are tested")
    else:
        yield Finding("version", "ok", text)


def _replica(context: CheckContext) -> Iterator[Finding]:
    """A replica's own binlog must hold what it replicates; it can't take watermarks."""
    connection = context.connection
    modern = context.mysql and connection.version >= (8, 0, 22)
    try:
        follows = bool(connection.rows("SHOW REPLICA STATUS" if modern else "SHOW SLAVE STATUS"))
    except pymysql.MySQLError:  # not granted: judge by the settings of a replica
        follows = context.on("read_only")
    variable = "log_replica_updates"
    if variable not in context.variables:
        variable = "log_slave_updates"
    if follows and not context.on(variable):
        fix = f"{variable} = ON  # in the server's configuration; then restart it"
        text = (
            f"the server is a replica, and {variable} is OFF: its binlog lacks the source's changes"
        )
        yield Finding("replica", "error", text, fix)
    elif follows:
        yield Finding("replica", "ok", "a replica that logs what it receives")
    read_only = next((v for v in ("super_read_only", "read_only") if context.on(v)), None)
    if read_only is not None and context.strategy == "table":
        text = f"{read_only} is ON: no watermarks can be written"
        fix = "source.watermarks: gtid"
        yield Finding("read only", "error", text, f"{fix}  # or let source.url lead to the primary")


def _sessions(context: CheckContext) -> Iterator[Finding]:
    """A new session must read committed rows, and its writes must be logged."""
    connection = context.connection
    fault = session_fault(connection)
    if fault is not None:
        yield Finding("sessions", "error", fault, SESSION_FIX)
    else:
        text = "sessions commit by themselves, read what is committed, and are logged"
        yield Finding("sessions", "ok", text)
    row = connection.row(
        "SELECT @@session.time_zone, @@global.time_zone, @@system_time_zone, @@character_set_client"
    )
    assert row is not None
    zone, server_zone, system_zone, charset = row
    shown = system_zone if str(server_zone).upper() == "SYSTEM" else server_zone
    if str(zone) != "+00:00":
        fix = "SET GLOBAL time_zone = '+00:00';  -- or take it out of init_connect"
        text = f"a new session's time zone is {zone}, not UTC"
        yield Finding("time zone", "error", text, fix, ADMINISTRATOR, by_hand=True)
    else:
        text = f"the server's is {shown}; sessions of Tidelog use UTC"
        yield Finding("time zone", "ok", text)
    if str(charset) != "utf8mb4":
        fix = "skip_character_set_client_handshake = OFF  # in the server's configuration"
        yield Finding("charset", "error", f"a new session's character set is {charset}", fix)
    else:
        server_charset = context.variables.get("character_set_server", "?")
        text = f"the server's is {server_charset}; sessions of Tidelog use utf8mb4"
        yield Finding("charset", "ok", text)


def _connections(context: CheckContext) -> Iterator[Finding]:
    """The session's value is the account's limit, or the server's limit for every account."""
    ((limit,),) = context.connection.rows("SELECT @@SESSION.max_user_connections")
    account = Grants.of(context.connection).account
    enough = LEAST_CONNECTIONS + SPARE_CONNECTIONS
    fix = f"ALTER USER {account} WITH MAX_USER_CONNECTIONS {enough};"
    yield connections_finding(int(limit), LEAST_CONNECTIONS, fix, ADMINISTRATOR)


def _clock(context: CheckContext) -> Iterator[Finding]:
    before = time.time()
    server = float(context.connection.value("SELECT UNIX_TIMESTAMP(SYSDATE(6))"))
    skew = server - (before + time.time()) / 2
    text = f"the server's clock differs from ours by {skew:+.2f} s"
    level: Level = "ok" if abs(skew) < CLOCK_SKEW_LIMIT_S else "warning"
    fix = "" if level == "ok" else "synchronise both hosts (NTP): latency is shown wrong"
    yield Finding("clock", level, text, fix)
