"""HOT PATH. A kernel that finds the cells of one pgoutput tuple.

Formats: PostgreSQL manual, "Logical Replication Message Formats", TupleData.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tidelog.codecs.cell_positions import MISSING, NULL

MALFORMED = 1
COLUMN_COUNT = 2
UNKNOWN_KIND = 3
REASONS = {
    MALFORMED: "the payload is not a well-formed message",
    COLUMN_COUNT: "the payload's number of columns is not the schema's",
    UNKNOWN_KIND: "the record is not a row change",
}

_CELL_NULL, _CELL_UNCHANGED, _CELL_TEXT = ord("n"), ord("u"), ord("t")


@njit(cache=True, nogil=True)
def read_tuple(data, position, end, columns, start, length):  # type: ignore[no-untyped-def]
    """Parse TupleData at ``position`` into the scratch row; returns the position after it, or
    -reason.
    """
    if position + 2 > end:
        return -MALFORMED
    if ((np.int64(data[position]) << 8) | np.int64(data[position + 1])) != columns:
        return -COLUMN_COUNT
    position += 2
    for c in range(columns):
        if position >= end:
            return -MALFORMED
        tag = data[position]
        position += 1
        if tag == _CELL_TEXT:
            if position + 4 > end:
                return -MALFORMED
            size = (
                (np.int64(data[position]) << 24)
                | (np.int64(data[position + 1]) << 16)
                | (np.int64(data[position + 2]) << 8)
                | np.int64(data[position + 3])
            )
            position += 4
            if position + size > end:
                return -MALFORMED
            start[c] = position
            length[c] = size
            position += size
        elif tag == _CELL_NULL:
            start[c] = 0
            length[c] = NULL
        elif tag == _CELL_UNCHANGED:
            start[c] = 0
            length[c] = MISSING
        else:
            return -MALFORMED
    return position
