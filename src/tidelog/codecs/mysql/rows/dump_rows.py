"""Converts rows of a SELECT in MySQL's text protocol to DUMP_ROW records, as the bytes arrive.

::

        rows = ResultRows(schema)              # after the column definitions of the result set
        while not rows.ended:
            rows.feed(buffer[: socket.recv_into(buffer)])
        batch = rows.batch()                   # DUMP_ROW records in the order of the rows
        rest = rows.rest                       # bytes after the result set, usually none

The SELECT lists the schema's columns in order, unchanged except for FLOAT and DOUBLE (``col *
1e0``), under ``SET NAMES utf8mb4``, ``time_zone = '+00:00'`` and an ``sql_mode`` without
PAD_CHAR_TO_FULL_LENGTH. Where the server's texts differ from the log's (BIT, geometries, ZEROFILL,
surrogates), they are converted here. Any number of bytes may be fed at once; a row of 16 MiB or
more, which arrives in several packets, is joined.
"""

from __future__ import annotations

import struct

import numpy as np
from numba import njit

from tidelog.codecs.byte_order import put_big_uint32
from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.cell_text.charset_texts import CHARSETS_WITH_SURROGATES
from tidelog.codecs.mysql.charsets import charset_of
from tidelog.codecs.postgres.tuples import dump_batch
from tidelog.errors import ChunkError, DecodeError
from tidelog.model.records import Int64s, LogBatch, RecordKind, UInt8s
from tidelog.model.schema import Column, TableSchema

HEADER_BYTES = 8  # tag, relation, tuple tag, column count
CELL_BYTES = 17  # tag, length; and the extra bytes of a bit field's digits

AS_IS = 0
NUMBER = 1  # without the leading zeros of ZEROFILL
GEOMETRY = 2  # without the four bytes of the SRID
BIT = 3  # bytes, to digits
BIT_BOOL = 4  # one byte, to t or f
WIDE = 5  # of a set that stores surrogates, which UTF-8 can't: a question mark for each

MORE = 0  # the kernel stopped because no whole packet follows
END = 1  # at an EOF or OK packet
ERROR = 2  # at an ERR packet
CONTINUED = 3  # at a packet that continues in the next one
MALFORMED = 4

PACKET_MAX = 0xFFFFFF
_NULL, _TEXT = ord("n"), ord("t")
_INSERT, _NEW = ord("I"), ord("N")


@njit(cache=True, nogil=True)
def put_row(data, at, end, forms, payload, to):  # type: ignore[no-untyped-def]
    """Write the row at ``data[at:end]`` to ``payload[to:]``; returns its end, -1 if it is
    malformed.
    """
    columns = len(forms)
    payload[to] = _INSERT
    put_big_uint32(payload, to + 1, 0)
    payload[to + 5] = _NEW
    payload[to + 6] = columns >> 8
    payload[to + 7] = columns & 0xFF
    to += HEADER_BYTES
    for column in range(columns):
        if at >= end:
            return -1
        first = np.int64(data[at])
        at += 1
        if first == 0xFB:
            payload[to] = _NULL
            to += 1
            continue
        size = first
        if first >= 0xFC:
            more = 2 if first == 0xFC else 3 if first == 0xFD else 8
            if first == 0xFF or at + more > end:
                return -1
            size = np.int64(0)
            for i in range(more):
                size |= np.int64(data[at + i]) << (8 * i)
            at += more
        if size < 0 or size > end - at:
            return -1
        form = forms[column]
        stop = at + size
        payload[to] = _TEXT
        start = to + 5
        to = start
        if form == NUMBER:
            if at < stop and data[at] == 45:
                payload[to] = 45
                to += 1
                at += 1
            while at + 1 < stop and data[at] == 48 and data[at + 1] >= 48 and data[at + 1] <= 57:
                at += 1
        elif form == GEOMETRY:
            at = min(at + 4, stop)
        elif form == WIDE:
            while at < stop:
                surrogate = data[at] == 0xED and at + 2 < stop and data[at + 1] >= 0xA0
                payload[to] = 63 if surrogate else data[at]
                at += 3 if surrogate else 1
                to += 1
        elif form >= BIT:
            value = np.uint64(0)
            if size > 8:
                return -1
            while at < stop:
                value = (value << np.uint64(8)) | np.uint64(data[at])
                at += 1
            if form == BIT_BOOL:
                payload[to] = 116 if value else 102
                to += 1
            else:
                digits = 1
                rest = value // np.uint64(10)
                while rest:
                    rest //= np.uint64(10)
                    digits += 1
                for i in range(digits - 1, -1, -1):
                    payload[to + i] = 48 + np.uint8(value % np.uint64(10))
                    value //= np.uint64(10)
                to += digits
        for i in range(stop - at):
            payload[to + i] = data[at + i]
        to += stop - at
        at = stop
        put_big_uint32(payload, start - 4, to - start)
    return to if at == end else -1


