"""Events of a binlog as bytes, for tests of what no server at hand writes.

Layouts: as `tidelog.codecs.mysql.binlog.events` cites them; written from those documents, not from
it. What a server does write is the same: `tests.integration.mysql.test_builders`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from tidelog.model.records import Int64s, UInt8s

ARTIFICIAL = 0x20
IGNORABLE = 0x80
SERVER = UUID(int=7)


class BinlogBytes:
    """Events one after the other, as a server sends them from ``offset`` of a file on."""

    def __init__(self, *, checksum: bool = True, offset: int = 4, timestamp: int = 1_700_000_000):
        self.checksum = checksum
        self.offset = offset
        self.timestamp = timestamp
        self.events: list[bytes] = []

    def add(
        self, kind: int, body: bytes, *, flags: int = 0, made_up: bool = False, server_id: int = 1
    ) -> int:
        """Append an event; where it begins. ``made_up``: it has no place in the file."""
        start = self.offset
        length = 19 + len(body) + (4 if self.checksum else 0)
        if not made_up:
            self.offset += length
        log_pos = 0 if made_up else self.offset & 0xFFFFFFFF
        flags |= ARTIFICIAL if made_up else 0
        self.events.append(
            event(kind, body, self.timestamp, server_id, log_pos, flags, self.checksum)
        )
        return start

    def arrays(self, first: int = 0, last: int | None = None) -> tuple[UInt8s, Int64s]:
        """(data, offsets) of events ``first`` to ``last``, for a scanner's feed."""
        events = self.events[first:last]
        offsets = np.cumsum([0, *map(len, events)], dtype=np.int64)
        return np.frombuffer(b"".join(events), dtype=np.uint8), offsets

    # ------------------------------------------------------------------ files

    def format_description(
        self, version: str = "8.4.0", *, started: bool = True, checksum: bool | None = None
    ) -> None:
        """It always has a checksum field, whether it is in use or not."""
        if checksum is not None:
            self.checksum = checksum
        lengths = bytearray(42)
        lengths[18] = 8
        body = struct.pack("<H50sIB", 4, version.encode(), 1 if started else 0, 19)
        body += bytes(lengths) + bytes([int(self.checksum)])
        length = 19 + len(body) + 4
        self.offset += length
        self.events.append(
            event(15, body, self.timestamp, 1, self.offset & 0xFFFFFFFF, 0, checksum=True)
        )

    def rotate(self, name: str, offset: int = 4, *, made_up: bool = False) -> None:
        self.add(4, struct.pack("<Q", offset) + name.encode(), made_up=made_up)
        self.offset = offset

    # ------------------------------------------------------------------ groups

    def gtid(self, number: int, uuid: UUID = SERVER, *, commit_us: int = 0) -> int:
        return self.add(33, gtid_body(uuid, number, commit_us))

    def anonymous(self, *, commit_us: int = 0) -> int:
        return self.add(34, gtid_body(UUID(int=0), 0, commit_us))

    def tagged_gtid(self, number: int, tag: str, uuid: UUID = SERVER, commit_us: int = 0) -> int:
        return self.add(42, tagged_gtid_body(uuid, tag, number, commit_us))

    def mariadb_gtid(
        self, number: int, *, domain: int = 0, server_id: int = 1, flags: int = 0, more: bytes = b""
    ) -> int:
        return self.add(162, mariadb_gtid_body(number, domain, flags, more), server_id=server_id)

    def query(self, sql: str, database: str = "shop", status: bytes = b"") -> int:
        return self.add(2, query_body(sql, database, status))

    def xid(self) -> int:
        return self.add(16, struct.pack("<Q", 99))

    def xa_prepare(self, gtrid: bytes, bqual: bytes = b"", *, one_phase: bool = False) -> int:
        return self.add(38, xa_prepare_body(gtrid, bqual, one_phase=one_phase))

    def payload(self, events: Sequence[bytes], *, compressed: bool = True) -> int:
        """A transaction payload; the events are to be without checksums."""
        plain = b"".join(events)
        packed = pa.compress(plain, codec="zstd", asbytes=True) if compressed else plain
        fields = b"".join(
            bytes([kind]) + packed_integer(len(value)) + value
            for kind, value in (
                (2, packed_integer(0 if compressed else 255)),
                (3, packed_integer(len(plain))),
                (1, packed_integer(len(packed))),
            )
        )
        return self.add(40, fields + b"\0" + packed)

    # ------------------------------------------------------------------ rows

    def table_map(
        self,
        table_id: int,
        types: bytes,
        metas: bytes = b"",
        *,
        database: str = "shop",
        table: str = "orders",
        nullable: bytes | None = None,
        optional: bytes = b"",
    ) -> int:
        return self.add(
            19, table_map_body(table_id, types, metas, database, table, nullable, optional)
        )

    def rows(self, kind: int, table_id: int, columns: int, rows: bytes, **more: Any) -> int:
        """A rows event; for ``more`` see `rows_body`."""
        return self.add(kind, rows_body(kind, table_id, columns, rows, **more))


