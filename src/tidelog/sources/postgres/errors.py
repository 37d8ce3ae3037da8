"""Converts errors of servers and libpq to Tidelog's errors, which say what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tidelog.errors import (
    ConfigError,
    ConnectionLostError,
    PreflightError,
    SourceBusyError,
    SourceError,
    TidelogError,
)
from tidelog.sources.postgres.encodings import unreadable

_CHECK_TLS = "TLS failed: check sslmode and certificates in source.url"
POOLER: Final = (
    "a connection pooler such as PgBouncer answers there, and capture needs the server itself: its "
    "host and port belong in source.url"
)

# (pattern in the server's or libpq's message, error class, what to do). libpq gives no SQLSTATE for
# a failed connection; a server that answers in another language gets the general message.
_REFUSALS: tuple[tuple[str, type[TidelogError], str], ...] = (
    (
        r"invalid integer value|invalid port number",
        ConfigError,
        "the port in source.url is not a number; percent-encode special characters in the password",
    ),
    (r"unsupported startup parameter", ConfigError, POOLER),
    (
        r"password authentication failed",
        ConfigError,
        "the password in source.url is wrong, or there is no such user (the server does not say "
        "which)",
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
        r"permission denied for database",
        ConfigError,
        "the user may not use this database: GRANT CONNECT ON DATABASE <name> TO <user>",
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
        _CHECK_TLS,
    ),
    (
        # With OpenSSL 3 the first one is an "SSL error", like errors that need a person's action.
        r"unexpected eof while reading|SSL connection has been closed|SSL SYSCALL error",
        ConnectionLostError,
        "the connection was lost while TLS began: does the server stop or start?",
    ),
    (
        r"certificate|SSL error|sslmode",
        ConfigError,
        _CHECK_TLS,
    ),
    (
        r"too many connections for role",
        ConnectionLostError,
        "the role may hold no more connections: ALTER ROLE <user> CONNECTION LIMIT <n>",
    ),
    (
        r"too many connections for database",
        ConnectionLostError,
        "the database takes no more connections: ALTER DATABASE <name> CONNECTION LIMIT <n>",
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

# What `ConfigError.refused` says.
_REFUSED: tuple[tuple[str, Literal["login", "blocked", "database", "no database"]], ...] = (
    (r"password authentication failed|role .* does not exist", "login"),
    (r"role .* is not permitted to log in", "blocked"),
    (r"permission denied for database", "database"),
    (r"database .* does not exist", "no database"),
)

# Hosts that answered before in this process: a host name that can't be resolved now is then an
# outage, not a typing error.
_reached: set[str] = set()


def note_reached(info: str) -> None:
    """Remember that the server of this connection string answered."""
    _reached.add(_host(info))


def connection_error(info: str, message: str) -> TidelogError:
    """The error for a connection that can't be opened; ``message`` of libpq or the server."""
    where = _where(info)
    for pattern, kind, advice in _REFUSALS:
        if re.search(pattern, message):
            unknown_host = "host name" in advice
            if unknown_host and _host(info) in _reached:
                return ConnectionLostError(
                    f"cannot connect to {where}: its host name is not known (any more)"
                )
            refusal = kind(f"cannot connect to {where}: {advice}")
            if isinstance(refusal, ConfigError):
                refusal.refused = next((how for p, how in _REFUSED if re.search(p, message)), "")
            return refusal
    return ConnectionLostError(f"cannot connect to {where}: {_reason(message, info)}")


@contextmanager
def translate_errors(doing: str) -> Iterator[None]:
    """Convert psycopg's errors to Tidelog's. ``doing`` says what was attempted, e.g. ``reading …``.
    The server's detail and context are left out: they may quote values of rows.
    """
    try:
        yield
    except psycopg.Error as error:
        raise translate(error, doing) from None


def translate(error: psycopg.Error, doing: str) -> TidelogError:
    """Convert one of psycopg's errors."""
    message = error.diag.message_primary or "the connection to the server was lost"
    lost = isinstance(error, psycopg.OperationalError) and error.sqlstate is None
    if lost or (error.sqlstate or "")[:2] == "08" or error.sqlstate in _SHUTDOWN_STATES:
        return ConnectionLostError(f"{doing}: {message}")
    if error.sqlstate == "42501":
        return PreflightError(f"{doing}: {message}; grant it (`tidelog check` prints the SQL)")
    if error.sqlstate in _BUSY_STATES:
        return SourceBusyError(f"{doing}: {message}; it is tried again")
    return SourceError(f"{doing}: {message} (SQLSTATE {error.sqlstate})")


_BUSY_STATES = {"55P03", "40P01", "40001"}  # lock timeout, deadlock, serialization failure
# admin_shutdown, crash_shutdown, cannot_connect_now, idle_session_timeout, too_many_connections
_SHUTDOWN_STATES = {"57P01", "57P02", "57P03", "57P05", "53300"}


def _host(info: str) -> str:
    parameters = conninfo_to_dict(info)
    return f"{parameters.get('host')}:{parameters.get('port')}"


def _where(info: str) -> str:
    parameters = conninfo_to_dict(info)
    host = parameters.get("host") or parameters.get("hostaddr") or "the local socket"
    port = parameters.get("port") or "5432"
    name = parameters.get("dbname") or parameters.get("user") or ""
    return f"PostgreSQL at {host}:{port}, database {name!r}, user {parameters.get('user')!r}"


def _reason(message: str, info: str) -> str:
    """The last line of libpq's message; lines that begin with a tab are its guesses of
    the cause.
    """
    lines = [line for line in message.strip().splitlines() if not line.startswith("\t")]
    text = lines[-1].rpartition(" failed: ")[2].strip() if lines else "no reason was given"
    password = conninfo_to_dict(info).get("password")
    return text.replace(str(password), "***") if password else text
