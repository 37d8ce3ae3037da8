"""State and elections in ZooKeeper: ``zookeeper://h1:2181,h2:2181,h3:2181/path``.

Below the path, ``documents`` and ``leases`` have a node for each document. If a document does not
fit into one node, further nodes below ``parts`` have it; they are written first, and the node names
them.

A session is no more than a connection here: leadership is a lease with a deadline. A suspended
session ends nothing, and one that comes back prolongs nothing. A change is sent only while the
connection is open, and ends with its session: it can't be made after another process has taken
over.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from tidelog.errors import ConfigError, StateError, TidelogError
from tidelog.state.documents import Documents, LeaseElection, NoAnswerError, key_of
from tidelog.system.extras import check_installed, missing_extra

EXPECTED: Final = (
    "expected zookeeper://host:2181,host:2181/path; user, password and TLS belong under options"
)
SASL_MECHANISMS: Final = ("DIGEST-MD5", "GSSAPI", "PLAIN")
_TLS: Final = {
    "tls_ca": "ca",
    "tls_certificate": "certfile",
    "tls_key": "keyfile",
    "tls_key_password": "keyfile_password",
}
_SASL: Final = {"sasl_service": "service", "sasl_principal": "principal"}
_KNOWN: Final = (
    *("user", "password", "auth", "sasl_mechanism", *_SASL),
    *("acl", "tls", *_TLS, "tls_verify", "session_timeout_s"),
)
_RIGHT_LETTERS: Final = frozenset("cdrwa")


@dataclass(frozen=True)
class ZooKeeperLocation:
    """The location of the state, and the options of the connection."""

    hosts: str
    path: str
    options: Mapping[str, str]

    @property
    def session_timeout_s(self) -> float:
        """The timeout of the session in seconds; the server may grant another. No change can be
        made once the session has ended, which is before anyone else may lead.
        """
        return float(self.options.get("session_timeout_s", "6"))

    @property
    def sasl(self) -> dict[str, str] | None:
        """SASL options for kazoo; None: no SASL."""
        if self.options.get("auth", "digest") != "sasl":
            return None
        given = {
            "mechanism": self.options.get("sasl_mechanism", "DIGEST-MD5"),
            "username": self.options.get("user", ""),
            "password": self.options.get("password", ""),
            **{ours: self.options.get(name, "") for name, ours in _SASL.items()},
        }
        return {name: value for name, value in given.items() if value}

    @property
    def digest(self) -> str | None:
        """``user:password`` for ZooKeeper's own scheme; None: not configured."""
        if "user" not in self.options or self.sasl is not None:
            return None
        return f"{self.options['user']}:{self.options.get('password', '')}"

    @property
    def tls(self) -> dict[str, Any]:
        """TLS options for kazoo."""
        given = {ours: self.options[name] for name, ours in _TLS.items() if name in self.options}
        if not given and self.options.get("tls", "false") != "true":
            return {}
        verify = self.options.get("tls_verify", "true") == "true"
        return {"use_ssl": True, "verify_certs": verify, "check_hostname": verify, **given}

    @property
    def acl(self) -> list[tuple[str, str, str]]:
        """``(scheme, id, rights)``; by default all rights for our own user alone. Without a user,
        all rights for everyone.
        """
        if "acl" in self.options:
            entries = self.options["acl"].split(",")
            return [_entry(entry.strip()) for entry in entries]
        known = self.digest is not None or self.sasl is not None
        return [("auth", "", "cdrwa")] if known else [("world", "anyone", "cdrwa")]


def parse(url: str) -> ZooKeeperLocation:
    """Parse the URL. Raises ValueError, which shows nothing of it."""
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    user, _, hosts = authority.rpartition("@")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if user:
        name, _, password = user.partition(":")
        options = {"user": unquote(name), "password": unquote(password)} | options
    plain = path.strip("/")
    if scheme != "zookeeper" or not plain or not all(_host(h) for h in hosts.split(",")):
        raise ValueError(EXPECTED)
    if any(part in ("", ".", "..", "zookeeper") for part in plain.split("/")):
        raise ValueError(f"{EXPECTED}; the path has a part that ZooKeeper does not take")
    location = ZooKeeperLocation(hosts, f"/{plain}", options)
    _check(location)
    return location


