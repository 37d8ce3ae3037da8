"""``zookeeper://user:password@h1:2181,h2:2181/path?option=value``: what it says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

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
_RIGHTS: Final = frozenset("cdrwa")


@dataclass(frozen=True)
class Place:
    """Where the state is, and how a client gets there."""

    hosts: str
    path: str
    options: Mapping[str, str]

    @property
    def session_timeout_s(self) -> float:
        """The timeout of the session; the server may grant another. A change that was sent can't be
        made once the session is over, which is before anyone else may lead.
        """
        return float(self.options.get("session_timeout_s", "6"))

    @property
    def sasl(self) -> dict[str, str] | None:
        """For kazoo; None: no SASL."""
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
        """``user:password`` for ZooKeeper's own scheme; None: not asked for."""
        if "user" not in self.options or self.sasl is not None:
            return None
        return f"{self.options['user']}:{self.options.get('password', '')}"

    @property
    def tls(self) -> dict[str, Any]:
        """For kazoo."""
        given = {ours: self.options[name] for name, ours in _TLS.items() if name in self.options}
        if not given and self.options.get("tls", "false") != "true":
            return {}
        verify = self.options.get("tls_verify", "true") == "true"
        return {"use_ssl": True, "verify_certs": verify, "check_hostname": verify, **given}

    @property
    def acl(self) -> list[tuple[str, str, str]]:
        """``(scheme, id, rights)``; by default all rights for whom we are known as, and no one
        else, or for all where we are nobody.
        """
        if "acl" in self.options:
            entries = self.options["acl"].split(",")
            return [_entry(entry.strip()) for entry in entries]
        known = self.digest is not None or self.sasl is not None
        return [("auth", "", "cdrwa")] if known else [("world", "anyone", "cdrwa")]


def parse(url: str) -> Place:
    """Raises ValueError, which shows nothing of the URL."""
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
    place = Place(hosts, f"/{plain}", options)
    _check(place)
    return place


def _check(place: Place) -> None:
    options = place.options
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
        good = 1 <= place.session_timeout_s <= 60
    except ValueError:
        good = False
    if not good:
        raise ValueError("options.session_timeout_s: expected a number of seconds, 1 to 60")
    if "tls_key" in options and "tls_certificate" not in options:
        raise ValueError("options.tls_key: tls_certificate is missing")
    _ = place.acl


def _host(text: str) -> bool:
    """A name or address with or without a port; IPv6 in brackets."""
    return re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]@\s]+)(:\d{1,5})?", text) is not None


def _entry(text: str) -> tuple[str, str, str]:
    """One of ``acl``: ``scheme:id:rights``, e.g. ``digest:user:hash=:cdrwa``."""
    scheme, _, rest = text.partition(":")
    identity, _, rights = rest.rpartition(":")
    if not scheme or not rights or not _RIGHTS.issuperset(rights):
        raise ValueError("options.acl: expected scheme:id:rights, rights of the letters cdrwa")
    return scheme, identity, rights
