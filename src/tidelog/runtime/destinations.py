"""Where outputs write, and that no two of them write one table to one place.

What two write is there twice: every record of a file, every message, and of two first MERGEs into
an empty table every row.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tidelog.config import Config
from tidelog.errors import ConfigError
from tidelog.eventlog.consumers import Consumers, Destination
from tidelog.eventlog.reader import EventLog
from tidelog.model.patterns import matches, overlap
from tidelog.model.schema import TableName

# What tells a place apart, and the hosts that lead to it: of a cluster, any of them may be named.
_Place = tuple[list[Any], list[str]]

_VERSION = "2:"  # of digests: others are not compared with ours
_PORT = re.compile(r":\d+$")


def destinations(config: Config) -> dict[str, Destination]:
    """By output's name."""
    return {section.name: _destination(section) for section in config.outputs}


def check_apart(config: Config, tables: Collection[TableName] = ()) -> None:
    """Raises ConfigError if two outputs of the configuration write one table to one place;
    ``tables``: those that are known.
    """
    found = destinations(config)
    kinds = {section.name: section.kind for section in config.outputs}
    for (one, its), (other, others) in combinations(found.items(), 2):
        if _meet(its, others, tables):
            raise ConfigError(
                f"outputs: {one} and {other} ({kinds[one]}) write to one place, where what both "
                "write would be twice. Give one of them another place, or tables of its own"
            )


def check_alone(config: Config, log: EventLog) -> None:
    """Raises ConfigError if another pipeline of the event log writes to one of our places."""
    own = destinations(config)
    tables = log.schemas.tables()
    for consumer in Consumers(log.storage).all():
        if consumer.name == config.pipeline.name:
            continue
        for other, others in consumer.destinations.items():
            for name, its in own.items():
                if _meet(its, others, tables):
                    raise ConfigError(
                        f"output {name} writes to the place of output {other} of the pipeline "
                        f"{consumer.name}, where what both write would be twice. Give it another "
                        "place, or tables of its own. If that pipeline is no more, delete "
                        f"consumers/{consumer.name}.json in the event log's directory"
                    )


def check_unmoved(config: Config, log: EventLog) -> None:
    """Raises ConfigError if an output went to another place when it ran last: how far it is, is
    how far that place is.
    """
    name = config.pipeline.name
    found = next((each for each in Consumers(log.storage).all() if each.name == name), None)
    known = {} if found is None else {**found.former, **found.destinations}
    kinds = {section.name: section.kind for section in config.outputs}
    for output, its in destinations(config).items():
        before = known.get(output)
        if before is None or not before.place.startswith(_VERSION) or kinds[output] == "python":
            continue  # options of your own output may say anything
        if kinds[output] == "http":  # a query may hold a key, which is another one now and then
            before = replace(before, hosts=its.hosts)
        if _one_place(before, its):
            continue
        raise ConfigError(
            f"output {output} went to another place before, and goes on from where that one is: "
            "the new place would lack what came earlier. Give the output a name that it never "
            "had: then it begins where the event log begins, and asks for the dumps that it needs. "
            "If what was at the old place has moved to the new one, delete "
            f"consumers/{name}.json in the event log's directory: then it goes on as it is"
        )


def _one_place(one: Destination, other: Destination) -> bool:
    """Of a cluster, one host that both name is enough."""
    hosts = set(one.hosts) & set(other.hosts) or one.hosts == other.hosts
    return one.place == other.place and bool(hosts)


def _meet(one: Destination, other: Destination, tables: Collection[TableName]) -> bool:
    """Do both write a table to one place?"""
    if not _one_place(one, other):
        return False
    if one.routes == other.routes and overlap(one.tables, other.tables):
        return True
    named = {TableName.parse(each) for each in (*one.tables, *other.tables) if "*" not in each}
    return any(
        matches(one.tables, table)
        and matches(other.tables, table)
        and _routed(one, table) == _routed(other, table)
        for table in {*named, *tables}
    )


def _routed(to: Destination, table: TableName) -> str:
    """As `tidelog.pipeline.transforms.destination_name`."""
    for route, tables in to.routes:
        if matches(tables, table):
            try:
                return route.format(namespace=table.namespace, name=table.name)
            except (KeyError, IndexError, ValueError):
                return route  # said where the output is made
    return str(table)


def _destination(section: Any) -> Destination:
    place, hosts = _PLACES[section.kind](section)
    routes = tuple(
        (str(step.route), tuple(step.tables))
        for step in getattr(section, "steps", ())
        if step.action == "route"
    )
    return Destination(
        _VERSION + _digest([section.kind, place]),
        tuple(section.tables),
        tuple(_digest(host) for host in hosts),
        routes,
    )


def _digest(place: Any) -> str:
    """Tells places apart, and nothing of them: it is kept where others may read it."""
    return hashlib.sha256(json.dumps(place, default=str).encode()).hexdigest()[:32]


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


_PLACES: Mapping[str, Callable[[Any], _Place]] = {
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
