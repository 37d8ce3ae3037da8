"""Reads the chunks of a dump from the event log."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.app.log_location import event_log_path
from tidelog.config import Config
from tidelog.eventlog.reader import EventLog
from tidelog.model.records import ChunkMeta


def chunks_of(config: Config, dump_id: str) -> Iterator[ChunkMeta]:
    """Yield chunks of key ranges in the log's order, without chunks of keys that were read again.

    Raises:
        EventLogError: there is no event log.
    """
    for _, chunk in EventLog.open(event_log_path(config)).chunks():
        if chunk.dump_id == dump_id and not chunk.keys_requested:
            yield chunk
