"""The replication protocol: a connection on which the server sends its binlog, event by event.

Manual of the protocol: "Replication Protocol" (COM_REGISTER_SLAVE, COM_BINLOG_DUMP); MariaDB
knowledge base: "Replication protocol". The stream does not take part in semi-sync. PyMySQL connects
and authenticates; `deframe` splits the packets into events.

Packets: "MySQL Packets" (3 bytes of length, 1 of sequence; a payload of 2^24 - 1 bytes continues in
the next packet) and "Binlog Network Stream" (each event's first packet begins with 0x00; 0xff is an
error, 0xfe the end).

Offsets: COM_BINLOG_DUMP has 32 bits for the offset, and a transaction may make a file larger. Then
the server sends the whole file, and everything before the offset is dropped here. The two first
events, the stream's position and the file's format, are rewritten as the server sends them when it
starts in the middle of a file (``send_format_description_event`` in its source).
"""

from __future__ import annotations

import hashlib
import re
import secrets
import select
import ssl
import struct
import time
import uuid
import zlib
from dataclasses import dataclass

import numba
import numpy as np
import pymysql
from pymysql.constants import COMMAND

from tidelog.codecs.mysql.binlog.events import (
    CHECKSUM_BYTES,
    HEADER_BYTES,
    EventType,
    without_checksum,
)
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.server_urls import ServerUrl
from tidelog.errors import (
    ConfigError,
    ConnectionLostError,
    GapError,
    PreflightError,
    SourceError,
    TidelogError,
)
from tidelog.model.records import Bools, Int64s, UInt8s
from tidelog.sources.mysql.connect import Connection, connect
from tidelog.sources.mysql.errors import BINLOG_FATAL, server_error, translate_errors
from tidelog.sources.mysql.stream.positions import FILE_START
from tidelog.system.peer_check import peer_of

# HOT PATH. Packets to events, in a compiled loop: a row costs a few nanoseconds here.

PACKET_HEADER_BYTES = 4
LONGEST_PAYLOAD = (1 << 24) - 1

# What `deframe` returns.
DRAINED = 0  # all bytes are processed except an incomplete header
FULL = 1  # no room for another event, or for more bytes
GROW = 2  # one event is larger than the buffer
FAILED = -1  # an error packet: once whole, it is the unfinished event in the buffer
ENDED = -2  # the server has nothing more (a dump that does not wait)
DISORDER = -3  # a packet with the wrong sequence number

# Indexes of the int64 state vector that `deframe` and its caller share.
EVENTS = 0  # whole events in the buffer
USED = 1  # bytes in the buffer, including an unfinished event
REMAINING = 2  # bytes of the current packet that have not arrived
CONTINUES = 3  # 1: the current packet is full, so the next one continues its event
SEQUENCE = 4  # the next packet's number
KIND = 5  # first byte of the event's first packet; -1 before it arrived
INSIDE = 6  # 1: an event has begun and is not complete
CONSUMED = 7  # bytes of the input that were processed
STATE_SIZE = 8

_EVENT, _END, _ERROR = 0x00, 0xFE, 0xFF


def new_packet_state(sequence: int) -> Int64s:
    """The state before the first packet; ``sequence`` is that packet's number."""
    state = np.zeros(STATE_SIZE, dtype=np.int64)
    state[SEQUENCE] = sequence
    return state


def prepare_kernel() -> None:
    """Compile or load the kernel in advance."""
    nothing = np.empty(0, dtype=np.uint8)
    deframe(nothing, 0, nothing, np.zeros(2, dtype=np.int64), new_packet_state(1))


