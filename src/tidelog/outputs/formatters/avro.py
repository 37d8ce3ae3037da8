"""Formats Avro in the wire format of Confluent's schema registry; keys are Avro, too.

A message is a byte 0, the schema's id in four bytes, and the record in Avro's binary encoding
(Avro 1.12, "Binary Encoding").

Records are encoded by kernels, one column after the other: first the sizes of all rows are added
up, then each column's bytes are written at the row's cursor. ``state`` (int8[n]) says what is
written for a row's cell: `NOTHING` (the surrounding record is null), `NULL` (the union's first
branch), `BARE` (only the value, of a field that is no union) or `BRANCH` (the union's second
branch, and the value).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from tidelog.codecs.columns.concatenation import TextCells
from tidelog.codecs.source_blocks import connector_of, source_block, source_fields
from tidelog.errors import OutputError
from tidelog.model.records import Bools, bitmap, readonly
from tidelog.model.schema import TableName
from tidelog.outputs.formatters import avro_schema
from tidelog.outputs.formatters.avro_schema import AvroField, fields_of, nullable
from tidelog.outputs.formatters.messages import EventColumns, messages, null_in_key, topic_of
from tidelog.ports import FormatOptions, MessageSchemas, SourceId, TargetTable
from tidelog.spark.formats.envelope import snapshots, tidelog_version
from tidelog.spark.formats.json_values import UNAVAILABLE, time_micros

# HOT PATH. Kernels.

NOTHING, NULL, BARE, BRANCH = 0, 1, 2, 3

_MORE = np.uint64(0x80)
_SEVEN = np.uint64(7)
_LOW = np.uint64(0x7F)
_DECIMAL_BYTES = 16


@njit(cache=True, nogil=True)
def _zigzag(value):  # type: ignore[no-untyped-def]
    return np.uint64((value << 1) ^ (value >> 63))


@njit(cache=True, nogil=True)
def _digits(value):  # type: ignore[no-untyped-def]
    """The number of bytes of a variable-length integer."""
    count = 1
    while value >= _MORE:
        value >>= _SEVEN
        count += 1
    return count


@njit(cache=True, nogil=True)
def _put(value, out, at):  # type: ignore[no-untyped-def]
    while value >= _MORE:
        out[at] = np.uint8((value & _LOW) | _MORE)
        value >>= _SEVEN
        at += 1
    out[at] = np.uint8(value)
    return at + 1


@njit(cache=True, nogil=True)
def _branch(state, out, at):  # type: ignore[no-untyped-def]
    """Write the branch number of the union, if the field is a union."""
    if state == BARE:
        return at
    out[at] = 2 if state == BRANCH else 0
    return at + 1


@njit(cache=True, nogil=True)
def size_numbers(values, state, sizes):  # type: ignore[no-untyped-def]
    """Add the sizes of ``values`` (int64[n]) as ``int`` or ``long`` to ``sizes`` (int64[n])."""
    for i in range(len(values)):
        if state[i] == NULL:
            sizes[i] += 1
        elif state[i] != NOTHING:
            sizes[i] += _digits(_zigzag(values[i])) + (state[i] == BRANCH)


@njit(cache=True, nogil=True)
def write_numbers(values, state, out, at):  # type: ignore[no-untyped-def]
    """Write the values to ``out`` (uint8[...]) at cursors ``at`` (int64[n]), and move them."""
    for i in range(len(values)):
        if state[i] == NOTHING:
            continue
        place = _branch(state[i], out, at[i])
        if state[i] != NULL:
            place = _put(_zigzag(values[i]), out, place)
        at[i] = place


@njit(cache=True, nogil=True)
def size_bytes(length, counted, state, sizes):  # type: ignore[no-untyped-def]
    """Add the sizes of values of ``length`` (int64[n]) bytes. ``counted``: each value is preceded
    by its length, as in ``bytes`` and ``string``; otherwise there is no length.
    """
    for i in range(len(length)):
        if state[i] == NULL:
            sizes[i] += 1
        elif state[i] != NOTHING:
            sizes[i] += length[i] + (state[i] == BRANCH)
            if counted:
                sizes[i] += _digits(_zigzag(length[i]))


@njit(cache=True, nogil=True)
def write_bytes(data, start, length, counted, state, out, at):  # type: ignore[no-untyped-def]
    """Write the values at ``start`` (int64[n]) of ``data`` (uint8[...])."""
    for i in range(len(length)):
        if state[i] == NOTHING:
            continue
        place = _branch(state[i], out, at[i])
        if state[i] != NULL:
            if counted:
                place = _put(_zigzag(length[i]), out, place)
            first = start[i]
            for k in range(length[i]):
                out[place + k] = data[first + k]
            place += length[i]
        at[i] = place


@njit(cache=True, nogil=True)
def shortest_decimals(values, out, start, length):  # type: ignore[no-untyped-def]
    """Convert Arrow's decimal128 (uint8[n, 16], little endian) to the shortest two's complement,
    big endian.

    It is written to the end of each 16 bytes of ``out`` (uint8[16 n]), from ``start`` on, with
    ``length`` bytes (int64[n]).
    """
    for i in range(len(values)):
        for k in range(_DECIMAL_BYTES):
            out[_DECIMAL_BYTES * i + k] = values[i, _DECIMAL_BYTES - 1 - k]
        first = _DECIMAL_BYTES * i
        last = first + _DECIMAL_BYTES - 1
        while first < last and (
            (out[first] == 0 and out[first + 1] < 128)
            or (out[first] == 255 and out[first + 1] >= 128)
        ):
            first += 1
        start[i] = first
        length[i] = last + 1 - first


# Rows of Arrow columns.

_MAX_BYTES = 2**31 - 1  # of a batch: Arrow's int32 offsets
States = npt.NDArray[np.int8]


class AvroRows:
    """``n`` records under construction: their fields in the schema's order.

    ``there`` of all methods, bool[n]: records that have the field at all; None: all. In a nullable
    union the other records are null.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self._sizes = np.zeros(n, np.int64)
        self._writes: list[Callable[[Any, Any], None]] = []

    def constant(self, encoded: bytes, there: Bools | None = None) -> None:
        """Write the same bytes in all records."""
        self._bytes(_constant(encoded, self.n), _bare(self.n, there), counted=False)

    def union_branch(self, there: Bools) -> None:
        """Write the branch of a union of null and a record; the record's fields follow."""
        data = np.array([0, 2], np.uint8)
        at = there.astype(np.int64)
        self._bytes((data, at, np.ones(self.n, np.int64)), _bare(self.n, None), counted=False)

    def choice(self, encoded: list[bytes], which: npt.NDArray[np.int64]) -> None:
        """Write, for each record, the ``which``-th of ``encoded``."""
        lengths = np.array([len(each) for each in encoded], np.int64)
        starts = np.cumsum(lengths) - lengths
        data = np.frombuffer(b"".join(encoded), np.uint8)
        self._bytes((data, starts[which], lengths[which]), _bare(self.n, None), counted=False)

    def field(
        self, name: str, values: pa.Array, *, nullable: bool, there: Bools | None = None
    ) -> None:
        """Write a column, of one of the types of `tidelog.outputs.formatters.avro_schema`. Raises
        OutputRefusedError, which names the column, for a null that the schema does not allow.
        """
        if pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type):
            values = values.cast(pa.binary())  # Spark's, if so configured
        state = _states(name, values, nullable, there)
        kind = values.type
        if pa.types.is_nested(kind):
            self._nested(name, values, state)
            return
        if pa.types.is_boolean(kind):
            self._fixed(values.fill_null(False).to_numpy(zero_copy_only=False), state)
        elif pa.types.is_floating(kind):
            self._fixed(values.fill_null(0.0).to_numpy(zero_copy_only=False), state)
        elif pa.types.is_decimal(kind):
            self._bytes(_decimals(values), state, counted=True)
        elif pa.types.is_string(kind) or pa.types.is_binary(kind):
            self._bytes(_texts(values), state, counted=True)
        else:
            if pa.types.is_date32(kind):
                values = values.view(pa.int32())
            elif pa.types.is_timestamp(kind):
                values = values.view(pa.int64())
            elif pa.types.is_time(kind):
                values = values.cast(pa.time64("us")).view(pa.int64())
            self._numbers(values.fill_null(0).to_numpy(zero_copy_only=False), state)

    def _nested(self, name: str, values: pa.Array, state: States) -> None:
        """Write records, whose members are unions; or arrays and maps, in one block each."""
        nothing = (np.zeros(1, np.uint8), np.zeros(self.n, np.int64), np.zeros(self.n, np.int64))
        self._bytes(nothing, state, counted=False)  # the union's branch alone
        there = state >= BARE
        if pa.types.is_struct(values.type):
            for member, found in zip(values.type, values.flatten(), strict=True):
                self.field(f"{name}.{member.name}", found, nullable=True, there=there)
            return
        if pa.types.is_map(values.type):
            kind = pa.struct([values.type.key_field, values.type.item_field])
            values = values.cast(pa.list_(kind))
            keys, found = values.flatten().flatten()
            elements = AvroRows(len(keys))
            elements.field(name, keys, nullable=False)
        else:
            found = values.flatten()
            elements = AvroRows(len(found))
        elements.field(name, found, nullable=True)
        data, start, length = _texts(elements.finish())
        ends = np.append(start, start[-1] + length[-1] if len(start) else 0)
        counts = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        last = np.cumsum(counts)
        first = last - counts
        filled = np.where(there & (counts > 0), BARE, NOTHING).astype(np.int8)
        self._numbers(counts, filled)
        self._bytes((data, ends[first], ends[last] - ends[first]), filled, counted=False)
        self._bytes(_constant(b"\0", self.n), _bare(self.n, there), counted=False)

    def finish(self, present: Bools | None = None) -> pa.BinaryArray:
        """Return the records; null where not ``present``."""
        ends = np.cumsum(self._sizes)
        total = int(ends[-1]) if self.n else 0
        if total > _MAX_BYTES:
            raise OutputError(f"a batch of {self.n} messages is more than {_MAX_BYTES} bytes")
        out = np.empty(total, np.uint8)
        at = ends - self._sizes
        for write in self._writes:
            write(out, at)
        offsets = np.zeros(self.n + 1, np.int32)
        offsets[1:] = ends
        valid = None
        if present is not None:
            valid = bitmap(present)
        buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(out)]
        return pa.BinaryArray.from_buffers(pa.binary(), self.n, buffers)

    def _numbers(self, values: npt.NDArray[Any], state: States) -> None:
        numbers = readonly(values.astype(np.int64, copy=False))
        size_numbers(numbers, state, self._sizes)
        self._writes.append(lambda out, at: write_numbers(numbers, state, out, at))

    def _fixed(self, values: npt.NDArray[Any], state: States) -> None:
        """Write booleans and floats, whose bytes are Avro's."""
        width = values.dtype.itemsize
        data = np.ascontiguousarray(values).view(np.uint8)
        start = np.arange(self.n, dtype=np.int64) * width
        self._bytes((data, start, np.full(self.n, width, np.int64)), state, counted=False)

    def _bytes(self, cells: _Cells, state: States, *, counted: bool) -> None:
        data, start, length = readonly(cells[0]), *cells[1:]
        size_bytes(length, counted, state, self._sizes)
        self._writes.append(
            lambda out, at: write_bytes(data, start, length, counted, state, out, at)
        )


