"""How far the pipelines' outputs and engines are, from what these noted in the event log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from tidelog.errors import OffsetGoneError
from tidelog.eventlog.consumers import Consumer, Consumers, DeliveryStats
from tidelog.eventlog.reader import EventLog
from tidelog.model.records import Int64s

_Known = dict[tuple[int, int], tuple[int, int]]
_Missing = Callable[[int], tuple[int, float | None]]
_KNOWN = 1000


def consumers_of(log: EventLog, known: _Known) -> dict[str, list[dict[str, Any]]]:
    """For status: ``outputs``, a row for each output of each pipeline, and ``engines``, one for
    each name of engines.

    ``behind_records``: what it has not done. ``lag_s``: how long ago the oldest of these was
    committed, by the source's clock. ``known``: what was found before, for who asks again and again
    with one ``log``: by a segment's part, its records, and the time of the first in microseconds.
    """
    if len(known) > _KNOWN:
        known.clear()
    consumers = Consumers(log.storage).all()
    missing = cache(lambda offset: _missing(log, offset, known))
    return {
        "outputs": list(_outputs(consumers, missing)),
        "engines": list(_engines(consumers, missing)),
    }


def _engines(consumers: Sequence[Consumer], missing: _Missing) -> Iterator[dict[str, Any]]:
    for consumer in consumers:
        if consumer.engine:
            records, lag_s = missing(consumer.offset)
            yield {
                "engine": consumer.name,
                "offset": consumer.offset,
                "behind_records": records,
                "lag_s": lag_s,
                "noted_ms": consumer.updated_ms,
            }


def _outputs(consumers: Sequence[Consumer], missing: _Missing) -> Iterator[dict[str, Any]]:
    for consumer in consumers:
        for output, offset in sorted(consumer.outputs.items()):
            records, lag_s = missing(offset)
            stopped = consumer.stopped.get(output)
            delivered = consumer.delivered.get(output)
            row: dict[str, Any] = {
                "pipeline": consumer.name,
                "output": output,
                "offset": offset,
                "behind_records": records,
                "lag_s": lag_s,
                "noted_ms": consumer.updated_ms,
                "state": "following" if stopped is None else "stopped",
            }
            if stopped is not None:
                row |= {"error": stopped.message, "since_ms": stopped.since_ms}
            if delivered is not None:
                row |= _deliveries(delivered)
            yield row


def _deliveries(told: DeliveryStats) -> dict[str, Any]:
    found: dict[str, Any] = {"rejected": told.rejected, "rejected_ms": told.rejected_ms}
    if told.refused:
        found["refused"] = dict(told.refused)
    if told.committed_ms is not None:
        found |= {"committed_ms": told.committed_ms, "batch_s": told.batch_s}
        found |= {"batch_records": told.records, "batches": told.batches}
        found |= {"all_records": told.all_records, "all_s": told.all_s}
        found["records_per_s"] = round(told.records / max(told.batch_s, 0.001), 1)
    if told.begun_ms is not None:
        found |= {"begun_ms": told.begun_ms, "begun_records": told.begun_records}
    if told.failure is not None:
        found |= {"failed": told.failure.message, "failed_ms": told.failure.since_ms}
    return found


def _missing(log: EventLog, offset: int, known: _Known) -> tuple[int, float | None]:
    """The records of tables at and behind ``offset``, and the age of the first one, 0.0 if there is
    none; None: not known. Reads one segment; the others tell in the chain's metadata.
    """
    chain = log.chain(offset)
    if offset < chain.head:
        return sum(sum(meta.rows_by_table.values()) for meta in chain.segments), None
    records, first_us = 0, None
    for meta in chain.between(offset, chain.next):
        rows = sum(meta.rows_by_table.values())
        if rows and (meta.first < offset or first_us is None):
            part = max(offset, meta.first), meta.next
            if part not in known:
                times = _times(log, *part)
                known[part] = len(times), int(times[0]) if len(times) else 0
            rows, found_us = known[part]
            first_us = found_us if rows else None
        records += rows
    if not records:
        return 0, 0.0
    return records, None if not first_us else round(max(0.0, time.time() - first_us / 1e6), 1)


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