@njit(cache=True, nogil=True)
def put_rows(data, forms, payload, to, offsets, rows, state):  # type: ignore[no-untyped-def]
    """Write the rows of the whole packets in ``data``; returns why it stopped.

    Args:
        data: uint8[...], received bytes, beginning at a packet's header.
        forms: uint8[columns].
        payload: uint8[...] with room, from ``to`` on, for the content of ``data``.
        to: the position to write to.
        offsets: int64[...], out: the end of each row, from index ``rows`` + 1 on.
        rows: the number of rows written before.
        state: int64[3], out: bytes of ``data`` used, new ``to``, new ``rows``.
    """
    at = 0
    size = len(data)
    status = MORE
    while at + 4 <= size:
        length = np.int64(data[at]) | (np.int64(data[at + 1]) << 8) | (np.int64(data[at + 2]) << 16)
        if length == PACKET_MAX:
            status = CONTINUED
            break
        if at + 4 + length > size:
            break
        if length == 0:
            status = MALFORMED
            break
        first = data[at + 4]
        if first == 0xFE:
            status = END
            break
        if first == 0xFF:
            status = ERROR
            break
        end = put_row(data, at + 4, at + 4 + length, forms, payload, to)
        if end < 0:
            status = MALFORMED
            break
        to = end
        rows += 1
        offsets[rows] = to
        at += int(4 + length)
    state[0] = at
    state[1] = to
    state[2] = rows
    return status


_MAX_PAYLOAD_BYTES = int(np.iinfo(np.int32).max)
_FIRST_BYTES = 1 << 20


class ResultError(ChunkError):
    """The server ended the result set with an error; ``code`` is its number. The server's message
    is not shown: it may hold values.
    """

    def __init__(self, where: str, code: int, state: str) -> None:
        super().__init__(f"{where}: the server ended the SELECT with error {code} ({state})")
        self.code = code
        self.state = state


def form_of(column: Column) -> int:
    """How the kernel converts the text of a column's cells."""
    if column.type_id == types.GEOMETRY:
        return GEOMETRY
    if column.type_id == types.BIT:
        return BIT_BOOL if column.logical == "bool" else BIT
    if column.type_id in types.NUMERIC and column.type_id not in (types.FLOAT, types.DOUBLE):
        return NUMBER
    if charset_of(types.collation(column)) in CHARSETS_WITH_SURROGATES:
        return WIDE
    return AS_IS


