"""A second decoder of pgoutput, slow and obvious, and the truth from a replication slot.

It shares no code with `tidelog.codecs`: both must be wrong in the same way for a test to pass.
Sources: PostgreSQL manual, "Logical Replication Message Formats", protocol version 1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.support.oracle.values import UNCHANGED, Change, Row, Transaction, Value

_UNIX_OF_POSTGRES_US = 946_684_800_000_000  # 2000-01-01

_WITHOUT_CHANGES = (b"C", b"O", b"Y", b"M", b"A")
"""Commit, Origin, Type, Message and Stream Abort. PostgreSQL 18 sends the last one to clients that
did not ask for streaming, about transactions of which they were told nothing."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A relation as the stream announced it. ``key``: the columns that rows are matched by."""

    table: str
    columns: tuple[str, ...]
    key: tuple[str, ...]


def parse_tuple(payload: bytes, at: int) -> tuple[list[Value], int]:
    """The cells of a TupleData at ``at``, and where it ends."""
    (count,) = struct.unpack_from("!h", payload, at)
    at += 2
    cells: list[Value] = []
    for _ in range(count):
        tag = payload[at : at + 1]
        at += 1
        if tag == b"n":
            cells.append(None)
        elif tag == b"u":
            cells.append(UNCHANGED)
        elif tag == b"t":
            (length,) = struct.unpack_from("!i", payload, at)
            at += 4
            cells.append(payload[at : at + length].decode("utf-8", "surrogateescape"))
            at += length
        else:
            raise ValueError(f"a cell begins with {tag!r}")
    return cells, at


def parse_images(payload: bytes, columns: Sequence[str]) -> tuple[Row | None, Row | None]:
    """(old, new) of an insert, update or delete message."""
    at, old, new = 5, None, None
    while at < len(payload):
        tag = payload[at : at + 1]
        cells, at = parse_tuple(payload, at + 1)
        if len(cells) != len(columns):
            raise ValueError(f"a row of {len(cells)} cells where the schema has {len(columns)}")
        row = dict(zip(columns, cells, strict=True))
        if tag == b"N":
            new = row
        elif tag in (b"K", b"O"):
            old = row
        else:
            raise ValueError(f"a tuple begins with {tag!r}")
    if old is not None and new is not None:
        # REPLICA IDENTITY FULL: the old image has what the new one does not repeat.
        new = {
            name: old[name] if value == UNCHANGED and payload[5:6] == b"O" else value
            for name, value in new.items()
        }
    return old, new


def parse_stream(
    messages: Iterable[bytes], keys: dict[str, tuple[str, ...]], audit: str
) -> list[Transaction]:
    """What a slot of the plugin pgoutput gave, as transactions in commit order.

    Args:
        messages: in the slot's order.
        keys: table → columns that its rows are matched by.
        audit: the table whose inserts say what the application did.
    """
    shapes: dict[int, Shape] = {}
    transactions: list[Transaction] = []
    for message in messages:
        tag = message[:1]
        if tag == b"B":
            position, commit, xid = struct.unpack_from("!qqI", message, 1)
            transactions.append(Transaction(xid, position, commit + _UNIX_OF_POSTGRES_US))
        elif tag == b"R":
            relation, shape = _relation(message, keys)
            shapes[relation] = shape
        elif tag == b"T":
            (count,) = struct.unpack_from("!i", message, 1)
            relations = struct.unpack_from(f"!{count}I", message, 6)
            for relation in relations:
                _add(transactions[-1], shapes[relation], "T", b"", None, None)
        elif tag in (b"I", b"U", b"D"):
            (relation,) = struct.unpack_from("!I", message, 1)
            shape = shapes[relation]
            old, new = parse_images(message, shape.columns)
            if shape.table == audit:
                assert new is not None
                transactions[-1].audit.append(new)
            else:
                _add(transactions[-1], shape, tag.decode(), message, old, new)
        elif tag not in _WITHOUT_CHANGES:
            raise ValueError(f"a message begins with {tag!r}")
    return transactions


def _add(
    transaction: Transaction,
    shape: Shape,
    op: str,
    payload: bytes,
    old: Row | None,
    new: Row | None,
) -> None:
    transaction.changes.append(
        Change(
            op,
            shape.table,
            payload,
            transaction.position,
            transaction.xid,
            transaction.commit_us,
            new,
            old,
            shape.key,
        )
    )


def _relation(message: bytes, keys: dict[str, tuple[str, ...]]) -> tuple[int, Shape]:
    (relation,) = struct.unpack_from("!I", message, 1)
    namespace, name, rest = message[5:].split(b"\0", 2)
    (count,) = struct.unpack_from("!h", rest, 1)
    at, columns = 3, []
    for _ in range(count):
        end = rest.index(b"\0", at + 1)
        columns.append(rest[at + 1 : end].decode())
        at = end + 9
    table = f"{namespace.decode()}.{name.decode()}"
    return relation, Shape(table, tuple(columns), keys.get(table, ()))
