"""The replication protocol: a connection on which the server sends its binlog, event by event.

Manual of the protocol: "Replication Protocol" (COM_REGISTER_SLAVE, COM_BINLOG_DUMP); MariaDB
knowledge base: "Replication protocol". The stream does not take part in semi-sync. The hot loop is
`tidelog.sources.mysql.stream.replication.packets.deframe`; PyMySQL connects and authenticates.
"""

from __future__ import annotations

import re
import secrets
import select
import ssl
import struct
import time
from dataclasses import dataclass

import numpy as np
import pymysql
from pymysql.constants import COMMAND

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
from tidelog.model.records import Int64s, UInt8s
from tidelog.sources.mysql.connect import Connection, connect
from tidelog.sources.mysql.errors import BINLOG_FATAL, server_error, translate_errors
from tidelog.sources.mysql.stream.positions import FILE_START
from tidelog.sources.mysql.stream.replication import packets
from tidelog.sources.mysql.stream.replication.replica import ReplicaId
from tidelog.sources.mysql.stream.replication.seeking import MAX_OFFSET, OffsetSeeker
from tidelog.system.peer_check import peer_of

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
            "binlogs for longer (binlog_expire_logs_seconds), then start a new event log and "
            "dump the tables again, or set source.snapshot: when_needed"
        )
    if re.search(r"truncated in the middle of event", message, re.IGNORECASE):
        return GapError(
            f"{doing}: the binlog file ends in the middle of an event ({said}): the "
            "server, or its disk, failed while it wrote it, and it sends nothing of what "
            "follows in the next file. Start a new event log, which dumps the tables again, or "
            "set source.snapshot: when_needed, which does so by itself"
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
        self._state = packets.new_state(1)
        packets.prepare()
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
        packets.rewind(self._buffer, self._offsets, state)
        self._shrink()
        deadline = time.monotonic() + timeout_s
        naps, outcome = NAPS, packets.DRAINED
        while not self._is_broken():
            outcome = self._deframe()
            if outcome in (packets.FULL, packets.ENDED):
                break
            if outcome == packets.GROW:
                self._grow()
                continue
            if outcome != packets.DRAINED:
                self._broken = self._failure(outcome)
                break
            if self._fill():
                continue
            if self._is_broken():
                break
            now = time.monotonic()
            if state[packets.EVENTS]:
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
        count = int(state[packets.EVENTS])
        ended = outcome == packets.ENDED
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
        self._state = packets.new_state(1)
        self._length = 0
        self._heard_at = time.monotonic()

    # ------------------------------------------------------------------ receiving

    def _is_broken(self) -> bool:
        return self._broken is not None

    def _deframe(self) -> int:
        outcome: int = packets.deframe(
            self._received, self._length, self._buffer, self._offsets, self._state
        )
        return outcome

    def _fill(self) -> bool:
        """Read from the socket after the unprocessed bytes; False if nothing has arrived."""
        rest = self._length - int(self._state[packets.CONSUMED])
        if rest:
            # Few bytes: an incomplete header.
            self._received[:rest] = self._received[self._length - rest : self._length].copy()
        self._state[packets.CONSUMED] = 0
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
        wanted = int(self._state[packets.USED]) + int(self._state[packets.REMAINING])
        grown = np.empty(max(wanted, 2 * len(self._buffer)), dtype=np.uint8)
        used = int(self._state[packets.USED])
        grown[:used] = self._buffer[:used]
        self._buffer = grown

    def _shrink(self) -> None:
        used = int(self._state[packets.USED])
        if len(self._buffer) > self._buffer_bytes >= used and not self._state[packets.REMAINING]:
            smaller = np.empty(self._buffer_bytes, dtype=np.uint8)
            smaller[:used] = self._buffer[:used]
            self._buffer = smaller

    # ------------------------------------------------------------------ errors

    def _failure(self, outcome: int) -> TidelogError:
        if outcome == packets.DISORDER:
            return ConnectionLostError(f"{self._doing}: packets came out of order")
        begin = int(self._offsets[self._state[packets.EVENTS]])
        packet = self._buffer[begin : int(self._state[packets.USED])].tobytes()
        number = struct.unpack_from("<H", packet)[0] if len(packet) >= 2 else 0
        message = packet[2:].decode("utf-8", "replace")
        message = message[6:] if message.startswith("#") else message
        return replication_error(self._doing, self._server_id, number, message)

    def _command_error(self, error: pymysql.MySQLError) -> TidelogError:
        number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        return replication_error(
            self._doing, self._server_id, number, str(error.args[1]) if len(error.args) > 1 else ""
        )
