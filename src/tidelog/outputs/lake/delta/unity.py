"""Entries of Delta tables in Unity Catalog, by its REST API 2.1.

An entry is an external table with the columns that the table has when it is registered. The API
can't change columns (https://docs.unitycatalog.io, ``api/all.yaml``), and another entry in its
place would lack the grants: readers take columns from Delta's log.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
from pyspark.sql.types import DecimalType, StructField, StructType

from tidelog.errors import AccessRefusedError, OutputError
from tidelog.model.schema import TableName
from tidelog.outputs.base.builtin_kind import normal_directory
from tidelog.outputs.base.left_out import route_step
from tidelog.outputs.lake.delta.registration import Entry, another_table

logger = logging.getLogger(__name__)

_API: Final = "api/2.1/unity-catalog"
_TIMEOUT_S: Final = 30.0
_NAME: Final = re.compile(r"[^\s./\x00-\x1f\x7f]{1,255}")
_BUSY: Final = (429, 502, 503, 504)


class UnityCatalog:
    """One catalog of a server.

    Args:
        uri: ``https://host``.
        name: the catalog's.
        token: sent as a bearer's; None: none.
    """

    def __init__(self, uri: str, name: str, token: str | None) -> None:
        self._uri = uri
        self._name = name
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def check(self) -> None:
        """Raise OutputError if the server does not answer, or does not have the catalog."""
        with self._client() as client:
            status, answer = self._send(client, "GET", f"catalogs/{quote(self._name, safe='')}")
        if status == 404:
            raise OutputError(
                f"Unity Catalog at {self._uri} has no catalog {self._name}: create it"
            )
        if status >= 300:
            raise OutputError(f"Unity Catalog at {self._uri}: {_why(status, answer)}")

    def refused_name(self, entry: Entry) -> str | None:
        """See `Catalog`."""
        if _NAME.fullmatch(entry.database) and _NAME.fullmatch(entry.name):
            return None
        return (
            f"{entry} can't be a name in Unity Catalog, where names have no dots, spaces, slashes "
            f"and control characters. {route_step(entry.table)}"
        )

    def register(self, entries: Sequence[Entry]) -> dict[TableName, str]:
        """See `Catalog`."""
        with self._client() as client:
            found = {each.table: self._register(client, each) for each in entries}
        return {table: why for table, why in found.items() if why is not None}

    def _client(self) -> httpx.Client:
        return httpx.Client(headers=self._headers, timeout=_TIMEOUT_S)

    def _register(self, client: httpx.Client, entry: Entry) -> str | None:
        name = f"{self._name}.{entry}"
        path = f"tables/{quote(name, safe='')}"
        status, answer = self._send(client, "GET", path)
        if status == 404:
            if (refusal := self._create(client, entry)) is not None:
                return f"{name} can't be registered in Unity Catalog: {refusal}"
            status, answer = self._send(client, "GET", path)
        if status != 200:
            return f"{name} can't be read in Unity Catalog: {_why(status, answer)}"
        is_delta = answer.get("data_source_format") == "DELTA"
        where = str(answer.get("storage_location") or "") if is_delta else None
        return another_table(entry, name, "Unity Catalog", _url(entry), where)

    def _create(self, client: httpx.Client, entry: Entry) -> str | None:
        """Create the entry, and its schema, unless somebody else does at the same time. Returns
        why not.
        """
        schema = quote(f"{self._name}.{entry.database}", safe="")
        if self._send(client, "GET", f"schemas/{schema}")[0] == 404:
            new = {"catalog_name": self._name, "name": entry.database}
            status, answer = self._send(client, "POST", "schemas", new)
            if status >= 300 and not _exists(answer):
                return _why(status, answer)
        table = {
            "catalog_name": self._name,
            "schema_name": entry.database,
            "name": entry.name,
            "table_type": "EXTERNAL",
            "data_source_format": "DELTA",
            "storage_location": _url(entry),
            "columns": columns_of(entry),
        }
        status, answer = self._send(client, "POST", "tables", table)
        if status < 300:
            logger.info(
                "%s is registered as %s.%s in Unity Catalog", entry.location, self._name, entry
            )
        elif not _exists(answer):
            return _why(status, answer)
        return None

    def _send(
        self, client: httpx.Client, method: str, path: str, body: object = None
    ) -> tuple[int, Mapping[str, Any]]:
        """Send a request. Returns status and answer. Raises AccessRefusedError for a wrong token,
        OutputError if the server does not answer.
        """
        server = f"Unity Catalog at {self._uri}"
        try:
            answer = client.request(method, f"{self._uri}/{_API}/{path}", json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise OutputError(f"{server} does not answer: {type(error).__name__}") from None
        if answer.status_code == 401:
            raise AccessRefusedError(
                f"{server} denies access: the catalog's token is wrong, or has expired"
            )
        if answer.status_code in _BUSY:
            raise OutputError(f"{server} does not answer: HTTP {answer.status_code}")
        try:
            found = answer.json()
        except ValueError:
            found = {}
        return answer.status_code, found if isinstance(found, dict) else {}


def columns_of(entry: Entry) -> list[dict[str, Any]]:
    """Return the columns as the API has them."""
    if entry.metadata is None:
        return []
    partitions = list(entry.metadata.partition_columns)
    fields = StructType.fromJson(dict(entry.metadata.schema)).fields
    return [_column(number, each, partitions) for number, each in enumerate(fields)]


def _column(number: int, field: StructField, partitions: list[str]) -> dict[str, Any]:
    kind = field.dataType
    name = kind.typeName().upper()
    found: dict[str, Any] = {
        "name": field.name,
        "type_text": kind.simpleString(),
        "type_name": "INT" if name == "INTEGER" else name,
        "type_json": json.dumps(field.jsonValue()),
        "position": number,
        "nullable": field.nullable,
    }
    if isinstance(kind, DecimalType):
        found |= {"type_precision": kind.precision, "type_scale": kind.scale}
    if comment := field.metadata.get("comment"):
        found["comment"] = comment
    if field.name in partitions:
        found["partition_index"] = partitions.index(field.name)
    return found


def _url(entry: Entry) -> str:
    """Return the location as Unity Catalog names it."""
    if "://" in entry.location:
        return normal_directory(entry.location)
    return Path(entry.location).resolve().as_uri()


def _exists(answer: Mapping[str, Any]) -> bool:
    return str(answer.get("error_code")).endswith("ALREADY_EXISTS")


def _why(status: int, answer: Mapping[str, Any]) -> str:
    text = str(answer.get("message") or "").strip().partition("\n")[0][:300]
    return f"HTTP {status}: {text}" if text else f"HTTP {status}"
