"""Converts the servers' errors to Tidelog's errors: what happened, and what to do.

Error numbers: manual, "Server Error Message Reference". A server's message may quote values of
rows; quotes are removed unless the error is known to quote only names. A chunk's errors say whether
and how to read it again.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pymysql
from pymysql.constants import CR, ER

from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.server_urls import ServerUrl
from tidelog.errors import (
    ChunkBusyError,
    ChunkDeniedError,
    ChunkError,
    ChunkLostError,
    ChunkRefusedError,
    ChunkTooSlowError,
    ConfigError,
    ConnectionLostError,
    PreflightError,
    SourceBusyError,
    SourceError,
    TidelogError,
    UnsupportedTableError,
)
from tidelog.system.extras import missing_for_password
from tidelog.system.peer_check import CUT_OFF

LOCK_WAIT_TIMEOUT = 1205
DEADLOCK = 1213
BINLOG_FATAL = 1236
PARSE_ERROR = 1064

_BUSY = {LOCK_WAIT_TIMEOUT, DEADLOCK, 3572}  # 3572: NOWAIT
_DENIED = {1044, 1142, 1143, 1227, 1370}
# 1040, 1203 and 1226: no free connection; 1053, 1077, 1079, 3032 and 3168: the server stops;
# 1152 to 1161: network; 1927 and 3169: killed; 4031: idle for too long.
_LOST = {
    1040, 1053, 1077, 1079, 1152, 1156, 1157, 1158, 1159, 1160, 1161, 1184, 1203, 1226, 1927,
    3032, 3168, 3169, 4031,
    CR.CR_CONNECTION_ERROR, CR.CR_CONN_HOST_ERROR, CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST,
    2055,  # CR_SERVER_LOST_EXTENDED
}  # fmt: skip
# Messages that quote names of users, hosts, databases, tables and columns, and no values.
_QUOTE_NAMES = _DENIED | {1045, 1049, 1051, 1054, 1109, 1130, 1146, 1193, 1194, 1195, 1698, 1927}

# Errors while connecting: (numbers, error, what to do).
_REFUSALS: tuple[tuple[frozenset[int], type[TidelogError], str], ...] = (
    (
        frozenset({1045, 1698}),
        ConfigError,
        "the user name or password in source.url is wrong, or the account needs TLS "
        "(ssl-mode=required) or another host",
    ),
    (
        frozenset({1044}),
        ConfigError,
        "the user may not use the database that source.url names; grant it SELECT there, or leave "
        "the database out",
    ),
    (frozenset({1049}), ConfigError, "there is no such database: check the end of source.url"),
    (
        frozenset({1130}),
        ConfigError,
        "the server lets no user in from this host: create the account as 'user'@'%' or for it",
    ),
    (
        frozenset({1129}),
        ConfigError,
        "the server blocks this host after many failed connections: run FLUSH HOSTS there",
    ),
    (
        frozenset({1820, 1862}),
        ConfigError,
        "the account's password has expired: ALTER USER … IDENTIFIED BY …",
    ),
    (frozenset({3118, 4151}), ConfigError, "the account is locked: ALTER USER … ACCOUNT UNLOCK"),
    (
        frozenset({3159}),
        ConfigError,
        "the server wants TLS: put ssl-mode=required (or verify-identity) into source.url",
    ),
    (
        frozenset({2026}),
        ConfigError,
        "TLS failed: the server does not offer it, or its certificate is not one that ssl-ca and "
        "ssl-mode in source.url accept",
    ),
    (
        frozenset({1251, 2059}),
        ConfigError,
        "the account's authentication plugin is not supported; known are caching_sha2_password, "
        "sha256_password, mysql_native_password and MariaDB's ed25519",
    ),
    (
        frozenset({1040}),
        ConnectionLostError,
        "the server has no free connection: raise max_connections or close some",
    ),
    (
        frozenset({1203}),
        ConnectionLostError,
        "the account may hold no more connections: raise max_user_connections",
    ),
    (
        frozenset({1226}),
        ConnectionLostError,
        "the account is at one of its limits, see SHOW CREATE USER: ALTER USER … WITH "
        "MAX_USER_CONNECTIONS <n>",
    ),
)

# What `ConfigError.refused` says.
_REFUSED: dict[int, Literal["login", "database", "no database"]] = {
    1045: "login",
    1698: "login",
    1044: "database",
    1049: "no database",
}

# Servers that answered before in this process: a host name that can't be resolved now is then an
# outage, not a typing error.
_reached: set[str] = set()


def note_reached(url: ServerUrl) -> None:
    """Remember that the server answered."""
    _reached.add(url.where)


def connection_error(url: ServerUrl, error: Exception) -> TidelogError:
    """The error for a connection that could not be opened."""
    number, message = _number_and_message(error)
    doing = f"cannot connect to the server at {url}"
    cause = getattr(error, "original_exception", error)
    if isinstance(cause, CUT_OFF):
        return ConnectionLostError(
            f"{doing}: the connection was lost while TLS began: does the server stop or start?"
        )
    if isinstance(cause, ssl.SSLError):
        number = 2026
    elif isinstance(cause, socket.gaierror):
        if url.where in _reached:
            return ConnectionLostError(f"{doing}: its host name is not known (any more)")
        return ConfigError(f"{doing}: the host name in source.url is not known")
    elif isinstance(cause, PermissionError):
        return ConfigError(f"{doing}: the socket may not be opened by this process's user")
    elif isinstance(cause, OSError):
        return ConnectionLostError(
            f"{doing}: {cause.strerror or 'no answer in time'}: is the server running, and are "
            "host and port right?"
        )
    if missing := missing_for_password(message):
        return missing
    for numbers, kind, advice in _REFUSALS:
        if number in numbers:
            refusal = kind(f"{doing}: {advice} (error {number})")
            if isinstance(refusal, ConfigError):
                refusal.refused = _REFUSED.get(number, "")
            return refusal
    return ConnectionLostError(f"{doing}: {server_message(number, message)}")


@contextmanager
def translate_errors(doing: str) -> Iterator[None]:
    """Convert PyMySQL's errors to Tidelog's. ``doing`` says what was attempted, e.g.
    ``reading …``.
    """
    try:
        yield
    except pymysql.MySQLError as error:
        raise translate(error, doing) from None
    except OSError as error:
        raise ConnectionLostError(f"{doing}: {error.strerror or 'the connection broke'}") from None


def translate(error: pymysql.MySQLError, doing: str) -> TidelogError:
    """Convert one of PyMySQL's errors."""
    number, message = _number_and_message(error)
    return server_error(number, message, doing)


