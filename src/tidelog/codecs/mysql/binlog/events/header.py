"""An event's frame: its type, the header before its body, the checksum after it."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

HEADER_BYTES = 19
CHECKSUM_BYTES = 4
MAX_EVENT_BYTES = 1 << 30
"""The largest allowed ``max_allowed_packet``; an event can't be longer."""

IGNORABLE = 0x80  # LOG_EVENT_IGNORABLE_F
ARTIFICIAL = 0x20  # LOG_EVENT_ARTIFICIAL_F
THREAD_SPECIFIC = 0x04  # LOG_EVENT_THREAD_SPECIFIC_F


class EventType(IntEnum):
    """Type codes of events; those from 160 up are MariaDB's."""

    STOP = 3
    QUERY = 2
    ROTATE = 4
    INTVAR = 5
    APPEND_BLOCK = 9
    DELETE_FILE = 11
    RAND = 13
    USER_VAR = 14
    FORMAT_DESCRIPTION = 15
    XID = 16
    BEGIN_LOAD_QUERY = 17
    EXECUTE_LOAD_QUERY = 18
    TABLE_MAP = 19
    WRITE_ROWS_V1 = 23
    UPDATE_ROWS_V1 = 24
    DELETE_ROWS_V1 = 25
    INCIDENT = 26
    HEARTBEAT = 27
    IGNORABLE = 28
    ROWS_QUERY = 29
    WRITE_ROWS = 30
    UPDATE_ROWS = 31
    DELETE_ROWS = 32
    GTID = 33
    ANONYMOUS_GTID = 34
    PREVIOUS_GTIDS = 35
    TRANSACTION_CONTEXT = 36
    VIEW_CHANGE = 37
    XA_PREPARE = 38
    PARTIAL_UPDATE_ROWS = 39
    TRANSACTION_PAYLOAD = 40
    HEARTBEAT_V2 = 41
    GTID_TAGGED = 42
    ANNOTATE_ROWS = 160
    BINLOG_CHECKPOINT = 161
    MARIADB_GTID = 162
    GTID_LIST = 163
    START_ENCRYPTION = 164
    QUERY_COMPRESSED = 165
    WRITE_ROWS_COMPRESSED_V1 = 166
    UPDATE_ROWS_COMPRESSED_V1 = 167
    DELETE_ROWS_COMPRESSED_V1 = 168


@dataclass(frozen=True, slots=True)
class Header:
    """The 19 bytes before each event.

    ``log_pos``: the low 32 bits of the event's end in its file; 0 in events that the server made
    up.
    """

    timestamp: int
    type: int
    server_id: int
    length: int
    log_pos: int
    flags: int

    @property
    def artificial(self) -> bool:
        return self.log_pos == 0 or bool(self.flags & ARTIFICIAL)

    @property
    def uses_temporary(self) -> bool:
        """True for a statement that used a temporary table."""
        return bool(self.flags & THREAD_SPECIFIC)


def parse_header(event: bytes) -> Header:
    """Parse the header of an event."""
    return Header(*struct.unpack_from("<IBIIIH", event))


def without_checksum(event: bytes) -> bytes:
    """An event without its CRC32, if it ends with one.

    Whether the artificial rotate event before a file's format description has one depends on the
    previous file; only the bytes themselves show it.
    """
    body = event[:-CHECKSUM_BYTES]
    if len(body) < HEADER_BYTES:
        return event
    return body if zlib.crc32(body) == int.from_bytes(event[-4:], "little") else event
