"""Answers that come in full TLS records: their ends lie in OpenSSL, where poll() does not see them.

Those that go through the proxy hang with libpqs older than 18.5 alone, and so do the others with
any, since there it is said of the socket that nothing comes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import pq
from tests.faults.tls_terminator import TlsTerminator
from tests.support.postgres import PostgresServer

from tidelog.sources.postgres import async_results
from tidelog.sources.postgres.chunks import rows as copy_out
from tidelog.sources.postgres.connect import connect

pytestmark = pytest.mark.integration

PROMPT_S = 10.0
"""An end that is waited for in vain takes longer."""
ROWS = "SELECT repeat('x', {}) FROM generate_series(1, 5)"
"""Five rows of 5,700 to 6,300 bytes: the second record is not read whole."""

Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def secured(postgres: PostgresServer, tmp_path: Path) -> Iterator[Connection]:
    with (
        TlsTerminator(postgres.port, tmp_path) as terminator,
        connect(terminator.dsn("postgres"), purpose="test", settings={}) as connection,
    ):
        yield connection


def statement(connection: Connection, query: str) -> int:
    return async_results.run_query(connection.pgconn, query.encode(), timeout_s=PROMPT_S).ntuples


def copied(connection: Connection, query: str) -> int:
    return copy_out.CopyReader().read(connection, f"COPY ({query}) TO STDOUT")[1]


def copied_plainly(connection: Connection, query: str) -> int:
    reader = copy_out.CopyReader()
    reader._functions = None
    return reader.read(connection, f"COPY ({query}) TO STDOUT")[1]


@pytest.mark.parametrize("asked", [statement, copied, copied_plainly])
def test_answers_in_full_records_end(
    secured: Connection, asked: Callable[[Connection, str], int]
) -> None:
    assert secured.pgconn.ssl_in_use
    asked(secured, "SELECT 1")  # compiles
    for size in (5700, 6000, 6300):
        began = time.monotonic()
        assert asked(secured, ROWS.format(size)) == 5
        assert time.monotonic() - began < PROMPT_S


class Deaf:
    """A connection whose socket never tells that something has come."""

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        self._pgconn = pgconn
        self._silent = os.pipe()

    @property
    def socket(self) -> int:
        return self._silent[0]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pgconn, name)

    def close(self) -> None:
        for end in self._silent:
            os.close(end)


@pytest.fixture
def deaf(postgres: PostgresServer) -> Iterator[Deaf]:
    pgconn = psycopg.connect(postgres.dsn(), autocommit=True).pgconn
    one = Deaf(pgconn)
    yield one
    one.close()
    pgconn.finish()  # whatever is under way


def test_what_the_socket_does_not_tell_of_is_read(deaf: Deaf) -> None:
    deaf.send_query_params(b"SELECT 1", [])
    found = list(async_results.results(deaf, PROMPT_S))  # type: ignore[arg-type]
    assert [result.status for result in found] == [pq.ExecStatus.TUPLES_OK]


def test_rows_that_the_socket_does_not_tell_of_are_read(deaf: Deaf) -> None:
    deaf.send_query_params(b"COPY (SELECT generate_series(1, 3)) TO STDOUT", [])
    first = next(async_results.results(deaf, PROMPT_S))  # type: ignore[arg-type]
    assert first.status == pq.ExecStatus.COPY_OUT
    rows = copy_out._copied_rows(deaf, PROMPT_S)  # type: ignore[arg-type]
    assert list(rows) == [b"1\n", b"2\n", b"3\n"]


def test_silence_still_ends_a_wait(deaf: Deaf) -> None:
    deaf.send_query_params(b"SELECT pg_sleep(30)", [])
    assert not async_results.wait_result(deaf, time.monotonic() + 0.3)  # type: ignore[arg-type]
