"""Has a pipeline nothing to deliver? Known without Spark, whose start takes ten times as long.

A run that has delivered all there was notes what its outputs were checked with. Where that is still
so, and the event log, the pipeline's progress and each destination (`tidelog.ports.IdleOutputKind`)
agree on where the log ends, another run would check the same and deliver nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
from typing import Final

from tidelog.app.log_location import log_place
from tidelog.app.pipeline.destinations import destinations
from tidelog.app.pipeline.progress import pipeline_consumers
from tidelog.capture.leadership import LeaseKeeper
from tidelog.config import Config
from tidelog.errors import StateError, TidelogError
from tidelog.eventlog.consumers import Consumer
from tidelog.eventlog.reader import EventLog
from tidelog.kinds.adapters import OUTPUT_KINDS
from tidelog.ports import IdleOutputKind, LogExtent, StateStore
from tidelog.system.version import __version__

logger = logging.getLogger(__name__)

DELIVERED_PREFIX: Final = "delivered/"
"""Of keys of the state store, by pipeline."""


def nothing_to_deliver(config: Config, state: StateStore, keeper: LeaseKeeper) -> bool:
    """Does every output hold all of the event log, and would it be accepted as it is? False also
    where that can't be known without Spark. If so, the pipeline's consumer is noted once more, as
    by any other run.
    """
    log = EventLog.open(log_place(config))
    consumers, end = pipeline_consumers(config, log), log.latest_offset()
    found = consumers.find(config.pipeline.name)
    if found is None or not _is_at(config, found, end):
        return False
    note = state.get(DELIVERED_PREFIX + config.pipeline.name)
    if note is None or note.value.get("checked") != check_result_of(config, log):
        return False
    place = LogExtent(log_place(config), log.generation, end, state)
    if not all(_is_idle(config, number, place) for number in range(len(config.outputs))):
        return False
    keeper.check()
    consumers.register(
        found.name,
        found.offset,
        found.outputs,
        found.destinations,
        former=found.former,
        epoch=keeper.lease.epoch,
        delivered=found.delivered,
    )
    return True


def check_result_of(config: Config, log: EventLog) -> str:
    """A digest of what outputs are checked with before the first batch: their settings, without
    secrets, and the tables that the log knows.
    """
    sections = [section.model_dump(mode="json") for section in config.outputs]
    known = [__version__, log.generation, log.schemas.newest(), sections]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def record_delivered(state: StateStore, pipeline: str, checked: str) -> None:
    """After a run that has delivered all there was; ``checked``: `checked_with` as of its start."""
    try:
        state.put(DELIVERED_PREFIX + pipeline, {"checked": checked}, None)
    except StateError as error:
        logger.info("the next run starts Spark, whatever there is to deliver: %s", error)


def _is_at(config: Config, found: Consumer, end: int) -> bool:
    """Did all outputs, and no others, deliver everything, as the event log notes?"""
    places = destinations(config)
    refused = any(each.refused for each in found.delivered.values())
    everywhere = dict(found.outputs) == dict.fromkeys(places, end)
    return everywhere and dict(found.destinations) == places and not (found.stopped or refused)


def _is_idle(config: Config, number: int, log: LogExtent) -> bool:
    section = config.outputs[number]
    kind = OUTPUT_KINDS.get(section.kind)
    try:
        return isinstance(kind, IdleOutputKind) and kind.is_idle(section, log)
    except TidelogError as error:  # the run tries again, and says it
        logger.info("output %s is asked again with Spark: %s", section.name, error)
        return False
