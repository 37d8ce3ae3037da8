"""Connections to PostgreSQL: pinned session settings, and errors that say what to do.

The walsender's session and the chunk readers' must render every value alike, because rows from the
log and rows from a SELECT are compared and decoded as text. So every session pins `PINNED`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tidelog.errors import (
    ConfigError,
    ConnectionLostError,
    PreflightError,
    SourceBusyError,
    SourceError,
    TidelogError,
)
from tidelog.sources.postgres import answers
from tidelog.sources.postgres.encodings import adapt, unreadable, use_own_encoding
from tidelog.sources.postgres.hosts import first_that_answers

APPLICATION = "tidelog"

# Each changes how some type is written as text (manual, "Client Connection Defaults").
PINNED = {
    "DateStyle": "ISO,YMD",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "TimeZone": "UTC",
    "client_encoding": "UTF8",
    "lc_monetary": "C",
    "search_path": "",  # regclass and the like are qualified unless found in the path
    "quote_all_identifiers": "off",
}

# A role's or database's defaults for these must not end our sessions, or our writes, at random.
TIMEOUTS = {
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "lock_timeout": "0",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "default_transaction_read_only": "off",
}
# By the version that has them: one that does not would refuse the connection.
NEWER_TIMEOUTS = {"idle_session_timeout": 140_000, "transaction_timeout": 170_000}

# What we write (watermarks, the publication) need not survive the primary's loss, and a synchronous
# standby that hangs must not stall every window: commit locally.
WRITES = {"synchronous_commit": "local"}

# If two transactions wait for each other, the server ends the one that notices first, after
# deadlock_timeout. Ours gives up before that, so that it never is the application's.
_GIVE_WAY = """
SELECT pg_catalog.set_config('lock_timeout', greatest(1, least(d.setting::int / 2,
  coalesce(nullif(l.setting::int, 0), d.setting::int / 2)))::text, false)
