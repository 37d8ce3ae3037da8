"""Row images as positions in a buffer, the result of finding the cells of a wire format.

Nothing is copied: a cell is a position in a buffer, in column-major matrices, so that
`tidelog.codecs.columns.values` converts a column in one pass and `tidelog.codecs.fold` moves cells
between rows by moving two numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.errors import DecodeError
from tidelog.model.records import Int32s, Int64s, UInt8s

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
