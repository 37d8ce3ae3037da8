"""HOT PATH. Kernel that turns rows of MySQL's text protocol into Insert tuples.

Formats: MySQL client/server protocol, "Text Resultset Row", "Protocol::LengthEncodedInteger",
"MySQL Packets".
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tidelog.codecs.bigendian import put_uint32

HEADER_BYTES = 8  # tag, relation, tuple tag, column count
CELL_BYTES = 17  # tag, length; and what a bit field's digits may take more than its bytes

AS_IS = 0
NUMBER = 1  # without the leading zeros of ZEROFILL
GEOMETRY = 2  # without the four bytes of the SRID
BIT = 3  # bytes, to digits
BIT_BOOL = 4  # one byte, to t or f
WIDE = 5  # of a set that stores surrogates, which UTF-8 has not: a question mark each

MORE = 0  # the kernel stopped because no whole packet follows
END = 1  # at an EOF or OK packet
ERROR = 2  # at an ERR packet
CONTINUED = 3  # at a packet that goes on in the next one
MALFORMED = 4

PACKET_MAX = 0xFFFFFF
_NULL, _TEXT = ord("n"), ord("t")
_INSERT, _NEW = ord("I"), ord("N")


@njit(cache=True, nogil=True)
def put_row(data, at, end, forms, payload, to):  # type: ignore[no-untyped-def]
    """Write the row at ``data[at:end]`` at ``payload[to:]``; where it ends, -1 if malformed."""
    columns = len(forms)
    payload[to] = _INSERT
    put_uint32(payload, to + 1, 0)
    payload[to + 5] = _NEW
    payload[to + 6] = columns >> 8
    payload[to + 7] = columns & 0xFF
    to += HEADER_BYTES
    for column in range(columns):
        if at >= end:
            return -1
        first = np.int64(data[at])
        at += 1
        if first == 0xFB:
            payload[to] = _NULL
            to += 1
            continue
        size = first
        if first >= 0xFC:
            more = 2 if first == 0xFC else 3 if first == 0xFD else 8
            if first == 0xFF or at + more > end:
                return -1
            size = np.int64(0)
            for i in range(more):
                size |= np.int64(data[at + i]) << (8 * i)
            at += more
        if size < 0 or size > end - at:
            return -1
        form = forms[column]
        stop = at + size
        payload[to] = _TEXT
        start = to + 5
        to = start
        if form == NUMBER:
            if at < stop and data[at] == 45:
                payload[to] = 45
                to += 1
                at += 1
            while at + 1 < stop and data[at] == 48 and data[at + 1] >= 48 and data[at + 1] <= 57:
                at += 1
        elif form == GEOMETRY:
            at = min(at + 4, stop)
        elif form == WIDE:
            while at < stop:
                surrogate = data[at] == 0xED and at + 2 < stop and data[at + 1] >= 0xA0
                payload[to] = 63 if surrogate else data[at]
                at += 3 if surrogate else 1
                to += 1
        elif form >= BIT:
            value = np.uint64(0)
            if size > 8:
                return -1
            while at < stop:
                value = (value << np.uint64(8)) | np.uint64(data[at])
                at += 1
            if form == BIT_BOOL:
                payload[to] = 116 if value else 102
                to += 1
            else:
                digits = 1
                rest = value // np.uint64(10)
                while rest:
                    rest //= np.uint64(10)
                    digits += 1
                for i in range(digits - 1, -1, -1):
                    payload[to + i] = 48 + np.uint8(value % np.uint64(10))
                    value //= np.uint64(10)
                to += digits
        for i in range(stop - at):
            payload[to + i] = data[at + i]
        to += stop - at
        at = stop
        put_uint32(payload, start - 4, to - start)
    return to if at == end else -1


@njit(cache=True, nogil=True)
def put_rows(data, forms, payload, to, offsets, rows, state):  # type: ignore[no-untyped-def]
    """Write the rows of the whole packets in ``data``; why it stopped.

    Args:
        data: uint8[...], received bytes, beginning at a packet's header.
        forms: uint8[columns].
        payload: uint8[...] with room, from ``to`` on, for what ``data`` may hold.
        to: where to write.
        offsets: int64[...], out: where each row ends, from index ``rows`` + 1 on.
        rows: how many rows were written before.
        state: int64[3], out: bytes of ``data`` used, new ``to``, new ``rows``.
    """
    at = 0
    size = len(data)
    status = MORE
    while at + 4 <= size:
        length = np.int64(data[at]) | (np.int64(data[at + 1]) << 8) | (np.int64(data[at + 2]) << 16)
        if length == PACKET_MAX:
            status = CONTINUED
            break
        if at + 4 + length > size:
            break
        if length == 0:
            status = MALFORMED
            break
        first = data[at + 4]
        if first == 0xFE:
            status = END
            break
        if first == 0xFF:
            status = ERROR
            break
        end = put_row(data, at + 4, at + 4 + length, forms, payload, to)
        if end < 0:
            status = MALFORMED
            break
        to = end
        rows += 1
        offsets[rows] = to
        at += int(4 + length)
    state[0] = at
    state[1] = to
    state[2] = rows
    return status
