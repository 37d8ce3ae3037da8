"""What a segment's metadata says of its records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidelog.eventlog.segments import payload_bytes


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """Counts and bounds of a segment's records; None: there are none.

    ``rows_by_schema`` counts control records as schema 0, ``rows_by_table`` leaves them out.
    """

    rows_by_schema: dict[int, int]
    rows_by_table: dict[str, int]
    payload_bytes: int
    first_position: int | None
    last_position: int | None
    min_xid: int | None
    max_xid: int | None

    @classmethod
    def of(cls, records: Sequence[pa.RecordBatch], table: Callable[[int], str]) -> RecordCounts:
        """``table``: the name of a schema id's table."""
        by_schema: Counter[int] = Counter()
        xids: list[int] = []
        for record in records:
            counts = np.bincount(record.column("schema_id").to_numpy())
            for schema_id in np.flatnonzero(counts).tolist():
                by_schema[schema_id] += int(counts[schema_id])
            xid = record.column("xid").to_numpy()
            present = xid[xid > 0]
            if len(present):
                xids += [int(present.min()), int(present.max())]
        by_table: Counter[str] = Counter()
        for schema_id, rows in by_schema.items():
            if schema_id:
                by_table[table(schema_id)] += rows
        positions = [record.column("position") for record in records]
        return cls(
            rows_by_schema=dict(by_schema),
            rows_by_table=dict(by_table),
            payload_bytes=sum(map(payload_bytes, records)),
            first_position=positions[0][0].as_py() if positions else None,
            last_position=positions[-1][-1].as_py() if positions else None,
            min_xid=min(xids, default=None),
            max_xid=max(xids, default=None),
        )
