"""The streaming replication protocol: a walsender connection that returns pgoutput messages.

Manual: "Streaming Replication Protocol". The hot loop is `drain` (benchmarks/bench_stream.py). A
Python call for each message costs more than libpq itself, so the loop over PQgetCopyData runs in a
numba kernel without the GIL. It calls the functions of the libpq that psycopg has loaded, by their
addresses.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import select
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import psycopg
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from psycopg import pq

from tidelog.codecs.columns.kernels import copy_bytes
from tidelog.codecs.postgres.pgoutput import MAX_MESSAGE_BYTES, lsn_text
from tidelog.codecs.postgres.server_texts import ServerText
from tidelog.errors import ConnectionLostError, GapError, PreflightError, SourceError, TidelogError
from tidelog.model.records import Int64s, UInt8s
from tidelog.model.schema import double_quoted
from tidelog.sources.postgres import async_results
from tidelog.sources.postgres.connect import (
    connect_replication,
    lsn_value,
    pin_host,
    quote_literal,
)
from tidelog.sources.postgres.encodings import encoded, texts_of
from tidelog.sources.postgres.stream.slots import NEW_LOG_ADVICE
from tidelog.system.peer_check import peer_of

# HOT PATH. A COPY BOTH stream, read with libpq's own C functions in one compiled loop.

# numba annotates the body, not the function that a kernel calls.
_intrinsic: Callable[[Any], Any] = intrinsic

# What `drain` returns.
DRAINED = 0  # nothing more to read now, or within the time limit
FULL = 1  # the buffers are full; more may be available
GROW = 2  # the next message is larger than the buffer: see PENDING_LENGTH
REPLY = 3  # the server asks for a status now
ENDED = -1  # the server ended the COPY
FAILED = -2  # the connection or the stream failed: see PQerrorMessage

# Indexes of the int64 state vector that `drain` and its caller share.
MESSAGES = 0  # messages in the buffer
BYTES = 1  # bytes in the buffer
KEEPALIVE_END = 2  # wal_end of the newest keepalive, 0 if there was none
KEEPALIVE_MESSAGE = 3  # number of messages before that keepalive, in this buffer
SENT_AT = 4  # server's clock at the newest message, microseconds since 2000-01-01
PENDING_ADDRESS = 5  # a message that was taken from libpq but not yet copied
PENDING_LENGTH = 6
SCRATCH = 7  # where PQgetCopyData writes the message's address
POLLED = 8  # what poll() waits for: see `wait_for_socket`
STATE_SIZE = 9

_MANY_MORE = 4
_MUCH_BYTES = 1024  # in one wait: many thousand rows a second

# OpenSSL may hold decrypted bytes that poll() does not see: the longest delay that this causes.
_SLICE_MS = 1_000
_READS = 2  # after this many reads without a complete message, OpenSSL holds no more bytes

# Protocol: "Streaming Replication Protocol", XLogData and Primary keepalive message.
XLOG_DATA = ord("w")
XLOG_DATA_HEADER_BYTES = 25
LOGICAL_MESSAGE = ord("M")  # first byte of what XLogData holds
LOGICAL_MESSAGE_BYTES = XLOG_DATA_HEADER_BYTES + MAX_MESSAGE_BYTES + 1
KEEPALIVE = ord("k")


@dataclass(frozen=True, slots=True)
class LibpqFunctions:
    """Addresses of C functions."""

    consume_input: int
    get_copy_data: int
    free_memory: int
    sleep_us: int
    poll: int


def find_libpq_functions() -> LibpqFunctions | None:
    """The functions of the libpq that psycopg uses; None if they are not available (not fatal)."""
    for library in _candidates():
        try:
            return LibpqFunctions(
                consume_input=_address(library.PQconsumeInput),
                get_copy_data=_address(library.PQgetCopyData),
                free_memory=_address(library.PQfreemem),
                sleep_us=_address(ctypes.CDLL(None).usleep),
                poll=_address(ctypes.CDLL(None).poll),
            )
        except (AttributeError, OSError):
            continue
    return None


def free_libpq_memory(functions: LibpqFunctions, address: int) -> None:
    """Call PQfreemem."""
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(functions.free_memory)(address)


def wait_for_socket(state: Int64s, socket: int) -> None:
    """Let `drain_copy` wait until ``socket`` is readable (a struct pollfd)."""
    state[POLLED : POLLED + 1].view(np.int32)[0] = socket
    state[POLLED : POLLED + 1].view(np.int16)[2] = select.POLLIN


def _candidates() -> list[ctypes.CDLL]:
    """Library handles that resolve symbols of psycopg's libpq."""
    libraries = []
    # An extension module's handle finds its dependencies' symbols too; it must be exactly the libpq
    # that opened the connection, since PGconn's layout differs between versions.
    for name in ("psycopg_binary._psycopg", "psycopg_c._psycopg"):
        try:
            path = importlib.import_module(name).__file__
        except ImportError:
            continue
        if path is not None:
            libraries.append(ctypes.CDLL(path))
    if not libraries:
        from ctypes.util import find_library

        # psycopg's pure Python implementation loads the library that find_library names.
        path = find_library("pq")
        if path is not None:
            libraries.append(ctypes.CDLL(path))
    return libraries


