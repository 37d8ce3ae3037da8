"""Where the metadata of tables are, asked of a catalog without Java: each commit changes that.

A catalog on PostgreSQL by SQL, a REST catalog by HTTP, as Iceberg's library does it. A property
that is not known here may change whom to ask: then nobody is asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import parse_qsl, quote, urlencode
from urllib.request import HTTPRedirectHandler, Request, build_opener

from tidelog.errors import OutputError

_ANSWER_S: Final = 5
_JDBC: Final = re.compile(r"jdbc:(?P<url>postgresql://[\w.-]+(:\d+)?/[^?,]+)(\?(?P<more>.*))?")
_JDBC_KNOWN: Final = {"user", "password", "sslmode", "sslrootcert"}
_QUERY: Final = (
    "SELECT catalog_name, table_namespace, table_name, metadata_location FROM iceberg_tables"
)
_REST_KNOWN: Final = {
    "type", "uri", "warehouse", "prefix", "token", "credential", "scope", "oauth2-server-uri",
    "rest.client.connection-timeout-ms", "rest.client.socket-timeout-ms",
}  # fmt: skip
_OF_FILES: Final = ("s3.", "gcs.", "adls.", "client.", "io-impl", "table-default.", "header.")


def table_key(catalog: str, parts: Iterable[str]) -> str:
    """Return the name of a table in a catalog, of which `find_locations` asks."""
    return json.dumps([catalog, *parts])


def find_locations(
    properties: Mapping[str, str], tables: Iterable[str]
) -> dict[str, str | None] | None:
    """Return where the metadata of each table are, None for one that does not exist; None: that
    can't be known. Raises OutputError if the catalog does not answer.
    """
    kind = properties.get("type", "").lower()
    if kind == "jdbc":
        return _of_database(properties, tables)
    return _of_rest(properties, tables) if kind == "rest" else None


def _of_database(
    properties: Mapping[str, str], tables: Iterable[str]
) -> dict[str, str | None] | None:
    import psycopg

    place = _JDBC.fullmatch(properties.get("uri", ""))
    if place is None:
        return None
    given = dict(parse_qsl(place["more"] or ""))
    named = "jdbc."
    given |= {n.removeprefix(named): v for n, v in properties.items() if n.startswith(named)}
    given = {n: v for n, v in given.items() if n not in ("schema-version", "socketTimeout")}
    if not given.keys() <= _JDBC_KNOWN:
        return None
    try:
        with psycopg.connect(place["url"], connect_timeout=_ANSWER_S, **given) as connection:
            known = {tuple(row[:3]): row[3] for row in connection.execute(_QUERY)}
    except psycopg.Error as error:
        raise OutputError(f"the catalog's database: {type(error).__name__}") from None
    found: dict[str, str | None] = {}
    for key in tables:
        catalog, *namespace, name = json.loads(key)
        found[key] = known.get((catalog, ".".join(namespace), name))
    return found


def _of_rest(properties: Mapping[str, str], tables: Iterable[str]) -> dict[str, str | None] | None:
    if any(n not in _REST_KNOWN and not n.startswith(_OF_FILES) for n in properties):
        return None
    headers = {
        name.removeprefix("header."): value
        for name, value in properties.items()
        if name.startswith("header.")
    }
    uri = properties.get("uri", "").rstrip("/")
    if token := properties.get("token") or _token(uri, properties, headers):
        headers["Authorization"] = f"Bearer {token}"
    asked = urlencode({"warehouse": properties["warehouse"]}) if "warehouse" in properties else ""
    config = _ask(f"{uri}/v1/config?{asked}", headers) or {}
    known = {**config.get("defaults", {}), **properties, **config.get("overrides", {})}
    root = "/".join(each for each in (known["uri"].rstrip("/"), "v1", known.get("prefix")) if each)
    found: dict[str, str | None] = {}
    for key in tables:
        _, *namespace, name = json.loads(key)
        place = f"namespaces/{quote(chr(0x1F).join(namespace), '')}/tables/{quote(name, '')}"
        table = _ask(f"{root}/{place}?snapshots=refs", headers)
        found[key] = None if table is None else table.get("metadata-location")
    return found


def _token(uri: str, properties: Mapping[str, str], headers: Mapping[str, str]) -> str | None:
    """Return a token for the credential of the client; None: there is none."""
    if "credential" not in properties:
        return None
    *client, secret = properties["credential"].split(":", 1)
    form = {
        "grant_type": "client_credentials",
        **({"client_id": client[0]} if client else {}),
        "client_secret": secret,
        "scope": properties.get("scope", "catalog"),
    }
    place = properties.get("oauth2-server-uri", f"{uri}/v1/oauth/tokens")
    answer = _ask(place, headers, form)
    return None if answer is None else answer.get("access_token")


class _NoRedirects(HTTPRedirectHandler):
    """A token is for the catalog alone."""

    def redirect_request(self, *_: Any) -> None: ...


_opener = build_opener(_NoRedirects)


def _ask(
    url: str, headers: Mapping[str, str], form: Mapping[str, str] | None = None
) -> dict[str, Any] | None:
    """Return the answer; None: there is no such thing."""
    try:
        data = None if form is None else urlencode(form).encode()
        request = Request(url, data, dict(headers))  # noqa: S310
        if request.type not in ("http", "https"):
            raise OutputError(f"the catalog is at a URL of {request.type}")
        with _opener.open(request, timeout=_ANSWER_S) as answer:
            return dict(json.load(answer))
    except HTTPError as error:
        if error.code == 404:
            return None
        raise OutputError(f"the catalog answers with status {error.code}") from None
    except (OSError, HTTPException, ValueError, TypeError) as error:
        raise OutputError(f"the catalog does not answer: {type(error).__name__}") from None
