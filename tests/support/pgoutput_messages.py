"""Builds pgoutput messages (protocol version 1), field by field as PostgreSQL's manual lists them.

For tests and benchmarks only: an implementation apart from the decoders that they check. A server
sends the same bytes: `tests.unit.codecs.test_pgoutput_server`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import Enum

import numpy as np

from tidelog.model.records import Int64s, UInt8s

POSTGRES_EPOCH_US = 946_684_800_000_000


class Absent(Enum):
    """A value that a tuple does not carry."""

    UNCHANGED = "u"


UNCHANGED = Absent.UNCHANGED
Value = str | bytes | None | Absent


def tuple_data(values: Sequence[Value]) -> bytes:
    """TupleData: None is NULL, `UNCHANGED` an unchanged TOASTed value."""
    parts = [struct.pack("!H", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif isinstance(value, Absent):
            parts.append(b"u")
        else:
            raw = value.encode() if isinstance(value, str) else value
            parts.append(b"t" + struct.pack("!I", len(raw)) + raw)
    return b"".join(parts)


def begin(final_lsn: int, commit_ts: int = POSTGRES_EPOCH_US, xid: int = 700) -> bytes:
    """Begin; ``commit_ts`` in microseconds since 1970."""
    return struct.pack("!cqqI", b"B", final_lsn, commit_ts - POSTGRES_EPOCH_US, xid & 0xFFFFFFFF)


def commit(final_lsn: int, end_lsn: int, commit_ts: int = POSTGRES_EPOCH_US) -> bytes:
    """Commit; ``commit_ts`` in microseconds since 1970."""
    return struct.pack("!cBqqq", b"C", 0, final_lsn, end_lsn, commit_ts - POSTGRES_EPOCH_US)


def origin(lsn: int, name: str) -> bytes:
    """Origin."""
    return struct.pack("!cq", b"O", lsn) + name.encode() + b"\0"


def relation(
    relation_id: int,
    namespace: str,
    name: str,
    columns: Sequence[tuple[int, str, int, int]],
    replica_identity: str = "d",
) -> bytes:
    """Relation; columns are (flags, name, type oid, type modifier)."""
    parts = [
        struct.pack("!cI", b"R", relation_id),
        namespace.encode() + b"\0" + name.encode() + b"\0",
        replica_identity.encode(),
        struct.pack("!H", len(columns)),
    ]
    for flags, column, type_oid, modifier in columns:
        parts += [bytes([flags]), column.encode() + b"\0", struct.pack("!Ii", type_oid, modifier)]
    return b"".join(parts)


def type_(oid: int, namespace: str, name: str) -> bytes:
    """Type."""
    return struct.pack("!cI", b"Y", oid) + namespace.encode() + b"\0" + name.encode() + b"\0"


def insert(relation_id: int, new: Sequence[Value]) -> bytes:
    """Insert."""
    return struct.pack("!cIc", b"I", relation_id, b"N") + tuple_data(new)


def update(
    relation_id: int,
    new: Sequence[Value],
    *,
    key: Sequence[Value] | None = None,
    old: Sequence[Value] | None = None,
) -> bytes:
    """Update, with the old key (``K``), the full old row (``O``) or neither."""
    image = b""
    if key is not None:
        image = b"K" + tuple_data(key)
    elif old is not None:
        image = b"O" + tuple_data(old)
    return struct.pack("!cI", b"U", relation_id) + image + b"N" + tuple_data(new)


def delete(
    relation_id: int, *, key: Sequence[Value] | None = None, old: Sequence[Value] | None = None
) -> bytes:
    """Delete, with the old key (``K``) or the full old row (``O``)."""
    image = b"K" + tuple_data(key) if key is not None else b"O" + tuple_data(old or ())
    return struct.pack("!cI", b"D", relation_id) + image


def truncate(*relation_ids: int, options: int = 0) -> bytes:
    """Truncate; options 1: CASCADE, 2: RESTART IDENTITY."""
    return struct.pack(f"!ciB{len(relation_ids)}I", b"T", len(relation_ids), options, *relation_ids)


def message(lsn: int, prefix: str, content: bytes, *, transactional: bool) -> bytes:
    """Message, as of ``pg_logical_emit_message``."""
    head = struct.pack("!cBq", b"M", transactional, lsn) + prefix.encode() + b"\0"
    return head + struct.pack("!I", len(content)) + content


def stream_abort(xid: int, subxid: int) -> bytes:
    """Stream Abort, as without parallel streaming."""
    return struct.pack("!cII", b"A", xid, subxid)


def packed(messages: Iterable[bytes]) -> tuple[UInt8s, Int64s]:
    """Messages back to back, and their offsets: what the scanner is fed with."""
    listed = list(messages)
    offsets = np.zeros(len(listed) + 1, dtype=np.int64)
    np.cumsum([len(each) for each in listed], out=offsets[1:])
    return np.frombuffer(b"".join(listed), dtype=np.uint8), offsets