FROM pg_catalog.pg_settings AS l, pg_catalog.pg_settings AS d
WHERE l.name = 'lock_timeout' AND d.name = 'deadlock_timeout'
"""

CONNECT_TIMEOUT_S = 10

# For sessions that look at the catalogue: the server ends a look that takes longer, and one that it
# does not answer is given up.
LOOKING = {"statement_timeout": "300000"}

# (pattern in the server's or libpq's message, error class, what to do). libpq gives no SQLSTATE for
# a failed connection; a server that answers in another language gets the general message.
_REFUSALS: tuple[tuple[str, type[TidelogError], str], ...] = (
    (
        r"invalid integer value|invalid port number",
        ConfigError,
        "the port in source.url is not a number; percent-encode special characters in the password",
    ),
    (
        r"password authentication failed",
        ConfigError,
        "the password in source.url is wrong for this user",
    ),
    (
        r"no password supplied",
        ConfigError,
        "the server wants a password: put one in source.url, e.g. from an environment variable",
    ),
    (
        r"no pg_hba\.conf entry",
        ConfigError,
        "the server's pg_hba.conf does not let this user in from this host; add a line for it "
        "(its database for SQL and for logical replication) and run SELECT pg_reload_conf()",
    ),
    (
        r"database .* does not exist",
        ConfigError,
        "there is no such database: check the last part of source.url",
    ),
    (r"role .* does not exist", ConfigError, "there is no such user: check source.url"),
    (
        r"role .* is not permitted to log in",
        ConfigError,
        "let the role log in: ALTER ROLE <user> LOGIN",
    ),
    (
        r"permission denied.*start WAL sender"
        r"|must be superuser or replication role"
        r"|permission denied to initiate",
        PreflightError,
        "the user needs the REPLICATION attribute: ALTER ROLE <user> REPLICATION",
    ),
    (
        r"could not translate host name|Name or service not known|nodename nor servname",
        ConfigError,
        "the host name in source.url is not known",
    ),
    (
        r"certificate verify failed|server does not support SSL|root certificate file",
        ConfigError,
        "TLS failed: check sslmode and certificates in source.url",
    ),
    (
        # With OpenSSL 3 the first one is an "SSL error", as what a person has to mend.
        r"unexpected eof while reading|SSL connection has been closed|SSL SYSCALL error",
        ConnectionLostError,
        "the connection was lost while TLS began: does the server stop or start?",
    ),
    (
        r"certificate|SSL error|sslmode",
        ConfigError,
        "TLS failed: check sslmode and certificates in source.url",
    ),
    (
        r"too many clients|remaining connection slots|too many connections",
        ConnectionLostError,
        "the server has no free connection: raise max_connections or close some",
    ),
    (
        r"number of requested standby connections exceeds|max_wal_senders",
        ConnectionLostError,
        "the server has no free WAL sender: raise max_wal_senders and restart it",
    ),
    (
        r"conversion between UTF8 and MULE_INTERNAL",
        PreflightError,
        unreadable("MULE_INTERNAL"),
    ),
    (
        r"starting up|shutting down|recovery mode|not yet accepting",
        ConnectionLostError,
        "the server is starting or stopping; it is tried again",
    ),
    (
        r"Connection refused|No such file or directory|timeout expired|timed out|unreachable",
        ConnectionLostError,
        "nothing answers there: is the server running, and host and port right?",
    ),
)

# Hosts that answered once in this process: a name that can't be resolved now is then an outage,
# not a typing error.
_reached: set[str] = set()


def lsn_text(position: int) -> str:
    """An int64 position as PostgreSQL writes it."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def lsn_value(text: str) -> int:
    """The int64 position of PostgreSQL's text."""
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def quote_ident(*names: str) -> str:
    """A qualified identifier, each part always quoted."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


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
    """The connection string with our settings over the user's.

    Raises ConfigError if ``dsn`` does not parse; its text is never part of the message.
    """
    _check_encoding(dsn)
    try:
        parameters = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # libpq's message may quote what it took for a port or host, e.g. half of a password.
        raise ConfigError(
            "source.url is not a valid PostgreSQL connection string: expected "
            "postgresql://user:password@host:port/database, with special characters in the "
            "password percent-encoded (@ is %40, / is %2F)"
        ) from None
    options = [str(parameters.get("options") or "")]
    for name, value in {**PINNED, **TIMEOUTS, **WRITES, **(settings or {})}.items():
        escaped = re.sub(r"([\\ ])", r"\\\1", value)
        options.append(f"-c {name}={escaped}")
    overrides: dict[str, Any] = {
        "options": " ".join(options).strip(),
        "application_name": application,
        "client_encoding": "UTF8",
    }
    defaults: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
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
    connection = first_that_answers(info, lambda host: _session(host, silence_ms))
    connection.autocommit = autocommit
    return connection


def _session(info: str, silence_ms: int) -> answers.Session:
    """One host's SQL connection, in autocommit."""
    try:
        # No server-side prepared statements: each would outlive DDL on the tables it names.
        connection = answers.Session.connect(info, autocommit=True, prepare_threshold=None)
        if newer := set_newer_timeouts(connection.info.server_version):
            connection.execute(newer)
        give_way(connection)
        texts = use_own_encoding(connection.pgconn)
    except psycopg.OperationalError as error:
        raise connection_error(info, str(error)) from None
    except PreflightError:
        connection.close()
        raise
    answers.limit_silence(connection, silence_ms)
    if texts is not None:
        adapt(connection, texts)
    _reached.add(_host(info))
    return connection


