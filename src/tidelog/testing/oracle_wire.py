"""A second decoder of pgoutput, slow and obvious, and the truth that a replication slot tells.

It shares no code with `tidelog.wire`: both must be wrong in the same way for a test to pass.
Sources: PostgreSQL manual, "Logical Replication Message Formats", protocol version 1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tidelog.eventlog.reader import EventLog
from tidelog.model.records import Kind

UNCHANGED = "\0unchanged"
"""Stands for a TOASTed value that the message does not repeat."""

Value = str | None
Row = dict[str, Value]
Key = tuple[Value, ...]

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


@dataclass(frozen=True, slots=True)
class Change:
    """One record. ``new`` may hold `UNCHANGED`; ``old`` is as the source sent it."""

    op: str  # I U D T of the log, r (dump row), a (absent key), c (control)
    table: str
    payload: bytes
    position: int = 0
    xid: int = 0
    commit_us: int = 0
    new: Row | None = None
    old: Row | None = None
    key: tuple[str, ...] = ()
    offset: int = -1
    schema_id: int = 0

    @property
    def new_key(self) -> Key | None:
        return None if self.new is None else tuple(self.new[name] for name in self.key)

    @property
    def old_key(self) -> Key | None:
        """The key that the record frees or keeps; of an update without old image the new one."""
        if self.old is not None:
            return tuple(self.old[name] for name in self.key)
        return self.new_key

    def brief(self) -> str:
        """For people: values cut short."""

        def cut(row: Row | None) -> str:
            if row is None:
                return "-"
            return "{" + ", ".join(f"{k}={_cut(v)}" for k, v in row.items()) + "}"

        text = f"@{self.offset} {self.op} {self.table} xid={self.xid} lsn={self.position:X}"
        if self.op == "c":
            return f"{text} {self.payload.decode()}"
        return f"{text} old={cut(self.old)} new={cut(self.new)}"


@dataclass(slots=True)
class Transaction:
    """A committed transaction, its changes in the order that they were made."""

    xid: int
    position: int
    commit_us: int
    changes: list[Change] = field(default_factory=list)
    audit: list[Row] = field(default_factory=list)


def _cut(value: Value) -> str:
    if value is None:
        return "NULL"
    if value == UNCHANGED:
        return "(unchanged)"
    return value if len(value) <= 24 else f"{value[:10]}…({len(value)})"


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
            cells.append(payload[at : at + length].decode())
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


def read_event_log(log: EventLog, start: int, end: int) -> list[Change]:
    """The records of ``[start, end)``, each decoded with the schema version that it names."""
    changes: list[Change] = []
    for ref in log.segments(start, end):
        for record in log.read(ref).to_pylist():
            changes.append(_change(log, record))
    return changes


def _change(log: EventLog, record: dict[str, object]) -> Change:
    kind, payload, schema_id = record["kind"], record["payload"], record["schema_id"]
    assert isinstance(kind, int)
    assert isinstance(payload, bytes)
    assert isinstance(schema_id, int)
    place = {
        "position": record["position"],
        "xid": record["xid"],
        "commit_us": record["commit_ts"],
        "offset": record["offset"],
        "schema_id": schema_id,
    }
    if kind == Kind.CONTROL:
        return Change("c", "", payload, **place)  # type: ignore[arg-type]
    if kind == Kind.MESSAGE:
        return Change("M", "", payload, **place)  # type: ignore[arg-type]
    schema = log.schemas.get(schema_id)
    table, key = str(schema.table), schema.match_key
    if kind == Kind.TRUNCATE:
        return Change("T", table, b"", key=key, **place)  # type: ignore[arg-type]
    old, new = parse_images(payload, schema.column_names)
    return Change(chr(kind), table, payload, new=new, old=old, key=key, **place)  # type: ignore[arg-type]