def encode_number(value: int) -> bytes:
    """Return an ``int`` or ``long``."""
    value = (value << 1) ^ (value >> 63)
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def encode_text(value: str) -> bytes:
    """Return a ``string``."""
    encoded = value.encode()
    return encode_number(len(encoded)) + encoded


def encode_names(values: list[str]) -> bytes:
    """Return an array of ``string`` in one block."""
    return (
        encode_number(len(values)) + b"".join(map(encode_text, values)) if values else b""
    ) + b"\0"


# data uint8[...], start int64[n], length int64[n]
# (read-only, so that the kernels are compiled once)
_Cells = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]


def _constant(encoded: bytes, n: int) -> _Cells:
    data = np.frombuffer(encoded, np.uint8)
    return data, np.zeros(n, np.int64), np.full(n, len(encoded), np.int64)


def _bare(n: int, there: Bools | None) -> States:
    if there is None:
        return np.full(n, BARE, np.int8)
    return np.where(there, BARE, NOTHING).astype(np.int8)


def _states(name: str, values: pa.Array, nullable: bool, there: Bools | None) -> States:
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    if nullable:
        state = np.where(valid, BRANCH, NULL)
    else:
        state = np.full(len(values), BARE)
        if not (valid if there is None else valid | ~there).all():
            raise null_in_key("avro", name)
    if there is not None:
        state = np.where(there, state, NOTHING)
    return state.astype(np.int8)


