"""Kernel that turns COPY's text format into pgoutput Insert messages.

Format: PostgreSQL manual, COPY, "Text Format". COPY TO escapes every tab, newline, carriage return
and backslash of a value, so a raw newline ends a row and a raw tab a column.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tidelog.codecs.bigendian import put_uint32
from tidelog.model.records import Int32s, UInt8s

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
    """How many raw newlines there are."""
    count = 0
    for byte in data:
        count += byte == _NEWLINE
    return count


@njit(cache=True, nogil=True)
def copy_to_inserts(
    data: UInt8s, relation: int, columns: int, payload: UInt8s, payload_offsets: Int32s
) -> int:
    """Write one Insert a row; the rows, or -1 - the row at fault.

    Args:
        data: whole rows, each ended by a newline.
        relation: the relation's oid.
        columns: what each row must have.
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
        put_uint32(payload, to + 1, relation)
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
                put_uint32(payload, start - 4, to - start)
            if at >= size or data[at] != ended_by:
                return -1 - row
            at += 1
        row += 1
        payload_offsets[row] = to
    return row
