"""Converts the text in pgoutput messages to UTF-8, for databases with another encoding.

The rest of each message stays unchanged, so that later code need not know of encodings. Databases
with encoding UTF8 don't use this module.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tidelog.codecs.postgres.server_texts import ServerText
from tidelog.model.records import Int64s, UInt8s

_I, _U, _D, _R, _Y, _M = (ord(tag) for tag in "IUDRYM")
_K, _O, _N, _NULL, _UNCHANGED = (ord(tag) for tag in "KONnu")
_NAMES_AT = {_R: 5, _Y: 5, _M: 10}


def to_utf8(data: UInt8s, offsets: Int64s, texts: ServerText) -> tuple[UInt8s, Int64s]:
    """The same messages with their text in UTF-8.

    Args:
        data: uint8[...], messages back to back.
        offsets: int64[n + 1]; message ``i`` is ``data[offsets[i]:offsets[i + 1]]``.
        texts: the converter of the database's encoding.
    """
    offsets = np.ascontiguousarray(offsets, dtype=np.int64)
    room = int(offsets[-1] - offsets[0]) // 5 + 1
    begin, end = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
    named = np.empty(len(offsets), dtype=np.int64)
    found, names = _find(data, offsets, begin, end, named)
    regions = [(int(b), int(e), 1) for b, e in zip(begin[:found], end[:found], strict=True)]
    for i in named[:names].tolist():
        message = data[offsets[i] : offsets[i + 1]].tobytes()
        regions += [(int(offsets[i]) + b, int(offsets[i]) + e, 0) for b, e in _names(message)]
    if not regions:
        return data, offsets
    regions.sort()
    cells = b"\0".join(data[b:e].tobytes() for b, e, _ in regions)  # no text has a zero byte
    converted = [part.encode() for part in texts.decode(cells).split("\0")]
    lengths = np.array([len(part) for part in converted], dtype=np.int64)
    places = np.array(regions, dtype=np.int64)
    grown = int(lengths.sum() - (places[:, 1] - places[:, 0]).sum())
    out = np.empty(int(offsets[-1] - offsets[0]) + grown, dtype=np.uint8)
    out_offsets = np.empty_like(offsets)
    _rebuild(
        data, offsets, places, np.frombuffer(b"".join(converted), dtype=np.uint8), lengths, out,
        out_offsets,
    )  # fmt: skip
    return out, out_offsets


def _names(message: bytes) -> list[tuple[int, int]]:
    """The positions of the zero-terminated texts with a byte above 0x7F."""
    at, found = _NAMES_AT[message[0]], []
    try:
        end = message.index(0, at)
        found.append((at, end))
        if message[0] in (_R, _Y):
            at = end + 1
            end = message.index(0, at)
            found.append((at, end))
        if message[0] == _R:
            count = int.from_bytes(message[end + 2 : end + 4], "big")
            at = end + 4
            for _ in range(count):
                end = message.index(0, at + 1)
                found.append((at + 1, end))
                at = end + 9
    except ValueError:
        return []  # malformed: the scanner reports it
    return [(b, e) for b, e in found if not message[b:e].isascii()]


@njit(cache=True, nogil=True)
def _find(data, offsets, begin, end, named):  # type: ignore[no-untyped-def]
    """Find cells with a byte above 0x7F, and messages with names; returns the numbers of both."""
    found = 0
    names = 0
    for i in range(len(offsets) - 1):
        at = offsets[i]
        stop = offsets[i + 1]
        if at >= stop:
            continue
        tag = data[at]
        if tag in (_R, _Y, _M):
            named[names] = i
            names += 1
            continue
        if tag != _I and tag != _U and tag != _D:
            continue
        at += 5
        while at + 3 <= stop:
            image = data[at]
            if image != _K and image != _O and image != _N:
                break
            columns = np.int64(data[at + 1]) << 8 | np.int64(data[at + 2])
            at += 3
            for _ in range(columns):
                if at >= stop:
                    break
                kind = data[at]
                if kind in (_NULL, _UNCHANGED):
                    at += 1
                    continue
                if at + 5 > stop:
                    at = stop
                    break
                length = (
                    np.int64(data[at + 1]) << 24
                    | np.int64(data[at + 2]) << 16
                    | np.int64(data[at + 3]) << 8
                    | np.int64(data[at + 4])
                )
                at += 5
                if length < 0 or at + length > stop:
                    at = stop
                    break
                for k in range(at, at + length):
                    if data[k] > 0x7F:
                        begin[found] = at
                        end[found] = at + length
                        found += 1
                        break
                at += length
    return found, names


@njit(cache=True, nogil=True)
def _rebuild(data, offsets, places, converted, lengths, out, out_offsets):  # type: ignore[no-untyped-def]
    """Copy the messages with replaced bytes, and update the bytes' lengths where they have one."""
    to = np.int64(0)
    at = offsets[0]
    message = 0
    taken = np.int64(0)
    for p in range(len(places) + 1):
        upto = places[p, 0] if p < len(places) else offsets[-1]
        while message < len(offsets) and offsets[message] <= upto:
            out_offsets[message] = to + offsets[message] - at
            message += 1
        for k in range(at, upto):
            out[to] = data[k]
            to += 1
        if p == len(places):
            break
        size = lengths[p]
        if places[p, 2]:
            out[to - 4] = size >> 24 & 0xFF
            out[to - 3] = size >> 16 & 0xFF
            out[to - 2] = size >> 8 & 0xFF
            out[to - 1] = size & 0xFF
        for k in range(size):
            out[to] = converted[taken + k]
            to += 1
        taken += size
        at = places[p, 1]
