"""Opens the documents with the progress of a pipeline's outputs."""

from __future__ import annotations

from pathlib import Path

from tidelog.config import Config
from tidelog.errors import UsageError
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.storage.opening import provide_options, storage_at
from tidelog.model.log_locations import is_object_store
from tidelog.outputs.base.stores.hadoop_settings import store_options


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
