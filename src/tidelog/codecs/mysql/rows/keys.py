"""Extracts the keys of binlog records, both log rows and dump rows, and spells keys of bytes.

A key of bytes is ``0x`` and hexadecimal digits, as MySQL and MariaDB write such literals. Texts
from people may be the bytes themselves if these are UTF-8 and don't begin with ``0x``.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numba import njit

from tidelog.codecs.byte_order import put_big_uint32
from tidelog.codecs.cell_positions import MISSING, Image
from tidelog.codecs.columns import kernels
from tidelog.codecs.key_kernel import EncodedKeys, hash64
from tidelog.codecs.mysql.cell_text.columns import TooMuchTextError, float_texts
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.rows.cell_kernel import HEADER_BYTES, LACKS_CHANGED, LACKS_NONE, may_lack
from tidelog.codecs.mysql.rows.cells import RowError, Rows, read_rows
from tidelog.errors import DecodeError
from tidelog.model.records import (
    Bools,
    Int32s,
    KeyEffect,
    KeyEntries,
    LogBatch,
    RecordKind,
    UInt8s,
    readonly,
)
from tidelog.model.schema import TableSchema

# Keys of bytes.

HEX_PREFIX = "0x"
BYTES_LOGICAL = "bytes"
"""The logical type of columns with such keys."""

_HEX = re.compile(r"0x((?:[0-9A-Fa-f]{2})*)")


def bytes_text(value: bytes) -> str:
    """The text in the form that Tidelog writes."""
    return HEX_PREFIX + value.hex()


def shortest_bytes_text(value: bytes) -> str:
    """The bytes as text if `bytes_of_text` reads the same bytes from it, else `bytes_text`. It is
    for values whose column is only known to have bytes.
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return bytes_text(value)
    return bytes_text(value) if text.startswith(HEX_PREFIX) or "\0" in text else text


def bytes_of_text(text: str) -> bytes:
    """The bytes of a text. Raises ValueError if ``0x`` is not followed by pairs of digits."""
    if not text.startswith(HEX_PREFIX):
        return text.encode("utf-8", "surrogateescape")
    match = _HEX.fullmatch(text)
    if match is None:
        raise ValueError("a key of bytes is 0x and pairs of hexadecimal digits")
    return bytes.fromhex(match[1])


# Keys of records.

_COMPLETE = int(KeyEffect.COMPLETE)
_PARTIAL = int(KeyEffect.PARTIAL)
_GONE = int(KeyEffect.GONE)
_MOVED_PARTIAL = int(KeyEffect.MOVED_PARTIAL)
_INSERT = int(RecordKind.INSERT)


@njit(cache=True, nogil=True)
def _put_key(out, at, data, start, length, i):  # type: ignore[no-untyped-def]
    """Write the encoded key of row ``i``; returns its end, or -1 if a column is missing."""
    for slot in range(len(start)):
        size = length[slot, i]
        if size == MISSING:
            return np.int64(-1)
        put_big_uint32(out, at, size)
        at += 4
        begin = np.int64(start[slot, i])
        for k in range(size):
            out[at + k] = data[begin + k]
        at += max(size, 0)
    return np.int64(at)


@njit(cache=True, nogil=True)
def encode_keys(  # type: ignore[no-untyped-def]
    data, kind, indices, lacks, resets,
    old_start, old_length, old_present, new_start, new_length, new_present,
    record, hashes, effect, offsets, out,
):  # fmt: skip
    """Write the key entries; returns their number, or -1 - the first row that lacks its key.

    Args:
        data: uint8[...], the buffer of the cells.
        kind: uint8[n].
        indices: int32[n], the rows' records.
        lacks: uint8[n], how the new row lacks a column (`tidelog.codecs.mysql.rows.cell_kernel`).
        resets: whether columns that an update's new row lacks may have changed.
        old_start: int32[slots, n], the key's columns, like all up to ``new_present``.
        old_length: int32[slots, n].
        old_present: bool[n].
        new_start: int32[slots, n].
        new_length: int32[slots, n].
        new_present: bool[n].
        record: int32[2 n], out, like all that follow: the columns of `KeyEntries`.
        hashes: uint64[2 n].
        effect: uint8[2 n].
        offsets: int32[2 n + 1].
        out: uint8[...], the encoded keys.
    """
    entries = 0
    used = np.int64(0)
    offsets[0] = 0
    for i in range(len(kind)):
        begin = used
        middle = used
        if old_present[i]:
            middle = _put_key(out, begin, data, old_start, old_length, i)
            if middle < 0:
                return -1 - i
        moved = False
        if new_present[i]:
            end = _put_key(out, middle, data, new_start, new_length, i)
            if end < 0:
                return -1 - i
            if old_present[i]:
                moved = end - middle != middle - begin
                k = np.int64(0)
                while not moved and k < middle - begin:
                    moved = out[begin + k] != out[middle + k]
                    k += 1
        if old_present[i] and (moved or not new_present[i]):
            record[entries] = indices[i]
            hashes[entries] = hash64(out, int(begin), int(middle))
            effect[entries] = _GONE
            entries += 1
            offsets[entries] = middle
            used = middle
        if new_present[i]:
            first, last = middle, end
            if old_present[i] and not moved:  # the same key twice: keep the first copy
                first, last = begin, middle
            record[entries] = indices[i]
            hashes[entries] = hash64(out, int(first), int(last))
            if lacks[i] == LACKS_NONE:
                effect[entries] = _COMPLETE
            elif moved or resets or kind[i] == _INSERT or lacks[i] == LACKS_CHANGED:
                effect[entries] = _MOVED_PARTIAL
            else:
                effect[entries] = _PARTIAL
            entries += 1
            offsets[entries] = last
            used = last
    return entries