@numba.njit(cache=True, nogil=True)
def deframe(received: UInt8s, length: int, data: UInt8s, offsets: Int64s, state: Int64s) -> int:
    """Move events from ``received[CONSUMED:length]`` to ``data``, back to back.

    Args:
        received: bytes of the connection.
        length: their number.
        data: events; the last one may be unfinished.
        offsets: int64[m + 1]; ``offsets[i + 1]`` becomes event i's end. It must begin with 0.
        state: see above; EVENTS and USED describe what ``data`` holds already.

    Returns DRAINED, FULL and so on. After FAILED ``data[offsets[EVENTS]:USED]`` is the error packet
    after its first byte.
    """
    at = state[CONSUMED]
    while True:
        remaining = state[REMAINING]
        if remaining == 0 and state[INSIDE] == 0 and state[EVENTS] == len(offsets) - 1:
            state[CONSUMED] = at
            return FULL
        if remaining == 0:
            if length - at < PACKET_HEADER_BYTES + 1 - (1 if state[INSIDE] else 0):
                state[CONSUMED] = at
                return DRAINED
            size = (
                np.int64(received[at])
                | np.int64(received[at + 1]) << 8
                | np.int64(received[at + 2]) << 16
            )
            number = np.int64(received[at + 3])
            kind = state[KIND]
            first = state[INSIDE] == 0
            if first:
                if size == 0:
                    state[CONSUMED] = at
                    return DISORDER
                kind = np.int64(received[at + 4])
            if number != state[SEQUENCE] and kind != _ERROR:
                state[CONSUMED] = at
                return DISORDER
            state[SEQUENCE] = (number + 1) & 0xFF
            state[CONTINUES] = 1 if size == LONGEST_PAYLOAD else 0
            at += PACKET_HEADER_BYTES
            if first:
                state[KIND] = kind
                state[INSIDE] = 1
                at += 1
                size -= 1
            remaining = size
            state[REMAINING] = size
        used = state[USED]
        take = min(remaining, length - at, len(data) - used)
        if take > 0:
            data[used : used + take] = received[at : at + take]
            at += take
            used += take
            state[USED] = used
            remaining -= take
            state[REMAINING] = remaining
        if remaining > 0:
            state[CONSUMED] = at
            if used == len(data):
                return FULL if state[EVENTS] > 0 else GROW
            return DRAINED
        if state[CONTINUES] == 1:
            continue
        state[INSIDE] = 0
        if state[KIND] != _EVENT:
            state[CONSUMED] = at
            return ENDED if state[KIND] == _END else FAILED
        state[EVENTS] += 1
        offsets[state[EVENTS]] = used


def rewind_events(data: UInt8s, offsets: Int64s, state: Int64s) -> None:
    """Drop the whole events; an unfinished one moves to the beginning."""
    begin, used = int(offsets[state[EVENTS]]), int(state[USED])
    if begin:
        data[: used - begin] = data[begin:used].copy()
    state[USED] = used - begin
    state[EVENTS] = 0


# The ids with which a log reader registers at the server.


@dataclass(frozen=True, slots=True)
class ReplicaId:
    """The server id and uuid of a log reader, which registers as a replica."""

    server_id: int
    uuid: uuid.UUID

    @classmethod
    def derived(cls, text: str, server_id: int | None = None) -> ReplicaId:
        """Derive ids from ``text``, which identifies a capture; ``server_id`` overrides the number.

        All runs of one capture have the same ids, so the server closes connections of an earlier
        run.
        """
        digest = hashlib.sha256(f"tidelog {text}".encode()).digest()
        derived = int.from_bytes(digest[16:20], "big") % 0x7FFF_0000 + 0x8000_0000
        number = derived if server_id is None else server_id
        return cls(number, uuid.UUID(bytes=digest[:16], version=4))


# Offsets that the protocol can't express.

# COM_BINLOG_DUMP has 32 bits for the offset.
MAX_OFFSET = (1 << 32) - 1

_LENGTH, _LOG_POS, _FLAGS, _CREATED = 9, 13, 17, HEADER_BYTES + 52
_IN_USE = 1  # LOG_EVENT_BINLOG_IN_USE_F