def _check(location: ZooKeeperLocation) -> None:
    options = location.options
    unknown = sorted(set(options) - set(_KNOWN))
    if unknown:
        raise ValueError(f"unknown option {unknown[0]!r}; known are {', '.join(_KNOWN)}")
    if options.get("auth", "digest") not in ("digest", "sasl"):
        raise ValueError("options.auth: expected digest or sasl")
    if options.get("sasl_mechanism", "DIGEST-MD5") not in SASL_MECHANISMS:
        raise ValueError(f"options.sasl_mechanism: expected {', '.join(SASL_MECHANISMS)}")
    for name in ("tls", "tls_verify"):
        if options.get(name, "true") not in ("true", "false"):
            raise ValueError(f"options.{name}: expected true or false")
    try:
        good = 1 <= location.session_timeout_s <= 60
    except ValueError:
        good = False
    if not good:
        raise ValueError("options.session_timeout_s: expected a number of seconds, 1 to 60")
    if "tls_key" in options and "tls_certificate" not in options:
        raise ValueError("options.tls_key: tls_certificate is missing")
    _ = location.acl


def _host(text: str) -> bool:
    """Return whether the text is a name or address, with or without a port; IPv6 in brackets."""
    return re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]@\s]+)(:\d{1,5})?", text) is not None


def _entry(text: str) -> tuple[str, str, str]:
    """Parse an entry of ``acl``: ``scheme:id:rights``, e.g. ``digest:user:hash=:cdrwa``."""
    scheme, _, rest = text.partition(":")
    identity, _, rights = rest.rpartition(":")
    if not scheme or not rights or not _RIGHT_LETTERS.issuperset(rights):
        raise ValueError("options.acl: expected scheme:id:rights, rights of the letters cdrwa")
    return scheme, identity, rights


try:
    from kazoo import exceptions as refusals
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import KazooTimeoutError
    from kazoo.protocol.states import KeeperState
    from kazoo.security import ACL, Id, Permissions
except ImportError as error:  # pragma: no cover - every test has it installed
    raise missing_extra(error, "zookeeper") or error from error

# kazoo's own log lines have what it sends, also passwords.
_logger = logging.getLogger("tidelog.zookeeper")
_logger.setLevel(logging.WARNING)

PART_BYTES: Final = 512 << 10
"""Well below jute.maxbuffer, 1 MiB, which limits whole requests and answers."""

CONNECT_S: Final = 10.0
RECONNECT_S: Final = 2.0
ANSWER_S: Final = 5.0
_DOCUMENTS, _LEASES, _PARTS = "documents", "leases", "parts"
_RIGHTS: Final = {
    "c": Permissions.CREATE,
    "d": Permissions.DELETE,
    "r": Permissions.READ,
    "w": Permissions.WRITE,
    "a": Permissions.ADMIN,
}
_NO_ANSWER_ERRORS: Final = (
    refusals.ConnectionLoss,
    refusals.SessionExpiredError,
    refusals.OperationTimeoutError,
    refusals.ConnectionClosedError,
    KazooTimeoutError,
)
_Begin = Callable[[KazooClient], Any]


