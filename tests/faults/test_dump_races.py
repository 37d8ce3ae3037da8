"""Instants at which the threads of a dump might cut, read or emit a chunk twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.windows.live import Key, Live, at, ten_rows, times_dumped

from tidelog import app
from tidelog.capture.dumps.chunk_planner import ChunkTask
from tidelog.capture.dumps.chunk_task import ChunkReaders
from tidelog.control.commands import CancelDump, SetDumpOptions, StartDump
from tidelog.errors import ChunkError, ChunkRefusedError
from tidelog.ports import ChunkRequest, ChunkRows
from tidelog.sources.postgres.chunks.reader import PostgresChunkReader

pytestmark = pytest.mark.integration


@pytest.fixture
def live(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    made = Live(database, tmp_path, monkeypatch, chunk_rows=2)
    try:
        yield ten_rows(made)
    finally:
        made.close()


def test_chunk_that_no_reader_has_begun_is_not_cut_again(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More readers are wanted right between a chunk's giving away and its begin."""
    give = ChunkReaders.give

    def giving(readers: ChunkReaders, task: ChunkTask) -> None:
        monkeypatch.setattr(ChunkReaders, "give", give)
        app.send_command(live.config, SetDumpOptions(parallelism=4), timeout_s=5)
        time.sleep(0.5)  # the planner looks
        give(readers, task)

    monkeypatch.setattr(ChunkReaders, "give", giving)
    live.dumped(live.dump())
    assert times_dumped(live) == {1}
    live.check()


def test_chunk_that_closed_is_not_read_again_because_its_reader_failed(live: Live) -> None:
    """The high mark is in the log, and the answer that says so was lost."""
    closed = threading.Event()

    def lost() -> None:
        assert closed.wait(10)
        raise ChunkError("the connection was lost")

    with at("window.closed", closed.set), at("chunk.after_high", lost):
        live.dumped(live.dump())
    assert times_dumped(live) == {1}
    live.check()


def test_table_that_cannot_be_read_holds_up_no_other_of_a_blocking_dump(live: Live) -> None:
    """The error is one that another try might not meet again."""
    live.sql.execute(
        "CREATE FUNCTION broken() RETURNS bool LANGUAGE plpgsql AS "
        "$$BEGIN RAISE EXCEPTION 'no'; END$$"
    )
    for name in "ab":
        live.sql.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, n int)".encode())
        live.sql.execute(f"INSERT INTO {name} VALUES (1, 1)".encode())
    live.wait_for(lambda: {"public.a", "public.b"} <= live.published(), "both are published")
    command = StartDump(
        dump_id="both",
        tables=("public.a", "public.b"),
        conditions={"public.a": "public.broken()"},
        mode="blocking",
    )
    app.send_command(live.config, command, timeout_s=5)
    summary = live.dumped("both")
    assert [table["status"] for table in summary["tables"]] == ["failed", "done"]
    assert "r" in {e.op for e in live.events("public.b")}


def test_cancelled_table_does_not_fail_afterwards(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cancelled while the planner looked at it in vain."""
    app.send_command(live.config, SetDumpOptions(parallelism=4), timeout_s=5)

    def looking(_reader: PostgresChunkReader, _request: ChunkRequest, _count: int) -> list[Key]:
        app.send_command(live.config, CancelDump(), timeout_s=5)
        raise ChunkRefusedError("the dump's condition")

    monkeypatch.setattr(PostgresChunkReader, "boundaries", looking)
    dump_id = live.dump()

    def statuses() -> list[str]:
        dumps = app.status(live.config).document["dumps"]
        return [t["status"] for d in dumps if d["dump_id"] == dump_id for t in d["tables"]]

    live.wait_for(lambda: statuses() == ["cancelled"], "it is cancelled")
    time.sleep(0.5)
    assert statuses() == ["cancelled"]


def test_connection_that_breaks_behind_a_row_that_cannot_be_read_costs_no_other_row(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, boundaries = PostgresChunkReader.read, PostgresChunkReader.boundaries

    def reading(reader: PostgresChunkReader, request: ChunkRequest) -> ChunkRows:
        rows = read(reader, request)
        after, last = int((request.after or "0")[0] or 0), int((rows.last_key or "99")[0] or 0)
        if after < 5 <= last:
            raise ChunkError("row 5 can't be read")
        return rows

    def breaking(reader: PostgresChunkReader, request: ChunkRequest, count: int) -> list[Key]:
        monkeypatch.setattr(PostgresChunkReader, "boundaries", boundaries)
        ends = boundaries(reader, request, count)
        live.sql.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE application_name = 'tidelog-planning' AND datname = current_database()"
        )
        return ends and boundaries(reader, request, count)

    monkeypatch.setattr(PostgresChunkReader, "read", reading)
    monkeypatch.setattr(PostgresChunkReader, "boundaries", breaking)
    dump_id = live.dump()
    live.wait_for(
        lambda: any(
            d["dump_id"] == dump_id and d["status"] == "aborted"
            for d in app.status(live.config).document["dumps"]
        ),
        "it ends",
    )
    dumped = {int(e.key[0] or 0) for e in live.events("public.t") if e.op == "r"}
    assert dumped == {1, 2, 3, 4, 6, 7, 8, 9, 10}


def test_slow_looks_for_the_ends_of_chunks_do_not_keep_readers_waiting(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is a table locked against DDL for all of them together."""
    app.send_command(live.config, SetDumpOptions(parallelism=16, chunk_rows=1), timeout_s=5)
    boundaries, counts = PostgresChunkReader.boundaries, []

    def slow(reader: PostgresChunkReader, request: ChunkRequest, count: int) -> list[Key]:
        counts.append(count)
        time.sleep(0.2 * count)
        return boundaries(reader, request, count)

    monkeypatch.setattr(PostgresChunkReader, "boundaries", slow)
    live.dumped(live.dump())
    assert max(counts) <= 2, counts
    assert times_dumped(live) == {1}


def test_chunks_are_read_at_once_only_after_the_first_showed_how_large_they_are(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else sixteen readers hold sixteen chunks, whatever dump.buffer_bytes says."""
    app.send_command(live.config, SetDumpOptions(parallelism=4, chunk_rows=1), timeout_s=5)
    read, lock = PostgresChunkReader.read, threading.Lock()
    begun, at_once = [0], []

    def reading(reader: PostgresChunkReader, request: ChunkRequest) -> ChunkRows:
        with lock:
            begun[0] += 1
            at_once.append(begun[0])
        time.sleep(0.3)
        try:
            return read(reader, request)
        finally:
            with lock:
                begun[0] -= 1

    monkeypatch.setattr(PostgresChunkReader, "read", reading)
    live.dumped(live.dump())
    assert at_once[:2] == [1, 1]
    assert max(at_once) > 1
