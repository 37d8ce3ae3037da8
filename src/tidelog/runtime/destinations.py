"""Where outputs write, and that no two of them write one table to one place.

What two write is there twice: every record of a file, every message, and of two first MERGEs into
an empty table every row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tidelog.config import Config
from tidelog.errors import ConfigError
from tidelog.eventlog.consumers import Consumers, Destination
from tidelog.eventlog.reader import EventLog
from tidelog.model.patterns import overlap


def destinations(config: Config) -> dict[str, Destination]:
    """By output's name."""
    return {
        section.name: Destination(_digest(section), tuple(section.tables))
        for section in config.outputs
    }


def check_apart(config: Config) -> None:
    """Raises ConfigError if two outputs of the configuration write one table to one place."""
    found = destinations(config)
    kinds = {section.name: section.kind for section in config.outputs}
    for (one, its), (other, others) in combinations(found.items(), 2):
        if its.place == others.place and overlap(its.tables, others.tables):
            raise ConfigError(
                f"outputs: {one} and {other} ({kinds[one]}) write to one place, where what both "
                "write would be twice. Give one of them another place, or tables of its own"
            )


def check_alone(config: Config, log: EventLog) -> None:
    """Raises ConfigError if another pipeline of the event log writes to one of our places."""
    own = destinations(config)
    for consumer in Consumers(log.storage).all():
        if consumer.name == config.pipeline.name:
            continue
        for other, others in consumer.destinations.items():
            for name, its in own.items():
                if its.place == others.place and overlap(its.tables, others.tables):
                    raise ConfigError(
                        f"output {name} writes to the place of output {other} of the pipeline "
                        f"{consumer.name}, where what both write would be twice. Give it another "
                        "place, or tables of its own. If that pipeline is no more, delete "
                        f"consumers/{consumer.name}.json in the event log's directory"
                    )


def _digest(section: Any) -> str:
    """Tells places apart, and nothing of them: it is kept where others may read it."""
    routes = [
        [step.route, list(step.tables)]
        for step in getattr(section, "steps", ())
        if step.action == "route"
    ]
    place = json.dumps([section.kind, _PLACES[section.kind](section), routes], default=str)
    return hashlib.sha256(place.encode()).hexdigest()[:32]


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


_PLACES: Mapping[str, Callable[[Any], list[Any]]] = {
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
