"""Kernels about what begins and ends a group of events: GTIDs and statements.

numba caches a kernel by its own file's time stamp: touch `kernels.scan` when this one changes.
"""

from __future__ import annotations

from numba import njit

from tidelog.codecs.littleendian import uint24_at, uint32_at
from tidelog.codecs.mysql.binlog.events.header import HEADER_BYTES
from tidelog.model.records import UInt8s


@njit(inline="always")
def is_word(data: UInt8s, start: int, end: int, word: bytes) -> bool:
    """Is ``data[start:end]`` this word?"""
    if end - start != len(word):
        return False
    for i in range(len(word)):  # noqa: SIM110 (numba)
        if data[start + i] != word[i]:
            return False
    return True


@njit(inline="always")
def is_after(position: int, ordinal: int, last_position: int, last_ordinal: int) -> bool:
    """Does the record lie behind the last one?"""
    return position > last_position or (position == last_position and ordinal > last_ordinal)


@njit(nogil=True)
def source_of(
    data: UInt8s, start: int, mariadb: bool, sources: UInt8s, count: int, last: int
) -> int:
    """The row of ``sources`` that numbered the GTID event at ``start``; -1: none of the first
    ``count``. ``last``: the row to try first, -1 if there is none.
    """
    body = start + HEADER_BYTES
    for k in range(-1, count):
        candidate = last if k < 0 else k
        if candidate < 0:
            continue
        same = True
        if mariadb:
            for j in range(4):
                if (
                    sources[candidate, j] != data[body + 8 + j]
                    or sources[candidate, 4 + j] != data[start + 5 + j]
                ):
                    same = False
                    break
        else:
            for j in range(16):
                if sources[candidate, j] != data[body + 1 + j]:
                    same = False
                    break
        if same:
            return candidate
    return -1


@njit(nogil=True)
def commit_ts_of(data: UInt8s, start: int, body_end: int, mariadb: bool) -> int:
    """When the group of the GTID event at ``start`` was committed, microseconds since 1970."""
    body = start + HEADER_BYTES
    if not mariadb and body + 49 <= body_end and data[body + 25] == 2:
        # When it was committed on this server, microseconds in 55 bits.
        told_ts = uint32_at(data, body + 42) | uint24_at(data, body + 46) << 32
        told_ts &= (1 << 55) - 1
        if told_ts:
            return int(told_ts)
    return int(uint32_at(data, start) * 1_000_000)
