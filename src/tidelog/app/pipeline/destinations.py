"""Checks that no two outputs write one table to one place, and opens their progress.

Otherwise all that both write is there twice: records of files, messages, and, for two first batches
into an empty table, every row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from itertools import combinations
from pathlib import Path
from typing import Any

from tidelog.app.log_location import event_log_path
from tidelog.config import Config
from tidelog.errors import ConfigError, UsageError
from tidelog.eventlog.consumers import Consumers, Destination
from tidelog.eventlog.local_storage import provide_options, storage_at
from tidelog.eventlog.reader import EventLog
from tidelog.kinds.adapters import OUTPUT_KINDS
from tidelog.model.option_values import is_object_store
from tidelog.model.patterns import matches, overlap, routed
from tidelog.model.schema import TableName
from tidelog.outputs.base.hadoop_settings import store_options
from tidelog.outputs.base.sections import OutputSection


def pipeline_consumers(config: Config, log: EventLog) -> Consumers:
    """Return the consumers of ``log``, with a second document at ``pipeline.checkpoint``.

    The options of an object store come from `pipeline.conf` (`fs.s3a.*` and so on), else from the
    event log that is in it, else from the environment. Raises UsageError if they are wrong, or the
    directory can't be created.
    """
    place = f"{config.pipeline.checkpoint}/{log.generation}"
    if is_object_store(place):
        try:
            provide_options(place, store_options(place, config.pipeline.conf))
        except ValueError as error:
            raise UsageError(f"pipeline.checkpoint: {error}") from error
    else:
        try:
            Path(place).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"pipeline.checkpoint: {place} can't be created ({error.strerror}): name a "
                "directory that can be written"
            ) from error
    return Consumers(log.storage, storage_at(place))


_VERSION = "4:"  # of digests: those of other versions are not compared with ours


def destinations(config: Config) -> dict[str, Destination]:
    """Return the destinations by output name."""
    return {section.name: _destination(section) for section in config.outputs}


def check_places(config: Config) -> None:
    """Raise ConfigError if an output writes to another one's place, or has moved."""
    log = EventLog.open(event_log_path(config))
    check_apart(config, log.schemas.tables())
    check_other_pipelines(config, log)
    check_not_moved(config, log)


def check_apart(config: Config, tables: Collection[TableName] = ()) -> None:
    """Raise ConfigError if two outputs write one table to one place.

    ``tables``: the known tables.
    """
    by_output = destinations(config)
    kinds = {section.name: section.kind for section in config.outputs}
    for (one, its), (other, others) in combinations(by_output.items(), 2):
        if _overlap(its, others, tables):
            raise ConfigError(
                f"outputs: {one} and {other} ({kinds[one]}) write to one place, where what both "
                "write would be twice. Give one of them another place, or tables of its own"
            )


def check_other_pipelines(config: Config, log: EventLog) -> None:
    """Raise ConfigError if another pipeline of the event log writes to one of our places."""
    own = destinations(config)
    tables = log.schemas.tables()
    for consumer in Consumers(log.storage).all():
        if consumer.name == config.pipeline.name:
            continue
        for other, others in consumer.destinations.items():
            for name, its in own.items():
                if _overlap(its, others, tables):
                    raise ConfigError(
                        f"output {name} writes to the place of output {other} of the pipeline "
                        f"{consumer.name}, where what both write would be twice. Give it another "
                        "place, or tables of its own. If that pipeline no longer exists, delete "
                        f"consumers/{consumer.name}.json in the event log's directory"
                    )


def check_not_moved(config: Config, log: EventLog) -> None:
    """Raise ConfigError if an output has another place than in its last run.

    Its progress is that of the former place.
    """
    name = config.pipeline.name
    consumer = pipeline_consumers(config, log).find(name)
    former = {} if consumer is None else {**consumer.former, **consumer.destinations}
    for output, its in destinations(config).items():
        before = former.get(output)
        if before is None or not before.place.startswith(_VERSION) or _same_place(before, its):
            continue
        raise ConfigError(
            f"output {output} wrote to another place before, and would resume at that place's "
            "position: the new place would miss all earlier changes. Give the output a name that "
            "it never had: then it starts at the head of the event log, and requests the dumps "
            "that it needs. If you moved the data to the new place, delete "
            f"consumers/{name}.json in the event log's directory: then it resumes as it is"
        )


def _same_place(one: Destination, other: Destination) -> bool:
    return one.place == other.place and _same_cluster(one, other)


def _same_cluster(one: Destination, other: Destination) -> bool:
    """Return whether both have a host in common: one is enough."""
    return bool(set(one.hosts) & set(other.hosts)) or one.hosts == other.hosts


def _overlap(one: Destination, other: Destination, tables: Collection[TableName]) -> bool:
    """Return whether both write a table, or data of no table, to one place.

    Raises ConfigError for a wrong route.
    """
    if set(one.also) & set(other.also) and _same_cluster(one, other):
        return True
    if not _same_place(one, other) or one.now != other.now:
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
    """Return a digest that differs between places and reveals nothing: others may read it."""
    return hashlib.sha256(json.dumps(place, default=str).encode()).hexdigest()[:32]
