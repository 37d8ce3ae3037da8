"""PostgreSQL's pgoutput stream (protocol version 1) → records of the event log, sans-IO.

`PgoutputScanner` takes the payloads of XLogData messages and gives `LogBatch`es, with what a
consumer must see in its place between them. Rows stay wire bytes; nothing here decodes a value.

**Ordinals.** Every row message, every transactional logical message and every relation of a
truncate counts one within its transaction, from 0, before any filter: the count depends on the wire
alone, so that ``(position, ordinal)`` names the same record after a restart with other filters.

**Truncate.** One message may name several relations. Each captured one gets a record of its own,
whose payload is the message narrowed to that relation.

**Stream Abort** is the one message of a later protocol version that is skipped: PostgreSQL 18 sends
it to everyone (`scan_kernel`). Anything else that streaming would send is an error.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from tidelog.codecs.postgres import scan_kernel as kernel
from tidelog.codecs.postgres.messages import (
    MAX_MESSAGE_BYTES,
    LogicalMessage,
    RelationSeen,
    RowOf,
    TypeSeen,
    parse_message,
    parse_relation,
    parse_type,
)
from tidelog.codecs.postgres.scan_kernel import WATCHED
from tidelog.errors import DecodeError
from tidelog.model.records import Int32s, Int64s, Kind, LogBatch, Resume, UInt8s, readonly

__all__ = [
    "START",
    "LogicalMessage",
    "PgoutputScanner",
    "RelationSeen",
    "RowOf",
    "Scanned",
    "TypeSeen",
]

START = Resume(acknowledge=0, position=0, ordinal=-1)
"""Resume of a log that holds nothing yet."""

MAX_FEED_BYTES = 1 << 30
"""A batch's payload offsets are int32; larger inputs are scanned in parts."""

_FAULTS = {
    kernel.MALFORMED: "is torn or malformed",
    kernel.OUTSIDE_TRANSACTION: "stands outside a transaction",
    kernel.NESTED_BEGIN: "begins a transaction inside another one",
    kernel.COMMIT_MISMATCH: "does not end the transaction that was begun",
    kernel.OUT_OF_ORDER: "begins a transaction that was committed before the previous one",
    kernel.UNBOUND_RELATION: "is of a relation that was not announced",
    kernel.UNKNOWN_MESSAGE: "is unknown to protocol version 1 (is streaming or two_phase on?)",
    kernel.INSIDE_TRANSACTION: "stands inside a transaction",
}
_MESSAGE = ord("M")
_MISFIT = "message offsets do not fit the data"


Scanned = LogBatch | RelationSeen | TypeSeen | LogicalMessage | RowOf