_ROW_KINDS = np.zeros(256, dtype=np.bool_)
_ROW_KINDS[
    [
        RecordKind.INSERT,
        RecordKind.UPDATE,
        RecordKind.DELETE,
        RecordKind.DUMP_ROW,
        RecordKind.ABSENT,
    ]
] = True
_LOGGED_KINDS = np.zeros(256, dtype=np.bool_)
_LOGGED_KINDS[[RecordKind.INSERT, RecordKind.UPDATE, RecordKind.DELETE]] = True
_MAX_BYTES = int(np.iinfo(np.int32).max)


def _is_bytes(schema: TableSchema, name: str) -> bool:
    return schema.columns[schema.column_index(name)].logical == BYTES_LOGICAL


def lacks_key(batch: LogBatch, schema_of: Callable[[int], TableSchema]) -> Bools:
    """bool[n]: True for log records that lack a column of their match key, so that their row is
    unknown.

    These are inserts with a short image (``binlog_row_image``) that do not name the column, and
    updates and deletes by another key than the table's own.

    Args:
        batch: records of the log.
        schema_of: returns the schema of a number.
    """
    found = np.zeros(len(batch), dtype=np.bool_)
    logged = _LOGGED_KINDS[batch.kind]
    for schema_id in set(batch.schema_id[logged].tolist()):
        schema = schema_of(schema_id)
        records = np.flatnonzero(logged & (batch.schema_id == schema_id))
        # The first image is the old row, or an insert's new row; it begins with the bitmap of its
        # columns.
        bitmaps = batch.payload_offsets[records] + HEADER_BYTES
        for name in schema.match_key:
            byte, bit = divmod(schema.column_index(name), 8)
            found[records] |= batch.payload[bitmaps + byte] >> bit & 1 == 0
    return found


