"""Parses events about log files: their format, the next file, and the stream's position."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.codecs.mysql.binlog.events.fields import Fields
from tidelog.codecs.mysql.binlog.events.header import CHECKSUM_BYTES, HEADER_BYTES


@dataclass(frozen=True, slots=True)
class FormatDescription:
    """Format_description_event: the format of the following events.

    Attributes:
        created: seconds; not 0 only if the server started with this file.
        lengths: the post-header length of each event type from 1 on.
        checksum: 0 none, 1 CRC32.
    """

    binlog_version: int
    server_version: str
    created: int
    lengths: bytes
    checksum: int


def parse_format(body_and_checksum: bytes) -> FormatDescription:
    """A format description with the 4 bytes of its checksum, which it always has since 5.6.1."""
    fields = Fields(body_and_checksum)
    version = fields.integer(2)
    server = fields.take(50).rstrip(b"\0").decode("ascii", "replace")
    created = fields.integer(4)
    if fields.integer(1) != HEADER_BYTES:
        raise ValueError("header length")
    lengths = fields.take(fields.left() - 1 - CHECKSUM_BYTES)
    checksum = fields.integer(1)
    if checksum not in (0, 1):
        raise ValueError("checksum algorithm")
    return FormatDescription(version, server, created, lengths, checksum)


def parse_rotate(body: bytes) -> tuple[str, int]:
    """(name, offset) of the file in which the log continues."""
    fields = Fields(body)
    offset = fields.integer(8)
    return fields.rest().decode("utf-8"), offset


def parse_heartbeat_v2(body: bytes) -> tuple[str | None, int | None]:
    """(file name, offset) where they are given: type, length and value fields up to a 0."""
    fields = Fields(body)
    name = offset = None
    while fields.left():
        kind = fields.packed()
        if kind == 0:
            break
        value = fields.take(fields.packed())
        if kind == 1:
            name = value.decode("utf-8")
        elif kind == 2:
            offset = Fields(value).packed()
    return name, offset
