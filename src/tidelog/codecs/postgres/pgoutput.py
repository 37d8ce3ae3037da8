"""Scans PostgreSQL's pgoutput stream (protocol version 1) into records of the event log, sans-IO.

`PgoutputScanner` takes the payloads of XLogData messages and yields `LogBatch`es, with other items
in order between them. Rows stay wire bytes; nothing here decodes a value.

**Ordinals.** Every row message, every transactional logical message and every relation of a
truncate counts as one within its transaction, from 0, before any filter: the count depends only on
the wire, so that ``(position, ordinal)`` names the same record after a restart with other filters.

**Truncate.** One message may name several relations. Each captured one gets its own record, whose
payload is the message reduced to that relation.

**Stream Abort** is the only message of a later protocol version that is skipped: PostgreSQL 18
sends it to every client (`scan`). All other messages of streaming are errors.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from tidelog.codecs.byte_order import big_int64_at, big_uint32_at
from tidelog.codecs.postgres.exclusion import ExcludedCells
from tidelog.errors import DecodeError
from tidelog.model.records import Int32s, Int64s, LogBatch, RecordKind, Resume, UInt8s, readonly

# Messages that a consumer must process in order with the rows. The parsers raise struct.error,
# IndexError or ValueError on malformed bytes; the scanner converts those to one DecodeError.


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
    kind: RecordKind
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


# Indexes of the state array, which carries everything from one call to the next.
IN_TRANSACTION = 0
FINAL_LSN = 1  # of the open transaction: its commit record, as announced by Begin
COMMIT_TS = 2  # microseconds since 1970
XID = 3  # widened to 64 bits
NEXT_ORDINAL = 4
COMMIT_END = 5  # end of the last complete transaction of this stream, 0 before
LAST_POSITION = 6  # (position, ordinal) of the last record counted, or what to resume after
LAST_ORDINAL = 7
NEXT_XID = 8  # the highest transaction id read, 64 bits: the base for widening xids
CURSOR = 9  # out: index of the message that stopped the kernel
RECORDS = 10  # out: records written
PAYLOAD_BYTES = 11  # out: payload bytes written
STATE_SLOTS = 12

# Why the kernel stopped at message CURSOR. From MALFORMED up the message is an error.
END = 0
SPECIAL = 1  # not counted yet: a relation, type, logical message, truncate, watched row
MALFORMED = 2
OUTSIDE_TRANSACTION = 3
NESTED_BEGIN = 4
COMMIT_MISMATCH = 5
OUT_OF_ORDER = 6
UNBOUND_RELATION = 7
UNKNOWN_MESSAGE = 8
INSIDE_TRANSACTION = 9

# schema_id of a bound relation whose rows stop the kernel.
WATCHED = -1

POSTGRES_EPOCH_US = 946_684_800_000_000  # 2000-01-01 in microseconds since 1970

_B, _C, _I, _U, _D, _O = ord("B"), ord("C"), ord("I"), ord("U"), ord("D"), ord("O")
_R, _Y, _M, _T, _A = ord("R"), ord("Y"), ord("M"), ord("T"), ord("A")
_K, _N = ord("K"), ord("N")
_BEGIN_BYTES = 21  # tag, final LSN, commit timestamp, xid
_COMMIT_BYTES = 26  # tag, flags, commit LSN, end LSN, commit timestamp
_MIN_ROW_BYTES = 8  # tag, relation, tuple tag, column count
_MIN_ORIGIN_BYTES = 10  # tag, LSN, empty name
_STREAM_ABORT_BYTES = 9  # tag, xid of the transaction, xid of the subtransaction


@njit(cache=True, nogil=True)
def scan(
    data: UInt8s,
    offsets: Int64s,
    first: int,
    relations: Int64s,
    relation_schemas: Int32s,
    state: Int64s,
    kind: UInt8s,
    schema_id: Int32s,
    position: Int64s,
    ordinal: Int64s,
    xid: Int64s,
    commit_ts: Int64s,
    payload_offsets: Int32s,
    payload: UInt8s,
) -> int:
    """Scan messages from ``first`` on until the end or one that Python must process.

    Args:
        data: the messages.
        offsets: int64[n + 1]; message ``i`` is ``data[offsets[i]:offsets[i + 1]]``. The caller has
            checked the first and the last.
        first: the message to begin at. Records are written from index ``first`` of the columns on
            and payload from ``offsets[first] - offsets[0]`` on, so that consecutive calls on one
            set of columns never overlap.
        relations: sorted relation ids.
        relation_schemas: their schema ids (0: drop the rows, WATCHED: stop at them).
        state: int64[STATE_SLOTS], read and written.
        kind: uint8[n], out, like all that follow: the columns of `LogBatch`.
        schema_id: int32[n].
        position: int64[n].
        ordinal: int64[n].
        xid: int64[n].
        commit_ts: int64[n].
        payload_offsets: int32[n + 1].
        payload: uint8[offsets[n] - offsets[0]].

    Returns:
        END, SPECIAL or an error code; CURSOR, RECORDS and PAYLOAD_BYTES are in ``state``.
    """
    in_transaction = state[IN_TRANSACTION]
    final_lsn = state[FINAL_LSN]
    transaction_ts = state[COMMIT_TS]
    transaction_xid = state[XID]
    next_ordinal = state[NEXT_ORDINAL]
    commit_end = state[COMMIT_END]
    last_position = state[LAST_POSITION]
    last_ordinal = state[LAST_ORDINAL]
    next_xid = state[NEXT_XID]

    count = len(offsets) - 1
    begin_of_all = offsets[0]
    end_of_all = offsets[count]
    column = first  # the index of the next record
    payload_base = offsets[first] - begin_of_all
    used = 0
    run_start = run_end = offsets[first]  # captured bytes not copied yet
    known_relation = -1
    known_schema = 0
    payload_offsets[first] = 0
    code = END
    i = first
    while i < count:
        start = offsets[i]
        end = offsets[i + 1]
        length = end - start
        if start < begin_of_all or length < 1 or end > end_of_all:
            code = MALFORMED
            break
        tag = data[start]
        if tag in (_I, _U, _D):
            if not in_transaction:
                code = OUTSIDE_TRANSACTION
                break
            if length < _MIN_ROW_BYTES:
                code = MALFORMED
                break
            image = data[start + 5]
            new_image = image == _N
            old_image = image in (_K, _O)
            if (tag == _I and not new_image) or (tag == _D and not old_image):
                code = MALFORMED
                break
            if tag == _U and not new_image and not old_image:
                code = MALFORMED
                break
            relation = big_uint32_at(data, start + 1)
            if relation != known_relation:
                low = 0
                high = len(relations)
                while low < high:
                    middle = (low + high) >> 1
                    if relations[middle] < relation:
                        low = middle + 1
                    else:
                        high = middle
                if low == len(relations) or relations[low] != relation:
                    code = UNBOUND_RELATION
                    break
                known_relation = relation
                known_schema = relation_schemas[low]
            if final_lsn > last_position or (
                final_lsn == last_position and next_ordinal > last_ordinal
            ):
                if known_schema == WATCHED:
                    code = SPECIAL
                    break
                last_position = final_lsn
                last_ordinal = next_ordinal
                if known_schema > 0:
                    if start != run_end:
                        size = run_end - run_start
                        to = payload_base + used
                        payload[to : to + size] = data[run_start:run_end]
                        used += size
                        run_start = start
                    run_end = end
                    kind[column] = tag
                    schema_id[column] = known_schema
                    position[column] = final_lsn
                    ordinal[column] = next_ordinal
                    xid[column] = transaction_xid
                    commit_ts[column] = transaction_ts
                    column += 1
                    payload_offsets[column] = used + run_end - run_start
            next_ordinal += 1
        elif tag == _B:
            if length != _BEGIN_BYTES:
                code = MALFORMED
                break
            if in_transaction:
                code = NESTED_BEGIN
                break
            final_lsn = big_int64_at(data, start + 1)
            # Transactions arrive in the order of their commits; a commit may begin where the
            # previous one ended.
            if final_lsn < commit_end:
                code = OUT_OF_ORDER
                break
            transaction_ts = big_int64_at(data, start + 9) + POSTGRES_EPOCH_US
            # The 64-bit id nearest to the newest known one: live ids span less than 2^31.
            low_xid = big_uint32_at(data, start + 17)
            distance = (low_xid - next_xid) & 0xFFFFFFFF
            if distance >= 1 << 31:
                distance -= 1 << 32
            transaction_xid = next_xid + distance
            if transaction_xid < 0:
                transaction_xid += 1 << 32
            if transaction_xid > next_xid:
                next_xid = transaction_xid
            next_ordinal = 0
            in_transaction = 1
        elif tag == _C:
            if length != _COMMIT_BYTES:
                code = MALFORMED
                break
            if not in_transaction:
                code = OUTSIDE_TRANSACTION
                break
            end_lsn = big_int64_at(data, start + 10)
            if big_int64_at(data, start + 2) != final_lsn or end_lsn < final_lsn:
                code = COMMIT_MISMATCH
                break
            commit_end = max(commit_end, end_lsn)
            in_transaction = 0
        elif tag in (_R, _Y, _M, _T):
            code = SPECIAL
            break
        elif tag == _O:
            if length < _MIN_ORIGIN_BYTES:
                code = MALFORMED
                break
        elif tag == _A:
            # PostgreSQL 18 announces some aborts although streaming is off and nothing of the
            # transaction was sent: reorderbuffer.c finds a large transaction aborted before it is
            # spilled (ReorderBufferCheckAndTruncateAbortedTXN) and marks its subtransactions as
            # streamed, so that their abort calls stream_abort. The message is sent where the abort
            # record was decoded, hence between transactions; it is no record and changes no
            # position.
            if length != _STREAM_ABORT_BYTES:
                code = MALFORMED
                break
            if in_transaction:
                code = INSIDE_TRANSACTION
                break
        else:
            code = UNKNOWN_MESSAGE
            break
        i += 1

    size = run_end - run_start
    to = payload_base + used
    payload[to : to + size] = data[run_start:run_end]
    used += size

    state[IN_TRANSACTION] = in_transaction
    state[FINAL_LSN] = final_lsn
    state[COMMIT_TS] = transaction_ts
    state[XID] = transaction_xid
    state[NEXT_ORDINAL] = next_ordinal
    state[COMMIT_END] = commit_end
    state[LAST_POSITION] = last_position
    state[LAST_ORDINAL] = last_ordinal
    state[NEXT_XID] = next_xid
    state[CURSOR] = i
    state[RECORDS] = column - first
    state[PAYLOAD_BYTES] = used
    return code


START = Resume(acknowledge=0, position=0, ordinal=-1)
"""Resume position of a log without records."""

MAX_FEED_BYTES = 1 << 30
"""A batch's payload offsets are int32; larger inputs are scanned in parts."""

