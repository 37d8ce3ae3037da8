"""Merges several folded batches, one after the other in log order, into one row per key.

`tidelog.codecs.fold` folds a batch of records of one schema version. A range has several batches:
more than fit into memory at once, or records of several versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.missing_columns import missing_flags, missing_indices
from tidelog.model.schema import TableSchema
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP

# Spark converts a batch to rows as a whole; a huge one costs memory in two processes at once.
_BATCH_ROWS = 64_000

_Rows = npt.NDArray[np.int64]


def combine(batches: Sequence[pa.RecordBatch], schema: TableSchema) -> pa.RecordBatch | None:
    """Fold ``batches`` (of the shape `changes`) to the newest row per match key of ``schema``.

    A column that is missing in the newest row gets its last value from a row of the key since its
    last delete. Returns None if there are no rows.
    """
    filled = [batch for batch in batches if batch.num_rows]
    if len(filled) < 2:
        return filled[0] if filled else None
    rows = pa.concat_batches(filled)
    group, newest = _groups(rows, schema.match_key)
    chosen = np.sort(newest)
    missing = rows.column(CHANGE_MISSING)
    if missing.null_count == len(missing):
        return rows.take(pa.array(chosen))
    return _fill_missing(rows, schema, group, chosen)


def slices(rows: pa.RecordBatch | None) -> Iterator[pa.RecordBatch]:
    """Yields ``rows`` in slices that Spark reads one by one."""
    for start in range(0, 0 if rows is None else rows.num_rows, _BATCH_ROWS):
        assert rows is not None
        yield rows.slice(start, _BATCH_ROWS)


def _groups(rows: pa.RecordBatch, key: Sequence[str]) -> tuple[_Rows, _Rows]:
    """Returns int64[n], each row's key as a number; int64[keys], each key's last row."""
    n = rows.num_rows
    table = pa.Table.from_batches([rows.select(list(key))])
    table = table.append_column("_tidelog_row", pa.array(np.arange(n, dtype=np.int64)))
    grouped = table.group_by(list(key), use_threads=False).aggregate([("_tidelog_row", "list")])
    lists = grouped.column("_tidelog_row_list").combine_chunks()
    if isinstance(lists, pa.ChunkedArray):
        lists = lists.chunk(0)
    counts = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    members = lists.flatten().to_numpy(zero_copy_only=False)
    group = np.empty(n, np.int64)
    group[members] = np.repeat(np.arange(len(counts)), counts)
    newest = np.zeros(len(counts), np.int64)
    np.maximum.at(newest, group, np.arange(n))
    return group, newest


def _fill_missing(
    rows: pa.RecordBatch, schema: TableSchema, group: _Rows, chosen: _Rows
) -> pa.RecordBatch:
    deleted = pc.equal(rows.column(CHANGE_OP), "d").to_numpy(zero_copy_only=False)
    unknown = missing_flags(rows.column(CHANGE_MISSING), len(schema.columns))
    still = np.zeros((len(chosen), len(schema.columns)), np.bool_)
    columns = list(rows.select(rows.schema.names).take(pa.array(chosen)).columns)
    for index, column in enumerate(schema.columns):
        if not unknown[:, index].any():
            continue
        # A delete determines every column: nothing older counts.
        known = np.flatnonzero(~unknown[:, index] | deleted)
        last = np.full(int(group.max()) + 1, -1, np.int64)
        np.maximum.at(last, group[known], known)
        of_chosen = last[group[chosen]]
        none = (of_chosen < 0) | (deleted[of_chosen] & ~deleted[chosen])
        still[:, index] = none
        values = rows.column(column.name).take(pa.array(of_chosen, mask=none))
        columns[rows.schema.get_field_index(column.name)] = values
    columns[rows.schema.get_field_index(CHANGE_MISSING)] = missing_indices(still, len(still))
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)
