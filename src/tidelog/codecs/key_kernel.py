"""Kernels for keys and tuples of pgoutput rows, and the encoded keys of all wire formats.

Encoded keys: for each key column a big-endian int32 length (-1: NULL) and the value's bytes.

Formats: PostgreSQL manual, "Logical Replication Message Formats", TupleData. An old tuple has all
columns; those outside the replica identity are sent as NULL (``logicalrep_write_tuple``). It is an
``O`` tuple if the published table is FULL, though its partition may log less.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numba import njit

from tidelog.codecs.byte_order import big_uint16_at, big_uint32_at, put_big_uint32
from tidelog.codecs.cell_positions import MISSING, NULL
from tidelog.errors import DecodeError
from tidelog.model.records import Bools, Int32s, Int64s, KeyEffect, RecordKind, UInt8s, UInt64s
from tidelog.model.schema import TableSchema

OK = 0
MALFORMED = 1
COLUMN_COUNT = 2
KEY_NOT_SENT = 3

NULL_LENGTH = -1  # instead of a length
UNCHANGED = -2

_COMPLETE = int(KeyEffect.COMPLETE)
_PARTIAL = int(KeyEffect.PARTIAL)
_GONE = int(KeyEffect.GONE)
_MOVED_PARTIAL = int(KeyEffect.MOVED_PARTIAL)
_ABSENT = int(RecordKind.ABSENT)
_MESSAGE = int(RecordKind.MESSAGE)
_CONTROL = int(RecordKind.CONTROL)
_I, _U, _D, _T = ord("I"), ord("U"), ord("D"), ord("T")
_K, _O, _N = ord("K"), ord("O"), ord("N")
_NULL, _UNCHANGED, _TEXT = ord("n"), ord("u"), ord("t")

# MurmurHash64A (Austin Appleby, public domain).
_SEED = np.uint64(0x7469_6465_6C6F_6721)
_MULTIPLIER = np.uint64(0xC6A4A7935BD1E995)
_SHIFT = np.uint64(47)
_8 = np.uint64(8)


@njit(cache=True, nogil=True)
def hash64(data: UInt8s, start: int, end: int) -> np.uint64:
    """A well mixed 64-bit hash of ``data[start:end]``."""
    size = end - start
    h = _SEED ^ (np.uint64(size) * _MULTIPLIER)
    at = start
    while at + 8 <= end:
        word = np.uint64(0)
        for i in range(8):
            word = (word << _8) | np.uint64(data[at + i])
        word *= _MULTIPLIER
        word ^= word >> _SHIFT
        word *= _MULTIPLIER
        h ^= word
        h *= _MULTIPLIER
        at += 8
    if at < end:
        word = np.uint64(0)
        while at < end:
            word = (word << _8) | np.uint64(data[at])
            at += 1
        h ^= word
        h *= _MULTIPLIER
    h ^= h >> _SHIFT
    h *= _MULTIPLIER
    h ^= h >> _SHIFT
    return h


@njit(cache=True, nogil=True)
def walk_tuple(
    payload: UInt8s,
    at: int,
    end: int,
    key_slot: Int32s,
    starts: Int64s,
    lengths: Int64s,
    tags: UInt8s,
) -> int:
    """Parse the tuple at ``at``; returns its end, or the negated fault. Fills the key columns'
    starts and lengths (or NULL, UNCHANGED) and every column's tag.
    """
    if at + 2 > end:
        return -MALFORMED
    columns = len(key_slot)
    if big_uint16_at(payload, at) != columns:
        return -COLUMN_COUNT
    at += 2
    for column in range(columns):
        if at >= end:
            return -MALFORMED
        tag = payload[at]
        at += 1
        length = NULL_LENGTH
        if tag == _TEXT:
            if at + 4 > end:
                return -MALFORMED
            length = big_uint32_at(payload, at)
            at += 4
            if length > end - at:
                return -MALFORMED
        elif tag == _UNCHANGED:
            length = UNCHANGED
        elif tag != _NULL:
            return -MALFORMED
        tags[column] = tag
        slot = key_slot[column]
        if slot >= 0:
            starts[slot] = at
            lengths[slot] = length
        if length > 0:
            at += length
    return at


@njit(cache=True, nogil=True)
def put_key(
    data: UInt8s, at: int, payload: UInt8s, starts: Int64s, lengths: Int64s, slots: int
) -> int:
    """Write an encoded key; returns its end, or -1 if a column's value is unknown."""
    for slot in range(slots):
        length = lengths[slot]
        if length == UNCHANGED:
            return -1
        put_big_uint32(data, at, length)
        at += 4
        if length > 0:
            start = starts[slot]
            for i in range(length):
                data[at + i] = payload[start + i]
            at += length
    return at


