"""Where a pipeline keeps how far its outputs are."""

from __future__ import annotations

from tidelog.config import Config
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.storage.opening import storage_at


def pipeline_consumers(config: Config, log: EventLog) -> Consumers:
    """The consumers of ``log``, with a second document for the pipeline at ``pipeline.checkpoint``.

    Raises UsageError for a place that can't be a storage.
    """
    place = f"{str(config.pipeline.checkpoint).rstrip('/')}/{log.generation}"
    return Consumers(log.storage, storage_at(place))
