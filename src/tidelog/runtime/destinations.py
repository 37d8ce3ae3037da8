"""Where outputs write, and that no two of them write one table to one place.

What two write is there twice: every record of a file, every message, and of two first MERGEs into
an empty table every row.
"""

from __future__ import annotations

import hashlib
import json
from itertools import combinations
from typing import Any

from tidelog.adapters import OUTPUT_KINDS
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
    place = json.dumps(
        [section.kind, OUTPUT_KINDS.get(section.kind).place(section), routes], default=str
    )
    return hashlib.sha256(place.encode()).hexdigest()[:32]