class ResultRows:
    """The rows of one result set. Used by one thread.

    Attributes:
        ended: True once the packet has arrived that ends the result set.
        rest: the bytes fed after that packet.
        rows: the number of rows so far.
        payload_bytes: the bytes of the records so far.
    """

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        forms = {column.name: form_of(column) for column in schema.columns}
        # A key keeps its stored text, by which the server compares: the next chunk begins after it.
        forms |= {n: AS_IS for n in schema.match_key if forms[n] == WIDE}
        self._forms = np.array([*forms.values()], dtype=np.uint8)
        self._payload: UInt8s = np.empty(_FIRST_BYTES, dtype=np.uint8)
        self._offsets: Int64s = np.zeros(1024, dtype=np.int64)
        self._state: Int64s = np.zeros(3, dtype=np.int64)
        self._tail: UInt8s = np.empty(0, dtype=np.uint8)
        self._needed = 0
        self._waiting: list[UInt8s] = []
        self._waiting_bytes = 0
        self.ended = False
        self.rest = b""
        self.rows = 0
        self.payload_bytes = 0

    def feed(self, data: bytes | bytearray | memoryview | UInt8s) -> None:
        """Process received bytes; they may be overwritten afterwards.

        Raises:
            ResultError: the server reports an error instead of more rows.
            DecodeError: the bytes are not rows with this number of columns.
            ChunkError: the rows are more than a segment can hold.
        """
        received = data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
        if self.ended:
            self.rest += received.tobytes()
            return
        if self._waiting_bytes + len(received) < self._needed:
            self._waiting.append(received.copy())
            self._waiting_bytes += len(received)
            return
        if self._waiting_bytes:
            received = np.concatenate([*self._waiting, received])
        self._waiting, self._waiting_bytes, self._needed = [], 0, 0
        while not self.ended:
            status = self._rows_of(received)
            received = received[int(self._state[0]) :]
            if status == MORE:
                break
            after = self._other(status, received)
            if after is None:
                break
            received = after
        if len(received):  # an ended result set leaves nothing
            self._waiting = [received.copy()]
            self._waiting_bytes = len(received)
            self._needed = _row_bytes(received)

    def batch(self) -> LogBatch:
        """The rows so far as DUMP_ROW records, with position, ordinal, xid and commit_ts 0."""
        used = self.payload_bytes
        payload = self._payload[:used]
        if used <= len(self._payload) * 3 // 4:
            payload = payload.copy()
        offsets = self._offsets[: self.rows + 1].astype(np.int32)
        return dump_batch(RecordKind.DUMP_ROW, self._schema.schema_id, offsets, payload)

    def take(self) -> LogBatch:
        """Return the rows so far, and start again with the following ones."""
        taken = self.batch()
        self._payload = np.empty(_FIRST_BYTES, dtype=np.uint8)
        self.rows = self.payload_bytes = 0
        return taken

    def _rows_of(self, data: UInt8s) -> int:
        """Write the rows of the whole packets in ``data``; returns why the kernel stopped."""
        columns = len(self._forms)
        most = len(data) // (4 + max(columns, 1)) + 1
        self._make_room(len(data), most)
        status: int = put_rows(
            data, self._forms, self._payload, self.payload_bytes, self._offsets, self.rows,
            self._state,
        )  # fmt: skip
        self.payload_bytes = int(self._state[1])
        self.rows = int(self._state[2])
        return status

    def _make_room(self, size: int, rows: int) -> None:
        row_bytes = HEADER_BYTES + len(self._forms) * CELL_BYTES
        needed = self.payload_bytes + size + rows * row_bytes
        if needed > len(self._payload):
            if self.payload_bytes + size > _MAX_PAYLOAD_BYTES:
                raise ChunkError(
                    f"{self._schema.table}: a chunk's rows are more than the "
                    f"{_MAX_PAYLOAD_BYTES >> 20} MiB that a segment can hold: lower "
                    "dump.chunk_rows"
                )
            grown = np.empty(max(needed, 2 * len(self._payload)), dtype=np.uint8)
            grown[: self.payload_bytes] = self._payload[: self.payload_bytes]
            self._payload = grown
        if self.rows + rows + 1 > len(self._offsets):
            size = max(self.rows + rows + 1, 2 * len(self._offsets))
            offsets = np.zeros(size, dtype=np.int64)
            offsets[: self.rows + 1] = self._offsets[: self.rows + 1]
            self._offsets = offsets

    def _other(self, status: int, data: UInt8s) -> UInt8s | None:
        """Handle the packet at ``data`` that is not a plain row; returns the bytes after it, None
        if it is incomplete.
        """
        if status == CONTINUED:
            return self._long_row(data)
        size = _length(data)
        packet = data[4 : 4 + size].tobytes()
        if status == END:
            self.ended = True
            self.rest = data[4 + size :].tobytes()
            return data[:0]
        if status == ERROR and size >= 3:
            self.ended = True
            (code,) = struct.unpack_from("<H", packet, 1)
            state = packet[4:9].decode("ascii", "replace") if packet[3:4] == b"#" else "HY000"
            self.rest = data[4 + size :].tobytes()
            raise ResultError(str(self._schema.table), code, state)
        raise DecodeError(
            f"{self._schema.table}: row {self.rows} of a SELECT is malformed or does not have "
            f"{len(self._forms)} columns"
        )

    def _long_row(self, data: UInt8s) -> UInt8s | None:
        """Join a row of several packets."""
        size = _row_bytes(data)
        if size > len(data):
            return None
        parts = []
        at = 0
        while at < size:
            part = _length(data[at:])
            parts.append(data[at + 4 : at + 4 + part])
            at += 4 + part
        row = np.concatenate(parts)
        self._make_room(len(row), 1)
        end: int = put_row(row, 0, len(row), self._forms, self._payload, self.payload_bytes)
        if end < 0:
            return self._other(MALFORMED, data)
        self.payload_bytes = end
        self.rows += 1
        self._offsets[self.rows] = end
        return data[size:]


def _row_bytes(data: UInt8s) -> int:
    """The bytes of the row at ``data`` with its packets' headers, as far as they are known."""
    at = 0
    while True:
        if at + 4 > len(data):
            return at + 4
        size = _length(data[at:])
        at += 4 + size
        if size < PACKET_MAX:
            return at


def _length(data: UInt8s) -> int:
    return int(data[0]) | int(data[1]) << 8 | int(data[2]) << 16
