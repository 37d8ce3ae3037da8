"""Kernels for row images: find an image's end, copy it, compare two images.

numba's cache depends on the time stamp of a kernel's own file only: touch `kernels.scan` when this
one changes.
"""

from __future__ import annotations

from numba import njit

from tidelog.codecs.littleendian import uint16_at, uint24_at, uint32_at
from tidelog.codecs.mysql.binlog.kernels.slots import (
    COLUMNS,
    FIRST_COLUMN,
    FIRST_STEP,
    IS_JSON,
    IS_LEFT_OUT,
    STEPS,
    TAIL,
)
from tidelog.model.records import Int32s, Int64s, UInt8s


@njit(inline="always")
def _value_end(data: UInt8s, at: int, end: int, prefix: int, fixed: int) -> int:
    """The end of the value at ``at``; past ``end`` if it does not fit."""
    if prefix == 0:
        return at + fixed
    if at + prefix > end:
        return end + 1
    if prefix == 1:
        return at + 1 + int(data[at])
    if prefix == 2:
        return at + 2 + uint16_at(data, at)
    if prefix == 3:
        return at + 3 + uint24_at(data, at)
    return at + 4 + uint32_at(data, at)


@njit(nogil=True)
def image_end(
    data: UInt8s,
    at: int,
    end: int,
    present_at: int,
    present: int,
    table: Int64s,
    walks: Int32s,
    steps: Int32s,
) -> int:
    """The end of the row image at ``at``; past ``end`` if it does not fit.

    ``present_at``: the position of the bitmap of its columns, ``present`` of which are set.
    """
    columns = table[COLUMNS]
    nulls = at
    at += (present + 7) >> 3
    if at > end:
        return end + 1
    if present == columns:
        whole = True
        for i in range(nulls, nulls + (present >> 3)):
            if data[i] != 0:
                whole = False
                break
        if whole and (present & 7) and data[at - 1] & ((1 << (present & 7)) - 1):
            whole = False
        if whole:
            first = table[FIRST_STEP]
            for step in range(first, first + table[STEPS]):
                at = _value_end(data, at + steps[step, 0], end, steps[step, 1], 0)
                if at > end:
                    return at
            return int(at + table[TAIL])
    first = table[FIRST_COLUMN]
    bit = 0
    for column in range(columns):
        if data[present_at + (column >> 3)] >> (column & 7) & 1:
            if data[nulls + (bit >> 3)] >> (bit & 7) & 1 == 0:
                walk = first + column
                at = _value_end(data, at, end, walks[walk, 0], walks[walk, 1])
                if at > end:
                    return at
            bit += 1
    return at


@njit(nogil=True)
def rekeyed(
    data: UInt8s,
    before: int,
    before_bits: int,
    before_present: int,
    after: int,
    after_bits: int,
    after_present: int,
    end: int,
    table: Int64s,
    walks: Int32s,
) -> bool:
    """Return True if two images of a row, which fit, differ in a column that ``walks`` marks.

    A column that only the new image has has changed (``binlog_row_image=MINIMAL``).
    """
    first = table[FIRST_COLUMN]
    before_nulls = before
    after_nulls = after
    before += (before_present + 7) >> 3
    after += (after_present + 7) >> 3
    before_bit = 0
    after_bit = 0
    for column in range(table[COLUMNS]):
        walk = first + column
        marked = walks[walk, 2] != 0
        in_before = data[before_bits + (column >> 3)] >> (column & 7) & 1
        in_after = data[after_bits + (column >> 3)] >> (column & 7) & 1
        before_end = before
        after_end = after
        if in_before:
            if data[before_nulls + (before_bit >> 3)] >> (before_bit & 7) & 1 == 0:
                before_end = _value_end(data, before, end, walks[walk, 0], walks[walk, 1])
            before_bit += 1
        if in_after:
            if data[after_nulls + (after_bit >> 3)] >> (after_bit & 7) & 1 == 0:
                after_end = _value_end(data, after, end, walks[walk, 0], walks[walk, 1])
            after_bit += 1
        if marked and in_after:
            if not in_before or before_end - before != after_end - after:
                return True
            for i in range(after_end - after):
                if data[before + i] != data[after + i]:
                    return True
        before = before_end
        after = after_end
    return False


@njit(inline="always")
def present_count(data: UInt8s, at: int, columns: int) -> int:
    """The number of set bits among the ``columns`` bits from ``at`` on."""
    count = 0
    for column in range(columns):
        count += data[at + (column >> 3)] >> (column & 7) & 1
    return count


@njit(nogil=True)
def write_kept(
    data: UInt8s,
    bits: int,
    at: int,
    partial: bool,
    table: Int64s,
    walks: Int32s,
    payload: UInt8s,
    used: int,
) -> int:
    """Write a row image without the columns that are left out, from ``used`` on; returns its end.

    Args:
        data: the events.
        bits: the position of the bitmap of the image's columns.
        at: the position of the image, which fits.
        partial: whether the image begins with the options of a partial update.
        table: the table's slots.
        walks: see `kernels.scan.scan`.
        payload: a buffer with room for the whole image.
        used: the bytes of ``payload`` in use.
    """
    columns = table[COLUMNS]
    first = table[FIRST_COLUMN]
    kept = 0
    for column in range(columns):
        if walks[first + column, 3] & IS_LEFT_OUT == 0:
            is_present = data[bits + (column >> 3)] >> (column & 7) & 1
            _write_bit(payload, used, kept, is_present)
            kept += 1
    used += (kept + 7) >> 3
    if partial:
        payload[used] = data[at]
        used += 1
        at += 1
        if data[at - 1] & 1:
            bit = 0
            kept = 0
            for column in range(columns):
                flags = walks[first + column, 3]
                if flags & IS_JSON:
                    if flags & IS_LEFT_OUT == 0:
                        _write_bit(payload, used, kept, data[at + (bit >> 3)] >> (bit & 7) & 1)
                        kept += 1
                    bit += 1
            used += (kept + 7) >> 3
            at += (bit + 7) >> 3
    nulls = at
    at += (present_count(data, bits, columns) + 7) >> 3
    bit = 0
    kept = 0
    for column in range(columns):
        if data[bits + (column >> 3)] >> (column & 7) & 1:
            if walks[first + column, 3] & IS_LEFT_OUT == 0:
                _write_bit(payload, used, kept, data[nulls + (bit >> 3)] >> (bit & 7) & 1)
                kept += 1
            bit += 1
    used += (kept + 7) >> 3
    bit = 0
    run = at  # what is kept and not copied yet begins here
    for column in range(columns):
        if data[bits + (column >> 3)] >> (column & 7) & 1:
            begin = at
            if data[nulls + (bit >> 3)] >> (bit & 7) & 1 == 0:
                walk = first + column
                at = _value_end(data, at, len(data), walks[walk, 0], walks[walk, 1])
            bit += 1
            if walks[first + column, 3] & IS_LEFT_OUT:
                payload[used : used + begin - run] = data[run:begin]
                used += begin - run
                run = at
    payload[used : used + at - run] = data[run:at]
    return used + at - run


@njit(inline="always")
def _write_bit(payload: UInt8s, at: int, bit: int, value: int) -> None:
    """Write the next bit of a bitmap that begins at ``at``; bits are written in order."""
    if bit & 7 == 0:
        payload[at + (bit >> 3)] = value
    else:
        payload[at + (bit >> 3)] |= value << (bit & 7)
