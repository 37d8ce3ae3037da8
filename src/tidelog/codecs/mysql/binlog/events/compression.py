"""Decompresses events: MariaDB compresses single events (zlib), MySQL whole transactions (zstd)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from tidelog.codecs.mysql.binlog.events.fields import Fields
from tidelog.codecs.mysql.binlog.events.header import HEADER_BYTES, MAX_EVENT_BYTES, EventType

COMPRESSED_ROWS = {
    EventType.WRITE_ROWS_COMPRESSED_V1: EventType.WRITE_ROWS_V1,
    EventType.UPDATE_ROWS_COMPRESSED_V1: EventType.UPDATE_ROWS_V1,
    EventType.DELETE_ROWS_COMPRESSED_V1: EventType.DELETE_ROWS_V1,
}
"""MariaDB's compressed rows events, and their types once decompressed."""


def inflate(packed: bytes) -> bytes:
    """Decompress MariaDB's format: a byte (0x80 | length of the next), the length
    big-endian, zlib.
    """
    if not packed or packed[0] & 0x70:
        raise ValueError("compression algorithm")
    width = packed[0] & 0x07
    length = int.from_bytes(packed[1 : 1 + width], "big")
    if not 1 <= width <= 4 or length > MAX_EVENT_BYTES:
        raise ValueError("compressed length")
    decompressor = zlib.decompressobj()
    try:
        data = decompressor.decompress(packed[1 + width :], length + 1)
    except zlib.error as error:
        raise ValueError("compressed data") from error
    if len(data) != length or not decompressor.eof:
        raise ValueError("compressed length")
    return data


def inflated_rows(event: bytes) -> bytes:
    """Decompress a MariaDB rows event without checksum; its header keeps the old length."""
    fields = Fields(event, HEADER_BYTES + 8)
    columns = fields.packed()
    updates = event[4] == EventType.UPDATE_ROWS_COMPRESSED_V1
    fields.take((columns + 7) // 8 * (2 if updates else 1))
    kind = bytes([COMPRESSED_ROWS[EventType(event[4])]])
    return b"".join([event[:4], kind, event[5 : fields.at], inflate(event[fields.at :])])


@dataclass(frozen=True, slots=True)
class TransactionPayload:
    """The position of the compressed events in a Transaction_payload_event's body."""

    start: int
    size: int
    compressed: bool
    uncompressed_size: int | None


def parse_transaction_payload(body: bytes) -> TransactionPayload:
    """Parse type, length and value fields up to a 0; the payload follows.

    Types: 1 payload size, 2 its compression (0 zstd, 255 none), 3 size without compression.
    """
    fields = Fields(body)
    size: int | None = None
    algorithm = 255
    uncompressed: int | None = None
    while (kind := fields.packed()) != 0:
        value = Fields(fields.take(fields.packed()))
        if kind == 1:
            size = value.packed()
        elif kind == 2:
            algorithm = value.packed()
        elif kind == 3:
            uncompressed = value.packed()
    if algorithm not in (0, 255):
        raise ValueError("compression algorithm")
    if size is None or size != fields.left():
        raise ValueError("payload size")
    return TransactionPayload(fields.at, size, algorithm == 0, uncompressed)


def payload_slices(payload: bytes | memoryview, compressed: bool, size: int) -> Iterator[bytes]:
    """A transaction payload's whole events, back to back, in slices of about ``size`` bytes.

    Only one slice, or one larger event, is in memory at a time. Raises ValueError for a malformed
    payload.
    """
    source: pa.NativeFile = pa.BufferReader(pa.py_buffer(payload))
    if compressed:
        source = pa.CompressedInputStream(source, "zstd")
    rest = bytearray()
    needed = HEADER_BYTES
    try:
        while data := source.read(size):
            rest += data
            if len(rest) < needed:
                continue
            whole, needed = _whole_events(rest)
            if whole:
                yield bytes(memoryview(rest)[:whole])
                rest = rest[whole:]
    except OSError as error:
        raise ValueError("compressed payload") from error
    if rest:
        raise ValueError("torn payload")


def _whole_events(data: bytearray) -> tuple[int, int]:
    """(bytes of the whole events at the start of ``data``, bytes that the next event needs)."""
    at = 0
    while at + HEADER_BYTES <= len(data):
        (length,) = struct.unpack_from("<I", data, at + 9)
        if not HEADER_BYTES <= length <= MAX_EVENT_BYTES:
            raise ValueError("event length")
        if at + length > len(data):
            return at, length
        at += length
    return at, HEADER_BYTES
