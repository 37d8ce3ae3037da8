"""HOT PATH. Where each cell of a batch of pgoutput payloads begins and how long it is.

Formats: PostgreSQL manual, "Logical Replication Message Formats", TupleData.
Nothing is copied here: a cell is a place in the payload buffer, in column-major matrices, so that
`tidelog.wire.values` converts a column in one pass and `tidelog.wire.fold` moves cells between rows
by moving two numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from tidelog.errors import DecodeError
from tidelog.model.records import Int32s, Int64s, Kind, UInt8s
from tidelog.model.schema import TableSchema

NULL = -1  # a length: the cell is SQL NULL, or the row has no such image
MISSING = -2  # a length: the record does not say what the cell holds (unchanged TOAST)

_MALFORMED = 1
_COLUMN_COUNT = 2
_UNKNOWN_KIND = 3
_REASONS = {
    _MALFORMED: "the payload is not a well-formed pgoutput message",
    _COLUMN_COUNT: "the payload's number of columns is not the schema's",
    _UNKNOWN_KIND: "the record is not a row change",
}

_I, _U, _D, _T = int(Kind.INSERT), int(Kind.UPDATE), int(Kind.DELETE), int(Kind.TRUNCATE)
_R, _A = int(Kind.DUMP_ROW), int(Kind.ABSENT)
_K, _O, _N = ord("K"), ord("O"), ord("N")
_CELL_NULL, _CELL_UNCHANGED, _CELL_TEXT = ord("n"), ord("u"), ord("t")


@dataclass(slots=True)
class Image:
    """Cells of one row image (old or new) of every record.

    Attributes:
        start: int32[columns, n] into the payload buffer.
        length: int32[columns, n], bytes; `NULL` or `MISSING` where there are none.
        present: bool[n], does the record hold this image at all?
    """

    start: Int32s
    length: Int32s
    present: npt.NDArray[np.bool_]


@dataclass(slots=True)
class Cells:
    """The row images of ``n`` records; ``old`` is None if there is none or it isn't asked for.

    ``any_missing``: is a new image's cell `MISSING`? Old images of the replica identity only (kind
    K) have all their other cells `MISSING`.
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


def parse(
    records: pa.RecordBatch, schema: TableSchema, wanted: Sequence[int], *, old: bool
) -> Cells:
    """Parse the payloads of records that are all of ``schema``.

    Args:
        records: a batch in the event log's record layout.
        schema: the version the records were written under.
        wanted: wire column numbers; row ``i`` of the matrices is column ``wanted[i]``.
        old: also give the old images (else they serve only to fill unchanged cells).

    Raises:
        DecodeError: a payload is not what ``schema`` says; names table and version.
    """
    data, offsets = payloads(records)
    kind: UInt8s = records.column("kind").to_numpy(zero_copy_only=True)
    version = integers(records, "offset")
    n, columns = len(kind), len(schema.columns)
    slot = np.full(columns, -1, dtype=np.int32)
    slot[list(wanted)] = np.arange(len(wanted), dtype=np.int32)
    identity = np.array([c.name in schema.identity for c in schema.columns], dtype=np.bool_)
    keep_old = old and _any_old(data, offsets, kind)
    new_image = Image(*_matrices(len(wanted), n), np.empty(n, dtype=np.bool_))
    old_shape = (len(wanted), n) if keep_old else (0, 0)
    old_image = Image(*_matrices(*old_shape), np.empty(n, dtype=np.bool_))
    row, reason, any_missing = _parse(
        data, offsets, kind, slot, identity, keep_old,
        old_image.start, old_image.length, old_image.present,
        new_image.start, new_image.length, new_image.present,
    )  # fmt: skip
    if row >= 0:
        raise DecodeError(f"{schema.table}: version {version[row]}: {_REASONS[reason]}")
    return Cells(data, version, kind, old_image if keep_old else None, new_image, any_missing)


def _matrices(rows: int, columns: int) -> tuple[Int32s, Int32s]:
    return np.empty((rows, columns), dtype=np.int32), np.empty((rows, columns), dtype=np.int32)


