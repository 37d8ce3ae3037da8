"""Computes how far outputs and engines are, from their documents in the event log."""

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


def consumers_of(log: EventLog, part_cache: _Known) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of ``outputs`` and ``engines`` for the status.

    There is a row for each output of each pipeline, and for each name of engines.
    ``behind_records``: the records that it has not processed. ``lag_s``: the age of the oldest of
    these since its commit, by the source's clock. ``part_cache``: a cache for repeated calls with
    one ``log``: a segment's part → its records, and the time of the first in microseconds.
    """
    if len(part_cache) > _KNOWN:
        part_cache.clear()
    consumers = Consumers(log.storage).all()
    missing = cache(lambda offset: _missing_records(log, offset, part_cache))
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


def _deliveries(delivered: DeliveryStats) -> dict[str, Any]:
    row: dict[str, Any] = {"rejected": delivered.rejected, "rejected_ms": delivered.rejected_ms}
    if delivered.refused:
        row["refused"] = dict(delivered.refused)
    if delivered.keyless:
        row["keyless"] = dict(delivered.keyless)
    if delivered.committed_ms is not None:
        row |= {"committed_ms": delivered.committed_ms, "batch_s": delivered.batch_s}
        row |= {"batch_records": delivered.records, "batches": delivered.batches}
        row |= {"all_records": delivered.all_records, "all_s": delivered.all_s}
        row["records_per_s"] = round(delivered.records / max(delivered.batch_s, 0.001), 1)
    if delivered.begun_ms is not None:
        row |= {"begun_ms": delivered.begun_ms, "begun_records": delivered.begun_records}
    if delivered.failure is not None:
        row |= {"failed": delivered.failure.message, "failed_ms": delivered.failure.since_ms}
    return row


def _missing_records(log: EventLog, offset: int, part_cache: _Known) -> tuple[int, float | None]:
    """Return the number of table records from ``offset`` on, and the age of the first one.

    The age is 0.0 if there is none; None: not known. Reads one segment; the chain's metadata have
    the numbers of the others.
    """
    chain = log.chain(offset)
    if offset < chain.head:
        return sum(sum(meta.rows_by_table.values()) for meta in chain.segments), None
    records, first_us = 0, None
    for meta in chain.between(offset, chain.next):
        rows = sum(meta.rows_by_table.values())
        if rows and (meta.first < offset or first_us is None):
            part = max(offset, meta.first), meta.next
            if part not in part_cache:
                times = _times(log, *part)
                part_cache[part] = len(times), int(times[0]) if len(times) else 0
            rows, found_us = part_cache[part]
            first_us = found_us if rows else None
        records += rows
    if not records:
        return 0, 0.0
    return records, None if not first_us else round(max(0.0, time.time() - first_us / 1e6), 1)


def _times(log: EventLog, start: int, end: int) -> Int64s:
    """Return the commit times of the table records in ``[start, end)``."""
    times = [np.empty(0, np.int64)]
    try:
        for ref in log.segments(start, end):
            for batch in log.batches(ref, ["schema_id", "commit_ts"]):
                of_table = batch.column("schema_id").to_numpy() > 0
                times.append(batch.column("commit_ts").to_numpy()[of_table])
    except OffsetGoneError:
        pass  # retention deleted it during the read
    return np.concatenate(times)