class OffsetSeeker:
    """Drops a file's events before ``offset``, which is the beginning of a group."""

    def __init__(self, offset: int) -> None:
        self._offset = offset
        self._at = FILE_START
        self._rotate = self._format = b""
        self.done = False

    def take(self, data: UInt8s, offsets: Int64s) -> tuple[UInt8s, Int64s]:
        """The received events from the offset on; none until the offset is reached (`done`). Raises
        EOFError if the file ends before it.
        """
        log_pos, in_file = log_positions(data, offsets)
        ends = self._at + (log_pos - self._at & 0xFFFF_FFFF)
        reached = np.flatnonzero(in_file & (ends >= self._offset))
        first = int(reached[0]) if len(reached) else len(ends)
        types = data[offsets[:-1] + 4]
        for index in np.flatnonzero(
            (types[:first] == EventType.ROTATE) | (types[:first] == EventType.FORMAT_DESCRIPTION)
        ).tolist():
            event = data[offsets[index] : offsets[index + 1]].tobytes()
            if types[index] == EventType.FORMAT_DESCRIPTION:
                self._format = _artificial_format(event)
            elif self._rotate:
                raise EOFError
            else:
                self._rotate = _to_offset(event, self._offset)
        if not len(reached):
            if in_file.any():
                self._at = int(ends[in_file][-1])
            return data[:0], offsets[:1] - offsets[0]
        self.done = True
        first += int(ends[first] == self._offset)
        head = np.frombuffer(self._rotate + self._format, dtype=np.uint8)
        begins = np.array([0, len(self._rotate)], dtype=np.int64)
        rest = data[offsets[first] : offsets[-1]]
        return (
            np.concatenate((head, rest)),
            np.concatenate((begins, offsets[first:] - offsets[first] + len(head))),
        )


def log_positions(data: UInt8s, offsets: Int64s) -> tuple[Int64s, Bools]:
    """(int64[n], bool[n]): the low 32 bits of each event's end in its file; and whether the event
    is in the file, not made up by the server.
    """
    starts = offsets[:-1]
    log_pos = np.zeros(len(starts), dtype=np.int64)
    for byte in range(4):
        log_pos |= data[starts + _LOG_POS + byte].astype(np.int64) << 8 * byte
    made_up = np.isin(data[starts + 4], (EventType.HEARTBEAT, EventType.HEARTBEAT_V2))
    return log_pos, ~made_up & (log_pos != 0)


def _to_offset(event: bytes, offset: int) -> bytes:
    """The server's rotate event with another offset; without a checksum."""
    rotate = bytearray(without_checksum(event))
    struct.pack_into("<I", rotate, _LENGTH, len(rotate))
    struct.pack_into("<Q", rotate, HEADER_BYTES, offset)
    return bytes(rotate)


def _artificial_format(event: bytes) -> bytes:
    """A format description that moves no position and does not mark a start of the server."""
    rewritten = bytearray(event[:-CHECKSUM_BYTES])
    struct.pack_into("<I", rewritten, _LOG_POS, 0)
    struct.pack_into("<I", rewritten, _CREATED, 0)
    rewritten[_FLAGS] &= ~_IN_USE
    return bytes(rewritten) + struct.pack("<I", zlib.crc32(rewritten))


# The connection.

_LOST_SERVER = re.compile(r"same server_uuid|same server_id|server_uuid/server_id", re.IGNORECASE)
_PURGED = re.compile(
    r"could not find first log file|purged|not find .* binlog|Could not open log file"
    r"|Could not find GTID state|not in the master's binlog|has been purged|missing transactions"
    r"|log purge|impossible position|position > file size",
    re.IGNORECASE,
)


def replication_error(doing: str, server_id: int, number: int, message: str) -> TidelogError:
    """Convert a server's error to Tidelog's error for a log reader.

    Args:
        doing: what was attempted.
        server_id: the reader's server id.
        number: the error's number.
        message: the error's text.
    """
    if number in (1045, 1227):
        return PreflightError(
            f"{doing}: the user lacks REPLICATION SLAVE: GRANT REPLICATION SLAVE ON *.* TO <user>"
        )
    if _LOST_SERVER.search(message):
        return SourceError(
            f"{doing}: another replica with the server_id {server_id} has "
            "connected, and the server keeps only one of them: give each capture (and each "
            "replica) its own source.server_id"
        )
    if number != BINLOG_FATAL:
        return server_error(number, message, doing)
    said = message.strip().splitlines()[0] if message.strip() else "no reason was given"
    if _PURGED.search(message):
        return GapError(
            f"{doing}: the source no longer has this part of its binlog ({said}). Keep "
            "binlogs for longer (binlog_expire_logs_seconds), then run `tidelog reset CONFIG`, "
            "which has the tables dumped again, or set source.snapshot: when_needed"
        )
    if re.search(r"truncated in the middle of event", message, re.IGNORECASE):
        return GapError(
            f"{doing}: the binlog file ends in the middle of an event ({said}): the "
            "server, or its disk, failed while it wrote it, and it sends nothing of what "
            "follows in the next file. `tidelog reset CONFIG` has the tables dumped again, or set "
            "source.snapshot: when_needed, which does so by itself"
        )
    if re.search(r"slave is not configured|checksum|log_bin|not open", message, re.IGNORECASE):
        return PreflightError(f"{doing}: {said}")
    if re.search(r"GTID_MODE", message):
        return PreflightError(f"{doing}: {said}")
    return SourceError(f"{doing}: {said} (error {number})")