def event(
    kind: int,
    body: bytes,
    timestamp: int = 1_700_000_000,
    server_id: int = 1,
    log_pos: int = 0,
    flags: int = 0,
    checksum: bool = False,
) -> bytes:
    """One event, header and all."""
    length = 19 + len(body) + (4 if checksum else 0)
    bare = struct.pack("<IBIIIH", timestamp, kind, server_id, length, log_pos, flags) + body
    return bare + struct.pack("<I", zlib.crc32(bare)) if checksum else bare


def gtid_body(uuid: UUID, number: int, commit_us: int = 0) -> bytes:
    """Of MySQL 8.0.1 and later if there is a commit timestamp."""
    body = b"\0" + uuid.bytes + struct.pack("<Q", number) + b"\2" + struct.pack("<QQ", 1, 2)
    return body + commit_us.to_bytes(7, "little") if commit_us else body


def mariadb_gtid_body(number: int, domain: int, flags: int, more: bytes = b"") -> bytes:
    """``more``: what flags say that there is."""
    return (struct.pack("<QIB", number, domain, flags) + more).ljust(19, b"\0")


def xa_prepare_body(gtrid: bytes, bqual: bytes = b"", *, one_phase: bool = False) -> bytes:
    """Of the format 1, which is the one of the statement without a number."""
    return struct.pack("<Biii", one_phase, 1, len(gtrid), len(bqual)) + gtrid + bqual


def tagged_gtid_body(uuid: UUID, tag: str, number: int, commit_us: int) -> bytes:
    """Of MySQL 8.3 and later: fields of ``mysql::serialization``."""
    name = tag.encode()
    fields = [
        (0, variable(1)),
        (1, b"".join(variable(byte) for byte in uuid.bytes)),
        (2, variable(number << 1)),
        (3, variable(len(name)) + name),
        (4, variable(5 << 1)),
        (5, variable(6 << 1)),
        (6, variable(commit_us)),
        (8, variable(1234)),
        (9, variable(90_000)),
    ]
    content = variable(0) + b"".join(variable(number) + value for number, value in fields)
    size = len(content) + 2  # of all, itself included: it takes a byte below 128
    return variable(1) + variable(size + (size > 127)) + content


def variable(value: int) -> bytes:
    """An unsigned integer of 1 to 9 bytes, the number of the further ones as trailing ones."""
    for more in range(8):
        if value < 1 << 7 * (more + 1):
            whole = value << more + 1 | (1 << more) - 1
            return whole.to_bytes(more + 1, "little")
    return b"\xff" + value.to_bytes(8, "little")


def packed_integer(value: int) -> bytes:
    """A length-encoded integer."""
    if value < 251:
        return bytes([value])
    if value < 1 << 16:
        return b"\xfc" + value.to_bytes(2, "little")
    if value < 1 << 24:
        return b"\xfd" + value.to_bytes(3, "little")
    return b"\xfe" + value.to_bytes(8, "little")


def query_body(sql: str, database: str = "shop", status: bytes = b"") -> bytes:
    """A statement; ``status``: its status variables."""
    name = database.encode()
    head = struct.pack("<IIBHH", 1, 0, len(name), 0, len(status))
    return head + status + name + b"\0" + sql.encode()


def table_map_body(
    table_id: int,
    types: bytes,
    metas: bytes,
    database: str,
    table: str,
    nullable: bytes | None = None,
    optional: bytes = b"",
) -> bytes:
    """``optional``: type, length and value fields."""
    names = b"".join(bytes([len(name)]) + name.encode() + b"\0" for name in (database, table))
    bits = b"\xff" * ((len(types) + 7) // 8) if nullable is None else nullable
    columns = packed_integer(len(types)) + types + packed_integer(len(metas)) + metas
    return table_id.to_bytes(6, "little") + b"\1\0" + names + columns + bits + optional


def rows_body(
    kind: int,
    table_id: int,
    columns: int,
    rows: bytes,
    *,
    before: bytes | int = -1,
    after: bytes | int = -1,
    flags: int = 1,
    extra: bytes = b"",
) -> bytes:
    """``before``, ``after``: bitmaps of the columns present (-1: all); ``rows``: images."""
    width = (columns + 7) // 8
    every = ((1 << columns) - 1).to_bytes(width, "little")
    first, second = (every if isinstance(bits, int) else bits for bits in (before, after))
    body = table_id.to_bytes(6, "little") + struct.pack("<H", flags)
    if kind in (30, 31, 32, 39):
        body += struct.pack("<H", 2 + len(extra)) + extra
    bitmaps = first + second if kind in (24, 31, 39) else second if kind in (23, 30) else first
    return body + packed_integer(columns) + bitmaps + rows


def deflated(data: bytes) -> bytes:
    """As MariaDB compresses statements and rows."""
    length = len(data).to_bytes(4, "big").lstrip(b"\0")
    return bytes([0x80 | len(length)]) + length + zlib.compress(data)
