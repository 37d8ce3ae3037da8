"""How far the pipelines' outputs are, from what these noted in the event log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from tidelog.errors import OffsetGoneError
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.reader import EventLog
from tidelog.model.records import Int64s


def outputs_of(log: EventLog) -> Iterator[dict[str, Any]]:
    """For status: a row for each output of each pipeline.

    ``behind_records``: what it has not delivered. ``lag_s``: how long ago the oldest of these was
    committed, by the source's clock.
    """
    missing: dict[int, tuple[int, float | None]] = {}
    for consumer in Consumers(log.storage).all():
        for output, offset in sorted(consumer.outputs.items()):
            if offset not in missing:
                missing[offset] = _missing(log, offset)
            behind, lag_s = missing[offset]
            stopped = consumer.stopped.get(output)
            row: dict[str, Any] = {
                "pipeline": consumer.name,
                "output": output,
                "offset": offset,
                "behind_records": behind,
                "lag_s": lag_s,
                "noted_ms": consumer.updated_ms,
                "state": "following" if stopped is None else "stopped",
            }
            if stopped is not None:
                row |= {"error": stopped.message, "since_ms": stopped.since_ms}
            yield row


def _missing(log: EventLog, offset: int) -> tuple[int, float | None]:
    """The records of tables at and behind ``offset``, and the age of the first one, 0.0 if there is
    none; None: not known. Reads one segment; the others tell in the chain's metadata.
    """
    chain = log.chain()
    if offset < chain.head:
        return sum(sum(meta.rows_by_table.values()) for meta in chain.segments), None
    behind, first_us = 0, None
    for meta in chain.between(offset, chain.next):
        rows = sum(meta.rows_by_table.values())
        if rows and (meta.first < offset or first_us is None):
            times = _times(log, max(offset, meta.first), meta.next)
            rows = len(times)
            first_us = int(times[0]) if rows else None
        behind += rows
    if not behind:
        return 0, 0.0
    return behind, None if not first_us else round(max(0.0, time.time() - first_us / 1e6), 1)


def _times(log: EventLog, start: int, end: int) -> Int64s:
    """When the records of tables in ``[start, end)`` were committed."""
    found = [np.empty(0, np.int64)]
    try:
        for ref in log.segments(start, end):
            for batch in log.batches(ref, ["schema_id", "commit_ts"]):
                of_table = batch.column("schema_id").to_numpy() > 0
                found.append(batch.column("commit_ts").to_numpy()[of_table])
    except OffsetGoneError:
        pass  # retention took it meanwhile
    return np.concatenate(found)
