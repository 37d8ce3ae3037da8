"""A dump beside others' transactions: where their commits wait it works less, and yet ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numba
import psycopg
import pytest
from tests.integration.one_table import ROWS, capturing

from tidelog import app
from tidelog.config import Config
from tidelog.control.commands import SetDumpOptions, StartDump
from tidelog.ports import ChunkRequest, ChunkRows
from tidelog.sources.postgres.chunks.reader import PostgresChunkReader
from tidelog.system.compilation import compilations

pytestmark = pytest.mark.integration


@pytest.fixture
def config(database: str, tmp_path: Path) -> Iterator[Config]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE others (id int PRIMARY KEY)")
    options = "chunk_rows: 200, parallelism: 2, rows_per_second: 3000, max_commit_delay_ms: 5"
    with capturing(database, tmp_path, options) as config:
        yield config


@contextmanager
def repeated(work: Callable[[psycopg.Connection[Any]], None], dsn: str) -> Iterator[None]:
    stop = threading.Event()

    def run() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not stop.is_set():
                work(connection)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def commit(connection: psycopg.Connection[Any]) -> None:
    connection.execute("INSERT INTO others VALUES (1) ON CONFLICT DO NOTHING")
    time.sleep(0.002)


def hold_up(connection: psycopg.Connection[Any]) -> None:
    """Commits of watermarks wait, as on a source that is short of something."""
    with connection.transaction():
        connection.execute("SELECT FROM tidelog.watermark FOR UPDATE")
        time.sleep(0.1)
    time.sleep(0.01)


def decided(config: Config, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The throttle's document, once it is as ``wanted``."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        throttle = app.status(config).document.get("throttle")
        if throttle is not None and wanted(throttle):
            found: dict[str, Any] = throttle
            return found
        time.sleep(0.1)
    raise AssertionError(app.status(config).document)


def test_a_dump_works_less_while_commits_wait_and_continues_when_they_do_not(
    config: Config, database: str
) -> None:
    app.send_command(config, StartDump(dump_id="gentle", tables=("public.t",)), timeout_s=30)
    with repeated(commit, database):
        decided(config, lambda t: t["observed"]["commit_delay_ms"] is not None)
        with repeated(hold_up, database):
            throttle = decided(
                config,
                lambda t: (
                    t["decision"]["limited_by"] == "commit_delay" and t["decision"]["pace"] < 0.5
                ),
            )
            assert throttle["decision"]["parallelism_share"] == 0.5
            assert throttle["observed"]["commit_delay_ms"] > 5
        app.send_command(config, SetDumpOptions(max_commit_delay_ms=50), timeout_s=30)
        decided(config, lambda t: t["decision"]["pace"] == 1.0)
    app.send_command(config, SetDumpOptions(rows_per_second=0), timeout_s=30)
    report = app.dump_wait(config, "gentle", timeout_s=60).to_dict()
    assert report["status"] == "completed"
    assert report["tables"][0]["rows_read"] == ROWS


def test_a_chunk_during_which_kernels_are_compiled_tells_nothing_of_its_select(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, reads = PostgresChunkReader.read, count()

    def read_and_compile(self: PostgresChunkReader, request: ChunkRequest) -> ChunkRows:
        rows = read(self, request)
        if next(reads) < 3:
            compiled = compilations()
            numba.njit(lambda number: number + 1)(1)
            time.sleep(3)  # as long compilations take
            assert compilations() != compiled
        return rows

    monkeypatch.setattr(PostgresChunkReader, "read", read_and_compile)
    app.send_command(config, StartDump(dump_id="d", tables=("public.t",)), timeout_s=30)
    throttle = decided(config, lambda found: found["observed"]["select_ms"] is not None)
    assert throttle["observed"]["select_ms"] < 1500