def _address(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


@_intrinsic
def _call1(typing_context: Any, function: Any, argument: Any) -> Any:
    """Call ``int function(void *)`` at an address. Addresses are arguments, not constants, so that
    the compiled kernel can be cached on disk.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        prototype = ir.FunctionType(ir.IntType(32), [ir.IntType(64)])
        pointer = builder.inttoptr(arguments[0], prototype.as_pointer())
        return builder.call(pointer, [arguments[1]])

    return types.int32(types.int64, types.int64), generate


@_intrinsic
def _call3(typing_context: Any, function: Any, first: Any, second: Any, third: Any) -> Any:
    """Call ``int function(void *, void *, int)`` at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        prototype = ir.FunctionType(ir.IntType(32), [word, word, ir.IntType(32)])
        pointer = builder.inttoptr(arguments[0], prototype.as_pointer())
        return builder.call(pointer, list(arguments[1:]))

    return types.int32(types.int64, types.int64, types.int64, types.int32), generate


@_intrinsic
def _byte_at(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        return builder.load(pointer)

    return types.uint8(types.int64), generate


@numba.njit(nogil=True, cache=True)
def _int64_at(address: int) -> Any:
    value = np.int64(0)
    for index in range(8):
        value = (value << 8) | np.int64(_byte_at(address + index))
    return value


@numba.njit(nogil=True, cache=True)
def drain(
    consume_input: int,
    get_copy_data: int,
    free_memory: int,
    sleep_us: int,
    connection: int,
    buffer: UInt8s,
    offsets: Int64s,
    state: Int64s,
    naps: int,
    nap_us: int,
) -> Any:
    """Append the payloads that have arrived to ``buffer``, back to back; returns one of the codes
    above.

    Args:
        consume_input: address of PQconsumeInput.
        get_copy_data: address of PQgetCopyData.
        free_memory: address of PQfreemem.
        sleep_us: address of usleep.
        connection: address of the PGconn.
        buffer: uint8[capacity].
        offsets: int64[max_messages + 1], offsets[0] being 0.
        state: int64[STATE_SIZE], read and written.
        naps: number of waits for more after the first data; `_MANY_MORE` times as many while
            `_MUCH_BYTES` arrive in each wait. The walsender flushes its socket after every message;
            waking a reader in poll() for each of them costs both sides more than the message
            itself. The work of each call costs as much as many messages.
        nap_us: length of each wait.
    """
    scratch = state.ctypes.data + 8 * SCRATCH
    target = buffer.ctypes.data
    capacity = len(buffer)
    most = len(offsets) - 1
    fresh = False  # has PQconsumeInput been called since the last message?
    left = naps * _MANY_MORE
    before = np.int64(0)
    while True:
        if state[PENDING_ADDRESS] != 0:
            address = state[PENDING_ADDRESS]
            length = state[PENDING_LENGTH]
        else:
            length = np.int64(_call3(get_copy_data, connection, scratch, np.int32(1)))
            if length < 0:
                return length
            if length == 0:
                if not fresh:
                    if _call1(consume_input, connection) == 0:
                        return FAILED
                    fresh = True
                    continue
                if left <= 0 or state[MESSAGES] == 0:
                    return DRAINED
                left -= 1 if state[BYTES] - before >= _MUCH_BYTES else _MANY_MORE
                before = state[BYTES]
                _call1(sleep_us, np.int64(nap_us))
                fresh = False
                continue
            address = state[SCRATCH]
            fresh = False

        tag = _byte_at(address)
        if tag == XLOG_DATA:
            if (
                length > LOGICAL_MESSAGE_BYTES
                and _byte_at(address + XLOG_DATA_HEADER_BYTES) == LOGICAL_MESSAGE
            ):
                length = np.int64(LOGICAL_MESSAGE_BYTES)
            size = length - XLOG_DATA_HEADER_BYTES
            if state[MESSAGES] == most or state[BYTES] + size > capacity:
                state[PENDING_ADDRESS] = address
                state[PENDING_LENGTH] = length
                return GROW if state[MESSAGES] == 0 else FULL
            copy_bytes(target + state[BYTES], address + XLOG_DATA_HEADER_BYTES, size)
            state[SENT_AT] = _int64_at(address + 17)
            state[BYTES] += size
            state[MESSAGES] += 1
            offsets[state[MESSAGES]] = state[BYTES]
        reply_now = False
        if tag == KEEPALIVE:
            state[KEEPALIVE_END] = _int64_at(address + 1)
            state[KEEPALIVE_MESSAGE] = state[MESSAGES]
            state[SENT_AT] = _int64_at(address + 9)
            reply_now = _byte_at(address + 17) != 0
        state[PENDING_ADDRESS] = 0
        _call1(free_memory, address)
        if reply_now:
            return REPLY


@numba.njit(nogil=True, cache=True)
def drain_copy(
    consume_input: int,
    get_copy_data: int,
    free_memory: int,
    poll: int,
    connection: int,
    buffer: UInt8s,
    state: Int64s,
    silence_ms: int,
) -> Any:
    """Append the rows of a COPY OUT to ``buffer``, waiting for them.

    Returns ENDED, FAILED, GROW, or DRAINED after ``silence_ms`` without a byte (0: no limit). The
    other arguments are as in `drain`; MESSAGES counts rows. A row that does not fit stays pending.
    Everything, including the waits, happens here, since getting the interpreter lock may take
    longer than a row takes to arrive.
    """
    scratch = state.ctypes.data + 8 * SCRATCH
    polled = state.ctypes.data + 8 * POLLED
    target = buffer.ctypes.data
    capacity = len(buffer)
    slice_ms = min(silence_ms, _SLICE_MS) if silence_ms else _SLICE_MS
    reads, silent_ms = 0, 0
    while True:
        if state[PENDING_ADDRESS] != 0:
            address = state[PENDING_ADDRESS]
            length = state[PENDING_LENGTH]
        else:
            length = np.int64(_call3(get_copy_data, connection, scratch, np.int32(1)))
            if length < 0:
                return length
            if length == 0:
                if reads < _READS:
                    if _call1(consume_input, connection) == 0:
                        return FAILED
                    reads += 1
                    continue
                reads = 0
                if _call3(poll, polled, np.int64(1), np.int32(slice_ms)) != 0:
                    silent_ms = 0
                    continue
                silent_ms += slice_ms
                if silence_ms and silent_ms >= silence_ms:
                    return DRAINED
                continue
            address = state[SCRATCH]
            reads, silent_ms = 0, 0
        if state[BYTES] + length > capacity:
            state[PENDING_ADDRESS] = address
            state[PENDING_LENGTH] = length
            return GROW
        copy_bytes(target + state[BYTES], address, length)
        state[BYTES] += length
        state[MESSAGES] += 1
        state[PENDING_ADDRESS] = 0
        _call1(free_memory, address)


# The connection.


def replication_error(
    doing: str, state: str, message: str, streamed_to: int | None
) -> TidelogError:
    """Convert a server's error to Tidelog's error.

    Args:
        doing: what was attempted.
        state: the error's SQLSTATE.
        message: the error's text, without values.
        streamed_to: the acknowledged position; None: streaming has not started.
    """
    if "requested WAL segment" in message or state == "58P01":
        return GapError(
            f"{doing}: {message}; the source has removed WAL that was not captured yet. "
            f"{NEW_LOG_ADVICE}"
        )
    if state == "42704" and streamed_to is not None:
        # Once the stream is open, pgoutput looks up nothing else by name.
        return GapError(
            f"{doing}: {message} where a change after {lsn_text(streamed_to)} was "
            "written, so it can't be decoded: the publication was dropped and recreated. "
            f"{NEW_LOG_ADVICE}"
        )
    if state in ("22P05", "22021") and streamed_to is not None:
        # The server's text quotes the bytes. The error would recur at the same position.
        return GapError(
            f"{doing}: a value that was written after {lsn_text(streamed_to)} holds "
            "bytes without a character, which the server can't convert from the database's "
            f"encoding (SQLSTATE {state}). Fix the value first. {NEW_LOG_ADVICE}"
        )
    if state == "42501":
        return PreflightError(f"{doing}: {message}: ALTER ROLE <user> REPLICATION")
    if state in ("42704", "55000"):  # undefined object, not in prerequisite state
        return SourceError(f"{doing}: {message}; `tidelog check` says what to do")
    return ConnectionLostError(f"{doing}: {message}")


# Small, so that a batch is scanned before the socket is full and the server has to wait.
DEFAULT_BUFFER_BYTES = 256 << 10
BUFFER_MESSAGES = 32_768

# Like wal_receiver_status_interval, but far below the default wal_sender_timeout of 60 s.
STATUS_INTERVAL_S = 5.0
# A newly acknowledged position is reported at most this often; each may write the slot to disk.
ACKNOWLEDGE_INTERVAL_S = 0.25
# A server that sends nothing for this long, although asked to reply, is gone. It may only be busy:
# one whose host does not answer is detected sooner, see `tidelog.system.peer_check`.
SILENCE_LIMIT_S = 60.0
ASK_EVERY_S = 1.0
"""Interval of requests to a silent server for its position: without them it sends one twice a
minute.
"""

# After the first data: wait for more, NAPS times NAP_US (5 ms, a tenth of a flush interval).
NAPS = 10
NAP_US = 500

EPOCH_2000_S = 946_684_800
SSL_REQUEST = struct.pack("!ii", 8, 80_877_103)
"""Any server answers this message with one byte (manual, "Message Formats")."""


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """The result of IDENTIFY_SYSTEM."""

    system: str
    timeline: int
    flushed: int
    database: str


@dataclass(frozen=True, slots=True)
class ReceivedMessages:
    """Messages back to back, valid until the next `ReplicationStream.receive`.

    Attributes:
        data: uint8[...]; offsets: int64[n + 1], as `PgoutputScanner.feed` takes them.
        sent_up_to: if not None, the server has sent everything before this position (all of
            ``data``).
        sent_at: the server's clock when it sent the newest message, microseconds since 1970.
    """

    data: UInt8s
    offsets: Int64s
    sent_up_to: int | None
    sent_at: int


class ReplicationStream:
    """One walsender connection. Used by one thread, except `acknowledge`.

    Args:
        dsn: connection string.
        purpose: the end of application_name, after ``tidelog-``.
        buffer_bytes: most that one `receive` returns; a single larger message is still returned.
    """

    def __init__(
        self,
        dsn: str,
        *,
        purpose: str = "capture",
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
    ) -> None:
        self._buffer_bytes = buffer_bytes
        self._buffer: UInt8s = np.empty(buffer_bytes, dtype=np.uint8)
        self._offsets: Int64s = np.zeros(BUFFER_MESSAGES + 1, dtype=np.int64)
        self._state: Int64s = np.zeros(STATE_SIZE, dtype=np.int64)
        self._functions = find_libpq_functions()
        self._pending: bytes | None = None  # like PENDING_ADDRESS, for the loop without libpq
        self._acknowledged = 0
        self._reported = 0
        self._reported_at = 0.0
        self._heard_at = 0.0
        self._streaming = False
        self._pgconn = connect_replication(dsn, purpose=purpose)
        self._reach = peer_of(self._pgconn.socket, SSL_REQUEST)
        self.dsn = pin_host(dsn, self._pgconn)
        """The connection string for other connections to the same server."""
        # Compiles or loads the kernel now: libpq reports that no COPY is in progress.
        self._heard_at = time.monotonic()
        self._drain(0)

    @property
    def texts(self) -> ServerText | None:
        """The converter of the messages' texts; None: they are UTF-8."""
        return texts_of(self._pgconn)

    @property
    def acknowledged(self) -> int:
        return self._acknowledged

    def identify(self) -> SystemIdentity:
        """The server's identity. Only before `start`."""
        row = self._query("IDENTIFY_SYSTEM")
        return SystemIdentity(row[0], int(row[1]), lsn_value(row[2]), row[3])

    def in_recovery(self) -> bool:
        """Return True if the server is a standby now. Only before `start`."""
        return bool(self._query("SELECT pg_catalog.pg_is_in_recovery()")[0] == "t")

    def timeline_history(self, timeline: int) -> str:
        """The server's timeline history file. Only before `start`."""
        return self._query(f"TIMELINE_HISTORY {timeline}")[1]

    def start(self, slot: str, position: int, publications: list[str]) -> None:
        """Send START_REPLICATION from ``position``, a commit's end, which counts as
        acknowledged.
        """
        names = ",".join(double_quoted(name) for name in publications)
        command = (
            f"START_REPLICATION SLOT {double_quoted(slot)} LOGICAL {lsn_text(position)} "
            f"(proto_version '1', messages 'true', publication_names {quote_literal(names)})"
        )
        result = self._command(encoded(self._pgconn, command))
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise self._failure(result, "starting replication")
        self._pgconn.nonblocking = 1
        self._acknowledged = self._reported = position
        self._heard_at = time.monotonic()
        self._streaming = True
        self.keepalive(now=True)

    def receive(self, timeout_s: float) -> ReceivedMessages | None:
        """The messages that have arrived, waiting at most ``timeout_s`` for the first; None if
        there are none. Raises ConnectionLostError, or the server's error (`replication_error`).
        """
        self.keepalive()
        outcome = self._drain(NAPS)
        if outcome == DRAINED and not self._has_received():
            deadline = time.monotonic() + timeout_s
            while outcome == DRAINED and not self._has_received():
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                self._wait(min(remaining, STATUS_INTERVAL_S / 4))
                self.keepalive()
                outcome = self._drain(NAPS, again=True)
        if outcome == GROW:
            self._buffer = np.empty(self._pending_bytes(), dtype=np.uint8)
            outcome = self._drain(NAPS, again=True)
        if outcome == REPLY:
            self.keepalive(now=True)
        if outcome in (ENDED, FAILED) and not self._has_received():
            raise self._ended()
        return self._received()

    def acknowledge(self, position: int) -> None:
        """Allow the server to remove everything before ``position``; never moves back. May be
        called by any thread; the next `receive` or `keepalive` reports it.
        """
        self._acknowledged = max(self._acknowledged, position)

    def keepalive(self, *, now: bool = False) -> None:
        """Report the acknowledged position if it is due. Call it at least every few seconds, also
        while a slow consumer delays `receive`.
        """
        if not self._streaming:
            return
        clock = time.monotonic()
        since = clock - self._reported_at
        acknowledged = self._acknowledged
        due = since >= STATUS_INTERVAL_S
        due |= acknowledged > self._reported and since >= ACKNOWLEDGE_INTERVAL_S
        silent = clock - self._heard_at >= ASK_EVERY_S
        due |= silent and since >= ASK_EVERY_S
        if not (now or due):
            return
        # Standby status update: written, flushed, applied, our clock, whether to reply.
        status = struct.pack(
            "!cqqqqB",
            b"r",
            acknowledged,
            acknowledged,
            acknowledged,
            int((time.time() - EPOCH_2000_S) * 1_000_000),
            silent,
        )
        try:
            self._pgconn.put_copy_data(status)
            self._pgconn.flush()
        except psycopg.Error as error:
            raise ConnectionLostError(f"the replication connection was lost: {error}") from None
        self._reported = acknowledged
        self._reported_at = clock

    def close(self) -> None:
        """Report the acknowledged position a last time and disconnect. May be called twice."""
        if self._streaming and self._pgconn.status == pq.ConnStatus.OK:
            with contextlib.suppress(psycopg.Error, ConnectionLostError):
                if self._acknowledged > self._reported:
                    self.keepalive(now=True)
                self._pgconn.put_copy_end()
                self._pgconn.flush()
        self._streaming = False
        if self._state[PENDING_ADDRESS] and self._functions is not None:
            free_libpq_memory(self._functions, int(self._state[PENDING_ADDRESS]))
            self._state[PENDING_ADDRESS] = 0
        self._pgconn.finish()

    # ------------------------------------------------------------------ internals

    def _drain(self, naps: int, *, again: bool = False) -> int:
        """Fill the buffers; ``again`` keeps the messages of this receive."""
        state = self._state
        if not again:
            state[MESSAGES] = 0
            state[BYTES] = 0
            state[KEEPALIVE_END] = 0
            if len(self._buffer) > self._buffer_bytes:
                self._buffer = np.empty(self._buffer_bytes, dtype=np.uint8)
        if self._functions is None:
            outcome = self._drain_in_python()
        else:
            address = self._pgconn.pgconn_ptr  # type: ignore[attr-defined]
            if address is None:
                raise ConnectionLostError("the replication connection is closed")
            outcome = drain(
                self._functions.consume_input,
                self._functions.get_copy_data,
                self._functions.free_memory,
                self._functions.sleep_us,
                address,
                self._buffer,
                self._offsets,
                state,
                naps,
                NAP_US,
            )
        if self._has_received():
            self._heard_at = time.monotonic()
        else:
            silent_s = time.monotonic() - self._heard_at
            if silent_s > SILENCE_LIMIT_S or self._reach.is_lost(silent_s):
                raise ConnectionLostError(
                    f"the server sent nothing for {silent_s:.0f} s, although asked to reply"
                )
        return outcome

    def _drain_in_python(self) -> int:
        """Like `drain`, message by message in Python."""
        state, buffer, offsets = self._state, self._buffer, self._offsets
        header = XLOG_DATA_HEADER_BYTES
        fresh = False
        while True:
            if self._pending is not None:
                message = self._pending
            else:
                try:
                    length, data = self._pgconn.get_copy_data(1)
                    if length == 0:
                        if fresh:
                            return DRAINED
                        self._pgconn.consume_input()
                        fresh = True
                        continue
                except psycopg.Error:
                    return FAILED
                if length < 0:
                    return ENDED
                message, fresh = bytes(data), False
                if message[header : header + 1] == b"M":
                    message = message[:LOGICAL_MESSAGE_BYTES]
            self._pending = None
            if message[0] == XLOG_DATA:
                count, used = int(state[MESSAGES]), int(state[BYTES])
                end = used + len(message) - XLOG_DATA_HEADER_BYTES
                if count == len(offsets) - 1 or end > len(buffer):
                    self._pending = message
                    return FULL if count else GROW
                payload = memoryview(message)[XLOG_DATA_HEADER_BYTES:]
                buffer[used:end] = np.frombuffer(payload, dtype=np.uint8)
                (state[SENT_AT],) = struct.unpack_from("!q", message, 17)
                offsets[count + 1] = end
                state[MESSAGES], state[BYTES] = count + 1, end
            elif message[0] == KEEPALIVE:
                end, sent_at, reply = struct.unpack_from("!qqB", message, 1)
                state[KEEPALIVE_END], state[SENT_AT] = end, sent_at
                state[KEEPALIVE_MESSAGE] = state[MESSAGES]
                if reply:
                    return REPLY

    def _pending_bytes(self) -> int:
        if self._pending is not None:
            return len(self._pending)
        return int(self._state[PENDING_LENGTH])

    def _has_received(self) -> bool:
        return bool(self._state[MESSAGES] or self._state[KEEPALIVE_END])

    def _received(self) -> ReceivedMessages | None:
        if not self._has_received():
            return None
        count = int(self._state[MESSAGES])
        sent_up_to: int | None = None
        # Only a keepalive after the last message says that nothing else precedes its position.
        if self._state[KEEPALIVE_END] and self._state[KEEPALIVE_MESSAGE] == count:
            sent_up_to = int(self._state[KEEPALIVE_END])
        used = int(self._state[BYTES])
        sent_at = int(self._state[SENT_AT]) + EPOCH_2000_S * 1_000_000
        return ReceivedMessages(
            self._buffer[:used], self._offsets[: count + 1], sent_up_to, sent_at
        )

    def _wait(self, timeout_s: float) -> None:
        waiter = select.poll()
        waiter.register(self._pgconn.socket, select.POLLIN)
        waiter.poll(timeout_s * 1000)

    def _query(self, command: str) -> list[str]:
        result = self._command(command.encode())
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise self._failure(result, command.split()[0])
        values = (result.get_value(0, column) for column in range(result.nfields))
        texts = self.texts
        return [
            (value or b"").decode() if texts is None else texts.decode(value or b"")
            for value in values
        ]

    def _command(self, command: bytes) -> pq.abc.PGresult:
        try:
            return async_results.run_command(self._pgconn, command)
        except psycopg.Error as error:
            raise ConnectionLostError(f"the replication connection was lost: {error}") from None

    def _ended(self) -> TidelogError:
        try:
            result = next(async_results.results(self._pgconn, async_results.END_S), None)
        except psycopg.Error:
            result = None
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            return self._failure(result, "streaming")
        reason = self._pgconn.get_error_message().strip().splitlines()
        return ConnectionLostError(
            f"the replication connection was lost: {reason[0] if reason else 'server closed it'}"
        )

    def _failure(self, result: pq.abc.PGresult, doing: str) -> TidelogError:
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        primary = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"connection lost"
        message = primary.decode(errors="replace")
        behind = self._acknowledged if self._streaming else None
        return replication_error(doing, state, message, behind)