# Bytes of one read from the socket, and most events that one `receive` returns.
RECEIVE_BYTES = 256 << 10
DEFAULT_BUFFER_BYTES = 1 << 20
DEFAULT_BUFFER_EVENTS = 32_768

# Seconds between heartbeats of a server without changes; they also show that it is alive.
HEARTBEAT_S = 2.0
# A server that sends nothing for this long is gone; one whose host does not answer is detected
# sooner, see `tidelog.system.peer_check`.
SILENCE_LIMIT_S = 60.0

# After the first data: wait for more, NAPS times NAP_S (5 ms, a tenth of a flush interval).
NAPS = 10
NAP_S = 0.0005

_REGISTER_SLAVE = COMMAND.COM_REGISTER_SLAVE
_DUMP = COMMAND.COM_BINLOG_DUMP
_DO_NOT_WAIT = 1  # BINLOG_DUMP_NON_BLOCK
_GTID_CAPABILITY = 4  # MARIA_SLAVE_CAPABILITY_GTID


@dataclass(frozen=True, slots=True)
class ReceivedEvents:
    """Events back to back, valid until the next `BinlogStream.receive`.

    Attributes:
        data: uint8[...]; offsets: int64[n + 1], as `BinlogScanner.feed` takes them.
        ended: True if the server has nothing more (only with ``wait=False``).
    """

    data: UInt8s
    offsets: Int64s
    ended: bool


