"""Where outputs write, and that no two of them write one table to one place.

What two write is there twice: every record of a file, every message, and of two first batches into
an empty table every row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from itertools import combinations
from typing import Any

from tidelog.app.log_location import log_place
from tidelog.app.pipeline.progress import pipeline_consumers
from tidelog.config import Config
from tidelog.errors import ConfigError
from tidelog.eventlog.consumers import Consumers, Destination
from tidelog.eventlog.reader import EventLog
from tidelog.kinds.adapters import OUTPUT_KINDS
from tidelog.model.patterns import matches, overlap, routed
from tidelog.model.schema import TableName
from tidelog.outputs.registry import OutputSection

_VERSION = "4:"  # of digests: others are not compared with ours


def destinations(config: Config) -> dict[str, Destination]:
    """By output's name."""
    return {section.name: _destination(section) for section in config.outputs}


def check_places(config: Config) -> None:
    """Raises ConfigError if an output writes where another does, or has moved."""
    log = EventLog.open(log_place(config))
    check_apart(config, log.schemas.tables())
    check_alone(config, log)
    check_unmoved(config, log)


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
                        "place, or tables of its own. If that pipeline no longer exists, delete "
                        f"consumers/{consumer.name}.json in the event log's directory"
                    )


def check_unmoved(config: Config, log: EventLog) -> None:
    """Raises ConfigError if an output went to another place when it ran last: how far it is, is
    how far that place is.
    """
    name = config.pipeline.name
    found = pipeline_consumers(config, log).find(name)
    known = {} if found is None else {**found.former, **found.destinations}
    for output, its in destinations(config).items():
        before = known.get(output)
        if before is None or not before.place.startswith(_VERSION) or _one_place(before, its):
            continue
        raise ConfigError(
            f"output {output} went to another place before, and goes on from where that one is: "
            "the new place would lack what came earlier. Give the output a name that it never "
            "had: then it begins where the event log begins, and asks for the dumps that it needs. "
            "If what was at the old place has moved to the new one, delete "
            f"consumers/{name}.json in the event log's directory: then it goes on as it is"
        )


def _one_place(one: Destination, other: Destination) -> bool:
    return one.place == other.place and _one_cluster(one, other)


def _one_cluster(one: Destination, other: Destination) -> bool:
    """One host that both name is enough."""
    return bool(set(one.hosts) & set(other.hosts)) or one.hosts == other.hosts


def _meet(one: Destination, other: Destination, tables: Collection[TableName]) -> bool:
    """Do both write a table, or what is no table's, to one place? Raises ConfigError for a route
    that is wrong.
    """
    if set(one.also) & set(other.also) and _one_cluster(one, other):
        return True
    if not _one_place(one, other) or one.now != other.now:
        return False
    if one.routes == other.routes and overlap(one.tables, other.tables):
        return True
    named = {TableName.parse(each) for each in (*one.tables, *other.tables) if "*" not in each}
    both = (t for t in {*named, *tables} if matches(one.tables, t) and matches(other.tables, t))
    try:
        return any(routed(one.routes, table) == routed(other.routes, table) for table in both)
    except ValueError as error:
        raise ConfigError(f"outputs: {error}") from None


def _destination(section: OutputSection) -> Destination:
    place = OUTPUT_KINDS.get(section.kind).place(section)
    routes = tuple(
        (str(step.route), tuple(step.tables))
        for step in getattr(section, "steps", ())
        if step.action == "route"
    )
    return Destination(
        _VERSION + _digest([section.kind, place.name]),
        tuple(section.tables),
        tuple(_digest(host) for host in place.hosts),
        routes,
        "" if place.now is None else _digest(place.now),
        tuple(_digest([section.kind, each]) for each in place.also),
    )


def _digest(place: Any) -> str:
    """Tells places apart, and nothing of them: it is kept where others may read it."""
    return hashlib.sha256(json.dumps(place, default=str).encode()).hexdigest()[:32]
