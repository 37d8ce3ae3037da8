"""What tells the places apart that outputs of our kinds write to; see `OutputKind.place`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

# What tells a place apart, and the hosts that lead to it: of a cluster, any of them may be named.
_Place = tuple[list[Any], list[str]]

_PORT = re.compile(r":\d+$")


def _directory(path: str) -> str:
    return path.rstrip("/") if "://" in path else str(Path(path).resolve())


def _iceberg(section: Any) -> list[Any]:
    found = section.catalog_properties()
    place = [found.get(name, "") for name in ("type", "catalog-impl", "uri")]
    return [*place, _directory(found.get("warehouse", ""))]


def _files(section: Any) -> list[Any]:
    # Directories below it that begin alike are read together.
    return [_directory(section.path), section.layout.partition("{")[0]]


def _http(section: Any) -> _Place:
    url = urlsplit(section.url.reveal())
    return [url.hostname, url.port, url.path], [url.query]


def _hosts(text: str, port: int) -> list[str]:
    """With ``port`` where none is named."""
    found = [each.strip().lower() for each in text.split(",")]
    return sorted(each if _PORT.search(each) else f"{each}:{port}" for each in found)


def _database(namespace: str, port: int) -> Callable[[Any], _Place]:
    def place(section: Any) -> _Place:
        url = urlsplit(section.url.reveal())
        hosts = _hosts(url.netloc.rpartition("@")[2], port)
        # MySQL's database may stand in the URL, but tables are named by `database` then, too.
        return [url.path.strip("/"), getattr(section, namespace)], hosts

    return place


def _opensearch(section: Any) -> _Place:
    hosts = [_hosts(urlsplit(url).netloc.rpartition("@")[2], 9200)[0] for url in section.urls]
    return [section.index], hosts


PLACES: Mapping[str, Callable[[Any], _Place]] = {
    "delta": lambda section: ([_directory(section.path)], []),
    "files": lambda section: (_files(section), []),
    "http": _http,
    "iceberg": lambda section: (_iceberg(section), []),
    "kafka": lambda section: ([section.topic], _hosts(section.servers, 9092)),
    "mysql": _database("database", 3306),
    "opensearch": _opensearch,
    "postgres": _database("schema_", 5432),
    "python": lambda section: ([section.class_, section.options], []),
}
