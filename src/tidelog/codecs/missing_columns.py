"""Missing columns of rows: flags bool[n, columns], and the lists that are delivered with the rows.

A list is null for a complete row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.model.records import Bools, Int64s, bitmap


def missing_indices(missing: Bools | None, n: int) -> pa.ListArray:
    """list<int16>[n]: the columns' indices. None: all rows are complete."""
    if missing is None:
        return pa.nulls(n, pa.list_(pa.int16()))
    return _lists(missing.sum(axis=1), pa.array(np.nonzero(missing)[1].astype(np.int16)))


def missing_names(missing: Bools | None, columns: Sequence[str], n: int) -> pa.ListArray:
    """list<string>[n]: the columns' names. None: all rows are complete."""
    if missing is None:
        return pa.nulls(n, pa.list_(pa.string()))
    texts = pa.array(list(columns), pa.string()).take(pa.array(np.nonzero(missing)[1]))
    return _lists(missing.sum(axis=1), texts)


def named_lists(lists: pa.ListArray, columns: Sequence[str]) -> pa.ListArray:
    """Convert lists of indices to lists of names.

    Lists of names only change their type: Spark may mark elements as never null, which some of
    Arrow's functions reject.
    """
    if not pa.types.is_integer(lists.type.value_type):
        return lists.cast(pa.list_(pa.string()))
    if lists.null_count == len(lists):
        return pa.nulls(len(lists), pa.list_(pa.string()))
    texts = pa.array(list(columns), pa.string()).take(lists.flatten().cast(pa.int32()))
    return _lists(_lengths(lists), texts)


def missing_flags(lists: pa.ListArray, columns: int) -> Bools:
    """Convert lists of indices to bool[n, columns]."""
    out = np.zeros((len(lists), columns), np.bool_)
    out[np.repeat(np.arange(len(lists)), _lengths(lists)), lists.flatten().to_numpy()] = True
    return out


def _lengths(lists: pa.ListArray) -> Int64s:
    found: Int64s = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return found


def _lists(counts: Int64s, values: pa.Array) -> pa.ListArray:
    bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    buffers = [bitmap(counts > 0), pa.py_buffer(bounds)]
    kind = pa.list_(values.type)
    return pa.Array.from_buffers(kind, len(counts), buffers, children=[values])
