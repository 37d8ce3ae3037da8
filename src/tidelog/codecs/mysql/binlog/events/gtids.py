"""Parses GTID events of single transactions, and the GTID sets at a file's beginning."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from tidelog.codecs.mysql.binlog.events.fields import Fields, short_text, signed, variable
from tidelog.codecs.mysql.binlog.events.xa import xid_text
from tidelog.codecs.mysql.binlog.items import BinlogServer, MariaDbSource


def parse_previous_gtids(body: bytes) -> str:
    """The GTID set of Previous_gtids_event as MySQL writes it.

    The first 8 bytes hold the number of entries and, in the highest byte, the format: 1 if entries
    have tags (8.3 and later); then the lowest byte holds the format too.
    """
    fields = Fields(body)
    head = fields.integer(8)
    tagged = head >> 56 == 1
    if head >> 56 > 1:
        raise ValueError("format")
    count = head >> 8 & (1 << 48) - 1 if tagged else head
    if count > len(body):
        raise ValueError("entries")
    sets: dict[UUID, list[str]] = {}
    for _ in range(count):
        uuid = UUID(bytes=fields.take(16))
        tag = short_text(fields) if tagged else ""
        intervals = fields.integer(8)
        if intervals > fields.left() // 16:
            raise ValueError("intervals")
        parts = sets.setdefault(uuid, [])
        if tag:
            parts.append(tag)
        for _ in range(intervals):
            first, after = fields.integer(8), fields.integer(8)
            parts.append(str(first) if after == first + 1 else f"{first}-{after - 1}")
    return ",".join(":".join([str(uuid), *parts]) for uuid, parts in sets.items())


def parse_gtid_list(body: bytes) -> str:
    """MariaDB's Gtid_list_event: the last GTID of each domain and server, comma-separated."""
    fields = Fields(body)
    count = fields.integer(4) & (1 << 28) - 1
    if count > fields.left() // 16:
        raise ValueError("entries")
    return ",".join(
        f"{fields.integer(4)}-{fields.integer(4)}-{fields.integer(8)}" for _ in range(count)
    )


@dataclass(frozen=True, slots=True)
class Gtid:
    """A GTID event.

    Attributes:
        source: the server that numbered it; None: an anonymous GTID.
        number: the transaction's number.
        commit_us: microseconds since 1970 of the commit on the server that wrote this log; 0:
            unknown.
        standalone: MariaDB: True if no COMMIT follows.
        xid: MariaDB: the XA transaction that the group prepares, commits or rolls back.
        prepares: MariaDB: True if the group prepares it.
    """

    source: BinlogServer | MariaDbSource | None
    number: int
    commit_us: int = 0
    standalone: bool = False
    xid: bytes | None = None
    prepares: bool = False


def parse_gtid(body: bytes, *, anonymous: bool) -> Gtid:
    """Gtid_event and Anonymous_gtid_event: flags, uuid, number; since 5.7.6 a logical clock, since
    8.0.1 commit timestamps of 7 bytes.
    """
    fields = Fields(body)
    fields.take(1)
    uuid = UUID(bytes=fields.take(16))
    number = fields.integer(8)
    commit_us = 0
    if fields.left() >= 17 + 7 and fields.integer(1) == 2:
        fields.take(16)
        commit_us = fields.integer(7) & (1 << 55) - 1
    return Gtid(None if anonymous else BinlogServer(uuid), number, commit_us)


_TAGGED_FIELDS = (
    "flags",
    "uuid",
    "gno",
    "tag",
    "last_committed",
    "sequence_number",
    "immediate_commit_timestamp",
)


def parse_tagged_gtid(body: bytes) -> Gtid:
    """Gtid_tagged_log_event (8.3 and later), in the format of ``mysql::serialization``.

    It has a version, a size, the last field that may not be ignored, then each field after its
    number. Variable-length integers have their length in the first byte's trailing ones.
    """
    fields = Fields(body)
    version = variable(fields)
    if version != 1 and version != 0:
        raise ValueError("serialization version")
    variable(fields)
    variable(fields)
    uuid, gno, tag, commit_us = b"", 0, "", 0
    for field_id in range(len(_TAGGED_FIELDS)):
        if not fields.left():
            break
        before = fields.at
        if variable(fields) != field_id:
            fields.at = before
            continue
        name = _TAGGED_FIELDS[field_id]
        if name == "flags":
            variable(fields)
        elif name == "uuid":
            uuid = bytes(variable(fields) for _ in range(16))
        elif name == "tag":
            tag = short_text(fields)
        elif name == "immediate_commit_timestamp":
            commit_us = variable(fields)
        elif name == "gno":
            gno = signed(fields)
        else:
            signed(fields)
    if len(uuid) != 16 or gno <= 0:
        raise ValueError("GTID")
    return Gtid(BinlogServer(UUID(bytes=uuid), tag), gno, commit_us)


_STANDALONE, _GROUP_COMMIT, _PREPARED_XA, _COMPLETED_XA = 1, 2, 64, 128


def parse_mariadb_gtid(body: bytes, server_id: int) -> Gtid:
    """MariaDB's Gtid_log_event; the server's id is in the event's header."""
    fields = Fields(body)
    number = fields.integer(8)
    domain = fields.integer(4)
    flags = fields.integer(1)
    xid = None
    if flags & _GROUP_COMMIT:
        fields.take(8)
    if flags & (_PREPARED_XA | _COMPLETED_XA):
        format_id = int.from_bytes(fields.take(4), "little", signed=True)
        lengths = fields.integer(1), fields.integer(1)
        xid = xid_text(format_id, fields.take(lengths[0]), fields.take(lengths[1]))
    return Gtid(
        MariaDbSource(domain, server_id),
        number,
        standalone=bool(flags & _STANDALONE),
        xid=xid,
        prepares=bool(flags & _PREPARED_XA),
    )
