"""Runs `tidelog check` for a MySQL or MariaDB source; every failure comes with its fix.

It changes nothing, and no transaction outlasts a statement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

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
from tidelog.sources.mysql.preflight.tables import table_checks
from tidelog.sources.mysql.stream.positions import log_status

if TYPE_CHECKING:
    from tidelog.sources.mysql.preflight.account import CheckContext

RETENTION_LEAST_S = 86_400
AZURE = ".mysql.database.azure.com"
RDS_SETTING = "binlog retention hours"
_RDS = (
    "SELECT name, value FROM mysql.rds_configuration",
    "CALL mysql.rds_show_configuration",
)

_TO_GTIDS = (
    "SET GLOBAL enforce_gtid_consistency = ON; SET GLOBAL gtid_mode = OFF_PERMISSIVE; "
    "SET GLOBAL gtid_mode = ON_PERMISSIVE; SET GLOBAL gtid_mode = ON;"
    "  -- and in the server's configuration"
)


def binlog_checks() -> list[Callable[[CheckContext], Iterator[Finding]]]:
    """The checks, each after those that it depends on."""
    return [
        _log_bin,
        _rows,
        _row_metadata,
        _retention,
        _retention_size,
        _server_id,
        _gtids,
        _commit_order,
        _semi_sync,
    ]


def _setting(context: CheckContext, name: str, value: str) -> tuple[str, str]:
    """Return how to set a variable, and who does it; a server without a binlog must restart, which
    would undo ``SET GLOBAL``.
    """
    if context.on("log_bin"):
        return (
            f"SET GLOBAL {name} = '{value}';  -- and in the server's configuration",
            ADMINISTRATOR,
        )
    return f"{name} = {value}  # in the server's configuration, as log_bin", ""


def _log_bin(context: CheckContext) -> Iterator[Finding]:
    if not context.on("log_bin"):
        fix = "log_bin = binlog  # in the server's configuration, section mysqld; then restart it"
        yield Finding("log_bin", "error", "the server writes no binlog", fix)
        return
    yield Finding("log_bin", "ok", "the server writes a binlog")
    try:
        status = log_status(context.connection)
    except pymysql.MySQLError:
        return  # the missing privilege has its own finding
    for option in ("Binlog_Do_DB", "Binlog_Ignore_DB"):
        if status.get(option):
            text = f"{option.lower()} is set ({status[option]}): changes may be missing in the log"
            fix = f"take {option.lower()} out of the server's configuration, then restart it"
            yield Finding("log filter", "error", text, fix)


def _rows(context: CheckContext) -> Iterator[Finding]:
    """The log must hold changes as rows, preferably whole ones."""
    variables = context.variables
    form = variables.get("binlog_format", "ROW")
    if form == "ROW":
        yield Finding("binlog_format", "ok", "binlog_format is ROW")
    else:
        fix, role = _setting(context, "binlog_format", "ROW")
        if role:
            fix += "; sessions that are open keep theirs until they reconnect"
        yield Finding("binlog_format", "error", f"binlog_format is {form}", fix, role)
    image = variables.get("binlog_row_image", "FULL").upper()
    if image in ("FULL", "FULL_NODUP"):
        yield Finding("row image", "ok", f"binlog_row_image is {image}")
    else:
        text = f"binlog_row_image is {image}: records lack columns, whose rows are read again"
        if context.connection.flavor is Flavor.MARIADB:
            text += ", with MariaDB after each update"
        fix, role = _setting(context, "binlog_row_image", "FULL")
        yield Finding("row image", "warning", text, fix, role, by_hand=True)
    if "PARTIAL_JSON" in variables.get("binlog_row_value_options", "").upper():
        text = "binlog_row_value_options is PARTIAL_JSON: updates hold a part of a JSON document"
        if image == "FULL":
            yield Finding("partial JSON", "ok", f"{text}, which is put into the old one")
        else:
            fix = "SET GLOBAL binlog_row_value_options = '';  -- or binlog_row_image = 'FULL'"
            yield Finding(
                "partial JSON",
                "warning",
                f"{text}, and the old one is missing: the rows are read again",
                fix,
                ADMINISTRATOR,
                by_hand=True,
            )


def _row_metadata(context: CheckContext) -> Iterator[Finding]:
    found = context.variables.get("binlog_row_metadata")
    if found == "FULL":
        yield Finding("row metadata", "ok", "binlog_row_metadata is FULL")
        return
    text = (
        "the server logs no names of columns: a table altered while capture is down may need "
        "`tidelog schema`"
    )
    fix, role = "upgrade to MySQL 8.0.1 or MariaDB 10.5", ""
    if found is not None:
        text = f"binlog_row_metadata is {found}: {text.removeprefix('the server logs ')}"
        fix, role = _setting(context, "binlog_row_metadata", "FULL")
    yield Finding("row metadata", "warning", text, fix, role, by_hand=True)


def _retention(context: CheckContext) -> Iterator[Finding]:
    variables = context.variables
    seconds = float(variables.get("binlog_expire_logs_seconds", 0) or 0)
    days = float(variables.get("expire_logs_days", 0) or 0)
    kept = seconds or days * 86_400
    variable = "binlog_expire_logs_seconds"
    if variable not in variables:
        variable = "expire_logs_days"
    hours = _rds_hours(context.connection)
    if hours is not None:
        if 0 < hours * 3600 < RETENTION_LEAST_S or not hours:
            text = f"RDS keeps binlogs for {hours:g} h: a capture down for longer loses data"
            if not hours:
                text = (
                    "binlog retention hours is not set: RDS purges binlogs as soon as it can, "
                    "Aurora after 24 h, so a capture that lags loses data"
                )
            fix = "CALL mysql.rds_set_configuration('binlog retention hours', 168);"
            yield Finding("retention", "warning", text, fix, ADMINISTRATOR, by_hand=True)
        else:
            yield Finding("retention", "ok", f"RDS keeps binlogs for {hours / 24:.1f} days")
    elif not kept and parse_url(context.url).host.endswith(AZURE):
        text = (
            "binlog_expire_logs_seconds is 0, with which Azure purges a binlog once it has no use "
            "for it itself: a capture that is down loses data"
        )
        fix = "the server parameter binlog_expire_logs_seconds = 604800"
        yield Finding("retention", "warning", text, fix)
    # MySQL 8.0.29 and later can keep the seconds set and purge nothing.
    elif not kept or variables.get("binlog_expire_logs_auto_purge", "ON").upper() == "OFF":
        yield Finding("retention", "ok", "binlogs are kept until they are purged by hand")
    elif kept < RETENTION_LEAST_S:
        fix = f"SET GLOBAL {variable} = {7 if variable.endswith('days') else 604_800};"
        text = f"binlogs are purged after {kept / 3600:.1f} h: a capture down for longer loses data"
        fix += "  -- and in the server's configuration"
        yield Finding("retention", "warning", text, fix, ADMINISTRATOR, by_hand=True)
    else:
        text = f"binlogs are kept for {kept / 86_400:.1f} days"
        yield Finding("retention", "ok", text)


def _retention_size(context: CheckContext) -> Iterator[Finding]:
    """MariaDB and Percona's server can also purge by size."""
    for variable in ("max_binlog_total_size", "binlog_space_limit"):
        total = int(context.variables.get(variable, 0) or 0)
        if total:
            text = f"binlogs are purged beyond {total / 2**20:,.0f} MiB ({variable})"
            fix = "let it hold the changes of at least the longest time that capture may be down"
            yield Finding("retention size", "warning", text, fix)


