"""The shape ``variant``: rows of all tables as Spark's VARIANT, built column by column.

The encoding is Spark's and Parquet's (Variant Binary Encoding, version 1). A table's rows are
objects of the same fields, so that they share one dictionary, and only offsets and values differ.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.cell_positions import missing_names
from tidelog.codecs.decode import Decoded, decode
from tidelog.eventlog.reader import EventLog
from tidelog.model.schema import TableSchema
from tidelog.spark.formats import shaping

_PRIMITIVE, _OBJECT = 0, 2  # basic types, in the lower two bits of a value's first byte
_NULL, _TRUE, _FALSE = 0, 1, 2
_DOUBLE, _DATE, _TIMESTAMP, _TIMESTAMP_NTZ, _FLOAT, _BINARY, _STRING = 7, 11, 12, 13, 14, 15, 16
_INTEGERS = {8: 3, 16: 4, 32: 5, 64: 6}  # bits: type
_DECIMALS = {4: 8, 8: 9, 16: 10}  # bytes: type
_DIGITS = ((9, 4), (18, 8), (38, 16))  # of decimals that fit into this number of bytes
_FOUR_BYTES = 3  # how the widths of offsets and field ids are written
_LARGE = 255  # the most fields whose number is one byte

_Bytes = npt.NDArray[np.uint8]


def batch(
    records: pa.RecordBatch, log: EventLog, options: shaping.ShapeOptions, schema: pa.Schema
) -> pa.RecordBatch:
    """Return records of any tables in the shape `tidelog.spark.formats.shapes.VARIANT`, in log
    order.
    """

    def of_one(records: pa.RecordBatch) -> pa.RecordBatch:
        written = log.schemas.get(records.column("schema_id")[0].as_py())
        return _of_table(records, written, options, schema)

    return shaping.by_schema(records, of_one)


def _of_table(
    records: pa.RecordBatch, written: TableSchema, options: shaping.ShapeOptions, schema: pa.Schema
) -> pa.RecordBatch:
    names = [n for n in written.column_names if options.columns is None or n in options.columns]
    asked = list(dict.fromkeys([*names, *written.match_key]))
    decoded = decode(records, written, columns=asked)
    n = len(decoded)
    after, before = decoded.after, decoded.before
    assert after is not None
    assert before is not None
    kind = schema.field("after").type
    key = pa.nulls(n, kind)
    if written.match_key:
        key = objects(_key(decoded, written), written.match_key, kind, pc.equal(decoded.op, "t"))
    missing = None if decoded.missing is None else decoded.missing[:, : len(names)]
    arrays = [
        pa.repeat(pa.scalar(str(written.table)), n),
        decoded.op,
        decoded.version,
        pa.repeat(pa.scalar(written.schema_id, pa.int32()), n),
        shaping.timestamps(decoded.commit_ts),
        key,
        objects(before, names, kind, before.is_null()) if options.before else pa.nulls(n, kind),
        objects(after, names, kind, after.is_null()),
        shaping.source_struct(records, decoded, written.table, schema.field("source").type),
        missing_names(missing, names, n),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _key(decoded: Decoded, written: TableSchema) -> pa.StructArray:
    assert decoded.after is not None
    type_ = decoded.after.type
    return shaping.key_struct(decoded, pa.struct([type_.field(n) for n in written.match_key]))


def objects(
    rows: pa.StructArray, names: Sequence[str], kind: pa.StructType, null: pa.BooleanArray
) -> pa.StructArray:
    """Return ``rows`` as objects of the fields ``names``, in Arrow's form of a VARIANT; null where
    ``null``.
    """
    n = len(rows)
    if n == 0 or null.true_count == n:
        return pa.nulls(n, kind)
    # Java compares names by UTF-16 when it searches a field.
    order = sorted(names, key=lambda name: name.encode("utf-16-be"))
    values = [encoded(rows.field(rows.type.get_field_index(name))) for name in order]
    sizes = np.zeros((n, len(order) + 1), np.uint32)
    for number, value in enumerate(values):
        sizes[:, number + 1] = pc.binary_length(value).to_numpy(zero_copy_only=False)
    offsets = np.cumsum(sizes, axis=1, dtype=np.uint32).astype("<u4")
    large = len(order) > _LARGE
    header = _OBJECT | (_FOUR_BYTES | _FOUR_BYTES << 2 | large << 4) << 2
    count = struct.pack("<I" if large else "<B", len(order))
    ids = np.arange(len(order), dtype="<u4").tobytes()
    start = pa.scalar(struct.pack("B", header) + count + ids, pa.binary())
    body = pc.binary_join_element_wise(start, _fixed(offsets.view(np.uint8)), *values, b"")
    metadata = pa.repeat(pa.scalar(dictionary(order), pa.binary()), n)
    return pa.StructArray.from_arrays([body, metadata], fields=list(kind), mask=null)


def dictionary(names: Sequence[str]) -> bytes:
    """Return the metadata of objects with these fields, whose ids are the positions of the
    names.
    """
    texts = [name.encode() for name in names]
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int64).astype("<u4")
    version, offset_size = 1, _FOUR_BYTES << 6
    head = struct.pack("<BI", version | offset_size, len(texts))
    return head + ends.tobytes() + b"".join(texts)


def encoded(values: pa.Array) -> pa.BinaryArray:
    """Return each value as the bytes of a VARIANT; never null, since a null is a VARIANT too."""
    kind = values.type
    if pa.types.is_boolean(kind):
        flags = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
        cells = np.where(flags, _first(_TRUE), _first(_FALSE)).astype(np.uint8)[:, None]
        found = _fixed(cells)
    elif pa.types.is_integer(kind):
        found = _numbers(values, _INTEGERS[kind.bit_width], f"<i{kind.bit_width // 8}")
    elif pa.types.is_float64(kind):
        found = _numbers(values, _DOUBLE, "<f8")
    elif pa.types.is_float32(kind):
        found = _numbers(values, _FLOAT, "<f4")
    elif pa.types.is_date32(kind):
        found = _numbers(values.view(pa.int32()), _DATE, "<i4")
    elif pa.types.is_timestamp(kind):
        type_ = _TIMESTAMP_NTZ if kind.tz is None else _TIMESTAMP
        found = _numbers(values.view(pa.int64()), type_, "<i8")
    elif pa.types.is_decimal(kind):
        found = _decimals(values)
    elif pa.types.is_binary(kind):
        found = _texts(values, _BINARY)
    else:
        found = _texts(values.cast(pa.binary()), _STRING)
    if values.null_count:
        found = pc.if_else(values.is_valid(), found, bytes([_first(_NULL)]))
    return found


def _first(kind: int) -> int:
    return kind << 2 | _PRIMITIVE


def _numbers(values: pa.Array, kind: int, dtype: str) -> pa.BinaryArray:
    plain = pc.fill_null(values, 0).to_numpy(zero_copy_only=False).astype(dtype)
    cells = plain.view(np.uint8).reshape(len(plain), -1)
    return _with_first(cells, bytes([_first(kind)]))


def _decimals(values: pa.Decimal128Array) -> pa.BinaryArray:
    width = next(size for digits, size in _DIGITS if values.type.precision <= digits)
    cells = np.frombuffer(values.buffers()[1], np.uint8).reshape(-1, 16)
    cells = cells[values.offset : values.offset + len(values), :width]
    return _with_first(cells, bytes([_first(_DECIMALS[width]), values.type.scale]))


def _texts(values: pa.BinaryArray, kind: int) -> pa.BinaryArray:
    lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy().astype("<u4")
    sizes = _with_first(lengths.view(np.uint8).reshape(-1, 4), bytes([_first(kind)]))
    return pc.binary_join_element_wise(sizes, pc.fill_null(values, b""), b"")


def _with_first(cells: _Bytes, first: bytes) -> pa.BinaryArray:
    head = np.broadcast_to(np.frombuffer(first, np.uint8), (len(cells), len(first)))
    return _fixed(np.hstack([head, cells]))


def _fixed(cells: _Bytes) -> pa.BinaryArray:
    """Return uint8[n, width] as n values of ``width`` bytes."""
    n, width = cells.shape
    bounds = np.arange(n + 1, dtype=np.int32) * np.int32(width)
    data = pa.py_buffer(np.ascontiguousarray(cells))
    return pa.Array.from_buffers(pa.binary(), n, [None, pa.py_buffer(bounds), data])