class ZooKeeperConnection:
    """Keeps one session at a time, opened by the first request. Thread-safe."""

    def __init__(self, location: ZooKeeperLocation) -> None:
        self.location = location
        self.acl = [_acl(*entry) for entry in location.acl]
        self._lock = threading.Lock()
        self._client: KazooClient | None = None
        self._is_connected = threading.Event()
        self._closed = False

    def ask(self, begin: _Begin) -> Any:
        """Return the server's answer. Raises the server's errors, and StateError."""
        client = self._get_client()
        with self._errors(StateError):
            return begin(client).get(timeout=ANSWER_S)

    def change(self, begin: _Begin) -> Any:
        """As `ask`. Raises NoAnswerError if the change may have been made."""
        client = self._get_client()
        with self._errors(NoAnswerError):
            return begin(client).get(timeout=ANSWER_S)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._drop()

    def _get_client(self) -> KazooClient:
        """Return a connected client. No request waits for a connection: it would be sent late."""
        with self._lock:
            if self._closed:
                raise StateError("the state store is closed")
            first = self._client is None or self._client.client_state == KeeperState.AUTH_FAILED
            if first:
                self._drop()
                self._client = self._begin()
            client = self._client
            assert client is not None
            # Set while the connection is open.
            self._is_connected.wait(CONNECT_S if first else RECONNECT_S)
            if client.connected:
                return client
            state = client.client_state
            if first:
                self._drop()
        if state == KeeperState.AUTH_FAILED:
            raise ConfigError(f"{self._where()} refuses the login: check user and password")
        raise StateError(
            f"no connection to {self._where()}: are most of its servers up, and are host, port and "
            "TLS right? Tidelog tries again"
        )

    def _begin(self) -> KazooClient:
        location = self.location
        if location.sasl is not None:
            check_installed("puresasl")
        client = KazooClient(
            hosts=location.hosts,
            timeout=location.session_timeout_s,
            auth_data=[] if location.digest is None else [("digest", location.digest)],
            sasl_options=location.sasl,
            connection_retry={"max_tries": -1, "delay": 0.1, "max_delay": 2},
            logger=_logger,
            **location.tls,
        )
        self._is_connected = client.start_async()
        return client

    def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):  # it may be broken in any way
                client.stop()
                client.close()

    @contextmanager
    def _errors(self, silent: type[TidelogError]) -> Iterator[None]:
        try:
            yield
        except _NO_ANSWER_ERRORS as error:
            raise silent(f"no answer from {self._where()} ({type(error).__name__})") from None
        except refusals.NoAuthError:
            raise ConfigError(
                f"{self._where()} refuses access below {self.location.path}: its nodes have an ACL "
                "for another user, or none was given"
            ) from None
        except refusals.InvalidACLError:
            raise ConfigError(
                f"{self._where()} does not take options.acl: a scheme is unknown to it, an id is "
                "not one of its scheme, or auth: is given without a user"
            ) from None
        except refusals.AuthFailedError:
            raise ConfigError(
                f"{self._where()} refuses the login: check user and password"
            ) from None

    def _where(self) -> str:
        return f"ZooKeeper at {self.location.hosts}"


