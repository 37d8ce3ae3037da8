"""What tells the places apart that outputs of our kinds write to; see `OutputKind.place`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


def _directory(path: str) -> str:
    return path.rstrip("/") if "://" in path else str(Path(path).resolve())


def _iceberg(section: Any) -> list[Any]:
    found = section.catalog_properties()
    place = [found.get(name, "") for name in ("type", "catalog-impl", "uri")]
    return [*place, _directory(found.get("warehouse", ""))]


def _files(section: Any) -> list[Any]:
    # Directories below it that begin alike are read together.
    return [_directory(section.path), section.layout.partition("{")[0]]


def _http(section: Any) -> list[Any]:
    url = urlsplit(section.url.reveal())
    return [url.hostname, url.port, url.path, url.query]


def _hosts(text: str) -> list[str]:
    return sorted(each.strip().lower() for each in text.split(","))


def _database(namespace: str) -> Callable[[Any], list[Any]]:
    def place(section: Any) -> list[Any]:
        url = urlsplit(section.url.reveal())
        hosts = _hosts(url.netloc.rpartition("@")[2])
        # MySQL's database may stand in the URL, but tables are named by `database` then, too.
        return [hosts, url.path.strip("/"), getattr(section, namespace)]

    return place


PLACES: Mapping[str, Callable[[Any], list[Any]]] = {
    "delta": lambda section: [_directory(section.path)],
    "files": _files,
    "http": _http,
    "iceberg": _iceberg,
    "kafka": lambda section: [_hosts(section.servers), section.topic],
    "mysql": _database("database"),
    "opensearch": lambda section: [_hosts(",".join(section.urls)), section.index],
    "postgres": _database("schema_"),
    "python": lambda section: [section.class_, section.options],
}
