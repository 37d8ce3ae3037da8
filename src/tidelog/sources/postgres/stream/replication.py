"""The streaming replication protocol: a walsender connection that returns pgoutput messages.

Manual: "Streaming Replication Protocol". The hot loop is
`tidelog.sources.postgres.stream.libpq.drain`.
"""

from __future__ import annotations

import contextlib
import select
import struct
import time
from dataclasses import dataclass

import numpy as np
import psycopg
from psycopg import pq

from tidelog.codecs.postgres.server_texts import ServerText
from tidelog.errors import ConnectionLostError, GapError, PreflightError, SourceError, TidelogError
from tidelog.model.records import Int64s, UInt8s
from tidelog.sources.postgres import async_results
from tidelog.sources.postgres.connect import (
    connect_replication,
    lsn_text,
    lsn_value,
    quote_ident,
    quote_literal,
)
from tidelog.sources.postgres.encodings import encoded, texts_of
from tidelog.sources.postgres.hosts import pin_host
from tidelog.sources.postgres.stream import libpq
from tidelog.sources.postgres.stream.slot_owner import NEW_LOG_ADVICE
from tidelog.system.peer_check import peer_of


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
            f"{doing}: {message}; the source has removed WAL that was not captured yet. Drop "
            "the slot, start a new event log and dump the tables again"
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
DEFAULT_BUFFER_MESSAGES = 32_768

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
        buffer_bytes, buffer_messages: most that one `receive` returns; a single larger message is
            still returned.
    """

    def __init__(
        self,
        dsn: str,
        *,
        purpose: str = "capture",
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        buffer_messages: int = DEFAULT_BUFFER_MESSAGES,
    ) -> None:
        self._buffer_bytes = buffer_bytes
        self._buffer: UInt8s = np.empty(buffer_bytes, dtype=np.uint8)
        self._offsets: Int64s = np.zeros(buffer_messages + 1, dtype=np.int64)
        self._state: Int64s = np.zeros(libpq.STATE_SIZE, dtype=np.int64)
        self._functions = libpq.find_functions()
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
        names = ",".join(quote_ident(name) for name in publications)
        command = (
            f"START_REPLICATION SLOT {quote_ident(slot)} LOGICAL {lsn_text(position)} "
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
        there are none.

        Raises ConnectionLostError, or the server's error (`replication_error`).
        """
        self.keepalive()
        outcome = self._drain(NAPS)
        if outcome == libpq.DRAINED and not self._has_received():
            deadline = time.monotonic() + timeout_s
            while outcome == libpq.DRAINED and not self._has_received():
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                self._wait(min(remaining, STATUS_INTERVAL_S / 4))
                self.keepalive()
                outcome = self._drain(NAPS, again=True)
        if outcome == libpq.GROW:
            self._buffer = np.empty(self._pending_bytes(), dtype=np.uint8)
            outcome = self._drain(NAPS, again=True)
        if outcome == libpq.REPLY:
            self.keepalive(now=True)
        if outcome in (libpq.ENDED, libpq.FAILED) and not self._has_received():
            raise self._ended()
        return self._received()

    def acknowledge(self, position: int) -> None:
        """Allow the server to remove everything before ``position``; never moves back.

        May be called by any thread; the next `receive` or `keepalive` reports it.
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
        if self._state[libpq.PENDING_ADDRESS] and self._functions is not None:
            libpq.free(self._functions, int(self._state[libpq.PENDING_ADDRESS]))
            self._state[libpq.PENDING_ADDRESS] = 0
        self._pgconn.finish()

    # ------------------------------------------------------------------ internals

    def _drain(self, naps: int, *, again: bool = False) -> int:
        """Fill the buffers; ``again`` keeps the messages of this receive."""
        state = self._state
        if not again:
            state[libpq.MESSAGES] = 0
            state[libpq.BYTES] = 0
            state[libpq.KEEPALIVE_END] = 0
            if len(self._buffer) > self._buffer_bytes:
                self._buffer = np.empty(self._buffer_bytes, dtype=np.uint8)
        if self._functions is None:
            outcome = self._drain_in_python()
        else:
            address = self._pgconn.pgconn_ptr  # type: ignore[attr-defined]
            if address is None:
                raise ConnectionLostError("the replication connection is closed")
            outcome = libpq.drain(
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
        """Like `libpq.drain`, message by message in Python."""
        state, buffer, offsets = self._state, self._buffer, self._offsets
        header = libpq.XLOG_DATA_HEADER_BYTES
        fresh = False
        while True:
            if self._pending is not None:
                message = self._pending
            else:
                try:
                    length, data = self._pgconn.get_copy_data(1)
                    if length == 0:
                        if fresh:
                            return libpq.DRAINED
                        self._pgconn.consume_input()
                        fresh = True
                        continue
                except psycopg.Error:
                    return libpq.FAILED
                if length < 0:
                    return libpq.ENDED
                message, fresh = bytes(data), False
                if message[header : header + 1] == b"M":
                    message = message[: libpq.LOGICAL_MESSAGE_BYTES]
            self._pending = None
            if message[0] == libpq.XLOG_DATA:
                count, used = int(state[libpq.MESSAGES]), int(state[libpq.BYTES])
                end = used + len(message) - libpq.XLOG_DATA_HEADER_BYTES
                if count == len(offsets) - 1 or end > len(buffer):
                    self._pending = message
                    return libpq.FULL if count else libpq.GROW
                payload = memoryview(message)[libpq.XLOG_DATA_HEADER_BYTES :]
                buffer[used:end] = np.frombuffer(payload, dtype=np.uint8)
                (state[libpq.SENT_AT],) = struct.unpack_from("!q", message, 17)
                offsets[count + 1] = end
                state[libpq.MESSAGES], state[libpq.BYTES] = count + 1, end
            elif message[0] == libpq.KEEPALIVE:
                end, sent_at, reply = struct.unpack_from("!qqB", message, 1)
                state[libpq.KEEPALIVE_END], state[libpq.SENT_AT] = end, sent_at
                state[libpq.KEEPALIVE_MESSAGE] = state[libpq.MESSAGES]
                if reply:
                    return libpq.REPLY

    def _pending_bytes(self) -> int:
        if self._pending is not None:
            return len(self._pending)
        return int(self._state[libpq.PENDING_LENGTH])

    def _has_received(self) -> bool:
        return bool(self._state[libpq.MESSAGES] or self._state[libpq.KEEPALIVE_END])

    def _received(self) -> ReceivedMessages | None:
        if not self._has_received():
            return None
        count = int(self._state[libpq.MESSAGES])
        sent_up_to: int | None = None
        # Only a keepalive after the last message says that nothing else precedes its position.
        if self._state[libpq.KEEPALIVE_END] and self._state[libpq.KEEPALIVE_MESSAGE] == count:
            sent_up_to = int(self._state[libpq.KEEPALIVE_END])
        used = int(self._state[libpq.BYTES])
        sent_at = int(self._state[libpq.SENT_AT]) + EPOCH_2000_S * 1_000_000
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