class NodeRegister:
    """A `tidelog.state.documents.Register`: a node for each text; tags: ``(version, in parts)``."""

    def __init__(self, connection: ZooKeeperConnection, folder: str) -> None:
        self._connection = connection
        self._path = connection.location.path
        self._folder = folder

    def read(self, name: str) -> tuple[bytes, Any] | None:
        last_head = b""
        while True:
            head_and_version = self._get(self._node(name))
            if head_and_version is None:
                return None
            head, version = head_and_version
            if head.startswith(b"{"):
                return head, (version, False)
            parts = [self._get(path) for path in self._part_paths(name, head)]
            if all(part is not None for part in parts):
                return b"".join(part[0] for part in parts if part), (version, True)
            # It was replaced during the read: parts are deleted only once the node names another
            # batch.
            if head == last_head:
                raise StateError(
                    f"state {key_of(name)!r}: a part of it is missing in ZooKeeper, which "
                    f"{self._node(name)} names: was something deleted by hand?"
                )
            last_head = head

    def swap(self, name: str, text: bytes, tag: Any) -> Any:
        head, parts = text, []
        large = len(text) > PART_BYTES
        # Listed before the swap: parts that appear after it may be those of another process, if
        # this one is frozen. By then no node names any of these: a swap that would use them has an
        # older tag.
        before = self._parts_of(name) if large or (tag is not None and tag[1]) else []
        if large:
            batch = secrets.token_hex(8)
            head = f"{batch} {-(-len(text) // PART_BYTES)}".encode()
            parts = self._part_paths(name, head)
            for index, path in enumerate(parts):
                self._create(path, text[index * PART_BYTES :][:PART_BYTES])
        version = self._swap_head(self._node(name), head, parts, tag)
        self._delete_all(parts if version is None else before)
        return None if version is None else (version, bool(parts))

    def remove(self, name: str, tag: Any = None) -> bool:
        parts = self._parts_of(name)  # as in `swap`
        try:
            self._delete(self._node(name), -1 if tag is None else tag[0])
        except refusals.BadVersionError:
            return False
        if parts:
            self._delete_all([*parts, f"{self._path}/{_PARTS}/{self._folder}-{name}"])
        return True

    def names(self) -> list[str]:
        path = f"{self._path}/{self._folder}"
        try:
            self._connection.ask(lambda client: client.sync_async(path))
            return list(self._connection.ask(lambda client: client.get_children_async(path)))
        except refusals.NoNodeError:
            return []

    def close(self) -> None:
        self._connection.close()

    def _node(self, name: str) -> str:
        return f"{self._path}/{self._folder}/{name}"

    def _part_paths(self, name: str, head: bytes) -> list[str]:
        batch, count = head.decode().split(" ")
        folder = f"{self._path}/{_PARTS}/{self._folder}-{name}"
        return [f"{folder}/{batch}-{index}" for index in range(int(count))]

    def _parts_of(self, name: str) -> list[str]:
        folder = f"{self._path}/{_PARTS}/{self._folder}-{name}"
        try:
            children = self._connection.ask(lambda client: client.get_children_async(folder))
        except refusals.NoNodeError:
            return []
        return [f"{folder}/{child}" for child in children]

    def _get(self, path: str) -> tuple[bytes, int] | None:
        def begin(client: KazooClient) -> Any:
            # A server may lag behind the others; it answers in the order of the requests.
            client.sync_async(path)
            return client.get_async(path)

        try:
            data, stat = self._connection.ask(begin)
        except refusals.NoNodeError:
            return None
        return data, stat.version

    def _create(self, path: str, data: bytes) -> None:
        acl = self._connection.acl
        self._connection.change(lambda client: client.create_async(path, data, acl, makepath=True))

    def _swap_head(self, path: str, head: bytes, parts: list[str], tag: Any) -> int | None:
        try:
            if parts:
                return self._swap_with_parts(path, head, parts, tag)
            if tag is None:
                self._create(path, head)
                return 0
            change = self._connection.change(
                lambda client: client.set_async(path, head, version=tag[0])
            )
        except (refusals.NodeExistsError, refusals.BadVersionError, refusals.NoNodeError):
            return None
        return int(change.version)

    def _swap_with_parts(self, path: str, head: bytes, parts: list[str], tag: Any) -> int | None:
        """Name the parts only if all still exist: other processes delete unnamed parts."""
        if tag is None:
            with contextlib.suppress(refusals.NodeExistsError):
                self._create(path.rpartition("/")[0], b"")

        def begin(client: KazooClient) -> Any:
            transaction = client.transaction()
            for part in parts:
                transaction.check(part, 0)
            if tag is None:
                transaction.create(path, head, self._connection.acl)
            else:
                transaction.set_data(path, head, tag[0])
            return transaction.commit_async()

        answers = self._connection.change(begin)
        if any(isinstance(answer, Exception) for answer in answers):
            return None
        return 0 if tag is None else int(answers[-1].version)

    def _delete(self, path: str, version: int = -1) -> None:
        with contextlib.suppress(refusals.NoNodeError):
            self._connection.change(lambda client: client.delete_async(path, version))

    def _delete_all(self, paths: list[str]) -> None:
        """Delete parts that no node names any more; on errors, the next swap deletes them."""
        for path in paths:
            with contextlib.suppress(StateError, refusals.NotEmptyError):
                self._delete(path)


class ZooKeeperBackend:
    """The `tidelog.ports.StateBackend` of ``zookeeper://…``."""

    def normalize_url(self, url: str, base: Path) -> str:
        parse(url)
        return url

    def path(self, url: str) -> None:
        return None

    def exists(self, url: str) -> bool:
        register = NodeRegister(ZooKeeperConnection(parse(url)), _DOCUMENTS)
        try:
            return bool(register.names())
        finally:
            register.close()

    def store(self, url: str) -> Documents:
        return Documents(NodeRegister(ZooKeeperConnection(parse(url)), _DOCUMENTS))

    def election(
        self, url: str, name: str, holder: str, ttl_s: float, *, first_epoch: int = 1
    ) -> LeaseElection:
        leases = Documents(NodeRegister(ZooKeeperConnection(parse(url)), _LEASES))
        return LeaseElection(leases, name, holder, ttl_s, first_epoch=first_epoch)


def _acl(scheme: str, identity: str, rights: str) -> ACL:
    bits = 0
    for letter in rights:
        bits |= _RIGHTS[letter]
    return ACL(bits, Id(scheme, identity))


BACKEND = ZooKeeperBackend()
