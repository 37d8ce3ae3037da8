"""What ``COPY … TO STDOUT`` sends, as one buffer. Hot path of dumps: benchmarks/bench_dumps.py."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import psycopg
from psycopg import pq

from tidelog.model.records import Int64s, UInt8s
from tidelog.sources.postgres import libpq
from tidelog.sources.postgres.encodings import encoded


class CopyReader:
    """Runs COPY statements over one connection at a time, reusing its buffer.

    Args:
        buffer_bytes: what the buffer begins with, and shrinks to after larger results.
    """

    def __init__(self, buffer_bytes: int = 4 << 20) -> None:
        self._initial_bytes = buffer_bytes
        self._buffer: UInt8s = np.empty(buffer_bytes, dtype=np.uint8)
        self._functions = libpq.find_functions()

    def read(self, pgconn: pq.abc.PGconn, query: str, keep: int = 0) -> tuple[UInt8s, int]:
        """The bytes, valid until the next `read`, and the number of rows. The first ``keep`` bytes
        of what the last `read` gave stand before them. They are in the session's encoding.

        Raises psycopg's error for what the server says. ``query`` is a single statement: the
        extended protocol refuses more, so a condition can't smuggle in a second one.
        """
        result = pgconn.exec_params(encoded(pgconn, query), [])
        if result.status != pq.ExecStatus.COPY_OUT:
            raise _error(pgconn, result)
        if not keep and len(self._buffer) > self._initial_bytes:
            self._buffer = np.empty(self._initial_bytes, dtype=np.uint8)
        used, rows = self._drain(pgconn, keep)
        while (last := pgconn.get_result()) is not None:
            if last.status == pq.ExecStatus.FATAL_ERROR:
                raise _error(pgconn, last)
        return self._buffer[:used], rows

    def _drain(self, pgconn: pq.abc.PGconn, keep: int) -> tuple[int, int]:
        functions = self._functions
        address = pgconn.pgconn_ptr  # type: ignore[attr-defined]
        if functions is None or address is None:
            return self._drain_plainly(pgconn, keep)
        state: Int64s = np.zeros(libpq.STATE_SIZE, dtype=np.int64)
        state[libpq.BYTES] = keep
        while True:
            outcome = libpq.drain_copy(
                functions.get_copy_data, functions.free_memory, address, self._buffer, state
            )
            if outcome != libpq.GROW:
                return int(state[libpq.BYTES]), int(state[libpq.MESSAGES])
            self._grow(int(state[libpq.BYTES]), int(state[libpq.PENDING_LENGTH]))

    def _drain_plainly(self, pgconn: pq.abc.PGconn, keep: int) -> tuple[int, int]:
        used, rows = keep, 0
        for row in _rows(pgconn):
            if used + len(row) > len(self._buffer):
                self._grow(used, len(row))
            self._buffer[used : used + len(row)] = np.frombuffer(row, dtype=np.uint8)
            used += len(row)
            rows += 1
        return used, rows

    def _grow(self, used: int, needed: int) -> None:
        grown = np.empty(max(2 * len(self._buffer), used + needed), dtype=np.uint8)
        grown[:used] = self._buffer[:used]
        self._buffer = grown


def _rows(pgconn: pq.abc.PGconn) -> Iterator[bytes]:
    while True:
        length, data = pgconn.get_copy_data(0)
        if length <= 0:
            return
        yield bytes(data)


def _error(pgconn: pq.abc.PGconn, result: pq.abc.PGresult) -> psycopg.Error:
    while pgconn.get_result() is not None:
        pass
    return psycopg.errors.error_from_result(result)