def _rds_hours(connection: Connection) -> float | None:
    """The retention of Amazon RDS and Aurora, whose own setting overrides the server's; NULL counts
    as 0. None if the server is neither, or the account may not read it.
    """
    for statement in _RDS:
        with suppress(pymysql.MySQLError):
            rows = connection.rows(statement)
            found = {str(row[0]): row[1] for row in rows if len(row) > 1}
            if RDS_SETTING in found:
                return float(found[RDS_SETTING] or 0)
    return None


def _server_id(context: CheckContext) -> Iterator[Finding]:
    """Every reader of a binlog must have its own id."""
    ours = context.server_id
    theirs = int(context.variables.get("server_id", 0) or 0)
    if theirs == 0:
        fix = (
            "SET GLOBAL server_id = 1;  -- or another number that no other server has; and in "
            "the server's configuration"
        )
        text = "server_id is 0: the server serves no replica"
        yield Finding("server id", "error", text, fix, ADMINISTRATOR, by_hand=True)
        return
    if theirs == ours:
        fix = "another number in source.server_id"
        yield Finding("server id", "error", f"{ours} is the server's own id", fix)
        return
    connection = context.connection
    modern = context.mysql and connection.version >= (8, 0, 22)
    try:
        replicas = connection.named("SHOW REPLICAS" if modern else "SHOW SLAVE HOSTS")
    except pymysql.MySQLError:
        text = f"{ours} is not the server's own; the account may not see those of other replicas"
        yield Finding("server id", "ok", text)
        return
    ids = {
        int(value) for row in replicas for name, value in row.items() if name.lower() == "server_id"
    }
    if ours in ids:
        text = f"a replica with the id {ours} is connected; the server lets only one be"
        fix = "another number in source.server_id, unless the replica is this capture, running"
        yield Finding("server id", "warning", text, fix)
    else:
        yield Finding("server id", "ok", f"no other replica has the id {ours}")