def server_error(number: int, message: str, doing: str) -> TidelogError:
    """Convert a server's error packet."""
    said = server_message(number, message)
    if number == 0 or number in _LOST:
        return ConnectionLostError(f"{doing}: {said}")
    if number in _DENIED:
        return PreflightError(f"{doing}: {said}; grant it (`tidelog check` prints the SQL)")
    if number in _BUSY:
        return SourceBusyError(f"{doing}: {said}; it is tried again")
    return SourceError(f"{doing}: {said}")


def number_of(error: Exception) -> int:
    """The server's or the client library's error number; 0 if there is none."""
    return _number_and_message(error)[0]


def server_message(number: int, message: str) -> str:
    """The server's message with its error number, without quotes from rows."""
    if number == 0:
        return "the connection to the server was lost"
    text = message.strip().splitlines()[0] if message.strip() else _names().get(number, "")
    if number not in _QUOTE_NAMES:
        text = re.sub(r"'.*'|\".*\"", "'…'", text, flags=re.DOTALL)
    return f"{text or 'no reason was given'} (error {number})"


def _number_and_message(error: Exception) -> tuple[int, str]:
    arguments = error.args
    number = arguments[0] if arguments and isinstance(arguments[0], int) else 0
    message = arguments[1] if len(arguments) > 1 else (arguments[0] if arguments else "")
    return number, str(message)


def _names() -> dict[int, str]:
    return {value: name for name, value in vars(ER).items() if isinstance(value, int)}


# Errors of chunks.

