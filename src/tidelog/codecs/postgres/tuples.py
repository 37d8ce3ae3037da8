"""Extracts keys of pgoutput rows, and converts rows read by SELECT to pgoutput's format.

A dump row is stored as the Insert that the log would have for it, an absent key as a Delete, so one
decoder serves both. The values are text under the same session settings in both.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numba import njit

from tidelog.codecs import key_kernel
from tidelog.codecs.byte_order import put_big_uint32
from tidelog.codecs.key_kernel import EncodedKeys
from tidelog.codecs.postgres.pgoutput import START
from tidelog.errors import ChunkError, DecodeError
from tidelog.model.records import Int32s, KeyEntries, LogBatch, RecordKind, UInt8s, readonly
from tidelog.model.schema import TableSchema

_TAB, _NEWLINE, _BACKSLASH, _BIG_N = ord("\t"), ord("\n"), ord("\\"), ord("N")
_NULL, _TEXT = ord("n"), ord("t")
_INSERT, _NEW = ord("I"), ord("N")

HEADER_BYTES = 8  # tag, relation, tuple tag, column count
VALUE_BYTES = 5  # tag, length

_UNESCAPED = np.arange(256, dtype=np.uint8)
for _escape, _byte in zip(b"bfnrtv", b"\b\f\n\r\t\v", strict=True):
    _UNESCAPED[_escape] = _byte

_SPECIAL = np.zeros(256, dtype=np.bool_)
_SPECIAL[[_TAB, _NEWLINE, _BACKSLASH]] = True


@njit(cache=True, nogil=True)
def count_rows(data: UInt8s) -> int:
    """The number of raw newlines."""
    count = 0
    for byte in data:
        count += byte == _NEWLINE
    return count


@njit(cache=True, nogil=True)
def copy_to_inserts(
    data: UInt8s, relation: int, columns: int, payload: UInt8s, payload_offsets: Int32s
) -> int:
    """Write one Insert per row; returns the number of rows, or -1 - the row at fault.

    Args:
        data: whole rows, each ended by a newline.
        relation: the relation's oid.
        columns: the number of columns that each row must have.
        payload: uint8[len(data) + rows * (HEADER_BYTES + columns * VALUE_BYTES)] at least.
        payload_offsets: int32[rows + 1].
    """
    size = len(data)
    at = 0
    to = 0
    row = 0
    payload_offsets[0] = 0
    while at < size:
        payload[to] = _INSERT
        put_big_uint32(payload, to + 1, relation)
        payload[to + 5] = _NEW
        payload[to + 6] = columns >> 8
        payload[to + 7] = columns & 0xFF
        to += HEADER_BYTES
        if columns == 0:
            if data[at] != _NEWLINE:
                return -1 - row
            at += 1
        for column in range(columns):
            ended_by = _NEWLINE if column == columns - 1 else _TAB
            if (
                at + 2 < size
                and data[at] == _BACKSLASH
                and data[at + 1] == _BIG_N
                and (data[at + 2] == _TAB or data[at + 2] == _NEWLINE)
            ):
                payload[to] = _NULL
                to += 1
                at += 2
            else:
                payload[to] = _TEXT
                start = to + VALUE_BYTES
                to = start
                while True:
                    byte = data[at] if at < size else np.uint8(_TAB)
                    while not _SPECIAL[byte]:
                        payload[to] = byte
                        to += 1
                        at += 1
                        byte = data[at]
                    if byte != _BACKSLASH or at >= size:
                        break
                    at += 1
                    if at >= size or data[at] == _NEWLINE:
                        return -1 - row
                    payload[to] = _UNESCAPED[data[at]]
                    at += 1
                    to += 1
                put_big_uint32(payload, start - 4, to - start)
            if at >= size or data[at] != ended_by:
                return -1 - row
            at += 1
        row += 1
        payload_offsets[row] = to
    return row


_FAULTS = {
    key_kernel.MALFORMED: "is malformed",
    key_kernel.COLUMN_COUNT: "has another number of columns than its schema",
    key_kernel.KEY_NOT_SENT: "does not carry its key: the replica identity lacks it",
}
_NEWLINE = ord("\n")
_MAX_PAYLOAD_BYTES = int(np.iinfo(np.int32).max)


class PgoutputKeys(EncodedKeys):
    """The `tidelog.ports.KeyExtractor` of pgoutput payloads. Thread-safe, without state."""

    full_rows_fill_gaps = True

    def keys(self, batch: LogBatch, records: Int32s, schema: TableSchema) -> KeyEntries:
        """Match keys of the records at indices ``records``, all of ``schema``.

        An update that changes its key has two entries, a truncate none. A key column that the new
        tuple leaves out (unchanged TOAST) takes its value from the old key.

        Raises:
            DecodeError: a payload does not parse, or lacks key columns.
        """
        payload_offsets = readonly(batch.payload_offsets, np.int32)
        indices = readonly(records, np.int32)
        count = len(indices)
        if count and (indices.min() < 0 or indices.max() >= len(batch)):
            raise DecodeError(f"{schema.table}: record indices lie outside the batch")
        sizes = np.diff(payload_offsets)[indices]
        slots = len(schema.match_key)
        capacity = 2 * int(sizes.sum(dtype=np.int64)) + 8 * slots * count
        if capacity > _MAX_PAYLOAD_BYTES or (count and sizes.min() < 0):
            raise DecodeError(f"{schema.table}: the batch is malformed or too large for its keys")
        key_slot = np.full(len(schema.columns), -1, dtype=np.int32)
        full = schema.identity_kind == "f"
        in_identity = np.full(len(schema.columns), full, dtype=np.bool_)
        for slot, name in enumerate(schema.match_key):
            key_slot[schema.column_index(name)] = slot
        for name in schema.identity:
            in_identity[schema.column_index(name)] = True
        record = np.empty(2 * count, dtype=np.int32)
        hashes = np.empty(2 * count, dtype=np.uint64)
        effect = np.empty(2 * count, dtype=np.uint8)
        offsets = np.empty(2 * count + 1, dtype=np.int32)
        data = np.empty(capacity, dtype=np.uint8)
        fault_at = np.zeros(1, dtype=np.int32)
        entries = key_kernel.extract_keys(
            readonly(batch.payload, np.uint8),
            payload_offsets,
            readonly(batch.kind, np.uint8),
            indices,
            readonly(key_slot, np.int32),
            readonly(in_identity, np.bool_),
            slots,
            full or set(schema.match_key) <= set(schema.identity),
            record,
            hashes,
            effect,
            offsets,
            data,
            fault_at,
        )
        if entries < 0:
            at = int(fault_at[0])
            raise DecodeError(
                f"pgoutput: a row of {schema.table} (schema {schema.schema_id}) "
                f"{_FAULTS[-entries]} (position {int(batch.position[at])}, "
                f"record {int(batch.ordinal[at])})"
            )
        # Copies: keys are small compared to the buffers, which were sized for rows, and may be
        # kept.
        return KeyEntries(
            record=record[:entries].copy(),
            hash=hashes[:entries].copy(),
            effect=effect[:entries].copy(),
            offsets=offsets[: entries + 1].copy(),
            data=data[: offsets[entries]].copy(),
        )

    def key_changes(self, batch: LogBatch) -> Int32s:
        """Records of ``batch`` whose key changed and whose new state may lack columns.

        These are the updates with an old key, though the server may have sent it only because of a
        TOASTed key. A full old row has what the new one lacks; but an ``O`` tuple need not be full,
        see `tidelog.codecs.key_kernel`.
        """
        updates = np.flatnonzero(batch.kind == RecordKind.UPDATE)
        image = batch.payload[batch.payload_offsets[updates] + 5]  # after 'U' and the relation
        moved: Int32s = updates[image != ord("N")].astype(np.int32)
        return moved


def copy_text_rows(data: bytes | UInt8s, relation_id: int, schema_id: int, ncols: int) -> LogBatch:
    r"""DUMP_ROW records of the output of ``COPY … TO STDOUT`` (text format, default delimiters).

    Args:
        data: whole rows; each ends with a newline. ``\\ \b \f \n \r \t \v`` and ``\N`` are
            unescaped.
        relation_id: the table's oid on the wire.
        schema_id: the number stored in each record.
        ncols: number of columns of the SELECT, which must be those of the schema, in order.

    Returns:
        One Insert per row, in order, with position, ordinal, xid and commit_ts 0.

    Raises:
        DecodeError: a row is torn or has another number of columns.
        ChunkError: the rows are too large for one batch.
    """
    raw = np.frombuffer(data, dtype=np.uint8) if isinstance(data, bytes) else data
    text = readonly(raw, np.uint8)
    if len(text) and text[-1] != _NEWLINE:
        raise DecodeError("COPY: the last row is torn")
    count = count_rows(text)
    row_bytes = HEADER_BYTES + ncols * VALUE_BYTES
    capacity = len(text) + count * row_bytes
    if capacity > _MAX_PAYLOAD_BYTES:
        raise ChunkError(
            f"a chunk of {count} rows takes {capacity >> 20} MiB, more than a segment can hold: "
            "lower dump.chunk_rows"
        )
    payload = np.empty(capacity, dtype=np.uint8)
    offsets = np.empty(count + 1, dtype=np.int32)
    rows = copy_to_inserts(text, relation_id, ncols, payload, offsets)
    if rows < 0:
        raise DecodeError(f"COPY: row {-1 - rows} is torn or does not have {ncols} columns")
    used = int(offsets[-1])
    # Only many NULLs leave enough unused room to justify a copy.
    payload = payload[:used] if used > capacity * 3 // 4 else payload[:used].copy()
    return dump_batch(RecordKind.DUMP_ROW, schema_id, offsets, payload)


def absent_rows(
    keys: Sequence[Sequence[str | None]],
    schema: TableSchema,
    columns: Sequence[str] | None = None,
) -> LogBatch:
    """ABSENT records for requested keys that the table does not have: one Delete each.

    Args:
        keys: the key columns' texts.
        schema: the table's version; its relation and schema id are stored.
        columns: the columns of the texts; by default the match key.

    Raises:
        ChunkError: the match key is not among ``columns``, so that no consumer could know which row
            is absent.
    """
    names = schema.match_key if columns is None else tuple(columns)
    if not set(schema.match_key) <= set(names):
        raise ChunkError(
            f"{schema.table}: rows are matched by ({', '.join(schema.match_key)}), "
            f"an absent key of ({', '.join(names)}) can't be described: request keys by the former"
        )
    places = [schema.column_index(name) for name in names]
    header = struct.pack("!cIcH", b"D", schema.relation_id, b"K", len(schema.columns))
    payloads = []
    for key in keys:
        values = [b"n"] * len(schema.columns)
        for place, text in zip(places, key, strict=True):
            if text is not None:
                value = text.encode("utf-8", "surrogateescape")
                values[place] = struct.pack("!cI", b"t", len(value)) + value
        payloads.append(header + b"".join(values))
    offsets = np.zeros(len(payloads) + 1, dtype=np.int64)
    np.cumsum([len(payload) for payload in payloads], out=offsets[1:])
    if offsets[-1] > _MAX_PAYLOAD_BYTES:
        raise ChunkError(f"{schema.table}: {len(payloads)} keys are more than a segment can hold")
    return dump_batch(
        RecordKind.ABSENT,
        schema.schema_id,
        offsets.astype(np.int32),
        np.frombuffer(b"".join(payloads), dtype=np.uint8),
    )


def dump_batch(kind: RecordKind, schema_id: int, offsets: Int32s, payload: UInt8s) -> LogBatch:
    """Records of one kind with position, ordinal, xid and commit_ts 0."""
    count = len(offsets) - 1
    return LogBatch(
        kind=np.full(count, kind, dtype=np.uint8),
        schema_id=np.full(count, schema_id, dtype=np.int32),
        position=np.zeros(count, dtype=np.int64),
        ordinal=np.zeros(count, dtype=np.int64),
        xid=np.zeros(count, dtype=np.int64),
        commit_ts=np.zeros(count, dtype=np.int64),
        payload_offsets=offsets,
        payload=payload,
        resume=START,
    )


def concatenate(batches: Sequence[LogBatch]) -> LogBatch:
    """Concatenate batches.

    Raises:
        ChunkError: they are too large for one batch.
    """
    some = [batch for batch in batches if len(batch)] or [batches[0]]
    if len(some) == 1:
        return some[0]
    ends = np.cumsum([batch.payload_bytes for batch in some])
    if ends[-1] > _MAX_PAYLOAD_BYTES:
        raise ChunkError(
            f"a chunk's rows take {int(ends[-1]) >> 20} MiB, more than a segment can hold: "
            "lower dump.chunk_rows"
        )
    offsets = [some[0].payload_offsets]
    for before, batch in zip(ends, some[1:], strict=False):
        offsets.append(batch.payload_offsets[1:] + np.int32(before))
    return LogBatch(
        kind=np.concatenate([batch.kind for batch in some]),
        schema_id=np.concatenate([batch.schema_id for batch in some]),
        position=np.concatenate([batch.position for batch in some]),
        ordinal=np.concatenate([batch.ordinal for batch in some]),
        xid=np.concatenate([batch.xid for batch in some]),
        commit_ts=np.concatenate([batch.commit_ts for batch in some]),
        payload_offsets=np.concatenate(offsets),
        payload=np.concatenate([batch.payload for batch in some]),
        resume=some[0].resume,
    )