def _texts(values: pa.Array) -> _Cells:
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    start = ends[:-1].astype(np.int64)
    content = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return content, start, ends[1:] - start


def _decimals(values: pa.Array) -> _Cells:
    n = len(values)
    cells = np.frombuffer(values.buffers()[1], np.uint8)
    cells = cells[values.offset * _DECIMAL_BYTES : (values.offset + n) * _DECIMAL_BYTES]
    out = np.empty(n * _DECIMAL_BYTES, np.uint8)
    start, length = np.empty(n, np.int64), np.empty(n, np.int64)
    shortest_decimals(readonly(cells).reshape(n, _DECIMAL_BYTES), out, start, length)
    return out, start, length


# The formats.


@dataclass(frozen=True)
class Avro:
    """`tidelog.ports.SchemaFormatter` of Debezium's envelope. Missing columns are listed in
    ``unavailable``; those of texts and bytes have Debezium's placeholder, others null.
    """

    topic: str = "{table}"
    tombstones: bool = True

    @classmethod
    def of(cls, options: FormatOptions) -> Avro:
        return cls(options.topic, options.tombstones)

    def schemas(self, table: TargetTable) -> MessageSchemas:
        fields = fields_of(table, table.columns.names, plain_key=True)
        value = avro_schema.envelope_schema(table, fields, source_schema(table.origin))
        return MessageSchemas(_key_schema(table), value)

    def format(self, table: TargetTable, events: pa.RecordBatch) -> pa.RecordBatch:
        found = EventColumns(table, events)
        fields = fields_of(table, found.names, plain_key=True)
        rows = _new_rows(found.n, table.schema_ids[1])
        truncated, deleted = _bools(found.truncate), _bools(found.deleted)
        has_row = ~truncated & ~deleted
        if found.before is None:
            before, old = found.row, deleted
        else:
            # If a created row took another row's key, the delete before has the old row.
            created = _bools(pc.equal(found.op, "c"))
            before, old = found.before, _bools(found.before.is_valid()) & ~created
        rows.union_branch(old)
        _write_row(rows, fields, before, old, None)
        rows.union_branch(has_row)
        _write_row(rows, fields, found.row, has_row, found.missing)
        write_source(rows, table.origin, table.source, found.source)
        rows.constant(encode_number(0))  # transaction
        rows.field("op", found.op, nullable=False)
        for values in _times(found.commit_ts):
            rows.field("ts", values, nullable=True)
        _write_unavailable(rows, fields, found.missing, has_row)
        topic = topic_of(self.topic, table)
        key = _key(found)
        return messages(found, topic, key, rows.finish(), None, tombstones=self.tombstones)


