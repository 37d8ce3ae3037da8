"""Parses the messages of a pgoutput stream that a consumer must process in order with the rows.

Formats: PostgreSQL manual, "Logical Replication Message Formats". The parsers raise struct.error,
IndexError or ValueError on malformed bytes; the scanner converts those to one DecodeError.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tidelog.model.records import Kind


@dataclass(frozen=True, slots=True)
class RelationSeen:
    """A relation's columns and identity, sent before its first row and after each change.

    ``columns``: (flags, name, type oid, type modifier) as sent; flag 1: part of the identity.
    ``replica_identity``: ``d``, ``n``, ``f`` or ``i`` as in ``pg_class.relreplident``.
    """

    relation_id: int
    namespace: str
    name: str
    replica_identity: str
    columns: list[tuple[int, str, int, int]]


@dataclass(frozen=True, slots=True)
class TypeSeen:
    """A type that is not built in, sent before the relation that uses it."""

    oid: int
    namespace: str
    name: str


MAX_MESSAGE_BYTES = 1 << 20
"""Most bytes of a logical message that are read. Any role may write one of a gigabyte; of a longer
one only the beginning is read, for which one more byte is enough.
"""


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """A message written by ``pg_logical_emit_message``.

    If it is not transactional, ``position`` is its own LSN, and it has neither ``xid`` nor
    ``commit_ts``. ``content``: None if the message is longer than `MAX_MESSAGE_BYTES`.
    """

    transactional: bool
    prefix: str
    content: bytes | None
    position: int
    ordinal: int
    xid: int | None = None
    commit_ts: int | None = None


@dataclass(frozen=True, slots=True)
class WatchedRow:
    """A row message of a watched relation; a truncate is reduced to that relation."""

    relation_id: int
    kind: Kind
    payload: bytes
    position: int
    ordinal: int


def parse_message(message: bytes) -> tuple[int, int, str, bytes | None]:
    """Parse a Message message, or the beginning of a long one: flags, LSN, prefix and content."""
    flags, lsn = struct.unpack_from("!Bq", message, 1)
    if lsn < 0:
        raise ValueError("LSN")
    if len(message) > MAX_MESSAGE_BYTES:
        end = message.find(b"\0", 10)
        return flags, lsn, message[10:end].decode("utf-8", "surrogateescape"), None
    prefix, at = text_at(message, 10)
    (length,) = struct.unpack_from("!i", message, at)
    content = message[at + 4 :]
    if length != len(content):
        raise ValueError("length")
    return flags, lsn, prefix, content


def text_at(message: bytes, at: int) -> tuple[str, int]:
    """The zero-terminated text at ``at``, and the beginning of the next field."""
    end = message.index(b"\0", at)
    return message[at:end].decode("utf-8", "surrogateescape"), end + 1


def parse_relation(message: bytes) -> RelationSeen:
    """Parse a Relation message."""
    (relation_id,) = struct.unpack_from("!I", message, 1)
    namespace, at = text_at(message, 5)
    name, at = text_at(message, at)
    identity, count = struct.unpack_from("!cH", message, at)
    at += 3
    columns = []
    for _ in range(count):
        flags = message[at]
        column, at = text_at(message, at + 1)
        type_oid, modifier = struct.unpack_from("!Ii", message, at)
        at += 8
        columns.append((flags, column, type_oid, modifier))
    if at != len(message) or identity not in (b"d", b"n", b"f", b"i"):
        raise ValueError("length or identity")
    # The protocol spells pg_catalog as an empty namespace.
    return RelationSeen(relation_id, namespace or "pg_catalog", name, identity.decode(), columns)


def parse_type(message: bytes) -> TypeSeen:
    """Parse a Type message."""
    (oid,) = struct.unpack_from("!I", message, 1)
    namespace, at = text_at(message, 5)
    name, at = text_at(message, at)
    if at != len(message):
        raise ValueError("length")
    return TypeSeen(oid, namespace or "pg_catalog", name)
