"""Writes a first configuration file from the URL of a database."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

from tidelog.app.sources.kinds import source_kind
from tidelog.config import parse_config
from tidelog.config.source import SOURCES
from tidelog.errors import UsageError
from tidelog.model.patterns import pattern_of
from tidelog.model.schema import TableName

PASSWORD = "TIDELOG_PASSWORD"  # noqa: S105 - a variable's name
# By the URL's scheme: a kind of this name, or the first that has the scheme.
_KINDS = {
    scheme: kind for kind, section in reversed(SOURCES.items()) for scheme in section.url_schemes
} | {kind: kind for kind in SOURCES}
_SHOWN = 20
SECRETS = {"password", "sslpassword"}


@dataclass(frozen=True, slots=True)
class FirstConfig:
    """A configuration that works as it is.

    Attributes:
        text: the text of the file, without the password.
        password: whether the URL had one, so that `PASSWORD` has to be exported.
        schemas: the number of tables in each schema (MySQL: database).
    """

    text: str
    password: bool
    schemas: dict[str, int]


def first_config(url: str) -> FirstConfig:
    """Return a configuration that captures all tables of the database at ``url``.

    Raises:
        UsageError: the kind of database is unknown.
        SourceError, PreflightError: the database can't be reached, or refuses the login.
    """
    parts = urlsplit(url)
    kind = _KINDS.get(parts.scheme)
    if kind is None:
        forms = dict.fromkeys(section.url_form for section in SOURCES.values() if section.url_form)
        raise UsageError(f"--url: expected {' or '.join(forms)}")
    if SECRETS & {name.lower() for name in parse_qs(parts.query, keep_blank_values=True)}:
        raise UsageError(
            "--url: give the password before the @ (user:password@host), so that it is kept out of "
            "the file; a key file with a password is for a configuration of your own"
        )
    given: dict[str, Any] = {
        "source": {"kind": kind, "url": url.replace("${", "$${")},
        "log": {"path": "./data/log"},
        "outputs": [],
    }
    config = parse_config(json.dumps(given), "the url", Path(), {})
    catalogue = source_kind(config).catalogue()
    try:
        tables = catalogue.tables(["*.*"])
    finally:
        catalogue.close()
    own = unquote(parts.path.strip("/")) if SOURCES[kind].url_has_namespace else ""
    here = [t for t in tables if own in ("", t.namespace)]
    counts = Counter(t.namespace for t in here or tables if _alike(t.namespace, own))
    schemas = dict(sorted(counts.items()))
    hidden = _without_password(url)
    return FirstConfig(_text(kind, hidden, [*schemas] or [own]), hidden != url, schemas)


def _alike(namespace: str, own: str) -> bool:
    """Return whether the namespace is the URL's database, in any case; without one, all are."""
    return not own or namespace.casefold() == own.casefold()


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    if parts.password is None:
        return url
    user, _, host = parts.netloc.rpartition("@")
    netloc = f"{user.partition(':')[0]}:${{{PASSWORD}}}@{host}"
    return urlunsplit(parts._replace(netloc=netloc))


def _text(kind: str, url: str, schemas: list[str]) -> str:
    patterns = [
        pattern_of(TableName(schema, "*")).replace("${", "$${") if schema else "*.*"
        for schema in schemas
    ]
    tables = json.dumps(patterns if len(patterns) <= _SHOWN else ["*.*"], ensure_ascii=False)
    place = resources.files("tidelog.config") / "tidelog.schema.json"
    return f"""\
# yaml-language-server: $schema={Path(str(place)).as_uri()}
# Every option: docs/reference/configuration.md. `tidelog check` says what the database still needs.

source:
  kind: {kind}
  url: {json.dumps(url, ensure_ascii=False)}
  tables: {tables}
  snapshot: initial         # the first start dumps all tables; no_data: only changes, dump later

log:
  path: ./data/log          # the event log; s3://bucket/path for several hosts

outputs:
  - kind: delta             # or files, iceberg, kafka, opensearch, http, postgres, mysql, python
    path: ./data/lake

# A dump that disturbs nobody: raise these as the database allows; `tidelog set` changes them while
# it runs.
dump:
  parallelism: 1
  rows_per_second: 20000
"""