def give_way(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """From now on the session waits for a lock for at most half of the server's deadlock_timeout,
    or as long as its lock_timeout says, if that is shorter.
    """
    connection.execute(_GIVE_WAY.encode())


def connect_replication(dsn: str, *, purpose: str) -> pq.abc.PGconn:
    """A walsender connection to the database of ``dsn``; raises as `connect` does."""
    info = conninfo(dsn, application=f"{APPLICATION}-{purpose}", replication=True)
    return first_that_answers(info, _walsender)


def _walsender(info: str) -> pq.abc.PGconn:
    """One host's walsender connection. libpq minds no time limit where it does not wait itself."""
    pgconn = pq.PGconn.connect_start(info.encode())
    given = str(conninfo_to_dict(info).get("connect_timeout", ""))
    timeout_s = int(given) if given.isdecimal() else 0
    deadline = time.monotonic() + (timeout_s or CONNECT_TIMEOUT_S)
    try:
        answers.finish_connecting(pgconn, deadline)
    except OSError:
        pgconn.finish()
        raise connection_error(info, "timeout expired") from None
    if pgconn.status != pq.ConnStatus.OK:
        message = pgconn.get_error_message()
        pgconn.finish()
        raise connection_error(info, message)
    try:
        if newer := set_newer_timeouts(pgconn.server_version):
            result = answers.commanded(pgconn, newer)
            if result.status != pq.ExecStatus.COMMAND_OK:
                raise psycopg.errors.error_from_result(result)
        use_own_encoding(pgconn)
    except psycopg.Error as error:
        pgconn.finish()
        raise connection_error(info, str(error)) from None
    except PreflightError:
        pgconn.finish()
        raise
    _reached.add(_host(info))
    return pgconn


def set_newer_timeouts(server_version: int) -> bytes:
    """Statements that switch off the timeouts of `NEWER_TIMEOUTS` that the server has."""
    names = [name for name, since in NEWER_TIMEOUTS.items() if server_version >= since]
    return "; ".join(f"SET {name} = 0" for name in names).encode()


def connection_error(info: str, message: str) -> TidelogError:
    """Our error for a connection that was not made; ``message`` is libpq's or the server's."""
    where = _where(info)
    for pattern, kind, advice in _REFUSALS:
        if re.search(pattern, message):
            unknown_host = "host name" in advice
            if unknown_host and _host(info) in _reached:
                return ConnectionLostError(
                    f"cannot connect to {where}: its host name is not known (any more)"
                )
            return kind(f"cannot connect to {where}: {advice}")
    return ConnectionLostError(f"cannot connect to {where}: {_first_line(message, info)}")


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn psycopg's errors inside into ours. ``doing`` says what was tried, e.g. ``reading …``.

    The server's detail and context are left out: they may quote values of rows.
    """
    try:
        yield
    except psycopg.Error as error:
        raise translate(error, doing) from None


def translate(error: psycopg.Error, doing: str) -> TidelogError:
    """Our error for one of psycopg's."""
    message = error.diag.message_primary or "the connection to the server was lost"
    lost = isinstance(error, psycopg.OperationalError) and error.sqlstate is None
    if lost or (error.sqlstate or "")[:2] == "08" or error.sqlstate in _SHUTDOWN_STATES:
        return ConnectionLostError(f"{doing}: {message}")
    if error.sqlstate == "42501":
        return PreflightError(f"{doing}: {message}; grant it (`tidelog check` prints the SQL)")
    if error.sqlstate in _BUSY_STATES:
        return SourceBusyError(f"{doing}: {message}; it is tried again")
    return SourceError(f"{doing}: {message} (SQLSTATE {error.sqlstate})")


# admin_shutdown, crash_shutdown, cannot_connect_now, idle_session_timeout, too_many_connections
_BUSY_STATES = {"55P03", "40P01", "40001"}  # lock timeout, deadlock, serialization failure
_SHUTDOWN_STATES = {"57P01", "57P02", "57P03", "57P05", "53300"}


def _check_encoding(dsn: str) -> None:
    """Refuse a URI whose password is not percent-encoded before libpq takes a part of it for the
    host and prints it.
    """
    if "://" not in dsn:
        return
    rest = dsn.split("://", 1)[1]
    authority, _, path = rest.partition("/")
    if authority.count("@") > 1 or "@" in path.split("?", 1)[0]:
        raise ConfigError(
            "source.url has an @ where none may stand: percent-encode special characters in the "
            "user name and password (@ is %40, / is %2F)"
        )


def _host(info: str) -> str:
    parameters = conninfo_to_dict(info)
    return f"{parameters.get('host')}:{parameters.get('port')}"


def _where(info: str) -> str:
    parameters = conninfo_to_dict(info)
    host = parameters.get("host") or parameters.get("hostaddr") or "the local socket"
    port = parameters.get("port") or "5432"
    name = parameters.get("dbname") or parameters.get("user") or ""
    return f"PostgreSQL at {host}:{port}, database {name!r}, user {parameters.get('user')!r}"


def _first_line(message: str, info: str) -> str:
    lines = message.strip().splitlines()
    text = lines[-1].strip() if lines else "no reason was given"
    password = conninfo_to_dict(info).get("password")
    return text.replace(str(password), "***") if password else text
