"""Reads the data of ``COPY … TO STDOUT`` into one buffer. Hot path of dumps:
benchmarks/bench_dumps.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import psycopg
from psycopg import pq

from tidelog.model.records import Int64s, UInt8s
from tidelog.sources.postgres import async_results
from tidelog.sources.postgres.encodings import encoded
from tidelog.sources.postgres.stream import libpq

QUERY_CANCELED = b"57014"
DISCARD_BYTES = 1 << 20


class CopyReader:
    """Runs COPY statements over one connection at a time, reusing its buffer.

    Args:
        buffer_bytes: the buffer's initial size, to which it shrinks after larger results.
    """

    def __init__(self, buffer_bytes: int = 4 << 20) -> None:
        self._initial_bytes = buffer_bytes
        self._buffer: UInt8s = np.empty(buffer_bytes, dtype=np.uint8)
        self._functions = libpq.find_functions()
        self.cut = False
        """True if the last statement was ended at its limit; its transaction then needs a
        savepoint.
        """

    def read(
        self,
        connection: psycopg.Connection[tuple[Any, ...]],
        query: str,
        keep: int = 0,
        limit_bytes: int = 0,
    ) -> tuple[UInt8s, int]:
        """Run a COPY; returns its bytes, valid until the next `read`, and the number of rows.

        The first ``keep`` bytes of the last result precede them. They are in the session's
        encoding.

        A statement whose rows take more than ``limit_bytes``, including the kept ones, is ended
        before the first row that exceeds it, but not before the first row (`cut`); 0: no limit.

        Raises psycopg's error for a server error, or if the server sends nothing for too long
        (`async_results.Session`). ``query`` is a single statement: the extended protocol refuses
        more, so a condition can't smuggle in a second one.
        """
        pgconn, silence_s = connection.pgconn, async_results.silence_s(connection)
        result = async_results.run_query(pgconn, encoded(pgconn, query), timeout_s=silence_s)
        if result.status != pq.ExecStatus.COPY_OUT:
            raise psycopg.errors.error_from_result(result)
        if not keep and len(self._buffer) > self._initial_bytes:
            self._buffer = np.empty(self._initial_bytes, dtype=np.uint8)
        self.cut = False
        used, rows = self._drain(pgconn, keep, limit_bytes, silence_s)
        for last in list(async_results.results(pgconn, async_results.END_S)):
            if last.status != pq.ExecStatus.FATAL_ERROR:
                continue
            state = last.error_field(pq.DiagnosticField.SQLSTATE)
            if not (self.cut and state == QUERY_CANCELED):
                raise psycopg.errors.error_from_result(last)
        return self._buffer[:used], rows

    def _drain(
        self, pgconn: pq.abc.PGconn, keep: int, limit: int, silence_s: float | None
    ) -> tuple[int, int]:
        functions = self._functions
        address = pgconn.pgconn_ptr  # type: ignore[attr-defined]
        if functions is None or address is None:
            return self._drain_in_python(pgconn, keep, limit, silence_s)
        state: Int64s = np.zeros(libpq.STATE_SIZE, dtype=np.int64)
        state[libpq.BYTES] = keep
        libpq.wait_for(state, pgconn.socket)
        silence_ms = 0 if silence_s is None else max(1, round(silence_s * 1000))
        buffer, used, rows = self._limited(limit), 0, 0
        while True:
            outcome = libpq.drain_copy(
                functions.consume_input,
                functions.get_copy_data,
                functions.free_memory,
                functions.poll,
                address,
                buffer,
                state,
                silence_ms,
            )
            if outcome == libpq.DRAINED:
                async_results.close_silent(pgconn)
            if outcome != libpq.GROW:
                break
            if not self.cut:
                used, rows = int(state[libpq.BYTES]), int(state[libpq.MESSAGES])
                needed = int(state[libpq.PENDING_LENGTH])
                if not limit or not used or used + needed <= limit:
                    self._grow(used, needed, limit)
                    buffer = self._limited(limit, used + needed)
                    continue
                self._cancel(pgconn)
                buffer = np.empty(max(DISCARD_BYTES, needed), dtype=np.uint8)
            elif len(buffer) < state[libpq.PENDING_LENGTH]:
                buffer = np.empty(int(state[libpq.PENDING_LENGTH]), dtype=np.uint8)
            state[libpq.BYTES] = 0  # later rows are dropped
        if self.cut:
            return used, rows
        return int(state[libpq.BYTES]), int(state[libpq.MESSAGES])

    def _limited(self, limit: int, least: int = 0) -> UInt8s:
        return self._buffer[: max(limit, least)] if limit else self._buffer

    def _cancel(self, pgconn: pq.abc.PGconn) -> None:
        """Ask the server to stop sending. If the request fails, the remaining rows are dropped."""
        self.cut = True
        with suppress(psycopg.Error):
            async_results.cancel(pgconn)

    def _drain_in_python(
        self, pgconn: pq.abc.PGconn, keep: int, limit: int, silence_s: float | None
    ) -> tuple[int, int]:
        used, rows = keep, 0
        for row in _rows(pgconn, silence_s):
            if self.cut:
                continue
            if limit and used and used + len(row) > limit:
                self._cancel(pgconn)
                continue
            if used + len(row) > len(self._buffer):
                self._grow(used, len(row), limit)
            self._buffer[used : used + len(row)] = np.frombuffer(row, dtype=np.uint8)
            used += len(row)
            rows += 1
        return used, rows

    def _grow(self, used: int, needed: int, limit: int) -> None:
        doubled = 2 * len(self._buffer)
        size = max(min(doubled, limit) if limit else doubled, used + needed)
        if size <= len(self._buffer):
            return
        grown = np.empty(size, dtype=np.uint8)
        grown[:used] = self._buffer[:used]
        self._buffer = grown


def _rows(pgconn: pq.abc.PGconn, silence_s: float | None) -> Iterator[bytes]:
    reads, moved = 0, time.monotonic()
    while True:
        length, data = pgconn.get_copy_data(1)
        if length < 0:
            return
        if length:
            yield bytes(data)
            reads, moved = 0, time.monotonic()
        elif reads < async_results.READS:
            pgconn.consume_input()
            reads += 1
        else:
            reads = 0
            if async_results.wait_readable(pgconn):
                moved = time.monotonic()
            elif silence_s is not None and time.monotonic() - moved > silence_s:
                async_results.close_silent(pgconn)
