"""Where a pipeline keeps how far its outputs are."""

from __future__ import annotations

from pathlib import Path

from tidelog.config import Config
from tidelog.errors import UsageError
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.storage.opening import storage_at
from tidelog.model.log_places import is_url


def pipeline_consumers(config: Config, log: EventLog) -> Consumers:
    """The consumers of ``log``, with a second document for the pipeline at ``pipeline.checkpoint``.

    Raises UsageError for a place that can't be a storage.
    """
    place = f"{str(config.pipeline.checkpoint).rstrip('/')}/{log.generation}"
    if not is_url(place):
        try:
            Path(place).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"pipeline.checkpoint: {place} can't be made ({error.strerror}): name a directory "
                "that may be written"
            ) from error
    return Consumers(log.storage, storage_at(place))
