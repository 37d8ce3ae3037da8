"""Row images as positions in a buffer, and the columns that rows lack.

Nothing is copied: a cell is a position in a buffer, in column-major matrices, so that
`tidelog.codecs.columns.values` converts a column in one pass and `tidelog.codecs.fold` moves cells
between rows by moving two numbers.

Missing columns are flags bool[n, columns], or lists as they are delivered with the rows; a list is
null for a complete row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import DecodeError
from tidelog.model.records import Bools, Int32s, Int64s, UInt8s, bitmap

NULL = -1  # a length: the cell is SQL NULL, or the row has no such image
MISSING = -2  # a length: the record does not contain the cell (unchanged TOAST)


@dataclass(slots=True)
class Image:
    """The cells of one row image (old or new) of every record.

    Attributes:
        start: int32[columns, n] into the buffer.
        length: int32[columns, n], bytes; `NULL` or `MISSING` for cells without bytes.
        present: bool[n], whether the record has this image.
    """

    start: Int32s
    length: Int32s
    present: npt.NDArray[np.bool_]


@dataclass(slots=True)
class CellPlaces:
    """The row images of ``n`` records; ``old`` is None if there is none or it was not requested.

    ``any_missing``: whether a cell of a new image is `MISSING`. Old images with only the replica
    identity have all other cells `MISSING`.
    """

    data: UInt8s
    version: Int64s
    kind: UInt8s
    old: Image | None
    new: Image
    any_missing: bool


def integers(records: pa.RecordBatch, name: str) -> Int64s:
    """A fixed-width column of the record layout as an array, not copied."""
    array: Int64s = records.column(name).to_numpy(zero_copy_only=True)
    return array


def payloads(records: pa.RecordBatch) -> tuple[UInt8s, Int32s]:
    """The payload buffer and the int32[n + 1] offsets of the records into it, not copied."""
    column = records.column("payload")
    if column.type != pa.binary():
        raise DecodeError(f"the records' payload is {column.type}, not binary")
    _, offsets, data = column.buffers()
    bounds = (
        np.frombuffer(offsets, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
        if len(column)
        else np.zeros(1, dtype=np.int32)
    )
    raw = np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, dtype=np.uint8)
    raw.flags.writeable = False
    bounds.flags.writeable = False
    return raw, bounds


def matrices(rows: int, columns: int) -> tuple[Int32s, Int32s]:
    """A start matrix and a length matrix, both uninitialized."""
    return np.empty((rows, columns), dtype=np.int32), np.empty((rows, columns), dtype=np.int32)


# Missing columns.


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
    """Convert lists of indices to lists of names. Lists of names only change their type: Spark may
    mark elements as never null, which some of Arrow's functions reject.
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
