"""Decodes records of one table schema version to typed Arrow columns, on executors.

It makes two passes of numba kernels over the whole batch, without Python code per row:
the wire format finds the cells, `tidelog.codecs.columns.values` converts column by column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidelog.codecs.cell_positions import MISSING, Image
from tidelog.codecs.columns.values import arrow_type
from tidelog.codecs.projection import Projection, project
from tidelog.codecs.wire_formats import parse
from tidelog.model.records import Bools, Kind, UInt8s, bitmap
from tidelog.model.schema import TableSchema

__all__ = ["OPS", "Decoded", "arrow_type", "decode", "fields"]

OPS = {
    Kind.INSERT: "c",
    Kind.UPDATE: "u",
    Kind.DELETE: "d",
    Kind.TRUNCATE: "t",
    Kind.DUMP_ROW: "r",
    Kind.ABSENT: "d",
}
_OP_BYTE = np.zeros(256, dtype=np.uint8)
for _kind, _op in OPS.items():
    _OP_BYTE[_kind] = ord(_op)


@dataclass(slots=True)
class Decoded:
    """``n`` decoded records, in record order.

    Attributes:
        version: int64[n], the order for downstream.
        op: string[n]: c, u, d, r (dump row), t (truncate).
        before: struct[n] of the output columns, null where the record has no old image. In an old
            image with only the replica identity, the other columns are null. None if not requested.
        after: struct[n], null for d and t. None if not requested.
        missing: bool[n, output columns]: True where the record does not contain the column's value
            (unchanged TOAST); the value in ``after`` is null. None if there is no such cell.
        position: int64[n]; xid: int64[n]; commit_ts: int64[n], microseconds since 1970 UTC.
    """

    version: pa.Array
    op: pa.Array
    before: pa.StructArray | None
    after: pa.StructArray | None
    missing: Bools | None
    position: pa.Array
    xid: pa.Array
    commit_ts: pa.Array

    def __len__(self) -> int:
        return len(self.version)


def decode(
    records: pa.RecordBatch,
    schema: TableSchema,
    *,
    target: TableSchema | None = None,
    columns: Sequence[str] | None = None,
    before: bool = True,
    after: bool = True,
) -> Decoded:
    """Decode row changes that are all of ``schema``.

    Args:
        records: a batch in the event log's record layout.
        schema: the version that the records were written under.
        target: the version of the result: columns match by name, an added one is null, a widened
            one is cast (docs/reference/types.md).
        columns: names of the columns to return; the others are not converted.
        before: return the old images.
        after: return the new images.

    Raises:
        DecodeError: a payload or a cell does not fit ``schema``; names table, column and version,
            never the value.
    """
    projection = project(schema, target, columns)
    cells = parse(records, schema, projection.wanted, old=before)
    old = new = None
    if before:
        old = _structs(projection, cells.data, cells.old, cells.version)
    if after:
        new = _structs(projection, cells.data, cells.new, cells.version)
    return Decoded(
        version=records.column("offset"),
        op=ops(cells.kind),
        before=old,
        after=new,
        missing=_missing(projection, cells.new) if cells.any_missing else None,
        position=records.column("position"),
        xid=records.column("xid"),
        commit_ts=records.column("commit_ts"),
    )


def fields(schema: TableSchema, columns: Sequence[str] | None = None) -> list[pa.Field]:
    """The Arrow fields that rows of ``schema`` decode to."""
    return project(schema, None, columns).fields


def ops(kind: UInt8s) -> pa.Array:
    """string[n], the op of each record's kind."""
    bounds = np.arange(len(kind) + 1, dtype=np.int32)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(_OP_BYTE[kind])]
    return pa.Array.from_buffers(pa.string(), len(kind), buffers)


def _structs(
    projection: Projection, data: UInt8s, image: Image | None, version: np.ndarray
) -> pa.StructArray:
    kind = pa.struct(projection.fields)
    if image is None or not image.present.any():
        return pa.nulls(len(version), kind)
    arrays = projection.arrays(data, image.start, image.length, version)
    present = None
    if not image.present.all():
        present = bitmap(image.present)
    return pa.Array.from_buffers(kind, len(version), [present], children=arrays)


def _missing(projection: Projection, image: Image) -> Bools:
    out = np.zeros((len(image.present), len(projection.outputs)), dtype=np.bool_)
    for number, output in enumerate(projection.outputs):
        if output.row >= 0:
            out[:, number] = image.length[output.row] == MISSING
    return out