@njit(cache=True, nogil=True)
def _any_old(data: UInt8s, offsets: Int32s, kind: UInt8s) -> bool:
    for i in range(len(kind)):
        if kind[i] == _D or kind[i] == _A:
            return True
        if kind[i] == _U and offsets[i + 1] - offsets[i] > 5 and data[offsets[i] + 5] != _N:
            return True
    return False


@njit(cache=True, nogil=True)
def _tuple(data, position, end, columns, start, length):  # type: ignore[no-untyped-def]
    """Parse TupleData at ``position`` into the scratch row; the position after it, or -reason."""
    if position + 2 > end:
        return -_MALFORMED
    if ((np.int64(data[position]) << 8) | np.int64(data[position + 1])) != columns:
        return -_COLUMN_COUNT
    position += 2
    for c in range(columns):
        if position >= end:
            return -_MALFORMED
        tag = data[position]
        position += 1
        if tag == _CELL_TEXT:
            if position + 4 > end:
                return -_MALFORMED
            size = (
                (np.int64(data[position]) << 24)
                | (np.int64(data[position + 1]) << 16)
                | (np.int64(data[position + 2]) << 8)
                | np.int64(data[position + 3])
            )
            position += 4
            if position + size > end:
                return -_MALFORMED
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
            return -_MALFORMED
    return position


@njit(cache=True, nogil=True)
def _parse(  # type: ignore[no-untyped-def]
    data, offsets, kind, slot, identity, keep_old,
    old_start, old_length, old_present, new_start, new_length, new_present,
):  # fmt: skip
    """Fill the matrices; the first bad record (-1 if none), reason, is a new cell missing?"""
    columns = len(slot)
    wire = np.empty(len(slot), dtype=np.int64)  # matrix row -> wire column
    rows = 0
    for c in range(columns):
        if slot[c] >= 0:
            wire[slot[c]] = c
            rows += 1
    scratch_old_start = np.empty(columns, dtype=np.int32)
    scratch_old_length = np.empty(columns, dtype=np.int32)
    scratch_start = np.empty(columns, dtype=np.int32)
    scratch_length = np.empty(columns, dtype=np.int32)
    any_missing = False
    for i in range(len(kind)):
        what = kind[i]
        position = np.int64(offsets[i])
        end = np.int64(offsets[i + 1])
        has_old = False
        has_new = False
        if what == _T:
            position = end
        elif what not in (_I, _U, _D, _R, _A):
            return i, _UNKNOWN_KIND, False
        else:
            position += 5
            if position >= end:
                return i, _MALFORMED, False
            tag = data[position]
            if what in (_U, _D, _A) and tag in (_K, _O):
                has_old = True
                position = _tuple(
                    data, position + 1, end, columns, scratch_old_start, scratch_old_length
                )
                if position < 0:
                    return i, -position, False
                if tag == _K and what != _A:
                    # The columns outside the identity are sent as NULL (logicalrep_write_tuple).
                    for c in range(columns):
                        if not identity[c]:
                            scratch_old_length[c] = MISSING
            if what in (_I, _U, _R):
                if position >= end or data[position] != _N:
                    return i, _MALFORMED, False
                has_new = True
                position = _tuple(data, position + 1, end, columns, scratch_start, scratch_length)
                if position < 0:
                    return i, -position, False
            elif not has_old:
                return i, _MALFORMED, False
            if position != end:
                return i, _MALFORMED, False
        new_present[i] = has_new
        old_present[i] = has_old
        if has_new:
            for r in range(rows):
                c = wire[r]
                size = scratch_length[c]
                begin = scratch_start[c]
                if size == MISSING:
                    if has_old and scratch_old_length[c] != MISSING:
                        size = scratch_old_length[c]
                        begin = scratch_old_start[c]
                    else:
                        any_missing = True
                new_start[r, i] = begin
                new_length[r, i] = size
        else:
            for r in range(rows):
                new_start[r, i] = 0
                new_length[r, i] = NULL
        if keep_old:
            for r in range(rows):
                c = wire[r]
                if has_old:
                    old_start[r, i] = scratch_old_start[c]
                    old_length[r, i] = scratch_old_length[c]
                else:
                    old_start[r, i] = 0
                    old_length[r, i] = NULL
    return -1, 0, any_missing
