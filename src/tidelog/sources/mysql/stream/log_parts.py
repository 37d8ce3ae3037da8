"""Reads a part of the binlog over its own connection: events again, or ahead of the stream.

Used for prepared XA transactions, for DDL between the current position and the log's end, and for
the GTIDs up to a position.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tidelog.codecs.mysql.binlog.events import (
    CHECKSUM_BYTES,
    HEADER_BYTES,
    EventType,
    Header,
    Query,
    parse_header,
    parse_query,
    parse_rotate,
    without_checksum,
)
from tidelog.codecs.mysql.binlog.items import (
    Alter,
    pack_position,
    unpack_position,
)
from tidelog.codecs.mysql.server_urls import ServerUrl
from tidelog.errors import ConnectionLostError
from tidelog.model.records import Int64s, UInt8s
from tidelog.sources.mysql.stream.positions import LogFiles
from tidelog.sources.mysql.stream.replication import BinlogStream, ReceivedEvents, log_positions

WAIT_S = 60.0
_BEGIN = b"\0BEGIN"


@dataclass(frozen=True, slots=True)
class LogPart:
    """Whole events back to back, valid until the next part is read.

    Attributes:
        data, offsets: as `BinlogScanner.feed` takes them.
        ends: int64[n], the position after each event; 0 for events that the server made up.
        checksum: whether the server now adds checksums to events; events of an older file may
            differ.
    """

    data: UInt8s
    offsets: Int64s
    ends: Int64s
    checksum: bool

    @property
    def types(self) -> UInt8s:
        found: UInt8s = self.data[self.offsets[:-1] + 4]
        return found

    def header(self, index: int) -> Header:
        """The event's header."""
        start = int(self.offsets[index])
        return parse_header(self.data[start : start + HEADER_BYTES].tobytes())

    def body(self, index: int) -> bytes:
        """The event's body, without its checksum if it has one: ``binlog_checksum`` may have been
        different when its file was written.
        """
        event = self.data[self.offsets[index] : self.offsets[index + 1]].tobytes()
        return without_checksum(event)[HEADER_BYTES:]


def read_part(
    url: str | ServerUrl, files: LogFiles, begin: int, end: int
) -> Iterator[tuple[BinlogStream, LogPart]]:
    """The events of ``[begin, end)``; both are positions between groups. Errors as
    `BinlogStream.start`.
    """
    number, offset = unpack_position(begin)
    stream = BinlogStream(url, None, purpose="log-part")
    with contextlib.closing(stream):
        stream.start(files.name(number), offset, wait=False)
        at = begin
        while at < end:
            received = stream.receive(WAIT_S)
            if received is None:
                raise ConnectionLostError(
                    "reading a part of the binlog: the server stopped sending"
                )
            part, at = _events_before(received, stream.checksum, files, at, end)
            if len(part.ends):
                yield stream, part
            if received.ended:
                return


def queries(part: LogPart) -> Iterator[tuple[int, Header, Query]]:
    """The statements of a part, each with the position after it and its event's header. BEGIN is
    left out, and so are statements that only announce or abandon an ALTER.
    """
    text_ends = part.offsets[1:] - (CHECKSUM_BYTES if part.checksum else 0)
    for event_type in (EventType.QUERY, EventType.QUERY_COMPRESSED):
        found = np.flatnonzero(part.types == event_type)
        if event_type == EventType.QUERY:
            # BEGIN is by far the most frequent: one per transaction on MySQL. The database's final
            # 0 precedes it.
            last = part.data[text_ends[found][:, None] + np.arange(-len(_BEGIN), 0)]
            found = found[~(last == np.frombuffer(_BEGIN, np.uint8)).all(axis=1)]
        for index in found.tolist():
            compressed = event_type == EventType.QUERY_COMPRESSED
            query = parse_query(part.body(index), compressed=compressed)
            if query.status.alter not in (Alter.START, Alter.ROLLBACK):
                yield int(part.ends[index]), part.header(index), query


def _events_before(
    received: ReceivedEvents, checksum: bool, files: LogFiles, at: int, end: int
) -> tuple[LogPart, int]:
    """The events that end at or before ``end``, and the position after them."""
    data, offsets = received.data, received.offsets
    count = len(offsets) - 1
    ends = np.zeros(count, dtype=np.int64)
    types = data[offsets[:-1] + 4]
    log_pos, in_file = log_positions(data, offsets)
    first = 0
    for rotate in [*np.flatnonzero(types == EventType.ROTATE).tolist(), count]:
        number, here = unpack_position(at)
        chosen = first + np.flatnonzero(in_file[first:rotate])
        # The header has only the low 32 bits of the offset; no batch is long enough to confuse
        # them.
        ends[chosen] = pack_position(number, 0) | (here + (log_pos[chosen] - here & 0xFFFF_FFFF))
        if len(chosen):
            if ends[chosen[-1]] > end:
                cut = int(chosen[np.argmax(ends[chosen] > end)])
                return LogPart(data, offsets[: cut + 1], ends[:cut], checksum), end
            at = int(ends[chosen[-1]])
        if rotate == count:
            break
        event = data[offsets[rotate] : offsets[rotate + 1]].tobytes()
        name, offset = parse_rotate(without_checksum(event)[HEADER_BYTES:])
        place = pack_position(files.number(name), offset)
        if place >= end:
            return LogPart(data, offsets[: rotate + 1], ends[:rotate], checksum), end
        at = max(at, place)
        first = rotate + 1
    return LogPart(data, offsets, ends, checksum), at
