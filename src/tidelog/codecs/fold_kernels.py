"""HOT PATH. The newest state of every key in a batch, exactly: key bytes are compared, not hashes.

A record becomes up to two *entries* in order: a delete of its old key, an upsert of its new key (an
update that changes the key gives both). An upsert points to the entry whose state it builds on, so
that a column which the newest record does not carry is found by walking back.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tidelog.model.records import Kind

_I, _U, _D, _T = int(Kind.INSERT), int(Kind.UPDATE), int(Kind.DELETE), int(Kind.TRUNCATE)
_R, _A = int(Kind.DUMP_ROW), int(Kind.ABSENT)
_MISSING = -2
_FNV_PRIME = np.uint64(0x100000001B3)
_FNV_BASIS = np.uint64(0xCBF29CE484222325)
_MIX = np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True, nogil=True)
def _hash(data, start, length, key_rows, i):  # type: ignore[no-untyped-def]
    h = _FNV_BASIS
    for r in key_rows:
        size = np.int64(length[r, i])
        h = (h ^ np.uint64(size + 1)) * _FNV_PRIME
        position = np.int64(start[r, i])
        for k in range(size):
            h = (h ^ np.uint64(data[position + k])) * _FNV_PRIME
    h = (h ^ (h >> np.uint64(32))) * _MIX
    return h ^ (h >> np.uint64(29))


@njit(cache=True, nogil=True)
def _same(data, start, length, i, other_start, other_length, j, key_rows):  # type: ignore[no-untyped-def]
    for r in key_rows:
        size = np.int64(length[r, i])
        if size != np.int64(other_length[r, j]):
            return False
        a = np.int64(start[r, i])
        b = np.int64(other_start[r, j])
        for k in range(size):
            if data[a + k] != data[b + k]:
                return False
    return True


@njit(cache=True, nogil=True)
def _key_missing(length, key_rows, i):  # type: ignore[no-untyped-def]
    for r in key_rows:  # noqa: SIM110 - numba has no any()
        if length[r, i] == _MISSING:
            return True
    return False


@njit(cache=True, nogil=True)
def link_entries(  # type: ignore[no-untyped-def]
    data, kind, first, key_rows, old_present, old_start, old_length, new_start, new_length,
    record, is_old, base, newest,
):  # fmt: skip
    """Enter the records from ``first`` on into the key table.

    Fills per entry ``record`` (int32), ``is_old`` (bool: a delete of the record's old key),
    ``base`` (int32: the entry whose state an upsert builds on, -1 if there is none) and ``newest``
    (bool: the last entry of its key).

    Returns:
        (entries, -1), or (0, row) for the first row whose key is not in its record.
    """
    capacity = 16
    while capacity < 3 * (len(kind) - first):
        capacity *= 2
    mask = np.uint64(capacity - 1)
    slots = np.full(capacity, -1, dtype=np.int32)  # the newest entry of the slot's key
    hashes = np.empty(capacity, dtype=np.uint64)
    entries = 0
    for i in range(first, len(kind)):
        what = kind[i]
        upsert = what in (_I, _U, _R)
        delete = False
        if upsert:
            if _key_missing(new_length, key_rows, i):
                return 0, i
            # An old tuple is there if the identity changed, is stored out of line, or is FULL.
            if old_present[i]:
                if _key_missing(old_length, key_rows, i):
                    return 0, i
                delete = not _same(
                    data, old_start, old_length, i, new_start, new_length, i, key_rows
                )
        else:
            if not old_present[i] or _key_missing(old_length, key_rows, i):
                return 0, i
            delete = True
        moved_from = -1
        for step in range(2):
            if step == 0:
                if not delete:
                    continue
                start, length = old_start, old_length
            else:
                if not upsert:
                    continue
                start, length = new_start, new_length
            h = _hash(data, start, length, key_rows, i)
            at = np.int64(h & mask)
            previous = -1
            while slots[at] >= 0:
                if hashes[at] == h:
                    other = slots[at]
                    j = record[other]
                    if is_old[other]:
                        equal = _same(data, start, length, i, old_start, old_length, j, key_rows)
                    else:
                        equal = _same(data, start, length, i, new_start, new_length, j, key_rows)
                    if equal:
                        previous = other
                        break
                at = (at + 1) & (capacity - 1)
            if previous >= 0:
                newest[previous] = False
            slots[at] = entries
            hashes[at] = h
            record[entries] = i
            is_old[entries] = step == 0
            newest[entries] = True
            base[entries] = -1
            if step == 0:
                moved_from = previous
            elif delete:
                base[entries] = moved_from
            elif what == _U:
                base[entries] = previous
            entries += 1
    return entries, -1


@njit(cache=True, nogil=True)
def collect(  # type: ignore[no-untyped-def]
    chosen, record, is_old, base, key_rows, old_start, old_length, new_start, new_length,
    out_start, out_length,
):  # fmt: skip
    """Cells of the chosen entries; is any of them missing for good?

    An upsert's absent cell is the last present one of the entries it builds on; `MISSING` if those
    don't hold it. A delete has its key's cells only.
    """
    rows = out_start.shape[0]
    missing = False
    for n in range(len(chosen)):
        entry = chosen[n]
        i = record[entry]
        if is_old[entry]:
            for r in range(rows):
                out_start[r, n] = 0
                out_length[r, n] = -1
            for r in key_rows:
                out_start[r, n] = old_start[r, i]
                out_length[r, n] = old_length[r, i]
            continue
        for r in range(rows):
            length = new_length[r, i]
            begin = new_start[r, i]
            if length == _MISSING:
                at = base[entry]
                while at >= 0 and not is_old[at]:
                    j = record[at]
                    if new_length[r, j] != _MISSING:
                        length = new_length[r, j]
                        begin = new_start[r, j]
                        break
                    at = base[at]
                if length == _MISSING:
                    missing = True
            out_start[r, n] = begin
            out_length[r, n] = length
    return missing
