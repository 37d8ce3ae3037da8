"""HOT PATH. Kernel that encodes the keys of located and converted binlog rows."""

from __future__ import annotations

import numpy as np
from numba import njit

from tidelog.codecs.bigendian import put_uint32
from tidelog.codecs.cell_positions import MISSING
from tidelog.codecs.key_kernel import hash64
from tidelog.codecs.mysql.rows.cell_kernel import LACKS_CHANGED, LACKS_NONE
from tidelog.model.records import KeyEffect, Kind

_COMPLETE = int(KeyEffect.COMPLETE)
_PARTIAL = int(KeyEffect.PARTIAL)
_GONE = int(KeyEffect.GONE)
_MOVED_PARTIAL = int(KeyEffect.MOVED_PARTIAL)
_INSERT = int(Kind.INSERT)


@njit(cache=True, nogil=True)
def _put_key(out, at, data, start, length, i):  # type: ignore[no-untyped-def]
    """Write the encoded key of row ``i``; where it ends, or -1 if a column is missing."""
    for slot in range(len(start)):
        size = length[slot, i]
        if size == MISSING:
            return np.int64(-1)
        put_uint32(out, at, size)
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
    """Write the key entries; their number, or -1 - the first row that lacks its key.

    Args:
        data: uint8[...], what the cells point into.
        kind: uint8[n].
        indices: int32[n], the rows' records.
        lacks: uint8[n], does the new row lack a column (`tidelog.codecs.mysql.rows.cell_kernel`)?
        resets: bool; may columns that the new row of an update lacks have changed?
        old_start: int32[slots, n], the key's columns, as all up to ``new_present``.
        old_length: int32[slots, n].
        old_present: bool[n].
        new_start: int32[slots, n].
        new_length: int32[slots, n].
        new_present: bool[n].
        record: int32[2 n], out, as all that follow: the columns of `KeyEntries`.
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
