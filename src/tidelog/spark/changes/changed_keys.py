"""Finds the rows of a table that changed recently, by the event log: one comparison of them proves
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from pyspark.sql import functions as f

from tidelog.codecs.wire_formats import nan_key
from tidelog.errors import OffsetGoneError
from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.model.records import Kind, Snapshot, in_ranges, overlap
from tidelog.model.schema import TableName
from tidelog.spark.changes.folding import PART_BYTES, read_planned
from tidelog.spark.datasource import partitions as planning
from tidelog.spark.key_frames import as_text, with_nan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def first_unseen(log: EventLog, table: TableName, snapshot: Snapshot, end: int) -> int:
    """Returns the offset of the table's first record below ``end`` whose transaction ``snapshot``
    does not see; ``end`` if there is none.
    """
    for meta in log.chain().between(log.head_offset, end):
        if meta.min_xid is None or meta.max_xid is None or str(table) not in meta.rows_by_table:
            continue
        unseen = snapshot.invisible_ranges(meta.max_xid)
        if not overlap(unseen, meta.min_xid, meta.max_xid):
            continue
        with suppress(OffsetGoneError):  # retention removed it
            for ref in log.segments(meta.first, min(meta.next, end)):
                for batch in log.batches(ref, ("offset", "xid"), tables=(str(table),)):
                    offset, xid = (column.to_numpy() for column in batch.columns)
                    found = np.flatnonzero(in_ranges(unseen, xid))
                    if len(found):
                        return int(offset[found[0]])
    return end


def changed_keys(
    spark: SparkSession,
    path: str,
    log: EventLog,
    table: TableName,
    key: Sequence[str],
    start: int,
    end: int,
) -> DataFrame | bool:
    """Returns the keys that records of ``[start, end)`` change, each once: texts of the columns
    ``key`` in ``k0``, ``k1`` … and ``changed``, which is true. False: no keys. True: all keys,
    because the table was truncated, or now has another key.
    """
    start = max(start, log.head_offset)
    if start >= end:
        return False
    refs = [ref for ref in log.segments(start, end, tables=(str(table),)) if ref.rows]
    kinds = _kinds(log, refs, table)
    if Kind.TRUNCATE in kinds:
        return True
    schema = planning.schema_at(log, table, start, end)
    if not kinds or schema is None:
        return False
    if schema.match_key != tuple(key):
        return True
    parts = planning.partition_refs(refs, partition_bytes=PART_BYTES, partitions=None)
    frame = read_planned(spark, path, log.generation, schema, refs, parts=len(parts), columns=key)
    texts = {name: as_text(name, frame.schema[name].dataType) for name in key}
    texts |= {name: with_nan(texts[name]) for name in nan_key(schema)}
    columns = [text.alias(f"k{place}") for place, text in enumerate(texts.values())]
    return frame.select(*columns).distinct().withColumn("changed", f.lit(True))


def _kinds(log: EventLog, refs: list[SegmentRef], table: TableName) -> set[int]:
    found: set[int] = set()
    for ref in refs:
        for batch in log.batches(ref, ("kind",), tables=(str(table),)):
            found |= set(np.unique(batch.column("kind").to_numpy()).tolist())
    return found
