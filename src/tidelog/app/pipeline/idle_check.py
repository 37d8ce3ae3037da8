"""Checks whether a pipeline is idle, without Spark, whose start takes ten times as long.

A run that has delivered everything stores the settings that its outputs were checked with. If they
are unchanged, and the event log, the pipeline's progress and each destination
(`tidelog.ports.IdleOutputKind`) agree on the log's end, another run would check the same and
deliver nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
from typing import Final

from tidelog.app.base.log_location import event_log_path
from tidelog.app.base.outputs import destinations, pipeline_consumers
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
"""The prefix of keys in the state store, by pipeline."""


def nothing_to_deliver(config: Config, state: StateStore, keeper: LeaseKeeper) -> bool:
    """Return whether every output has all of the event log and would pass the checks.

    False also if that can't be known without Spark. If True, the pipeline's consumer document is
    written again, as by any other run.
    """
    log = EventLog.open(event_log_path(config))
    consumers, end = pipeline_consumers(config, log), log.latest_offset()
    consumer = consumers.find(config.pipeline.name)
    if consumer is None or not _has_delivered_all(config, consumer, end):
        return False
    note = state.get(DELIVERED_PREFIX + config.pipeline.name)
    if note is None or note.value.get("checked") != check_result_of(config, log):
        return False
    location = LogExtent(event_log_path(config), log.generation, end, state)
    if not all(_is_idle(config, number, location) for number in range(len(config.outputs))):
        return False
    keeper.check()
    consumers.register(
        consumer.name,
        consumer.offset,
        consumer.outputs,
        consumer.destinations,
        former=consumer.former,
        epoch=keeper.lease.epoch,
        delivered=consumer.delivered,
    )
    return True


def check_result_of(config: Config, log: EventLog) -> str:
    """Return a digest of what outputs are checked with before the first batch. It is made of their
    settings, without secrets, and the tables in the log.
    """
    sections = [section.model_dump(mode="json") for section in config.outputs]
    inputs = [__version__, log.generation, log.schemas.newest(), sections]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def record_delivered(state: StateStore, pipeline: str, checked: str) -> None:
    """Store that a run has delivered everything; ``checked``: `check_result_of` at its start."""
    try:
        state.put(DELIVERED_PREFIX + pipeline, {"checked": checked}, None)
    except StateError as error:
        logger.info("the next run starts Spark, whatever there is to deliver: %s", error)


def _has_delivered_all(config: Config, consumer: Consumer, end: int) -> bool:
    """Return whether all outputs, and no others, have delivered everything, by the event log."""
    locations = destinations(config)
    refused = any(each.refused or each.unregistered for each in consumer.delivered.values())
    everywhere = dict(consumer.outputs) == dict.fromkeys(locations, end)
    return (
        everywhere
        and dict(consumer.destinations) == locations
        and not (consumer.stopped or refused)
    )


def _is_idle(config: Config, number: int, log: LogExtent) -> bool:
    section = config.outputs[number]
    kind = OUTPUT_KINDS.get(section.kind)
    try:
        return isinstance(kind, IdleOutputKind) and kind.is_idle(section, log)
    except TidelogError as error:  # the run tries again, and reports it
        logger.info("output %s is checked again with Spark: %s", section.name, error)
        return False