class PgoutputScanner:
    """Scans one stream from START_REPLICATION on. Not thread-safe; of no use after an error.

    Args:
        resume: records up to its ``(position, ordinal)`` are skipped, None: nothing is.
        xid_epoch_base: the server's next transaction id as 64 bits when the stream starts;
            the wire's 32-bit ids are widened to the nearest value.
    """

    def __init__(self, resume: Resume | None = None, xid_epoch_base: int = 0) -> None:
        begin = resume or START
        self._acknowledged = begin.acknowledge
        self._state = np.zeros(kernel.STATE_SLOTS, dtype=np.int64)
        self._state[kernel.LAST_POSITION] = begin.position
        self._state[kernel.LAST_ORDINAL] = begin.ordinal
        self._state[kernel.NEXT_XID] = xid_epoch_base
        self._bindings: dict[int, int] = {}
        self._index_bindings()
        # Compiles (or loads) the kernel now and not in the middle of the stream.
        for _ in self.feed(np.empty(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)):
            pass

    @property
    def resume(self) -> Resume:
        """Where a restart goes on once everything yielded so far is durable."""
        return Resume(
            acknowledge=self.commit_end,
            position=int(self._state[kernel.LAST_POSITION]),
            ordinal=int(self._state[kernel.LAST_ORDINAL]),
        )

    @property
    def in_transaction(self) -> bool:
        return bool(self._state[kernel.IN_TRANSACTION])

    @property
    def xid(self) -> int:
        """The id of the open transaction, or of the last one."""
        return int(self._state[kernel.XID])

    @property
    def commit_end(self) -> int:
        """End LSN of the last complete transaction, at least the resume's ``acknowledge``."""
        return max(self._acknowledged, int(self._state[kernel.COMMIT_END]))

    def bind(self, relation_id: int, schema_id: int, *, watch: bool = False) -> None:
        """Say what becomes of a relation's rows: their schema version, 0 to drop them.

        Must be called for each `RelationSeen` before the next item is taken.

        Args:
            relation_id: the relation's oid on the wire.
            schema_id: stored in each record; 0: rows are counted and dropped.
            watch: yield each row as a `RowOf` instead.
        """
        self._bindings[relation_id] = WATCHED if watch else schema_id
        self._index_bindings()

    def feed(self, data: UInt8s, offsets: Int64s) -> Iterator[Scanned]:
        """Scan messages back to back; take all items before the next feed.

        Args:
            data: uint8[...]; may be reused once the iterator is exhausted.
            offsets: int64[n + 1]; message ``i`` is ``data[offsets[i]:offsets[i + 1]]``.

        Yields:
            In the stream's order: `LogBatch`es (never empty, with memory of their own) and what
            stands between them.

        Raises:
            DecodeError: the stream is not pgoutput; what precedes the fault is yielded first.
        """
        data = readonly(data, np.uint8)
        offsets = readonly(offsets, np.int64)
        if len(offsets) == 0:
            raise self._fault(_MISFIT)
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
            raise self._fault(_MISFIT)
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
            stopped = kernel.scan(
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
            cursor = int(state[kernel.CURSOR])
            records = slice(first, first + int(state[kernel.RECORDS]))
            used = int(state[kernel.PAYLOAD_BYTES])
            if records.stop > first:
                base = int(offsets[first] - offsets[0])
                # A batch that is a small part of the input must not keep all of its memory.
                keep = _as_is if 2 * used >= size else np.array
                yield LogBatch(
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
            if stopped == kernel.END:
                return
            start, end = int(offsets[cursor]), int(offsets[cursor + 1])
            if stopped != kernel.SPECIAL:
                tag = data[start : start + 1].tobytes()
                name = repr(tag.decode()) if tag.isalpha() else "of unknown kind"
                raise self._fault(f"message {name} {_FAULTS[stopped]}")
            if data[start] != _MESSAGE:
                yield from self._special(data[start:end].tobytes())
                first = cursor + 1
                continue
            # Any role may write millions of them: all in a row, without the kernel in between.
            while start < end <= offsets[-1] and data[start] == _MESSAGE:
                end_of_looked_at = min(end, start + MAX_MESSAGE_BYTES + 1)
                yield from self._special(data[start:end_of_looked_at].tobytes())
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
                    yield RowOf(relation_id, Kind(message[0]), message, *self._last())
        except (struct.error, IndexError, ValueError) as error:
            name = repr(tag.decode())
            raise self._fault(f"message {name} {_FAULTS[kernel.MALFORMED]}") from error

    def _logical_message(self, message: bytes) -> Iterator[LogicalMessage]:
        flags, lsn, prefix, content = parse_message(message)
        if flags & 1:
            self._require_transaction("M")
            if self._count_one():
                xid, commit_ts = int(self._state[kernel.XID]), int(self._state[kernel.COMMIT_TS])
                yield LogicalMessage(True, prefix, content, *self._last(), xid, commit_ts)
        elif not self.in_transaction:
            if (lsn, 0) > self._last():
                self._state[kernel.LAST_POSITION] = lsn
                self._state[kernel.LAST_ORDINAL] = 0
                yield LogicalMessage(False, prefix, content, lsn, 0)
        else:
            # Never sent there with streaming off; if it is, it must not move our resume.
            yield LogicalMessage(False, prefix, content, lsn, 0)

    def _truncate(self, message: bytes) -> Iterator[LogBatch | RowOf]:
        self._require_transaction("T")
        count, options = struct.unpack_from("!iB", message, 1)
        if count < 0 or len(message) != 6 + 4 * count:
            raise ValueError("length")
        narrowed: list[tuple[int, int, bytes]] = []
        for (relation_id,) in struct.iter_unpack("!I", message[6:]):
            schema_id = self._bindings.get(relation_id)
            if schema_id is None:
                raise self._fault(f"message 'T' {_FAULTS[kernel.UNBOUND_RELATION]}")
            if schema_id == WATCHED and narrowed:
                yield self._truncates(narrowed)
                narrowed = []
            if not self._count_one() or schema_id == 0:
                continue
            payload = struct.pack("!ciBI", b"T", 1, options, relation_id)
            if schema_id == WATCHED:
                yield RowOf(relation_id, Kind.TRUNCATE, payload, *self._last())
            else:
                narrowed.append((schema_id, self._last()[1], payload))
        if narrowed:
            yield self._truncates(narrowed)

    def _truncates(self, narrowed: list[tuple[int, int, bytes]]) -> LogBatch:
        """One record for each (schema id, ordinal, payload), all of the open transaction."""
        state = self._state
        return LogBatch.of_transaction(
            Kind.TRUNCATE,
            narrowed,
            position=int(state[kernel.FINAL_LSN]),
            xid=int(state[kernel.XID]),
            commit_ts=int(state[kernel.COMMIT_TS]),
            resume=self.resume,
        )

    # -------------------------------------------------------------- state

    def _last(self) -> tuple[int, int]:
        return int(self._state[kernel.LAST_POSITION]), int(self._state[kernel.LAST_ORDINAL])

    def _count_one(self) -> bool:
        """Count a record of the open transaction; False if it is skipped by the resume."""
        state = self._state
        here = int(state[kernel.FINAL_LSN]), int(state[kernel.NEXT_ORDINAL])
        state[kernel.NEXT_ORDINAL] += 1
        if here <= self._last():
            return False
        state[kernel.LAST_POSITION], state[kernel.LAST_ORDINAL] = here
        return True

    def _require_transaction(self, tag: str) -> None:
        if not self.in_transaction:
            raise self._fault(f"message {tag!r} {_FAULTS[kernel.OUTSIDE_TRANSACTION]}")

    def _index_bindings(self) -> None:
        ids = sorted(self._bindings)
        self._relations: Int64s = readonly(np.array(ids, dtype=np.int64), np.int64)
        schemas = np.array([self._bindings[relation_id] for relation_id in ids], dtype=np.int32)
        self._schemas: Int32s = readonly(schemas, np.int32)

    def _fault(self, what: str) -> DecodeError:
        state = self._state
        if self.in_transaction:
            at, ordinal = int(state[kernel.FINAL_LSN]), int(state[kernel.NEXT_ORDINAL])
            where = f"in the transaction committed at {_lsn(at)}, record {ordinal}"
        else:
            where = f"after the transaction that ends at {_lsn(self.commit_end)}"
        return DecodeError(f"pgoutput: {what} ({where})")


def _as_is(array: np.ndarray) -> np.ndarray:
    return array


def _lsn(position: int) -> str:
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"