@njit(cache=True, nogil=True)
def extract_keys(
    payload: UInt8s,
    payload_offsets: Int32s,
    kind: UInt8s,
    records: Int32s,
    key_slot: Int32s,
    in_identity: Bools,
    slots: int,
    identity_has_key: bool,
    record: Int32s,
    hashes: UInt64s,
    effect: UInt8s,
    offsets: Int32s,
    data: UInt8s,
    fault_at: Int32s,
) -> int:
    """Write the key entries of ``records``; returns their number, or the negated fault.

    Args:
        payload: uint8[...], the batch's.
        payload_offsets: int32[n + 1], the batch's.
        kind: uint8[n], the batch's.
        records: indices into the batch.
        key_slot: int32[columns], a column's position in the match key, or -1.
        in_identity: bool[columns], whether an old tuple has the column.
        slots: number of columns of the match key.
        identity_has_key: whether an old tuple has the whole match key.
        record: int32[2 * records], out, like all that follow: the columns of `KeyEntries`.
        hashes: uint64[2 * records].
        effect: uint8[2 * records].
        offsets: int32[2 * records + 1].
        data: uint8[...], twice the records' payload bytes (an old value may serve both keys) plus 8
            for each slot of each record.
        fault_at: int32[1], out: the record with the fault.
    """
    columns = len(key_slot)
    starts = np.zeros(slots, dtype=np.int64)
    lengths = np.zeros(slots, dtype=np.int64)
    tags = np.zeros(columns, dtype=np.uint8)
    old_starts = np.zeros(slots, dtype=np.int64)
    old_lengths = np.zeros(slots, dtype=np.int64)
    old_tags = np.zeros(columns, dtype=np.uint8)
    entries = 0
    used = 0
    offsets[0] = 0
    for r in range(len(records)):
        index = records[r]
        fault_at[0] = index
        if index < 0 or index >= len(kind):
            return -MALFORMED
        at = int(payload_offsets[index])
        end = int(payload_offsets[index + 1])
        if at < 0 or end > len(payload):
            return -MALFORMED
        if kind[index] == _CONTROL or kind[index] == _MESSAGE:
            continue
        if at >= end:
            return -MALFORMED
        tag = payload[at]
        if tag == _T:
            continue
        if (tag != _I and tag != _U and tag != _D) or end - at < 6:
            return -MALFORMED
        image = payload[at + 5]
        at += 6
        has_old = image in (_K, _O)
        if (tag == _D) != has_old and tag != _U:
            return -MALFORMED
        if has_old:
            if not identity_has_key and kind[index] != _ABSENT:
                return -KEY_NOT_SENT
            at = walk_tuple(payload, at, end, key_slot, old_starts, old_lengths, old_tags)
            if at < 0:
                return at
            if tag == _U:
                if at >= end:
                    return -MALFORMED
                image_of_new = payload[at]
                at += 1
            else:
                image_of_new = np.uint8(_N)
        else:
            image_of_new = image
        if image_of_new != _N:
            return -MALFORMED

        old_start = used
        old_end = used
        if has_old:
            old_end = put_key(data, used, payload, old_starts, old_lengths, slots)
            if old_end < 0:
                return -KEY_NOT_SENT
        if tag == _D:
            if at != end:
                return -MALFORMED
            record[entries] = index
            hashes[entries] = hash64(data, old_start, old_end)
            effect[entries] = _GONE
            entries += 1
            used = old_end
            offsets[entries] = used
            continue

        at = walk_tuple(payload, at, end, key_slot, starts, lengths, tags)
        if at < 0:
            return at
        if at != end:
            return -MALFORMED
        partial = False
        for column in range(columns):
            if tags[column] == _UNCHANGED:
                known = has_old and old_tags[column] != _UNCHANGED
                if not known or not in_identity[column]:
                    partial = True
        if has_old:
            for slot in range(slots):
                if lengths[slot] == UNCHANGED:
                    starts[slot] = old_starts[slot]
                    lengths[slot] = old_lengths[slot]
        new_start = old_end
        new_end = put_key(data, new_start, payload, starts, lengths, slots)
        if new_end < 0:
            return -KEY_NOT_SENT
        moved = False
        if has_old:
            moved = new_end - new_start != old_end - old_start
            if not moved:
                for i in range(old_end - old_start):
                    if data[old_start + i] != data[new_start + i]:
                        moved = True
                        break
            if moved:
                record[entries] = index
                hashes[entries] = hash64(data, old_start, old_end)
                effect[entries] = _GONE
                entries += 1
                offsets[entries] = old_end
            else:  # the same key twice: keep the first copy
                new_start = old_start
                new_end = old_end
        record[entries] = index
        hashes[entries] = hash64(data, new_start, new_end)
        if not partial:
            effect[entries] = _COMPLETE
        elif moved:
            effect[entries] = _MOVED_PARTIAL
        else:
            effect[entries] = _PARTIAL
        entries += 1
        used = new_end
        offsets[entries] = used
    return entries


