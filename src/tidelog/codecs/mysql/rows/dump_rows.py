"""Rows of a SELECT in MySQL's text protocol → DUMP_ROW records, as the bytes arrive.

::

    rows = ResultRows(schema)              # behind the column definitions of the result set
    while not rows.ended:
        rows.feed(buffer[: socket.recv_into(buffer)])
    batch = rows.batch()                   # DUMP_ROW records in the order of the rows
    rest = rows.rest                       # bytes behind the result set, none as a rule

The SELECT names the schema's columns in its order, plain but for FLOAT and DOUBLE (``col * 1e0``),
under ``SET NAMES utf8mb4``, ``time_zone = '+00:00'`` and an ``sql_mode`` without
PAD_CHAR_TO_FULL_LENGTH. What the server's texts and the log's differ in (BIT, geometries, ZEROFILL,
surrogates) is made equal here. Any number of bytes may be fed at once; a row of 16 MiB and more,
which comes in several packets, is put together.
"""

from __future__ import annotations

import struct

import numpy as np

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.charsets import charset_of
from tidelog.codecs.mysql.rows import dump_rows_kernel as kernel
from tidelog.codecs.mysql.texts.multibyte_texts import SURROGATES
from tidelog.codecs.postgres.tuples import dump_batch
from tidelog.errors import ChunkError, DecodeError
from tidelog.model.records import Int64s, Kind, LogBatch, UInt8s
from tidelog.model.schema import Column, TableSchema

_MAX_PAYLOAD_BYTES = int(np.iinfo(np.int32).max)
_FIRST_BYTES = 1 << 20


class ResultError(ChunkError):
    """The server ended the result set with an error; ``code`` is its number.

    The server's message is not shown: it may hold values.
    """

    def __init__(self, where: str, code: int, state: str) -> None:
        super().__init__(f"{where}: the server ended the SELECT with error {code} ({state})")
        self.code = code
        self.state = state


def form_of(column: Column) -> int:
    """What the kernel must do to the text of a column's cells."""
    if column.type_id == types.GEOMETRY:
        return kernel.GEOMETRY
    if column.type_id == types.BIT:
        return kernel.BIT_BOOL if column.logical == "bool" else kernel.BIT
    if column.type_id in types.NUMERIC and column.type_id not in (types.FLOAT, types.DOUBLE):
        return kernel.NUMBER
    if charset_of(types.collation(column)) in SURROGATES:
        return kernel.WIDE
    return kernel.AS_IS


class ResultRows:
    """One result set's rows. Used by one thread.

    Attributes:
        ended: has the packet come that ends the result set?
        rest: what was fed behind that packet.
        rows: how many rows there are so far.
        payload_bytes: of the records so far.
    """

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        forms = {column.name: form_of(column) for column in schema.columns}
        # A key stays what the server compares: the next chunk begins behind it.
        forms |= {n: kernel.AS_IS for n in schema.match_key if forms[n] == kernel.WIDE}
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
        """Take received bytes; they may be overwritten afterwards.

        Raises:
            ResultError: the server reports an error instead of more rows.
            DecodeError: the bytes are no rows of as many columns.
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
            if status == kernel.MORE:
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
        return dump_batch(Kind.DUMP_ROW, self._schema.schema_id, offsets, payload)

    def take(self) -> LogBatch:
        """The rows so far; those that follow begin anew."""
        taken = self.batch()
        self._payload = np.empty(_FIRST_BYTES, dtype=np.uint8)
        self.rows = self.payload_bytes = 0
        return taken

    def _rows_of(self, data: UInt8s) -> int:
        """Write the rows of the whole packets in ``data``; why the kernel stopped."""
        columns = len(self._forms)
        most = len(data) // (4 + max(columns, 1)) + 1
        self._make_room(len(data), most)
        status: int = kernel.put_rows(
            data, self._forms, self._payload, self.payload_bytes, self._offsets, self.rows,
            self._state,
        )  # fmt: skip
        self.payload_bytes = int(self._state[1])
        self.rows = int(self._state[2])
        return status

    def _make_room(self, size: int, rows: int) -> None:
        row_bytes = kernel.HEADER_BYTES + len(self._forms) * kernel.CELL_BYTES
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
        """Handle the packet at ``data`` that is no plain row; what follows it, None if it is not
        whole yet.
        """
        if status == kernel.CONTINUED:
            return self._long_row(data)
        size = _length(data)
        packet = data[4 : 4 + size].tobytes()
        if status == kernel.END:
            self.ended = True
            self.rest = data[4 + size :].tobytes()
            return data[:0]
        if status == kernel.ERROR and size >= 3:
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
        """Put a row together that takes several packets."""
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
        end: int = kernel.put_row(row, 0, len(row), self._forms, self._payload, self.payload_bytes)
        if end < 0:
            return self._other(kernel.MALFORMED, data)
        self.payload_bytes = end
        self.rows += 1
        self._offsets[self.rows] = end
        return data[size:]


def _row_bytes(data: UInt8s) -> int:
    """How many bytes the row at ``data`` has with its packets' headers, as far as can be told."""
    at = 0
    while True:
        if at + 4 > len(data):
            return at + 4
        size = _length(data[at:])
        at += 4 + size
        if size < kernel.PACKET_MAX:
            return at


def _length(data: UInt8s) -> int:
    return int(data[0]) | int(data[1]) << 8 | int(data[2]) << 16