class BinlogKeys(EncodedKeys):
    """The `tidelog.ports.KeyExtractor` of binlog payloads. Thread-safe, without state.

    Key texts are the canonical ones (`tidelog.codecs.mysql.cell_text.columns`), so that a row has
    the same key in the log and in a dump.

    Args:
        flavor: the server that writes the log. Columns missing in MariaDB's updates may have
            changed: virtual columns, and columns that REPLACE or ON DUPLICATE KEY UPDATE sets back
            to their default.
    """

    full_rows_fill_gaps = False

    def __init__(self, flavor: Flavor = Flavor.MYSQL) -> None:
        self._resets = flavor is Flavor.MARIADB

    def keys(self, batch: LogBatch, records: Int32s, schema: TableSchema) -> KeyEntries:
        """Match keys of the records at indices ``records``, all of ``schema``.

        An update that changes its key has two entries, a truncate none. An insert that lacks
        columns counts as a key change: no other record contains them. So do an update with a part
        of a document whose old document is not in the record, since the document changed and no
        other record contains it; and MariaDB's updates that lack columns.

        Raises:
            DecodeError: a payload does not fit ``schema``, or lacks key columns.
        """
        indices = readonly(records, np.int32)
        if len(indices) and (indices.min() < 0 or indices.max() >= len(batch)):
            raise DecodeError(f"{schema.table}: record indices lie outside the batch")
        indices = indices[_ROW_KINDS[batch.kind[indices]]]
        offsets = readonly(batch.payload_offsets, np.int32)
        wanted = [schema.column_index(name) for name in schema.match_key]
        kind = np.ascontiguousarray(batch.kind[indices], dtype=np.uint8)
        try:
            rows = read_rows(
                readonly(batch.payload, np.uint8),
                offsets[indices], offsets[indices + 1], kind, schema, wanted, old=True,
            )  # fmt: skip
        except RowError as error:
            raise self._error(batch, schema, int(indices[error.row]), error.reason) from None
        except TooMuchTextError:
            raise DecodeError(
                f"{schema.table}: the batch is malformed or too large for its keys"
            ) from None
        old = rows.old or _no_image(len(wanted), len(indices))
        self._normalise_floats(rows, old, schema)
        return self._entries(batch, indices, schema, kind, rows, old)

    def texts(self, key: bytes, schema: TableSchema) -> tuple[str | None, ...]:
        """Like `EncodedKeys.texts`; bytes are in the form of `bytes_text`."""
        return tuple(
            bytes_text(text.encode("utf-8", "surrogateescape"))
            if text is not None and _is_bytes(schema, name)
            else text
            for name, text in zip(schema.match_key, self._texts(key), strict=True)
        )

    def key_changes(self, batch: LogBatch) -> Int32s:
        """Records of ``batch`` whose new state may lack columns that no earlier record contains:
        inserts that lack some, and updates whose before image does (their key may be unchanged).
        """
        out = np.empty(len(batch), dtype=np.bool_)
        may_lack(
            readonly(batch.payload, np.uint8),
            readonly(batch.payload_offsets, np.int32),
            readonly(batch.kind, np.uint8),
            out,
        )
        return np.flatnonzero(out).astype(np.int32)

    def _entries(
        self,
        batch: LogBatch,
        indices: Int32s,
        schema: TableSchema,
        kind: UInt8s,
        rows: Rows,
        old: Image,
    ) -> KeyEntries:
        count, slots = len(indices), len(schema.match_key)
        sizes = np.maximum(rows.new.length, 0).sum(dtype=np.int64)
        sizes += np.maximum(old.length, 0).sum(dtype=np.int64)
        capacity = int(sizes) + 8 * slots * count
        if capacity > _MAX_BYTES:
            raise DecodeError(f"{schema.table}: the batch is too large for its keys")
        record = np.empty(2 * count, dtype=np.int32)
        hashes = np.empty(2 * count, dtype=np.uint64)
        effect = np.empty(2 * count, dtype=np.uint8)
        bounds = np.empty(2 * count + 1, dtype=np.int32)
        data = np.empty(capacity, dtype=np.uint8)
        entries = encode_keys(
            rows.data, kind, indices, rows.lacks, self._resets,
            old.start, old.length, old.present, rows.new.start, rows.new.length, rows.new.present,
            record, hashes, effect, bounds, data,
        )  # fmt: skip
        if entries < 0:
            raise self._error(
                batch, schema, int(indices[-1 - entries]),
                "the row does not carry its key: binlog_row_image leaves it out",
            )  # fmt: skip
        return KeyEntries(
            record=record[:entries].copy(),
            hash=hashes[:entries].copy(),
            effect=effect[:entries].copy(),
            offsets=bounds[: entries + 1].copy(),
            data=data[: bounds[entries]].copy(),
        )

    def _normalise_floats(self, rows: Rows, old: Image, schema: TableSchema) -> None:
        """Convert floating-point keys of dump rows to the texts of log rows."""
        for slot, name in enumerate(schema.match_key):
            if not schema.columns[schema.column_index(name)].logical.startswith("float"):
                continue
            for image in (rows.new, old):
                chosen = ~rows.binary & (image.length[slot] >= 0)
                if chosen.any():
                    rows.data = _with_float_texts(
                        rows.data, image.start[slot], image.length[slot], chosen
                    )

    def _error(self, batch: LogBatch, schema: TableSchema, record: int, reason: str) -> DecodeError:
        return DecodeError(
            f"binlog: a row of {schema.table} (schema {schema.schema_id}): {reason} "
            f"(position {int(batch.position[record])}, record {int(batch.ordinal[record])})"
        )


def _with_float_texts(data: UInt8s, start: Int32s, length: Int32s, chosen: Bools) -> UInt8s:
    rows = np.flatnonzero(chosen)
    bounds = np.empty(len(rows) + 1, dtype=np.int32)
    cells = np.empty(kernels.text_offsets(length[rows], bounds), dtype=np.uint8)
    kernels.gather(data, start[rows], length[rows], bounds, cells)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(cells)]
    numbers = pa.Array.from_buffers(pa.string(), len(rows), buffers).cast(pa.float64())
    _, offsets, texts = float_texts(numbers).buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[: len(rows) + 1]
    start[rows] = ends[:-1] + np.int32(len(data))
    length[rows] = np.diff(ends)
    return np.concatenate([data, np.frombuffer(texts, dtype=np.uint8)[: int(ends[-1])]])


def _no_image(rows: int, n: int) -> Image:
    shape = (rows, n)
    return Image(
        np.zeros(shape, np.int32), np.full(shape, -1, np.int32), np.zeros(n, dtype=np.bool_)
    )
