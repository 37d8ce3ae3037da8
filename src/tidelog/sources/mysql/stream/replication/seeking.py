"""Starts reading a binlog file at an offset that the protocol can't express.

COM_BINLOG_DUMP has 32 bits for the offset, and a transaction may make a file larger. Then the
server sends the whole file, and everything before the offset is dropped here. The two first events,
the stream's position and the file's format, are rewritten as the server sends them when it starts
in the middle of a file (``send_format_description_event`` in its source).
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

from tidelog.codecs.mysql.binlog.events.header import (
    CHECKSUM_BYTES,
    HEADER_BYTES,
    EventType,
    without_checksum,
)
from tidelog.model.records import Bools, Int64s, UInt8s
from tidelog.sources.mysql.stream.positions import FILE_START

# COM_BINLOG_DUMP has 32 bits for the offset.
MAX_OFFSET = (1 << 32) - 1

_LENGTH, _LOG_POS, _FLAGS, _CREATED = 9, 13, 17, HEADER_BYTES + 52
_IN_USE = 1  # LOG_EVENT_BINLOG_IN_USE_F


class OffsetSeeker:
    """Drops a file's events before ``offset``, which is the beginning of a group."""

    def __init__(self, offset: int) -> None:
        self._offset = offset
        self._at = FILE_START
        self._rotate = self._format = b""
        self.done = False

    def take(self, data: UInt8s, offsets: Int64s) -> tuple[UInt8s, Int64s]:
        """The received events from the offset on; none until the offset is reached (`done`).

        Raises EOFError if the file ends before it.
        """
        log_pos, in_file = log_positions(data, offsets)
        ends = self._at + (log_pos - self._at & 0xFFFF_FFFF)
        reached = np.flatnonzero(in_file & (ends >= self._offset))
        first = int(reached[0]) if len(reached) else len(ends)
        types = data[offsets[:-1] + 4]
        for index in np.flatnonzero(
            (types[:first] == EventType.ROTATE) | (types[:first] == EventType.FORMAT_DESCRIPTION)
        ).tolist():
            event = data[offsets[index] : offsets[index + 1]].tobytes()
            if types[index] == EventType.FORMAT_DESCRIPTION:
                self._format = _artificial_format(event)
            elif self._rotate:
                raise EOFError
            else:
                self._rotate = _to_offset(event, self._offset)
        if not len(reached):
            if in_file.any():
                self._at = int(ends[in_file][-1])
            return data[:0], offsets[:1] - offsets[0]
        self.done = True
        first += int(ends[first] == self._offset)
        head = np.frombuffer(self._rotate + self._format, dtype=np.uint8)
        begins = np.array([0, len(self._rotate)], dtype=np.int64)
        rest = data[offsets[first] : offsets[-1]]
        return (
            np.concatenate((head, rest)),
            np.concatenate((begins, offsets[first:] - offsets[first] + len(head))),
        )


def log_positions(data: UInt8s, offsets: Int64s) -> tuple[Int64s, Bools]:
    """(int64[n], bool[n]): the low 32 bits of each event's end in its file; and whether the event
    is in the file, not made up by the server.
    """
    starts = offsets[:-1]
    log_pos = np.zeros(len(starts), dtype=np.int64)
    for byte in range(4):
        log_pos |= data[starts + _LOG_POS + byte].astype(np.int64) << 8 * byte
    made_up = np.isin(data[starts + 4], (EventType.HEARTBEAT, EventType.HEARTBEAT_V2))
    return log_pos, ~made_up & (log_pos != 0)


def _to_offset(event: bytes, offset: int) -> bytes:
    """The server's rotate event with another offset; without a checksum."""
    rotate = bytearray(without_checksum(event))
    struct.pack_into("<I", rotate, _LENGTH, len(rotate))
    struct.pack_into("<Q", rotate, HEADER_BYTES, offset)
    return bytes(rotate)


def _artificial_format(event: bytes) -> bytes:
    """A format description that moves no position and does not mark a start of the server."""
    rewritten = bytearray(event[:-CHECKSUM_BYTES])
    struct.pack_into("<I", rewritten, _LOG_POS, 0)
    struct.pack_into("<I", rewritten, _CREATED, 0)
    rewritten[_FLAGS] &= ~_IN_USE
    return bytes(rewritten) + struct.pack("<I", zlib.crc32(rewritten))
