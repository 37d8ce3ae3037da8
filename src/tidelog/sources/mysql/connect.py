"""Opens connections to MySQL and MariaDB by PyMySQL, with fixed session settings.

Every session sets what changes how a value is written as text or what a statement means, so that
all sessions get the same results whatever the server's defaults are.
"""

from __future__ import annotations

import codecs
import contextlib
import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pymysql

from tidelog.codecs.mysql.flavor import Flavor, set_statement, version_numbers
from tidelog.codecs.mysql.server_urls import (
    ServerPin,
    ServerUrl,
    parse_url,
    ssl_context,
    unverified_context,
)
from tidelog.errors import ConnectionLostError, PreflightError
from tidelog.sources.mysql.errors import connection_error, note_reached

if TYPE_CHECKING:
    from pymysql.cursors import Cursor

    _Base = pymysql.connections.Connection[Cursor]  # generic in its type stubs alone
else:
    _Base = pymysql.connections.Connection

APPLICATION = "tidelog"

_TEXTS = "tidelog_texts"
"""The codec of a session's texts: UTF-8, with a question mark for each surrogate. MariaDB sends
surrogates of ``ucs2`` and ``utf32`` as they are, e.g. in a column's type or default.
"""

READ_COMMITTED = "READ COMMITTED"

# A vanished host is noticed within 15 s; by then a standby may have taken over.
_KEEPALIVE = (
    ("TCP_KEEPIDLE", 5),
    ("TCP_KEEPINTVL", 3),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 15_000),  # milliseconds
)


def _replace_surrogate(error: UnicodeError) -> tuple[str, int]:
    """The error handler of `_TEXTS`."""
    assert isinstance(error, UnicodeDecodeError)
    some = error.object[error.start : error.start + 3]
    if len(some) == 3 and some[0] == 0xED and some[1] >= 0xA0 and some[2] >= 0x80:
        return "?", error.start + 3
    raise error


def _codec(name: str) -> codecs.CodecInfo | None:
    if name != _TEXTS:
        return None
    return codecs.CodecInfo(
        codecs.utf_8_encode, lambda data, _errors="strict": codecs.utf_8_decode(data, _TEXTS, True)
    )


codecs.register_error(_TEXTS, _replace_surrogate)
codecs.register(_codec)


def text_of(value: object) -> str:
    """Return a value as text, bytes as a `Connection` decodes them: MySQL 8 returns some columns of
    information_schema as bytes.
    """
    return value.decode(_TEXTS) if isinstance(value, bytes) else str(value)