_TOO_SLOW = {3024, 1969}  # max_execution_time, max_statement_time
_KILLED = {1317}  # KILL QUERY; the connection survives
_GONE = {1049, 1146, 1051}
_ALTERED = {1412, 1176}  # after the snapshot was taken; the key's index
_READ_ONLY = {1290, 1836, 1792}

# Only the dump's condition or keys can cause these: all else was looked up just before.
_PERMANENT = {
    1046, 1054, 1055, 1056, 1060, 1111, 1210, 1221, 1222, 1235, 1241, 1242, 1248, 1250, 1253, 1264,
    1267, 1270, 1271, 1273, 1292, 1300, 1305, 1366, 1411, 1525, 1582, 1583, 1584, 1630,
    3143, 3146, 3685, 3692, 3854, 4025,
}  # fmt: skip
_BAD_VALUES = {1264, 1292, 1300, 1366, 1411, 1525}
_BAD_ROWS = {1365, 1690, 3140, 3141}  # other rows may work: the chunk is halved


@contextmanager
def chunk_errors(doing: str, *, too_slow: type[ChunkError] = ChunkTooSlowError) -> Iterator[None]:
    """Convert the driver's errors to the ChunkError that says what may help. A table that became
    one that can't be captured is such an error, too: the catalogue then says so.
    """
    try:
        yield
    except UnsupportedTableError as error:
        raise ChunkError(f"{doing}: {error.reason}") from error
    except pymysql.MySQLError as error:
        raise _chunk_error(error, doing, too_slow) from None
    except UnicodeEncodeError:
        raise ChunkRefusedError(f"{doing}: a key or the condition is not valid text") from None
    except (OSError, AttributeError, TypeError) as error:
        # Another thread closed PyMySQL's connection during a call.
        if isinstance(error, OSError) or "NoneType" in str(error):
            raise ChunkLostError(f"{doing}: the connection was lost") from None
        raise


def _chunk_error(error: pymysql.MySQLError, doing: str, too_slow: type[ChunkError]) -> TidelogError:
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    message = str(error.args[1]) if len(error.args) > 1 else ""
    suffix = f"(error {number})"
    if number in _TOO_SLOW:
        return too_slow(
            f"{doing}: the read took longer than its time limit: lower dump.chunk_rows, or add an "
            f"index that serves the dump's condition {suffix}"
        )
    if number in _KILLED:
        return ChunkLostError(f"{doing}: it was ended by KILL {suffix}")
    if number in _GONE:
        return ChunkError(f"{doing}: the table or its database does not exist (any more) {suffix}")
    if number in _ALTERED:
        return ChunkError(
            f"{doing}: the table or its key's index was altered in the meantime {suffix}"
        )
    if number in _READ_ONLY:
        return ChunkError(
            f"{doing}: the server is read-only, and no watermark can be written: set "
            f"source.watermarks: gtid {suffix}"
        )
    if number in _BAD_ROWS:
        return ChunkError(
            f"{doing}: the server can't compute a value of a row, in a virtual column or the "
            f"dump's condition {suffix}"
        )
    if number in _BAD_VALUES:
        return ChunkRefusedError(
            f"{doing}: a value of a key or of the dump's condition does not fit its column's type "
            f"{suffix}"
        )
    if number == ER.PARSE_ERROR:  # the server's message quotes the condition
        return ChunkRefusedError(f"{doing}: the dump's condition is not valid SQL {suffix}")
    found = server_error(number, message, doing)
    if isinstance(found, PreflightError):
        return ChunkDeniedError(str(found))
    if number in _PERMANENT:
        return ChunkRefusedError(f"{found} (check the dump's condition)")
    if isinstance(found, SourceBusyError):
        return ChunkBusyError(
            f"{doing}: another session holds a conflicting lock, e.g. DDL is running {suffix}"
        )
    if isinstance(found, ConnectionLostError):
        return ChunkLostError(str(found))
    return ChunkError(str(found))


def time_limit(flavor: Flavor, milliseconds: int) -> tuple[str, str]:
    """Name and value of the session setting that limits a SELECT's time; 0: no limit."""
    if flavor is Flavor.MARIADB:
        return "max_statement_time", f"{milliseconds / 1000:.3f}"
    return "max_execution_time", str(milliseconds)
