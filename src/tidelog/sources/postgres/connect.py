"""Opens connections to PostgreSQL with fixed session settings, and with errors that say what to do.

The walsender's session and the chunk readers' must write every value as the same text, because rows
from the log and rows from a SELECT are compared and decoded as text. So every session sets
`PINNED`.

The hosts of a URL are tried one after the other. libpq and psycopg can do that too, but each in its
own way: libpq's non-blocking connection would stay with a vanished host for as long as the network
allows.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tidelog.codecs.postgres.session_settings import (
    PINNED,
    TIMEOUTS,
    WRITABLE,
    set_newer_timeouts,
)
from tidelog.errors import ConfigError, ConnectionLostError, PreflightError, TidelogError
from tidelog.sources.postgres import async_results
from tidelog.sources.postgres.encodings import adapt, set_database_encoding
from tidelog.sources.postgres.errors import POOLER, connection_error, note_reached

Connection = psycopg.Connection[tuple[Any, ...]]

# Hosts.

_Connection = TypeVar("_Connection")
_LISTS = ("host", "hostaddr", "port")
_ATTRIBUTES = "target_session_attrs"
_REPORTED = ("DateStyle", "IntervalStyle", "TimeZone")  # settings that the server reports


def each_host(info: str) -> list[str]:
    """A connection string for each host of ``info``, in its order."""
    parameters = conninfo_to_dict(info)
    lists = {name: str(parameters[name]).split(",") for name in _LISTS if name in parameters}
    count = max((len(values) for values in lists.values()), default=1)
    if count == 1 or any(len(values) not in (1, count) for values in lists.values()):
        return [info]  # libpq reports what does not fit
    return [
        make_conninfo(
            info,
            **{name: values[i % len(values)] for name, values in lists.items()},
        )
        for i in range(count)
    ]


def _ordered_hosts(info: str) -> list[str]:
    """Like `each_host`, in the order of ``target_session_attrs``. With ``prefer-standby`` every
    single host would be accepted, so all hosts are first tried as a standby.
    """
    hosts = each_host(info)
    if len(hosts) == 1 or conninfo_to_dict(info).get(_ATTRIBUTES) != "prefer-standby":
        return hosts
    return [
        make_conninfo(host, **{_ATTRIBUTES: kind}) for kind in ("standby", "any") for host in hosts
    ]


def pin_host(info: str, connection: pq.abc.PGconn) -> str:
    """``info`` for the server of ``connection`` only, by its address: reads must come from the
    server of the log, and another host of a list, or another address of a name, may be a former
    primary.
    """
    host, address = connection.host.decode(), connection.hostaddr.decode()
    where = {"host": host or None, "port": connection.port.decode()}
    return make_conninfo(info, **where, hostaddr=None if host.startswith("/") else address or None)


def connect_first(info: str, connect: Callable[[str], _Connection]) -> _Connection:
    """The result of ``connect`` for the first host where it succeeds.

    With one host its error is raised; with several, one error names all. Its class is that of a
    lost connection if one of the hosts may become available (it is down, or not yet promoted).
    """
    failures: list[TidelogError] = []
    for host in _ordered_hosts(info):
        try:
            return connect(host)
        except TidelogError as failure:
            failures.append(failure)
    if len(failures) == 1:
        raise failures[0]
    lost = [failure for failure in failures if isinstance(failure, ConnectionLostError)]
    kind = type((lost or failures)[0])
    raise kind("; ".join(str(failure) for failure in failures))


# Sessions.

APPLICATION = "tidelog"

# A policy that would hide rows makes a read fail instead.
READS = {"row_security": "off"}

# Tidelog's writes (watermarks, the publication) need not survive the loss of the primary, and a
# synchronous standby that hangs must not delay every window: commit locally.
WRITES = {"synchronous_commit": "local"}

# If two transactions wait for each other, the server ends the one that notices it first, after
# deadlock_timeout. Tidelog's session gives up earlier, so that the application's is never ended.
_LIMIT_LOCK_WAIT = """
SELECT pg_catalog.set_config('lock_timeout', greatest(1, least(d.setting::int / 2,
  coalesce(nullif(l.setting::int, 0), d.setting::int / 2)))::text, false)
FROM pg_catalog.pg_settings AS l, pg_catalog.pg_settings AS d
WHERE l.name = 'lock_timeout' AND d.name = 'deadlock_timeout'
"""

CONNECT_TIMEOUT_S = 10

# For sessions that read the catalogue: the server ends a query that takes longer; if it does not
# answer, the connection is closed.
CATALOGUE_SETTINGS = {"statement_timeout": "300000"}


def lsn_value(text: str) -> int:
    """The int64 position of PostgreSQL's text."""
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def quote_literal(text: str) -> str:
    """A string literal that reads alike under any standard_conforming_strings."""
    quoted = "'" + text.replace("'", "''") + "'"
    return " E" + quoted.replace("\\", "\\\\") if "\\" in text else quoted