def _gtids(context: CheckContext) -> Iterator[Finding]:
    if not context.mysql:
        text = f"MariaDB's are always on; gtid_domain_id is {context.variables['gtid_domain_id']}"
        yield Finding("GTID", "ok", text)
        return
    mode = context.variables.get("gtid_mode", "OFF").upper()
    if mode == "ON":
        yield Finding("GTID", "ok", "gtid_mode is ON")
    elif context.strategy == "gtid":
        text = f"gtid_mode is {mode}, and source.watermarks: gtid needs it"
        yield Finding("GTID", "error", text, _TO_GTIDS, ADMINISTRATOR, by_hand=True)
    else:
        text = (
            f"gtid_mode is {mode}: capture can't continue on a promoted replica, and a restored "
            "copy of the server can't be distinguished from the captured one"
        )
        yield Finding("GTID", "warning", text, _TO_GTIDS, ADMINISTRATOR, by_hand=True)


def _commit_order(context: CheckContext) -> Iterator[Finding]:
    """What is before a watermark in the binlog must be visible once the watermark is committed."""
    if context.mysql:
        if context.on("binlog_order_commits"):
            text = "transactions become visible in the binlog's order"
            yield Finding("commit order", "ok", text)
        else:
            text = "binlog_order_commits is OFF: a dump may miss transactions that were logged"
            fix = "SET GLOBAL binlog_order_commits = ON;  -- and in the server's configuration"
            yield Finding("commit order", "error", text, fix, ADMINISTRATOR)
        return
    yield Finding("commit order", "ok", "MariaDB commits in the binlog's order")


def _semi_sync(context: CheckContext) -> Iterator[Finding]:
    variables = context.variables
    # MySQL 8.0.26 and later have the newer name, of another plugin; its default differs from
    # MariaDB's.
    for side in ("source", "master"):
        if context.on(f"rpl_semi_sync_{side}_enabled"):
            break
    else:
        return
    waits = variables.get(f"rpl_semi_sync_{side}_wait_point", "AFTER_COMMIT").upper()
    if context.strategy == "gtid" or waits != "AFTER_SYNC":
        yield Finding("semi-sync", "ok", f"semi-sync waits {waits}")
        return
    limit_s = int(variables.get(f"rpl_semi_sync_{side}_timeout", 0)) / 1000
    text = (
        "semi-sync waits AFTER_SYNC: a replica that does not answer delays the watermarks of "
        f"dumps, for up to {limit_s:g} s each"
    )
    yield Finding("semi-sync", "warning", text, "source.watermarks: gtid  # waits for no replica")


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
