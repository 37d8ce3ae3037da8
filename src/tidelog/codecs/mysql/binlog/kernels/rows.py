"""Kernels about rows events: their table, their head, and the payload of one row.

numba caches a kernel by its own file's time stamp: touch `kernels.scan` when this one changes.
"""

from __future__ import annotations

from numba import njit

from tidelog.codecs.littleendian import uint16_at
from tidelog.codecs.mysql.binlog.kernels import types as t
from tidelog.codecs.mysql.binlog.kernels.images import write_shown
from tidelog.codecs.mysql.binlog.kernels.slots import (
    COLUMNS,
    HIDDEN,
    JSON_COLUMNS,
    MAP_END,
    MAP_START,
)
from tidelog.model.records import Int32s, Int64s, UInt8s

_BEFORE_AND_AFTER = 3  # both flags of the payload


@njit(inline="always")
def is_rows(typed: int) -> bool:
    """Is it the type of a rows event?"""
    return (
        t.WRITE_V1 <= typed <= t.DELETE_V1
        or t.WRITE <= typed <= t.DELETE
        or typed == t.PARTIAL_UPDATE
    )


@njit(inline="always")
def table_number(table_id: int, ids: Int64s, numbers: Int64s) -> int:
    """Which row of the tables has the id; -1: none. ``ids`` are sorted."""
    low = 0
    high = len(ids)
    while low < high:
        middle = (low + high) >> 1
        if ids[middle] < table_id:
            low = middle + 1
        else:
            high = middle
    if low == len(ids) or ids[low] != table_id:
        return -1
    return int(numbers[low])


@njit(nogil=True)
def same_map(data: UInt8s, body: int, body_end: int, maps: UInt8s, table: Int64s) -> bool:
    """Is ``data[body:body_end]`` the table map that is known?"""
    known = table[MAP_START]
    if table[MAP_END] - known != body_end - body:
        return False
    for j in range(body_end - body):  # noqa: SIM110 (numba)
        if data[body + j] != maps[known + j]:
            return False
    return True


@njit(nogil=True)
def columns_of(data: UInt8s, typed: int, at: int, body_end: int) -> tuple[int, int]:
    """Where the bitmaps of a rows event begin, and how many columns it has; -1: it is malformed.

    ``at``: the end of its table id and flags.
    """
    if typed not in (t.WRITE_V1, t.UPDATE_V1, t.DELETE_V1):
        if at + 2 > body_end or uint16_at(data, at) < 2:
            return at, -1
        at += uint16_at(data, at)  # extra data
    if at + 1 > body_end:
        return at, -1
    columns = int(data[at])
    at += 1
    if columns == 252:
        if at + 2 > body_end:
            return at, -1
        columns = uint16_at(data, at)
        at += 2
    elif columns > 252 or columns == 251:
        return at, -1
    return at, columns


@njit(nogil=True)
def options_end(data: UInt8s, at: int, end: int, table: Int64s) -> int:
    """The end of what precedes the new image of a partial update; -1: it is malformed."""
    if at + 1 > end or data[at] > 250:
        return -1
    if data[at] & 1:
        return int(at + 1 + ((table[JSON_COLUMNS] + 7) >> 3))
    return at + 1


@njit(inline="always")
def _copy_few(source: UInt8s, start: int, size: int, target: UInt8s, at: int) -> None:
    for i in range(size):
        target[at + i] = source[start + i]


@njit(inline="always")
def write_payload(
    data: UInt8s,
    bits: int,
    images: tuple[int, int, int],
    row_flags: int,
    table: Int64s,
    walks: Int32s,
    payload: UInt8s,
    used: int,
) -> int:
    """Write a row's payload from ``used`` on; where it ends.

    Args:
        data: the events.
        bits: where the bitmaps of present columns are: one, or two of an update.
        images: the beginning of the first image, its end, and the end of the second one.
        row_flags: which images there are.
        table: the table's slots.
        walks: see `kernels.scan.scan`.
        payload: has room for it.
        used: of ``payload``.
    """
    row, middle, end = images
    columns = table[COLUMNS]
    shown = columns - table[HIDDEN]
    width = (columns + 7) >> 3
    payload[used] = 1
    payload[used + 1] = row_flags
    payload[used + 2] = shown & 0xFF
    payload[used + 3] = shown >> 8
    used += 4
    if table[HIDDEN]:
        used = write_shown(data, bits, row, table, walks, payload, used)
        if row_flags & _BEFORE_AND_AFTER == _BEFORE_AND_AFTER:
            used = write_shown(data, bits + width, middle, table, walks, payload, used)
        return used
    _copy_few(data, bits, width, payload, used)
    used += width
    payload[used : used + middle - row] = data[row:middle]
    used += middle - row
    if row_flags & _BEFORE_AND_AFTER == _BEFORE_AND_AFTER:
        _copy_few(data, bits + width, width, payload, used)
        used += width
        payload[used : used + end - middle] = data[middle:end]
        used += end - middle
    return used
