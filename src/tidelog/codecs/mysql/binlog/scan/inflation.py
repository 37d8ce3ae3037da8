"""Converts MariaDB's compressed rows events, and the events between them, to plain ones."""

from __future__ import annotations

import zlib

import numpy as np

from tidelog.codecs.mysql.binlog.events.compression import COMPRESSED_ROWS, inflated_rows
from tidelog.codecs.mysql.binlog.events.header import CHECKSUM_BYTES, HEADER_BYTES, EventType
from tidelog.codecs.mysql.binlog.scan.records import BATCH_BYTES
from tidelog.model.records import Int64s, UInt8s

# The kernel, or their parser, needs more than the bytes of one such event.
_UNLIKE_OTHERS = frozenset(
    {
        EventType.ROTATE,
        EventType.HEARTBEAT,
        EventType.HEARTBEAT_V2,
        EventType.FORMAT_DESCRIPTION,
        EventType.TRANSACTION_PAYLOAD,
    }
)


def plain_events(
    data: UInt8s, offsets: Int64s, cursor: int, checksum: bool
) -> tuple[UInt8s, Int64s]:
    """About one batch of events from ``cursor`` on, decompressed, without checksums and back to
    back; and their offsets.

    Raises ValueError if the first event is torn.
    """
    parts: list[bytes] = []
    at = [0]
    while cursor < len(offsets) - 1 and at[-1] < BATCH_BYTES:
        start, end = int(offsets[cursor]), int(offsets[cursor + 1])
        event = data[start:end].tobytes()
        if len(event) < HEADER_BYTES + CHECKSUM_BYTES or event[4] in _UNLIKE_OTHERS:
            break
        if checksum:
            stored = int.from_bytes(event[-CHECKSUM_BYTES:], "little")
            event = event[:-CHECKSUM_BYTES]
            if zlib.crc32(event) != stored:
                break
        if int.from_bytes(event[9:13], "little") != end - start:
            break
        if event[4] in COMPRESSED_ROWS:
            event = inflated_rows(event)
        parts.append(event)
        at.append(at[-1] + len(event))
        cursor += 1
    if not parts:
        raise ValueError("length")
    joined = np.frombuffer(b"".join(parts), dtype=np.uint8)
    return joined, np.array(at, dtype=np.int64)
