"""Gives the two events of a key change, the old key's delete and the new key's creation, each
other's key before they go to different tasks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.spark.formats.shapes import CHANGE_OP, CHANGE_VERSION

OTHER_KEY = "_tidelog_other_key"


def with_other_keys(rows: pa.RecordBatch, key: Sequence[str]) -> pa.RecordBatch:
    """Returns rows of the shape `events` with the column ``_tidelog_other_key``: a struct of the
    columns ``key``, null where no key changed. Without that column if no row changed its key.
    """
    version = rows.column(CHANGE_VERSION).to_numpy()
    op = rows.column(CHANGE_OP)
    deleted, created = (pc.equal(op, each).to_numpy(zero_copy_only=False) for each in ("d", "c"))
    first = np.flatnonzero((version[1:] == version[:-1]) & deleted[:-1] & created[1:])
    if not key or not len(first):
        return rows
    none = np.ones(rows.num_rows, np.bool_)
    at = np.zeros(rows.num_rows, np.int64)
    at[first], at[first + 1] = first + 1, first
    none[first] = none[first + 1] = False
    places = pa.array(at, mask=none)
    cells = [rows.column(name).take(places) for name in key]
    other = pa.StructArray.from_arrays(cells, names=list(key), mask=pa.array(none))
    return rows.append_column(OTHER_KEY, other)
