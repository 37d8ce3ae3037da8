"""HOT PATH. Kernels that find the cells in binlog payloads (format:
`tidelog.codecs.mysql.rows.cells`).

Every read is checked against the payload's end: a payload that does not fit its table's schema is
reported, and never read past its end.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tidelog.codecs.cell_positions import MISSING, NULL
from tidelog.codecs.key_kernel import COLUMN_COUNT, MALFORMED, UNKNOWN_KIND, read_tuple
from tidelog.model.records import RecordKind

MARK = 0x01  # the first byte of a log row's payload
BEFORE, AFTER, PARTIAL = 1, 2, 4  # flags
HEADER_BYTES = 4
PARTIAL_JSON = -3  # a length: the cell is a list of changes to the before image's document

LACKS_NONE = 0
LACKS_UNCHANGED = 1  # as in an insert or in an update with a minimal image
LACKS_CHANGED = 2  # a document that changed in part, without the old document

_PARTIAL_JSON_UPDATES = 1  # of value_options, rows_event.h
_I, _U, _D, _T = (
    int(RecordKind.INSERT),
    int(RecordKind.UPDATE),
    int(RecordKind.DELETE),
    int(RecordKind.TRUNCATE),
)
_R, _A = int(RecordKind.DUMP_ROW), int(RecordKind.ABSENT)
_K, _O, _N = ord("K"), ord("O"), ord("N")


@njit(cache=True, nogil=True)
def any_old_or_partial(data, begins, ends, kind):  # type: ignore[no-untyped-def]
    """Whether a record has an old image, and whether one has a partial image."""
    old = False
    partial = False
    for i in range(len(kind)):
        old |= kind[i] != _I and kind[i] != _R and kind[i] != _T
        at = begins[i]
        if kind[i] == _U and ends[i] - at >= 2 and data[at] == MARK:
            partial |= data[at + 1] & PARTIAL != 0
    return old, partial


@njit(cache=True, nogil=True)
def read_options(data, position, end, json):  # type: ignore[no-untyped-def]
    """(position after a partial image's value_options and bits or -reason, position of the bits).

    value_options is a packed integer; its only bit so far fits its first byte. There is one bit for
    each JSON column of the table, in the image or not; the position is -1 if there are none.
    """
    if position >= end or data[position] > 250:
        return np.int64(-MALFORMED), np.int64(-1)
    options = data[position]
    position += 1
    if options & _PARTIAL_JSON_UPDATES == 0:
        return np.int64(position), np.int64(-1)
    documents = 0
    for c in range(len(json)):
        documents += json[c]
    bits = position
    position += (documents + 7) // 8
    if position > end:
        return np.int64(-MALFORMED), np.int64(-1)
    return np.int64(position), np.int64(bits)


@njit(cache=True, nogil=True)
def read_image(data, position, end, prefix, size, json, partial, start, length):  # type: ignore[no-untyped-def]
    """Find the cells of the row image at ``position``; returns the position after it, or -reason.

    Args:
        data: uint8[...].
        position: the position of the columns-present bitmap.
        end: the payload's end.
        prefix: uint8[columns], of `ValueLayout`, like ``size`` and ``json``.
        size: int32[columns].
        json: bool[columns].
        partial: True for the after image of a partial update: value_options and the bits of partial
            values follow the bitmap, as in the row event.
        start: int32[columns], out.
        length: int32[columns], out; `NULL`, `MISSING` where the image lacks the column, or
            `PARTIAL_JSON`.
    """
    columns = len(prefix)
    bitmap = position
    position += (columns + 7) // 8
    if position > end:
        return -MALFORMED
    partial_bits = np.int64(-1)
    if partial:
        position, partial_bits = read_options(data, position, end, json)
        if position < 0:
            return position
    present = 0
    for c in range(columns):
        present += (data[bitmap + (c >> 3)] >> (c & 7)) & 1
    nulls = position
    position += (present + 7) // 8
    if position > end:
        return -MALFORMED
    seen = 0
    json_seen = 0
    for c in range(columns):
        is_partial = False
        if json[c]:
            if partial_bits >= 0:
                byte = data[partial_bits + (json_seen >> 3)]
                is_partial = (byte >> (json_seen & 7)) & 1 != 0
            json_seen += 1
        start[c] = 0
        if (data[bitmap + (c >> 3)] >> (c & 7)) & 1 == 0:
            length[c] = MISSING
            continue
        is_null = (data[nulls + (seen >> 3)] >> (seen & 7)) & 1
        seen += 1
        if is_null:
            length[c] = NULL
            continue
        bytes_of_length = np.int64(prefix[c])
        if bytes_of_length == 0:
            width = np.int64(size[c])
        else:
            if position + bytes_of_length > end:
                return -MALFORMED
            width = np.int64(data[position])
            for k in range(1, bytes_of_length):
                width |= np.int64(data[position + k]) << (8 * k)
            position += bytes_of_length
        if width > end - position:
            return -MALFORMED
        start[c] = position
        length[c] = PARTIAL_JSON if is_partial else width
        position += width
    return position


@njit(cache=True, nogil=True)
def read_log_row(  # type: ignore[no-untyped-def]
    data, position, end, what, prefix, size, json, old_start, old_length, start, length
):
    """Find the cells of the log row at ``position``, of kind ``what``; flags, or -reason."""
    if position + HEADER_BYTES > end:
        return -MALFORMED
    flags = np.int64(data[position + 1])
    if np.int64(data[position + 2]) | (np.int64(data[position + 3]) << 8) != len(prefix):
        return -COLUMN_COUNT
    position += HEADER_BYTES
    if what == _I:
        expected = AFTER
    elif what == _D:
        expected = BEFORE
    else:
        expected = BEFORE | AFTER
    if flags & ~PARTIAL != expected or (flags & PARTIAL and what != _U):
        return -MALFORMED
    if flags & BEFORE:
        position = read_image(data, position, end, prefix, size, json, False, old_start, old_length)
        if position < 0:
            return position
    if flags & AFTER:
        position = read_image(
            data, position, end, prefix, size, json, flags & PARTIAL != 0, start, length
        )
        if position < 0:
            return position
    if position != end:
        return -MALFORMED
    return flags


@njit(cache=True, nogil=True)
def read_dump_row(  # type: ignore[no-untyped-def]
    data, position, end, what, columns, old_start, old_length, start, length
):
    """Find the cells of the dump row or absent key at ``position``; returns flags, or -reason."""
    if position + 6 > end:
        return -MALFORMED
    image = data[position + 5]
    if what == _A:
        if image != _K and image != _O:
            return -MALFORMED
        position = read_tuple(data, position + 6, end, columns, old_start, old_length)
    else:
        if image != _N:
            return -MALFORMED
        position = read_tuple(data, position + 6, end, columns, start, length)
    if position < 0:
        return position
    if position != end:
        return -MALFORMED
    return BEFORE if what == _A else AFTER


@njit(cache=True, nogil=True)
def locate(  # type: ignore[no-untyped-def]
    data, begins, ends, kind, slot, prefix, size, json, keep_old, binary, lacks,
    old_start, old_length, old_present, new_start, new_length, new_present,
):  # fmt: skip
    """Fill the matrices; returns the first bad record (-1 if none), the reason, and whether a new
    cell is missing.

    Args:
        data: uint8[...], the payloads.
        begins: int32[n], the payloads' positions.
        ends: int32[n].
        kind: uint8[n].
        slot: int32[columns], a column's row in the matrices, or -1.
        prefix: uint8[columns], of `ValueLayout`, like ``size`` and ``json``.
        size: int32[columns].
        json: bool[columns].
        keep_old: whether to fill the old matrices too.
        binary: bool[n], out: whether the record is a log row.
        lacks: uint8[n], out: `LACKS_NONE`, or how the new row lacks a column, wanted or not:
            `LACKS_UNCHANGED` (in neither image), `LACKS_CHANGED`.
        old_start: int32[rows, n], out, like all that follow.
        old_length: int32[rows, n].
        old_present: bool[n].
        new_start: int32[rows, n].
        new_length: int32[rows, n].
        new_present: bool[n].
    """
    columns = len(slot)
    wire = np.empty(columns, dtype=np.int64)  # matrix row -> wire column
    rows = 0
    for c in range(columns):
        if slot[c] >= 0:
            wire[slot[c]] = c
            rows += 1
    before_start = np.empty(columns, dtype=np.int32)
    before_length = np.empty(columns, dtype=np.int32)
    after_start = np.empty(columns, dtype=np.int32)
    after_length = np.empty(columns, dtype=np.int32)
    any_missing = False
    for i in range(len(kind)):
        what = kind[i]
        position = np.int64(begins[i])
        end = np.int64(ends[i])
        flags = np.int64(0)
        binary[i] = False
        lacks[i] = LACKS_NONE
        if what in (_I, _U, _D):
            if position >= end or data[position] != MARK:
                return i, MALFORMED, False
            binary[i] = True
            flags = read_log_row(
                data, position, end, what, prefix, size, json,
                before_start, before_length, after_start, after_length,
            )  # fmt: skip
        elif what in (_R, _A):
            flags = read_dump_row(
                data, position, end, what, columns,
                before_start, before_length, after_start, after_length,
            )  # fmt: skip
        elif what != _T:
            return i, UNKNOWN_KIND, False
        if flags < 0:
            return i, -flags, False
        has_old = flags & BEFORE != 0
        has_new = flags & AFTER != 0
        old_present[i] = has_old
        new_present[i] = has_new
        if has_new:
            for c in range(columns):
                if after_length[c] == PARTIAL_JSON:
                    if not has_old or before_length[c] < 0:
                        lacks[i] = LACKS_CHANGED
                        break
                elif after_length[c] == MISSING and (not has_old or before_length[c] == MISSING):
                    lacks[i] = LACKS_UNCHANGED
        for r in range(rows):
            c = wire[r]
            begin = np.int32(0)
            width = np.int32(NULL)
            if has_new:
                begin = after_start[c]
                width = after_length[c]
                if width == MISSING:
                    if has_old:
                        begin = before_start[c]
                        width = before_length[c]
                    if width == MISSING:
                        any_missing = True
            new_start[r, i] = begin
            new_length[r, i] = width
        if keep_old:
            for r in range(rows):
                c = wire[r]
                old_start[r, i] = before_start[c] if has_old else np.int32(0)
                old_length[r, i] = before_length[c] if has_old else np.int32(NULL)
    return -1, 0, any_missing


@njit(cache=True, nogil=True)
def may_lack(data, offsets, kind, out):  # type: ignore[no-untyped-def]
    """Fill bool[n] ``out``: True if the new row may lack columns, as an insert whose image lacks
    some, or an update whose before image does.

    Malformed records are left to their readers, which report them.
    """
    for i in range(len(kind)):
        out[i] = False
        at = np.int64(offsets[i])
        end = np.int64(offsets[i + 1])
        if (kind[i] != _I and kind[i] != _U) or end - at < HEADER_BYTES or data[at] != MARK:
            continue
        columns = np.int64(data[at + 2]) | (np.int64(data[at + 3]) << 8)
        at += HEADER_BYTES
        if at + (columns + 7) // 8 > end:
            continue
        for c in range(columns):
            if (data[at + (c >> 3)] >> (c & 7)) & 1 == 0:
                out[i] = True
                break
