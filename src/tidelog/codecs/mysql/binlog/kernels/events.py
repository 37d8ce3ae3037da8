"""Kernels for whole events: their checksums, and where each begins."""

from __future__ import annotations

import numpy as np
from numba import njit

from tidelog.codecs.littleendian import uint16_at, uint32_at
from tidelog.codecs.mysql.binlog.events.header import HEADER_BYTES
from tidelog.codecs.mysql.binlog.kernels import types as t
from tidelog.model.records import Int64s, UInt8s

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
def split(data: UInt8s, offsets: Int64s) -> int:
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
        length = uint32_at(data, at + 9)
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
    return typed in (t.FORMAT, t.ROTATE, t.HEARTBEAT, t.HEARTBEAT_V2)


@njit(nogil=True)
def place_of(data: UInt8s, start: int, offset: int) -> tuple[bool, int, int]:
    """Whether the event at ``start`` is in order, and its begin and end in its file.

    ``offset``: the end of the last event; an event that is not in the file gets this position.
    """
    log_pos = uint32_at(data, start + 13)
    if log_pos == 0 or uint16_at(data, start + 17) & _ARTIFICIAL:
        return True, offset, offset
    # The header has only the low 32 bits of the event's end.
    distance = (log_pos - offset) & _MASK32
    event_end = offset + distance
    event_start = event_end - uint32_at(data, start + 9)
    if distance >= 1 << 31 or event_start < offset:
        if not may_repeat(data[start + 4]):
            return False, event_start, event_end
        return True, offset, offset
    return True, event_start, event_end