class Connection(_Base):
    """PyMySQL's connection, with properties of the server.

    Attributes:
        flavor: MySQL or MariaDB.
        version: e.g. (8, 0, 36).
        version_text: the version as the server reports it.
        connection_id: the server's number of the session, e.g. for KILL.
        server: identifies the server, as one URL may lead to several: host name, port, server_id.
        pin: the pin of its URL.
    """

    flavor: Flavor
    version: tuple[int, ...]
    version_text: str
    connection_id: int
    server: str
    pin: ServerPin

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        """PyMySQL calls this; without options it would load the system's authorities each time, and
        then verify no certificate.
        """
        return sslp if isinstance(sslp, ssl.SSLContext) else unverified_context()

    def rows(self, sql: str, arguments: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows. Raises PyMySQL's errors: see `translate_errors`."""
        with self.cursor() as cursor:
            cursor.execute(sql, arguments)
            return list(cursor.fetchall())

    def row(self, sql: str, arguments: Sequence[Any] | None = None) -> tuple[Any, ...] | None:
        """The first row, if there is one."""
        with self.cursor() as cursor:
            cursor.execute(sql, arguments)
            return cursor.fetchone()

    def value(self, sql: str, arguments: Sequence[Any] | None = None) -> Any:
        """The first column of the first row; None if there is no row."""
        row = self.row(sql, arguments)
        return None if row is None else row[0]

    def named(self, sql: str) -> list[dict[str, Any]]:
        """Rows of SHOW statements, by column name: their columns differ by version."""
        with self.cursor() as cursor:
            cursor.execute(sql)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    @property
    def raw_socket(self) -> socket.socket:
        """The socket, wrapped by TLS if it is used."""
        found: socket.socket = self._sock  # type: ignore[attr-defined]
        return found

    def set_read_timeout(self, seconds: float | None) -> None:
        """Set the time limit of a statement's answer; None: no limit."""
        self._read_timeout = seconds

    def abandon(self) -> None:
        """Close the socket without notifying the server; safe from another thread."""
        sock = getattr(self, "_sock", None)
        if sock is not None:
            # Wakes a thread that waits in recv, which closing alone does not.
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._force_close()  # type: ignore[attr-defined]


def connect(
    url: str | ServerUrl,
    *,
    purpose: str,
    settings: Mapping[str, str] | None = None,
    autocommit: bool = True,
    isolation: str = READ_COMMITTED,
    database: str | None = None,
    read_timeout_s: float | None = None,
    verify: bool = True,
) -> Connection:
    """A connection with Tidelog's session settings.

    Args:
        url: the server; with a pin, every other server is refused.
        purpose: the session's name is ``tidelog-<purpose>`` (performance_schema,
            ``session_connect_attrs``).
        settings: further session variables, as SQL; they override Tidelog's.
        autocommit: the session's autocommit.
        isolation: as in SET TRANSACTION ISOLATION LEVEL.
        database: replaces the URL's database; "": none.
        read_timeout_s: time limit of one answer; None: no limit.
        verify: check that the session has the requested settings.

    Raises:
        ConfigError, PreflightError: something must be changed first; the message says what.
        ConnectionLostError: trying again may help.
    """
    found = parse_url(url) if isinstance(url, str) else url
    context = ssl_context(found)
    options: dict[str, Any] = {} if context is None else {"ssl": context}
    if found.ssl_mode == "disabled":
        options["ssl_disabled"] = True
    try:
        connection = Connection(
            host=found.host,
            port=found.port,
            unix_socket=found.unix_socket,
            user=found.user,
            # PyMySQL would encode a text as Latin-1.
            password=found.password.encode(),
            database=(found.database if database is None else database) or None,
            charset="utf8mb4",
            collation="utf8mb4_bin",
            autocommit=autocommit,
            connect_timeout=found.connect_timeout_s,
            # A server that accepts and then sends nothing must not block the handshake.
            read_timeout=found.connect_timeout_s,
            write_timeout=60,
            max_allowed_packet=1 << 30,
            program_name=f"{APPLICATION}-{purpose}",
            **options,
        )
        connection.encoding = _TEXTS
        connection.pin = found.pin
        _describe(connection)
        # Set here and not by PyMySQL, which does not notice what init_connect has set.
        connection.rows(
            set_statement(
                connection.flavor,
                connection.version,
                {"autocommit": str(int(autocommit)), **(settings or {})},
            )
        )
        connection.rows(f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}, READ WRITE")
        fault = _session_fault(connection, autocommit, isolation) if verify else None
    except (pymysql.MySQLError, OSError, RuntimeError) as error:
        raise connection_error(found, error) from None
    if fault is not None:
        connection.abandon()
        raise PreflightError(f"{fault}: {SESSION_FIX}")
    expected = found.pin.server
    if expected not in (None, connection.server):
        connection.abandon()
        raise ConnectionLostError(
            f"source.url leads to server {connection.server} now, but the log is read from "
            f"{expected}: a host name, an address that moves or a proxy chose another server. "
            "Nothing is read there; set source.url to the address of one server"
        )
    _keep_alive(connection)
    connection.set_read_timeout(read_timeout_s)
    note_reached(found)
    return connection


SESSION_FIX = "take these variables out of init_connect, or the proxy's settings"


def session_fault(connection: Connection) -> str | None:
    """The settings of a new session that would lose rows or watermarks; None if there are none."""
    return _session_fault(connection, autocommit=True, isolation=READ_COMMITTED)


def _session_fault(connection: Connection, autocommit: bool, isolation: str) -> str | None:
    mysql = connection.flavor is Flavor.MYSQL
    level = (
        "transaction_isolation" if mysql and connection.version >= (5, 7, 20) else "tx_isolation"
    )
    read_only = level.replace("isolation", "read_only")
    row = connection.row(
        f"SELECT @@session.autocommit, @@session.{level}, @@session.{read_only}, "
        "@@session.sql_log_bin"
    )
    assert row is not None
    found = int(row[0]), str(row[1]).replace("-", " "), int(row[2]), int(row[3])
    if found == (int(autocommit), isolation, 0, 1):
        return None
    return (
        f"a new session has autocommit {row[0]}, isolation {row[1]}, {read_only} {row[2]}, "
        f"sql_log_bin {row[3]}, whatever it asks for"
    )


def quote_text(text: str) -> str:
    """A string literal for sessions with Tidelog's sql_mode (backslashes escape)."""
    escaped = text.replace("\\", "\\\\").replace("'", "''").replace("\0", "\\0")
    return f"'{escaped}'"


def _describe(connection: Connection) -> None:
    row = connection.row(
        "SELECT @@version, @@version_comment, CONNECTION_ID(), @@hostname, @@port, @@server_id"
    )
    assert row is not None
    text, comment, connection_id, host, port, server_id = row
    connection.server = f"{host}:{port} (server_id {server_id})"
    connection.version_text = str(text)
    # A proxy or a build may leave the name out of the version.
    connection.flavor = Flavor.of_version(f"{text} {comment}")
    connection.version = version_numbers(connection.version_text)
    connection.connection_id = int(connection_id)


def _keep_alive(connection: Connection) -> None:
    sock = connection.raw_socket
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
