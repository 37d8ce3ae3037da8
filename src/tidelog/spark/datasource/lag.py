"""Measures how far a stream is behind the event log, and reports it in Spark's progress.

Spark 4.2 reads no metrics from Python sources, only the newest offset. So the offset that the
source reports there (Spark never stores it) contains the lag: in ``lastProgress``, in the progress
events of listeners and in their output, without a listener of ours.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tidelog.eventlog.reader import EventLog
from tidelog.model.schema import TableName
from tidelog.spark.datasource import partitions

MEMBER = "lag"  # of the reported offset


@dataclass(frozen=True, slots=True)
class Lag:
    """What a stream still has to read after the batch of this progress.

    Attributes:
        bytes: bytes of the event log, of all tables.
        records: records of the stream's tables.
        seconds: seconds since the oldest of these records was committed (if it is of a dump: read);
            0 without records.
    """

    bytes: int
    records: int
    seconds: float

    def to_json(self) -> dict[str, int | float]:
        return asdict(self)


NONE = Lag(0, 0, 0.0)


def lag_at(
    log: EventLog, offset: int, tables: Sequence[str | TableName], now_s: float | None = None
) -> Lag:
    """Returns the lag of a stream of ``tables`` (patterns; empty: all) that has read up to
    ``offset``.
    """
    chain = log.chain(offset)
    end = chain.next
    wanted = partitions.schemas_of(log, tables)
    records, oldest = 0, None
    for segment in chain.between(offset, end):
        ids = [i for i in segment.rows_by_schema if i and (wanted is None or i in wanted)]
        if not ids:
            continue
        if oldest is not None and segment.first >= offset:
            records += sum(segment.rows_by_schema[i] for i in ids)
            continue
        for ref in log.segments(max(offset, segment.first), segment.next):
            for batch in log.batches(ref, ("offset", "commit_ts"), schema_ids=ids):
                records += batch.num_rows
                if oldest is None:
                    oldest = int(np.min(batch.column("commit_ts").to_numpy()))
    now = time.time() if now_s is None else now_s
    seconds = 0.0 if oldest is None else max(0.0, round(now - oldest / 1e6, 3))
    return Lag(log.bytes_between(offset, end), records, seconds)


def lag_of(progress: Any) -> Lag | None:
    """Returns the lag in a query's progress (``query.lastProgress``, or a listener's
    ``event.progress``): that of the source with the largest lag, None if no source is ours or none
    has reported it yet.
    """
    found = [_of_source(source) for source in (_sources(progress) if progress else ())]
    return max((each for each in found if each is not None), key=_seconds, default=None)


def _seconds(each: Lag) -> tuple[float, int]:
    return each.seconds, each.bytes


def _sources(progress: Any) -> Sequence[Any]:
    found = progress.get("sources") if isinstance(progress, Mapping) else progress.sources
    return list(found or ())


def _of_source(source: Any) -> Lag | None:
    reported = source["latestOffset"] if isinstance(source, Mapping) else source.latestOffset
    if isinstance(reported, str):
        try:
            reported = json.loads(reported)
        except ValueError:
            return None
    content = reported.get(MEMBER) if isinstance(reported, Mapping) else None
    return None if content is None else Lag(**content)