@dataclass(frozen=True)
class AvroFlat:
    """`tidelog.ports.SchemaFormatter` of flat rows: the members of the JSON of format ``flat``;
    missing columns as in `Avro`.
    """

    topic: str = "{table}"
    tombstones: bool = True

    @classmethod
    def of(cls, options: FormatOptions) -> AvroFlat:
        return cls(options.topic, options.tombstones)

    def schemas(self, table: TargetTable) -> MessageSchemas:
        fields = _flat_fields(table)
        return MessageSchemas(_key_schema(table), avro_schema.flat_schema(table, fields))

    def format(self, table: TargetTable, events: pa.RecordBatch) -> pa.RecordBatch:
        found = EventColumns(table, events)
        fields = _flat_fields(table)
        rows = _new_rows(found.n, table.schema_ids[1])
        all_of_them = np.ones(found.n, np.bool_)
        _write_row(rows, fields, found.row, all_of_them, found.missing)
        rows.field("__op", found.op, nullable=False)
        rows.constant(encode_text(table.name))
        rows.field("__version", found.version, nullable=False)
        rows.field("__schema_version", found.source.column("schema_id"), nullable=False)
        rows.field("__ts_ms", pc.divide(found.commit_ts, 1000), nullable=False)
        rows.field("__deleted", found.deleted, nullable=False)
        _write_unavailable(rows, fields, found.missing, all_of_them)
        topic = topic_of(self.topic, table)
        key = _key(found)
        return messages(found, topic, key, rows.finish(), None, tombstones=self.tombstones)


def _flat_fields(table: TargetTable) -> list[AvroField]:
    # A truncate has no columns, so those of the key may be null as well.
    reserved = (*avro_schema.FLAT, avro_schema.FLAT_UNAVAILABLE)
    return fields_of(table, table.columns.names, reserved, plain_key=False)