def conninfo(
    dsn: str,
    *,
    application: str,
    settings: Mapping[str, str] | None = None,
    replication: bool = False,
) -> str:
    """The connection string with Tidelog's settings, which override the user's. Raises ConfigError
    if ``dsn`` does not parse; its text is never part of the message.
    """
    _check_encoding(dsn)
    try:
        parameters = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # libpq's message may quote what it read as a port or host, e.g. half of a password.
        raise ConfigError(
            "source.url is not a valid PostgreSQL connection string: expected "
            "postgresql://user:password@host:port/database, with special characters in the "
            "password percent-encoded (@ is %40, / is %2F)"
        ) from None
    options = [str(parameters.get("options") or "")]
    pinned = {**PINNED, **TIMEOUTS, **WRITABLE, **READS, **WRITES, **(settings or {})}
    for name, value in pinned.items():
        escaped = re.sub(r"([\\ ])", r"\\\1", value)
        options.append(f"-c {name}={escaped}")
    overrides: dict[str, Any] = {
        "options": " ".join(options).strip(),
        "application_name": application,
        "client_encoding": "UTF8",
    }
    defaults: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        # A vanished host is noticed within 15 s; a standby may have taken over.
        "keepalives_idle": 5,
        "keepalives_interval": 3,
        "keepalives_count": 3,
        "tcp_user_timeout": 15_000,
    }
    if replication:
        overrides["replication"] = "database"
    return make_conninfo(**{**defaults, **parameters, **overrides})


def connect(
    dsn: str,
    *,
    purpose: str,
    settings: Mapping[str, str] | None = None,
    autocommit: bool = True,
) -> psycopg.Connection[tuple[Any, ...]]:
    """An SQL connection whose application_name is ``tidelog-<purpose>``. It waits for a lock for at
    most half of the server's deadlock_timeout.

    Raises:
        ConfigError, PreflightError: something must be changed first; the message says what.
        ConnectionLostError: trying again may help.
    """
    info = conninfo(dsn, application=f"{APPLICATION}-{purpose}", settings=settings)
    silence_ms = int((settings or {}).get("statement_timeout", "0"))
    connection = connect_first(info, lambda host: _session(host, silence_ms))
    connection.autocommit = autocommit
    return connection


def _session(info: str, silence_ms: int) -> async_results.Session:
    """One host's SQL connection, in autocommit."""
    try:
        # No server-side prepared statements: each would outlive DDL on the tables it names.
        connection = async_results.Session.connect(info, autocommit=True, prepare_threshold=None)
        connection.silence_s = CONNECT_TIMEOUT_S
        if newer := set_newer_timeouts(connection.info.server_version):
            connection.execute(newer)
        limit_lock_wait(connection)
        _check_settings(connection.pgconn)
        texts = set_database_encoding(connection.pgconn)
    except psycopg.OperationalError as error:
        raise connection_error(info, str(error)) from None
    except (ConfigError, PreflightError):
        connection.close()
        raise
    async_results.limit_silence(connection, silence_ms)
    if texts is not None:
        adapt(connection, texts)
    note_reached(info)
    return connection


def limit_lock_wait(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """Limit the session's wait for a lock to half of the server's deadlock_timeout, or to its
    lock_timeout if that is shorter.
    """
    connection.execute(_LIMIT_LOCK_WAIT.encode())


def connect_replication(dsn: str, *, purpose: str) -> pq.abc.PGconn:
    """A walsender connection to the database of ``dsn``; same errors as `connect`."""
    info = conninfo(dsn, application=f"{APPLICATION}-{purpose}", replication=True)
    return connect_first(info, _walsender)


def _walsender(info: str) -> pq.abc.PGconn:
    """One host's walsender connection. libpq has no time limit where it does not wait itself."""
    pgconn = pq.PGconn.connect_start(info.encode())
    given = str(conninfo_to_dict(info).get("connect_timeout", ""))
    timeout_s = int(given) if given.isdecimal() else 0
    deadline = time.monotonic() + (timeout_s or CONNECT_TIMEOUT_S)
    try:
        async_results.finish_connecting(pgconn, deadline)
    except OSError:
        pgconn.finish()
        raise connection_error(info, "timeout expired") from None
    if pgconn.status != pq.ConnStatus.OK:
        message = pgconn.get_error_message()
        pgconn.finish()
        raise connection_error(info, message)
    try:
        if newer := set_newer_timeouts(pgconn.server_version):
            result = async_results.run_command(pgconn, newer)
            if result.status != pq.ExecStatus.COMMAND_OK:
                raise psycopg.errors.error_from_result(result)
        _check_settings(pgconn)
        set_database_encoding(pgconn)
    except psycopg.Error as error:
        pgconn.finish()
        raise connection_error(info, str(error)) from None
    except (ConfigError, PreflightError):
        pgconn.finish()
        raise
    note_reached(info)
    return pgconn


def _check_settings(pgconn: pq.abc.PGconn) -> None:
    """Raise ConfigError if the session lacks the settings that it was opened with: a pooler may
    ignore them (PgBouncer's ``ignore_startup_parameters``).
    """
    for name in _REPORTED:
        value = (pgconn.parameter_status(name.encode()) or b"").decode("ascii", "replace")
        if value.replace(" ", "") != PINNED[name]:
            raise ConfigError(f"the session has {name} {value}, not {PINNED[name]}: {POOLER}")


def _check_encoding(dsn: str) -> None:
    """Refuse a URI whose password is not percent-encoded, before libpq takes a part of it for the
    host and prints it.
    """
    if "://" not in dsn:
        return
    rest = dsn.split("://", 1)[1]
    authority, _, path = rest.partition("/")
    if authority.count("@") > 1 or "@" in path.split("?", 1)[0]:
        raise ConfigError(
            "source.url has an @ in the wrong place: percent-encode special characters in the "
            "user name and password (@ is %40, / is %2F)"
        )