_FAULTS = {
    MALFORMED: "is torn or malformed",
    OUTSIDE_TRANSACTION: "is outside a transaction",
    NESTED_BEGIN: "begins a transaction inside another one",
    COMMIT_MISMATCH: "does not end the transaction that was begun",
    OUT_OF_ORDER: "begins a transaction that was committed before the previous one",
    UNBOUND_RELATION: "is of a relation that was not announced",
    UNKNOWN_MESSAGE: "is unknown to protocol version 1 (is streaming or two_phase on?)",
    INSIDE_TRANSACTION: "is inside a transaction",
}
_MESSAGE = ord("M")
_BAD_OFFSETS = "message offsets do not fit the data"


Scanned = LogBatch | RelationSeen | TypeSeen | LogicalMessage | WatchedRow


class PgoutputScanner:
    """Scans one stream from START_REPLICATION on. Not thread-safe; must not be used after an error.

    Args:
        resume: records up to its ``(position, ordinal)`` are skipped; None: none are.
        xid_epoch_base: the server's next transaction id as 64 bits when the stream starts; the
            wire's 32-bit ids are widened to the nearest value.
    """

    def __init__(self, resume: Resume | None = None, xid_epoch_base: int = 0) -> None:
        begin = resume or START
        self._acknowledged = begin.acknowledge
        self._state = np.zeros(STATE_SLOTS, dtype=np.int64)
        self._state[LAST_POSITION] = begin.position
        self._state[LAST_ORDINAL] = begin.ordinal
        self._state[NEXT_XID] = xid_epoch_base
        self._bindings: dict[int, int] = {}
        self._excluded = ExcludedCells()
        self._index_bindings()
        # Compiles or loads the kernel now and not in the middle of the stream.
        for _ in self.feed(np.empty(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)):
            pass

    @property
    def resume(self) -> Resume:
        """The resume position for a restart once everything yielded so far is durable."""
        return Resume(
            acknowledge=self.commit_end,
            position=int(self._state[LAST_POSITION]),
            ordinal=int(self._state[LAST_ORDINAL]),
        )

    @property
    def in_transaction(self) -> bool:
        return bool(self._state[IN_TRANSACTION])

    @property
    def xid(self) -> int:
        """The id of the open transaction, or of the last one."""
        return int(self._state[XID])

    @property
    def commit_end(self) -> int:
        """End LSN of the last complete transaction, at least the resume's ``acknowledge``."""
        return max(self._acknowledged, int(self._state[COMMIT_END]))

    def bind(
        self,
        relation_id: int,
        schema_id: int,
        *,
        watch: bool = False,
        excluded: Sequence[int] = (),
    ) -> None:
        """Set how a relation's rows are processed: their schema version, or 0 to drop them.

        Call it for each `RelationSeen` before the next item is taken.

        Args:
            relation_id: the relation's oid on the wire.
            schema_id: the number stored in each record; 0: rows are counted and dropped.
            watch: yield each row as a `WatchedRow` instead.
            excluded: indexes of the columns that are left out of records.
        """
        if schema_id:
            self._excluded.set(schema_id, excluded)
        self._bindings[relation_id] = WATCHED if watch else schema_id
        self._index_bindings()

    def feed(self, data: UInt8s, offsets: Int64s) -> Iterator[Scanned]:
        """Scan messages back to back; take all items before the next call.

        Args:
            data: uint8[...]; may be reused once the iterator is exhausted.
            offsets: int64[n + 1]; message ``i`` is ``data[offsets[i]:offsets[i + 1]]``.

        Yields:
            In the stream's order: `LogBatch`es (never empty, with memory of their own) and the
            other items between them.

        Raises:
            DecodeError: the stream is not pgoutput; what precedes the fault is yielded first.
        """
        data = readonly(data, np.uint8)
        offsets = readonly(offsets, np.int64)
        if len(offsets) == 0:
            raise self._fault(_BAD_OFFSETS)
        if offsets[-1] - offsets[0] <= MAX_FEED_BYTES:
            yield from self._scan(data, offsets)
            return
        first = 0
        while first < len(offsets) - 1:
            after = int(np.searchsorted(offsets, offsets[first] + MAX_FEED_BYTES, "right"))
            after = max(after, first + 2)
            yield from self._scan(data, offsets[first:after])
            first = after - 1

    # -------------------------------------------------------------- batches

    def _scan(self, data: UInt8s, offsets: Int64s) -> Iterator[Scanned]:
        count = len(offsets) - 1
        size = int(offsets[-1]) - int(offsets[0])
        if size < 0 or offsets[0] < 0 or offsets[-1] > len(data):
            raise self._fault(_BAD_OFFSETS)
        if size > np.iinfo(np.int32).max:
            raise self._fault("a message is larger than the protocol allows")
        state = self._state
        kind = np.empty(count, dtype=np.uint8)
        schema_id = np.empty(count, dtype=np.int32)
        position = np.empty(count, dtype=np.int64)
        ordinal = np.empty(count, dtype=np.int64)
        xid = np.empty(count, dtype=np.int64)
        commit_ts = np.empty(count, dtype=np.int64)
        payload_offsets = np.empty(count + 1, dtype=np.int32)
        payload = np.empty(size, dtype=np.uint8)
        first = 0
        while True:
            stopped = scan(
                data,
                offsets,
                first,
                self._relations,
                self._schemas,
                state,
                kind,
                schema_id,
                position,
                ordinal,
                xid,
                commit_ts,
                payload_offsets,
                payload,
            )
            cursor = int(state[CURSOR])
            records = slice(first, first + int(state[RECORDS]))
            used = int(state[PAYLOAD_BYTES])
            if records.stop > first:
                base = int(offsets[first] - offsets[0])
                # A batch that is a small part of the input must not keep all of its memory.
                keep = _as_is if 2 * used >= size else np.array
                batch = LogBatch(
                    kind=keep(kind[records]),
                    schema_id=keep(schema_id[records]),
                    position=keep(position[records]),
                    ordinal=keep(ordinal[records]),
                    xid=keep(xid[records]),
                    commit_ts=keep(commit_ts[records]),
                    payload_offsets=keep(payload_offsets[first : records.stop + 1]),
                    payload=keep(payload[base : base + used]),
                    resume=self.resume,
                )
                yield self._excluded.remove(batch)
            if stopped == END:
                return
            start, end = int(offsets[cursor]), int(offsets[cursor + 1])
            if stopped != SPECIAL:
                tag = data[start : start + 1].tobytes()
                name = repr(tag.decode()) if tag.isalpha() else "of unknown kind"
                raise self._fault(f"message {name} {_FAULTS[stopped]}")
            if data[start] != _MESSAGE:
                yield from self._special(data[start:end].tobytes())
                first = cursor + 1
                continue
            # Any role may write millions of them: process a run of them without calling the kernel.
            while start < end <= offsets[-1] and data[start] == _MESSAGE:
                end_of_message = min(end, start + MAX_MESSAGE_BYTES + 1)
                yield from self._special(data[start:end_of_message].tobytes())
                cursor += 1
                if cursor == count:
                    break
                start, end = end, int(offsets[cursor + 1])
            first = cursor

    # -------------------------------------------------------------- single messages

    def _special(self, message: bytes) -> Iterator[Scanned]:
        tag = message[:1]
        try:
            if tag == b"R":
                relation = parse_relation(message)
                if self._bindings.pop(relation.relation_id, None) is not None:
                    self._index_bindings()
                yield relation
            elif tag == b"Y":
                yield parse_type(message)
            elif tag == b"M":
                yield from self._logical_message(message)
            elif tag == b"T":
                yield from self._truncate(message)
            else:
                (relation_id,) = struct.unpack_from("!I", message, 1)
                if self._count_one():
                    yield WatchedRow(relation_id, RecordKind(message[0]), message, *self._last())
        except (struct.error, IndexError, ValueError) as error:
            name = repr(tag.decode())
            raise self._fault(f"message {name} {_FAULTS[MALFORMED]}") from error

    def _logical_message(self, message: bytes) -> Iterator[LogicalMessage]:
        flags, lsn, prefix, content = parse_message(message)
        if flags & 1:
            self._require_transaction("M")
            if self._count_one():
                xid, commit_ts = int(self._state[XID]), int(self._state[COMMIT_TS])
                yield LogicalMessage(True, prefix, content, *self._last(), xid, commit_ts)
        elif not self.in_transaction:
            if (lsn, 0) > self._last():
                self._state[LAST_POSITION] = lsn
                self._state[LAST_ORDINAL] = 0
                yield LogicalMessage(False, prefix, content, lsn, 0)
        else:
            # Never sent there with streaming off; if it is, it must not move the resume position.
            yield LogicalMessage(False, prefix, content, lsn, 0)

    def _truncate(self, message: bytes) -> Iterator[LogBatch | WatchedRow]:
        self._require_transaction("T")
        count, options = struct.unpack_from("!iB", message, 1)
        if count < 0 or len(message) != 6 + 4 * count:
            raise ValueError("length")
        narrowed: list[tuple[int, int, bytes]] = []
        for (relation_id,) in struct.iter_unpack("!I", message[6:]):
            schema_id = self._bindings.get(relation_id)
            if schema_id is None:
                raise self._fault(f"message 'T' {_FAULTS[UNBOUND_RELATION]}")
            if schema_id == WATCHED and narrowed:
                yield self._truncates(narrowed)
                narrowed = []
            if not self._count_one() or schema_id == 0:
                continue
            payload = struct.pack("!ciBI", b"T", 1, options, relation_id)
            if schema_id == WATCHED:
                yield WatchedRow(relation_id, RecordKind.TRUNCATE, payload, *self._last())
            else:
                narrowed.append((schema_id, self._last()[1], payload))
        if narrowed:
            yield self._truncates(narrowed)

    def _truncates(self, narrowed: list[tuple[int, int, bytes]]) -> LogBatch:
        """One record for each (schema id, ordinal, payload), all of the open transaction."""
        state = self._state
        return LogBatch.of_transaction(
            RecordKind.TRUNCATE,
            narrowed,
            position=int(state[FINAL_LSN]),
            xid=int(state[XID]),
            commit_ts=int(state[COMMIT_TS]),
            resume=self.resume,
        )

    # -------------------------------------------------------------- state

    def _last(self) -> tuple[int, int]:
        return int(self._state[LAST_POSITION]), int(self._state[LAST_ORDINAL])

    def _count_one(self) -> bool:
        """Count a record of the open transaction; False if it is before the resume position."""
        state = self._state
        here = int(state[FINAL_LSN]), int(state[NEXT_ORDINAL])
        state[NEXT_ORDINAL] += 1
        if here <= self._last():
            return False
        state[LAST_POSITION], state[LAST_ORDINAL] = here
        return True

    def _require_transaction(self, tag: str) -> None:
        if not self.in_transaction:
            raise self._fault(f"message {tag!r} {_FAULTS[OUTSIDE_TRANSACTION]}")

    def _index_bindings(self) -> None:
        ids = sorted(self._bindings)
        self._relations: Int64s = readonly(np.array(ids, dtype=np.int64), np.int64)
        schemas = np.array([self._bindings[relation_id] for relation_id in ids], dtype=np.int32)
        self._schemas: Int32s = readonly(schemas, np.int32)

    def _fault(self, what: str) -> DecodeError:
        state = self._state
        if self.in_transaction:
            at, ordinal = int(state[FINAL_LSN]), int(state[NEXT_ORDINAL])
            where = f"in the transaction committed at {lsn_text(at)}, record {ordinal}"
        else:
            where = f"after the transaction that ends at {lsn_text(self.commit_end)}"
        return DecodeError(f"pgoutput: {what} ({where})")


def _as_is(array: np.ndarray) -> np.ndarray:
    return array


def lsn_text(position: int) -> str:
    """Return an int64 position as PostgreSQL writes it."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"