# Encoded keys of all wire formats.


class EncodedKeys:
    """Base class of the `tidelog.ports.KeyExtractor`s of all wire formats."""

    def texts(self, key: bytes, schema: TableSchema) -> tuple[str | None, ...]:
        """An encoded match key of ``schema`` as the texts by which chunks are requested.

        Raises:
            DecodeError: ``key`` is not an encoded key.
        """
        return self._texts(key)

    def _texts(self, key: bytes) -> tuple[str | None, ...]:
        """The inverse of `encode`.

        Raises:
            DecodeError: ``key`` is not an encoded key.
        """
        texts: list[str | None] = []
        at = 0
        while at < len(key):
            if at + 4 > len(key):
                raise DecodeError("an encoded key is torn")
            (length,) = struct.unpack_from("!i", key, at)
            at += 4
            if length == NULL_LENGTH:
                texts.append(None)
                continue
            if length < 0 or at + length > len(key):
                raise DecodeError("an encoded key is torn")
            # A database of encoding SQL_ASCII may send any bytes: they must survive the round trip.
            texts.append(key[at : at + length].decode("utf-8", "surrogateescape"))
            at += length
        return tuple(texts)

    def encode(self, texts: Sequence[str | None]) -> bytes:
        """Encode the texts of the key columns, in match key order."""
        parts = []
        for text in texts:
            value = b"" if text is None else text.encode("utf-8", "surrogateescape")
            parts += [struct.pack("!i", NULL_LENGTH if text is None else len(value)), value]
        return b"".join(parts)


# HOT PATH. The cells of one tuple.

UNKNOWN_KIND = 3
TUPLE_FAULTS = {
    MALFORMED: "the payload is not a well-formed message",
    COLUMN_COUNT: "the payload's number of columns is not the schema's",
    UNKNOWN_KIND: "the record is not a row change",
}


@njit(cache=True, nogil=True)
def read_tuple(data, position, end, columns, start, length):  # type: ignore[no-untyped-def]
    """Parse TupleData at ``position`` into the scratch row; returns its end, or -reason."""
    if position + 2 > end:
        return -MALFORMED
    if ((np.int64(data[position]) << 8) | np.int64(data[position + 1])) != columns:
        return -COLUMN_COUNT
    position += 2
    for c in range(columns):
        if position >= end:
            return -MALFORMED
        tag = data[position]
        position += 1
        if tag == _TEXT:
            if position + 4 > end:
                return -MALFORMED
            size = (
                (np.int64(data[position]) << 24)
                | (np.int64(data[position + 1]) << 16)
                | (np.int64(data[position + 2]) << 8)
                | np.int64(data[position + 3])
            )
            position += 4
            if position + size > end:
                return -MALFORMED
            start[c] = position
            length[c] = size
            position += size
        elif tag == _NULL:
            start[c] = 0
            length[c] = NULL
        elif tag == _UNCHANGED:
            start[c] = 0
            length[c] = MISSING
        else:
            return -MALFORMED
    return position