class BinlogStream:
    """One replication connection. Used by one thread.

    Args:
        url: the server; the user needs REPLICATION SLAVE.
        replica: the reader's ids; None: a reader of a part of the log, which the server does not
            list and which disconnects no other reader.
        purpose: see `connect`.
        buffer_bytes: most bytes that one `receive` returns; a single larger event is still
            returned.
        buffer_events: most events that one `receive` returns.
    """

    def __init__(
        self,
        url: str | ServerUrl,
        replica: ReplicaId | None,
        *,
        purpose: str = "capture",
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        buffer_events: int = DEFAULT_BUFFER_EVENTS,
    ) -> None:
        self._replica = replica
        self._server_id = (
            secrets.randbelow(0xFFFF) + 0xFFFF_0001 if replica is None else replica.server_id
        )
        self._buffer_bytes = buffer_bytes
        self._buffer: UInt8s = np.empty(buffer_bytes, dtype=np.uint8)
        self._offsets: Int64s = np.zeros(buffer_events + 1, dtype=np.int64)
        self._received: UInt8s = np.empty(min(RECEIVE_BYTES, buffer_bytes), dtype=np.uint8)
        self._view = self._received.data
        self._length = 0
        self._state = new_packet_state(1)
        prepare_kernel()
        self._heard_at = 0.0
        self._broken: TidelogError | None = None
        self._seeker: OffsetSeeker | None = None
        self._doing = "reading the binlog"
        self._poller = select.poll()
        database = ""  # a database that is dropped must not end log capture
        self._connection = connect(url, purpose=purpose, database=database)
        self._reach = peer_of(self._connection.raw_socket.fileno())
        self.checksum = True

    @property
    def connection(self) -> Connection:
        """The connection, for SQL before `start`."""
        return self._connection

    def start(self, file: str, offset: int, *, wait: bool = True) -> None:
        """Stream from an offset of a file: 4, or the beginning of a group.

        Args:
            file: the file's name, as in SHOW BINARY LOGS.
            offset: the offset in the file.
            wait: wait for more at the log's end; otherwise the stream ends there.

        Raises:
            GapError: the server does not have this position (any more).
            PreflightError: the user lacks REPLICATION SLAVE, or the server logs nothing.
            ConnectionLostError: trying again may help.
        """
        flags = 0 if wait else _DO_NOT_WAIT
        self._prepare(f"reading the binlog from {file}:{offset}")
        self._seeker = None
        if offset > MAX_OFFSET:
            self._seeker = OffsetSeeker(offset)
            offset = FILE_START
        self._send(_DUMP, struct.pack("<IHI", offset, flags, self._server_id) + file.encode())

    def receive(self, timeout_s: float) -> ReceivedEvents | None:
        """The events that have arrived, waiting at most ``timeout_s`` for the first; None if there
        are none.

        The result is empty if all events were before the start position.

        Raises ConnectionLostError, or the server's error (`replication_error`).
        """
        received = self._receive(timeout_s)
        if received is None or self._seeker is None:
            return received
        try:
            data, offsets = self._seeker.take(received.data, received.offsets)
        except EOFError:
            raise replication_error(
                self._doing, self._server_id, BINLOG_FATAL, "position > file size"
            ) from None
        if self._seeker.done:
            self._seeker = None
        return ReceivedEvents(data, offsets, received.ended)

    def _receive(self, timeout_s: float) -> ReceivedEvents | None:
        state = self._state
        rewind_events(self._buffer, self._offsets, state)
        self._shrink()
        deadline = time.monotonic() + timeout_s
        naps, outcome = NAPS, DRAINED
        while not self._is_broken():
            outcome = self._deframe()
            if outcome in (FULL, ENDED):
                break
            if outcome == GROW:
                self._grow()
                continue
            if outcome != DRAINED:
                self._broken = self._failure(outcome)
                break
            if self._fill():
                continue
            if self._is_broken():
                break
            now = time.monotonic()
            if state[EVENTS]:
                if naps == 0:
                    break
                naps -= 1
                time.sleep(NAP_S)
                continue
            silent_s = now - self._heard_at
            if silent_s > SILENCE_LIMIT_S or self._reach.is_lost(silent_s):
                self._broken = ConnectionLostError(
                    f"{self._doing}: the server sent nothing for {silent_s:.0f} s, not even "
                    "a heartbeat"
                )
                break
            if now >= deadline:
                break
            self._poller.poll(max(1.0, min(deadline - now, HEARTBEAT_S) * 1000))
        count = int(state[EVENTS])
        ended = outcome == ENDED
        if count or ended:
            used = int(self._offsets[count])
            return ReceivedEvents(self._buffer[:used], self._offsets[: count + 1], ended)
        if self._broken is not None:
            raise self._broken
        return None

    def close(self) -> None:
        """Disconnect. May be called twice."""
        self._connection.abandon()

    # ------------------------------------------------------------------ start

    def _prepare(self, doing: str) -> None:
        """Send the settings that a replica's I/O thread sends before it requests the log
        (``get_master_version_and_clock`` and ``register_slave_on_master`` in the servers' sources).
        """
        self._doing = doing
        connection = self._connection
        heartbeat = int(HEARTBEAT_S * 1_000_000_000)
        statements = [
            "SET @master_binlog_checksum = @@GLOBAL.binlog_checksum",
            f"SET @master_heartbeat_period = {heartbeat}",
        ]
        if connection.flavor is Flavor.MARIADB:
            statements.append(f"SET @mariadb_slave_capability = {_GTID_CAPABILITY}")
        else:
            statements += [
                "SET @source_binlog_checksum = @@GLOBAL.binlog_checksum",
                f"SET @source_heartbeat_period = {heartbeat}",
            ]
            if self._replica is not None:
                name = str(self._replica.uuid)
                statements.append(f"SET @slave_uuid = '{name}', @replica_uuid = '{name}'")
        with translate_errors(doing):
            logging = connection.row("SELECT @@GLOBAL.log_bin, @@GLOBAL.server_id")
            assert logging is not None
            if not logging[0]:
                raise PreflightError(
                    "the server writes no binlog: set log_bin in its configuration and restart it"
                )
            if self._replica is not None and int(logging[1]) == self._replica.server_id:
                raise ConfigError(
                    f"source.server_id {self._replica.server_id} is the source's own server_id: "
                    "choose another one"
                )
            for statement in statements:
                connection.rows(statement)
            self.checksum = connection.value("SELECT @master_binlog_checksum") != "NONE"
        if self._replica is not None:
            self._register(self._replica)

    def _register(self, replica: ReplicaId) -> None:
        """Send COM_REGISTER_SLAVE: SHOW REPLICAS lists the reader, without user,
        password and port.
        """
        host = b"tidelog"
        body = struct.pack("<IB", replica.server_id, len(host)) + host
        body += struct.pack("<BBHII", 0, 0, 0, 0, 0)
        try:
            self._connection._execute_command(_REGISTER_SLAVE, body)  # type: ignore[attr-defined]
            self._connection._read_packet()  # type: ignore[no-untyped-call]
        except pymysql.MySQLError as error:
            raise self._command_error(error) from None

    def _send(self, command: int, body: bytes) -> None:
        connection = self._connection
        try:
            connection._execute_command(command, body)  # type: ignore[attr-defined]
        except pymysql.MySQLError as error:
            raise self._command_error(error) from None
        sock = connection.raw_socket
        sock.settimeout(0)
        self._poller.register(sock.fileno(), select.POLLIN)
        self._state = new_packet_state(1)
        self._length = 0
        self._heard_at = time.monotonic()

    # ------------------------------------------------------------------ receiving

    def _is_broken(self) -> bool:
        return self._broken is not None

    def _deframe(self) -> int:
        outcome: int = deframe(
            self._received, self._length, self._buffer, self._offsets, self._state
        )
        return outcome

    def _fill(self) -> bool:
        """Read from the socket after the unprocessed bytes; False if nothing has arrived."""
        rest = self._length - int(self._state[CONSUMED])
        if rest:
            # Few bytes: an incomplete header.
            self._received[:rest] = self._received[self._length - rest : self._length].copy()
        self._state[CONSUMED] = 0
        self._length = rest
        try:
            count = self._connection.raw_socket.recv_into(self._view[rest:])
        except (BlockingIOError, ssl.SSLWantReadError, InterruptedError):
            return False
        except (OSError, AttributeError) as error:
            reason = getattr(error, "strerror", None) or "it was closed"
            self._broken = ConnectionLostError(f"{self._doing}: the connection broke: {reason}")
            return False
        if count == 0:
            self._broken = ConnectionLostError(f"{self._doing}: the server closed the connection")
            return False
        self._length = rest + count
        self._heard_at = time.monotonic()
        return True

    def _grow(self) -> None:
        wanted = int(self._state[USED]) + int(self._state[REMAINING])
        grown = np.empty(max(wanted, 2 * len(self._buffer)), dtype=np.uint8)
        used = int(self._state[USED])
        grown[:used] = self._buffer[:used]
        self._buffer = grown

    def _shrink(self) -> None:
        used = int(self._state[USED])
        if len(self._buffer) > self._buffer_bytes >= used and not self._state[REMAINING]:
            smaller = np.empty(self._buffer_bytes, dtype=np.uint8)
            smaller[:used] = self._buffer[:used]
            self._buffer = smaller

    # ------------------------------------------------------------------ errors

    def _failure(self, outcome: int) -> TidelogError:
        if outcome == DISORDER:
            return ConnectionLostError(f"{self._doing}: packets came out of order")
        begin = int(self._offsets[self._state[EVENTS]])
        packet = self._buffer[begin : int(self._state[USED])].tobytes()
        number = struct.unpack_from("<H", packet)[0] if len(packet) >= 2 else 0
        message = packet[2:].decode("utf-8", "replace")
        message = message[6:] if message.startswith("#") else message
        return replication_error(self._doing, self._server_id, number, message)

    def _command_error(self, error: pymysql.MySQLError) -> TidelogError:
        number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        return replication_error(
            self._doing, self._server_id, number, str(error.args[1]) if len(error.args) > 1 else ""
        )
