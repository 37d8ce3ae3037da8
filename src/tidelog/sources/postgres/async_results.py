"""Waits for the server's results without blocking the process.

psycopg calls PQgetResult and PQcancel while it holds the interpreter lock, and both wait: on a
network that stops between two messages they would block all threads. Here PQgetResult is called
only when it has nothing to wait for. psycopg's own statements (`Connection.execute`) wait in this
way too.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from typing import Any, NoReturn, TypeVar

import psycopg
from psycopg import pq
from psycopg.abc import PQGen

ANSWER_S = 60.0
"""Time limit of a command that the walsender answers at once, in seconds."""
END_S = 30.0
"""Longest wait for the end of a result once the rest of it has arrived, in seconds."""
READS = 2
"""Over TLS, poll() does not see bytes that are decrypted already: libpq before 18.5 leaves
up to half a record with OpenSSL. After this many reads without a complete result none is left."""
SLICE_S = 0.1
"""Seconds after which bytes that arrived between these reads are read at the latest."""

_Result = TypeVar("_Result")
_COPIES = (pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_BOTH)


class Session(psycopg.Connection[tuple[Any, ...]]):
    """An SQL connection that is closed if the server sends nothing for too long."""

    silence_s: float | None = None
    """How long a statement may run without a byte of its result; None: no limit."""

    def wait(self, gen: PQGen[_Result], *args: Any, **options: Any) -> _Result:
        if self.silence_s is not None:
            gen = self._limit_silence(gen, self.silence_s)
        return super().wait(gen, *args, **options)

    def _limit_silence(self, waiting: PQGen[_Result], silence_s: float) -> PQGen[_Result]:
        moved = time.monotonic()
        try:
            wanted = next(waiting)
            while True:
                # psycopg resumes this at least every 0.1 s, with nothing if nothing has arrived.
                ready = yield wanted
                now = time.monotonic()
                if ready:
                    moved = now
                elif now - moved > silence_s:
                    close_silent(self.pgconn)
                wanted = waiting.send(ready)
        except StopIteration as ended:
            found: _Result = ended.value
            return found


def limit_silence(session: Session, statement_timeout_ms: int) -> None:
    """Limit the silence: a reachable server ends a statement at its time limit, and reports it."""
    limit_s = statement_timeout_ms / 1000 + END_S
    session.silence_s = limit_s if statement_timeout_ms else None


def silence_s(connection: psycopg.Connection[Any]) -> float | None:
    """How long the connection's server may send nothing, see `Session`."""
    return connection.silence_s if isinstance(connection, Session) else None


def finish_connecting(pgconn: pq.abc.PGconn, deadline: float) -> None:
    """Complete a connection attempt, successful or not. Raises TimeoutError."""
    while pgconn.status != pq.ConnStatus.BAD:
        step = pgconn.connect_poll()
        if step in (pq.PollingStatus.OK, pq.PollingStatus.FAILED):
            return
        waiter = select.poll()
        reading = step == pq.PollingStatus.READING
        waiter.register(pgconn.socket, select.POLLIN if reading else select.POLLOUT)
        if not waiter.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError


def wait_readable(pgconn: pq.abc.PGconn) -> bool:
    """Wait for bytes from the network. False after `SLICE_S` without any: read even then."""
    return _wait(pgconn, select.POLLIN, time.monotonic() + SLICE_S)


def close_silent(pgconn: pq.abc.PGconn) -> NoReturn:
    """Close the connection. Raises psycopg.OperationalError."""
    pgconn.finish()
    raise psycopg.OperationalError("the server's answer did not end in time")


def wait_result(pgconn: pq.abc.PGconn, deadline: float | None = None) -> bool:
    """Wait until `get_result` does not block; False if it still would at the deadline. Raises
    psycopg.OperationalError if the connection breaks.
    """
    while True:
        for _ in range(READS):
            if not pgconn.is_busy():
                return True
            pgconn.consume_input()
        if not pgconn.is_busy():
            return True
        if not wait_readable(pgconn) and deadline is not None and time.monotonic() > deadline:
            return False


def results(pgconn: pq.abc.PGconn, timeout_s: float | None) -> Iterator[pq.abc.PGresult]:
    """The remaining parts of a result, each within ``timeout_s``. Closes the connection and raises
    psycopg.OperationalError if a part is late.
    """
    while True:
        if not wait_result(pgconn, None if timeout_s is None else time.monotonic() + timeout_s):
            close_silent(pgconn)
        result = pgconn.get_result()
        if result is None:
            return
        yield result


def run_query(
    pgconn: pq.abc.PGconn, query: bytes, *, timeout_s: float | None = None
) -> pq.abc.PGresult:
    """Send a single statement and return the first part of its result: the extended protocol
    refuses more statements. Unless it is a COPY, this is the whole result.
    """
    pgconn.send_query_params(query, [])
    return _first(pgconn, timeout_s)


def run_command(pgconn: pq.abc.PGconn, command: bytes) -> pq.abc.PGresult:
    """Like `run_query`, for a command to the walsender or a SET, within `ANSWER_S`."""
    pgconn.send_query(command)
    return _first(pgconn, ANSWER_S)


def cancel(pgconn: pq.abc.PGconn, timeout_s: float = 5.0) -> None:
    """Ask the server to end the connection's statement, over another connection with a limit of
    ``timeout_s``. Raises psycopg.OperationalError if the request can't be sent.
    """
    if not psycopg.capabilities.has_cancel_safe():
        pgconn.get_cancel().cancel()  # older libpqs can only block
        return
    deadline = time.monotonic() + timeout_s
    canceling = pgconn.cancel_conn()
    try:
        canceling.start()
        while (step := canceling.poll()) != pq.PollingStatus.OK:
            if step == pq.PollingStatus.FAILED:
                raise psycopg.OperationalError(canceling.get_error_message())
            reading = step == pq.PollingStatus.READING
            if not _wait(canceling, select.POLLIN if reading else select.POLLOUT, deadline):
                raise psycopg.OperationalError("the cancel request was not sent in time")
    finally:
        canceling.finish()


def _first(pgconn: pq.abc.PGconn, timeout_s: float | None) -> pq.abc.PGresult:
    while pgconn.flush():
        # The server may send while we do: it must not wait for us to read.
        _wait(pgconn, select.POLLIN | select.POLLOUT, None)
        pgconn.consume_input()
    first = next(results(pgconn, timeout_s), None)
    if first is None:
        raise psycopg.OperationalError("the server did not answer")
    if first.status not in _COPIES:
        for _ in results(pgconn, END_S):
            pass
    return first


def _wait(
    connection: pq.abc.PGconn | pq.abc.PGcancelConn, events: int, deadline: float | None
) -> bool:
    waiter = select.poll()
    waiter.register(connection.socket, events)
    left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
    return bool(waiter.poll(left))
