"""HOT PATH. Kernels for binlog events and row images, and indexes of the arrays that they share.

numba's cache depends on the time stamp of a kernel's own file only: touch `scan_kernel.py` when
this file changes.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tidelog.codecs.byte_order import little_uint16_at, little_uint24_at, little_uint32_at
from tidelog.codecs.mysql.binlog.events import HEADER_BYTES
from tidelog.model.records import Int32s, Int64s, UInt8s

# Indexes of the arrays that the scanner and its kernels share, and the kernel's stop codes.

# Indexes of the state array, which carries everything from one call to the next.
OFFSET = 0  # 64-bit end of the last event in its file
FILE = 1  # the file's number, shifted: position = FILE | OFFSET
IN_GROUP = 2
GROUP_START = 3  # packed position of the open group
RECORD_POSITION = 4  # the position of the group's records: GROUP_START, or that of an XA COMMIT
COMMIT_TS = 5  # microseconds since 1970
NEXT_ORDINAL = 6
BEGUN = 7  # the group ends with XID, COMMIT or ROLLBACK
STANDALONE = 8  # the group (MariaDB) ends with its first statement
HELD = 9  # the group's rows are not yielded: XA, neither committed nor rolled back
LAST_POSITION = 10  # (position, ordinal) of the last record counted, or what to resume after
LAST_ORDINAL = 11
CHECKSUM = 12  # events end in a CRC32
MODE = 13
SOURCES = 14  # number of used rows of the table of GTID sources
SOURCE = 15  # the last GTID's source
ROW_AT = 16  # bytes of event CURSOR whose rows were processed, 0: not begun
CURSOR = 17  # out: index of the event that stopped the kernel
RECORDS = 18  # out: records written
PAYLOAD_BYTES = 19  # out: payload bytes written
GTIDS = 20  # out: GTIDs written
EVENT_START = 21  # out: of the event at CURSOR, offsets in the file; in: of all events, if INNER
EVENT_END = 22
NEED = 23  # out: payload bytes that the next row needs, if FULL
STATE_SLOTS = 24

# MODE
WHOLE = 0  # as received
INFLATED = 1  # no checksums; headers have the position, but not the length
INNER = 2  # from a transaction payload: no checksums, no positions of their own

# Indexes of a table.
SCHEMA = 0
COLUMNS = 1  # -1: its rows can't be split
JSON_COLUMNS = 2
FIRST_COLUMN = 3  # the index of its first column in ``walks``
FIRST_STEP = 4  # the index of a whole row's first step in ``steps``
STEPS = 5
TAIL = 6  # bytes after the last step
MAP_START = 7  # the position of the table map's body in ``maps``
MAP_END = 8
CHANGED_BY = 9  # GROUP_START of the last group with rows of it
NOTICE = 10  # the changes to notice: DELETED, REKEYED
NOTICED = 11  # out: the noticed changes
LOOSE = 12  # the lengths of values are unknown: dropped rows may not fit
LEFT_OUT = 13  # number of columns that are left out of payloads
TABLE_SLOTS = 14

DELETED = 1  # rows were deleted
REKEYED = 2  # an update changed columns that ``walks`` marks

# Flags of a column, in ``walks``.
IS_LEFT_OUT = 1
IS_JSON = 2

WATCHED = -1  # SCHEMA of a table whose rows stop the kernel

# Why the kernel stopped at event CURSOR. From MALFORMED up it is an error.
END = 0
SPECIAL = 1  # not processed: Python parses it
FULL = 2  # out of room, in the middle of event CURSOR if ROW_AT
WATCHED_ROW = 3  # one record was written, of a watched table
MALFORMED = 4
BAD_CHECKSUM = 5
OUT_OF_ORDER = 6
NESTED = 7
OUTSIDE = 8
UNMAPPED = 9
COLUMN_COUNT = 10
TORN_ROW = 11


# Row images: find an image's end, copy it, compare two images.


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
        return at + 2 + little_uint16_at(data, at)
    if prefix == 3:
        return at + 3 + little_uint24_at(data, at)
    return at + 4 + little_uint32_at(data, at)


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
    """The end of the row image at ``at``; past ``end`` if it does not fit. ``present_at``: the
    position of the bitmap of its columns, ``present`` of which are set.
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
def images_differ(
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
    """Return True if two images of a row, which fit, differ in a column that ``walks`` marks. A
    column that only the new image has has changed (``binlog_row_image=MINIMAL``).
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
def write_kept_columns(
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
        walks: see `scan_kernel.scan`.
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


# The types of binlog events that the kernels process (MySQL's and MariaDB's sources).

QUERY, STOP, ROTATE, INTVAR, RAND, USER_VAR = 2, 3, 4, 5, 13, 14
FORMAT, XID, TABLE_MAP, HEARTBEAT, HEARTBEAT_V2 = 15, 16, 19, 27, 41
WRITE_V1, UPDATE_V1, DELETE_V1, WRITE, UPDATE, DELETE = 23, 24, 25, 30, 31, 32
PARTIAL_UPDATE, GTID, ANONYMOUS_GTID, MARIADB_GTID = 39, 33, 34, 162
ROWS_QUERY, CONTEXT, VIEW_CHANGE, ANNOTATE, CHECKPOINT = 29, 36, 37, 160, 161


# Whole events: their checksums, and where each begins.

_MASK32 = 0xFFFFFFFF
_ARTIFICIAL = 0x20  # a flag: the event is not in the file


def _crc_tables() -> np.ndarray:
    """Tables of CRC-32 (IEEE 802.3) for 16 bytes at a time."""
    tables = np.zeros((16, 256), dtype=np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0xEDB88320 if value & 1 else 0)
        tables[0, byte] = value
    for step in range(1, 16):
        previous = tables[step - 1]
        tables[step] = previous >> 8 ^ tables[0][previous & 0xFF]
    return tables


_CRC = _crc_tables()


@njit(cache=True, nogil=True)
def crc32(data: UInt8s, start: int, end: int) -> int:
    """CRC-32 of ``data[start:end]``, as `zlib.crc32`; the caller has checked the bounds."""
    crc = np.uint32(_MASK32)
    at = start
    while at + 16 <= end:
        first = (
            np.uint32(data[at])
            | np.uint32(data[at + 1]) << np.uint32(8)
            | np.uint32(data[at + 2]) << np.uint32(16)
            | np.uint32(data[at + 3]) << np.uint32(24)
        ) ^ crc
        crc = np.uint32(
            _CRC[15, first & np.uint32(0xFF)]
            ^ _CRC[14, (first >> np.uint32(8)) & np.uint32(0xFF)]
            ^ _CRC[13, (first >> np.uint32(16)) & np.uint32(0xFF)]
            ^ _CRC[12, first >> np.uint32(24)]
            ^ _CRC[11, data[at + 4]]
            ^ _CRC[10, data[at + 5]]
            ^ _CRC[9, data[at + 6]]
            ^ _CRC[8, data[at + 7]]
            ^ _CRC[7, data[at + 8]]
            ^ _CRC[6, data[at + 9]]
            ^ _CRC[5, data[at + 10]]
            ^ _CRC[4, data[at + 11]]
            ^ _CRC[3, data[at + 12]]
            ^ _CRC[2, data[at + 13]]
            ^ _CRC[1, data[at + 14]]
            ^ _CRC[0, data[at + 15]]
        )
        at += 16
    while at < end:
        index = (crc ^ np.uint32(data[at])) & np.uint32(0xFF)
        crc = np.uint32(_CRC[0, index] ^ (crc >> np.uint32(8)))
        at += 1
    return int(np.int64(crc ^ np.uint32(_MASK32)))


@njit(cache=True, nogil=True)
def split_events(data: UInt8s, offsets: Int64s) -> int:
    """Find the events of ``data`` by the lengths in their headers.

    Writes their begins, and the end of the last, to ``offsets``; returns their number, -1 if they
    don't fit the data, -2 if there are more.
    """
    at = 0
    count = 0
    offsets[0] = 0
    while at < len(data):
        if count + 1 >= len(offsets):
            return -2
        if at + HEADER_BYTES > len(data):
            return -1
        length = little_uint32_at(data, at + 9)
        if length < HEADER_BYTES or at + length > len(data):
            return -1
        at += length
        count += 1
        offsets[count] = at
    return count


@njit(inline="always")
def may_repeat(typed: int) -> bool:
    """Return True if events of the type may be sent again, out of order. Their checksum is not
    verified.
    """
    return typed in (FORMAT, ROTATE, HEARTBEAT, HEARTBEAT_V2)


@njit(nogil=True)
def event_place(data: UInt8s, start: int, offset: int) -> tuple[bool, int, int]:
    """Whether the event at ``start`` is in order, and its begin and end in its file. ``offset``:
    the end of the last event; an event that is not in the file gets this position.
    """
    log_pos = little_uint32_at(data, start + 13)
    if log_pos == 0 or little_uint16_at(data, start + 17) & _ARTIFICIAL:
        return True, offset, offset
    # The header has only the low 32 bits of the event's end.
    distance = (log_pos - offset) & _MASK32
    event_end = offset + distance
    event_start = event_end - little_uint32_at(data, start + 9)
    if distance >= 1 << 31 or event_start < offset:
        if not may_repeat(data[start + 4]):
            return False, event_start, event_end
        return True, offset, offset
    return True, event_start, event_end