def _key_schema(table: TargetTable) -> str | None:
    if not table.key:
        return None
    return avro_schema.key_schema(table, fields_of(table, table.key, plain_key=True))


def _key(found: EventColumns) -> pa.BinaryArray:
    table = found.table
    if not table.key:
        return pa.nulls(found.n, pa.binary())
    has_row = ~_bools(found.truncate)
    rows = _new_rows(found.n, table.schema_ids[0], has_row)
    _write_row(rows, fields_of(table, table.key, plain_key=True), found.row, has_row, None)
    return rows.finish(has_row)


def _new_rows(n: int, schema_id: int, there: Bools | None = None) -> AvroRows:
    rows = AvroRows(n)
    rows.constant(struct.pack(">BI", 0, schema_id), there)
    return rows


def _write_row(
    rows: AvroRows,
    fields: list[AvroField],
    struct_: pa.StructArray,
    there: Bools,
    missing: Bools | None,
) -> None:
    """``missing``: bool[n, columns of the struct]."""
    for field in fields:
        at = struct_.type.get_field_index(field.column)
        values = pa.nulls(rows.n, field.kind) if at < 0 else struct_.field(at)
        if values.type != field.kind:
            values = values.cast(field.kind)
        if field.of_day:
            values = time_micros(values, field.column)
        elif field.any_text and missing is not None and missing[:, at].any():
            placeholder = pa.scalar(UNAVAILABLE).cast(field.kind)
            values = pc.if_else(pa.array(missing[:, at]), placeholder, values)
        rows.field(field.column, values, nullable=field.nullable, there=there)


def _write_unavailable(
    rows: AvroRows, fields: list[AvroField], missing: Bools | None, there: Bools
) -> None:
    if missing is None or not missing.any():
        rows.constant(encode_number(0))
        return
    patterns, which = np.unique(missing & there[:, None], axis=0, return_inverse=True)
    encoded = []
    for pattern in patterns:
        names = [field.name for field, is_absent in zip(fields, pattern, strict=True) if is_absent]
        branch = encode_number(bool(names))
        encoded.append(branch + (encode_names(names) if names else b""))
    rows.choice(encoded, which.reshape(-1))


def _times(commit_ts: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    return pc.divide(commit_ts, 1000), commit_ts, pc.multiply(commit_ts, 1000)


def _bools(array: pa.Array) -> Bools:
    found: Bools = array.to_numpy(zero_copy_only=False)
    return found


_TYPES = {"int32": "int", "int64": "long"}


def source_schema(source: SourceId) -> dict[str, Any]:
    """Return the record's schema; it is the same for all tables of a source."""
    fields = [
        nullable(name, avro) if optional else {"name": name, "type": avro}
        for name, kind, optional in source_fields(source)
        for avro in [_TYPES.get(kind, kind)]
    ]
    space = f"io.debezium.connector.{connector_of(source)}"
    return {"type": "record", "name": "Source", "namespace": space, "fields": fields}


def write_source(
    rows: AvroRows, source: SourceId, table: TableName, records: pa.RecordBatch
) -> None:
    """Write the record of each of ``records``, the log's columns of the events."""
    block = source_block(source, table, records)
    micros = records.column("commit_ts")
    values: dict[str, Any] = {
        "version": tidelog_version(),
        "connector": connector_of(source),
        "name": "tidelog",
        "ts_ms": pc.divide(micros, 1000),
        "snapshot": snapshots(records),
        "db": block.db,
        "sequence": block.sequence,
        "ts_us": micros,
        "ts_ns": pc.multiply(micros, 1000),
        **block.own,
    }
    for name, kind, optional in source_fields(source):
        value = values[name]
        if isinstance(value, TextCells):
            value = _plain(value, kind)
        if isinstance(value, pa.Array):
            rows.field(name, value, nullable=optional)
        else:
            rows.constant(_encoded(value, optional))


def _plain(cells: TextCells, kind: str) -> pa.Array:
    """Return integers, or values of JSON texts."""
    if kind != "string":
        return cells.values
    return pc.replace_substring(pc.utf8_slice_codeunits(cells.texts(), 1, -1), '\\"', '"')


def _encoded(value: str | int | None, optional: bool) -> bytes:
    if value is None:
        return encode_number(0)
    encoded = encode_text(value) if isinstance(value, str) else encode_number(value)
    return encode_number(1) + encoded if optional else encoded
