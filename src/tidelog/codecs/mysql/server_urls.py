"""URLs of MySQL and MariaDB servers: ``mysql://user:password@host:port/database?ssl-mode=…``."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Literal, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

from tidelog.errors import ConfigError

SCHEMES = ("mysql", "mariadb")
DEFAULT_PORT = 3306
CONNECT_TIMEOUT_S = 10.0

# As the option of the mysql program (manual, "Command Options for Encrypted Connections").
SslMode = Literal["disabled", "preferred", "required", "verify-ca", "verify-identity"]

# Options of the URL, with their meaning; ``_`` may replace ``-``.
OPTIONS = {
    "ssl-mode": f"one of {', '.join(get_args(SslMode))}",
    "ssl-ca": "a file of certificates of authorities that are trusted",
    "ssl-cert": "a file with the client's certificate",
    "ssl-key": "a file with the client's private key",
    "unix-socket": "the path of the server's socket, instead of host and port",
    "connect-timeout": "seconds",
}


class ServerPin:
    """The one server whose log is read, among those behind a host name, an address or a proxy.

    Everything that is read besides the log must come from it.

    Attributes:
        server: None: any; else its `Connection.server`. Set by the reader of the log.
        shift: added to the number of its binlog files for positions: those of a promoted server
            continue after those of the former one.
    """

    __slots__ = ("server", "shift")

    def __init__(self) -> None:
        self.server: str | None = None
        self.shift = 0


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """The address of a server and the login; its `str` has no password.

    Attributes:
        pin: shared by all users of this object.
    """

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    unix_socket: str | None = None
    ssl_mode: SslMode = "preferred"
    ssl_ca: str | None = None
    ssl_cert: str | None = None
    ssl_key: str | None = None
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    pin: ServerPin = field(default_factory=ServerPin, repr=False, compare=False)

    def __str__(self) -> str:
        """Return the server for messages: ``127.0.0.1:3306, user 'tidelog'``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.unix_socket or f'{host}:{self.port}'}, user {self.user!r}"

    @property
    def where(self) -> str:
        """The server alone, to distinguish servers in this process."""
        return self.unix_socket or f"{self.host}:{self.port}"


def parse_url(url: str) -> ServerUrl:
    """Return the parts of a URL. Raises ConfigError, whose message has no secrets of it."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise ConfigError(
            "source.url is not the URL of a MySQL or MariaDB server: expected "
            "mysql://user:password@host:port/database (or mariadb://…)"
        )
    _check_encoding(rest)
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORT
        host = parts.hostname or "127.0.0.1"
    except ValueError:
        raise ConfigError(
            "the host or port in source.url can't be read: the port is a number, an IPv6 address "
            "stands in brackets, and special characters of the password are percent-encoded "
            "(@ is %40, / is %2F, : is %3A)"
        ) from None
    if parts.fragment:
        raise ConfigError("source.url has a # in it: percent-encode it as %23")
    options = _options(parts.query)
    unix_socket = options.get("unix-socket")
    mode = _ssl_mode(options, unix_socket is not None)
    return ServerUrl(
        host=unquote(host),
        port=port,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=unquote(parts.path.removeprefix("/")),
        unix_socket=unix_socket,
        ssl_mode=mode,
        ssl_ca=options.get("ssl-ca"),
        ssl_cert=options.get("ssl-cert"),
        ssl_key=options.get("ssl-key"),
        connect_timeout_s=_seconds(options.get("connect-timeout")),
    )


@lru_cache(maxsize=8)
def ssl_context(url: ServerUrl) -> ssl.SSLContext | None:
    """Return the TLS context; None: unverified if the server can, or none (see `ssl_mode`). Raises
    ConfigError if a file can't be read.
    """
    if url.ssl_mode == "disabled":
        return None
    if url.ssl_mode == "preferred" and url.ssl_cert is None:
        return None
    try:
        context = ssl.create_default_context(cafile=url.ssl_ca)
        if url.ssl_cert is not None:
            context.load_cert_chain(url.ssl_cert, url.ssl_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"ssl-ca, ssl-cert or ssl-key in source.url can't be loaded: {error.strerror or error}"
        ) from None
    # Certificates that MySQL creates for itself lack extensions that Python's strict mode needs.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = url.ssl_mode == "verify-identity"
    if url.ssl_mode in ("preferred", "required"):
        context.verify_mode = ssl.CERT_NONE
    return context


@cache
def unverified_context() -> ssl.SSLContext:
    """Return a context without verification: for ``preferred``, if the server can."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _check_encoding(rest: str) -> None:
    """Refuse a password that is not percent-encoded before a part of it is taken for the host."""
    authority, _, path = rest.partition("/")
    if authority.count("@") > 1 or "@" in path.split("?", 1)[0]:
        raise ConfigError(
            "source.url has an @ in a wrong place: percent-encode special characters in the "
            "user name and password (@ is %40, / is %2F)"
        )


def _options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        option_name = name.lower().replace("_", "-")
        if option_name not in OPTIONS:
            listed = "; ".join(f"{option}: {meaning}" for option, meaning in OPTIONS.items())
            raise ConfigError(f"source.url has an unknown option {name!r}. Known are {listed}")
        options[option_name] = value
    return options


def _ssl_mode(options: dict[str, str], local: bool) -> SslMode:
    named = options.get("ssl-mode")
    if named is None:
        if "ssl-ca" in options:
            return "verify-ca"  # as the mysql program does: a named authority is to be checked
        return "disabled" if local else "preferred"
    mode = named.lower().replace("_", "-")
    for valid in get_args(SslMode):
        if mode == valid:
            return valid  # type: ignore[no-any-return]
    raise ConfigError(f"ssl-mode in source.url must be {OPTIONS['ssl-mode']}")


def _seconds(text: str | None) -> float:
    try:
        seconds = CONNECT_TIMEOUT_S if text is None else float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:
        raise ConfigError("connect-timeout in source.url must be a number of seconds up to 3600")
    return seconds
