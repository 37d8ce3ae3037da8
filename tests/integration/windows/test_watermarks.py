"""Watermarks that are late, lost, strange or out of order: the chunk is void, the log continues."""

from __future__ import annotations

import itertools
import random
import threading
import time

import psycopg
import pytest
from tests.integration.windows import mutations
from tests.integration.windows.live import LOCALLY, at, ten_rows
from tests.integration.windows.rules import Make, rule

from tidelog.capture.dumps import chunk_task
from tidelog.sources.postgres.chunks.reader import PostgresChunkReader

pytestmark = pytest.mark.integration


@rule(mutations.watermarks_wait_for_standby)
def test_hung_standby_does_not_stall_windows(make: Make) -> None:
    """Invariant 4. In this database every commit waits for ever by default."""
    live = ten_rows(make(chunk_rows=2))
    with psycopg.connect(live.dsn) as default:
        assert default.execute("SHOW synchronous_commit").fetchone() == ("on",)
    live.dumped(live.dump())
    live.check()


@rule(mutations.order_not_checked)
def test_marks_out_of_order_void_the_chunk(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    write = PostgresChunkReader.write_watermark
    first: list[str] = []

    def writing(self: PostgresChunkReader, watermark: str) -> None:
        chunk, _, end = watermark.partition(":")
        first.append(chunk)
        if chunk == first[0]:
            watermark = f"{chunk}:{'high' if end == 'low' else 'low'}"
        write(self, watermark)

    monkeypatch.setattr(PostgresChunkReader, "write_watermark", writing)
    live = ten_rows(make(chunk_rows=4))
    live.dumped(live.dump())
    live.check()
    assert live.voided == {"order": 1}


def test_marks_of_others_are_passed_over(live: Make) -> None:
    """As of a capture that died, or of another event log on the same source."""
    capture = ten_rows(live(chunk_rows=4))
    with at(
        "chunk.after_low",
        lambda: capture.sql.execute("UPDATE tidelog.watermark SET mark = 'dead:high'"),
    ):
        capture.dumped(capture.dump())
    capture.check()
    assert capture.voided == {}


@rule(mutations.windows_never_time_out)
def test_window_whose_high_mark_is_lost_is_read_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the lost watermark does no harm when it comes late."""
    monkeypatch.setattr(chunk_task, "OVERDUE_S", 0.5)
    write, high = PostgresChunkReader.write_watermark, itertools.count()
    lost: list[str] = []

    def writing(self: PostgresChunkReader, watermark: str) -> None:
        if watermark.endswith("high") and next(high) == 0:
            lost.append(watermark)
            return
        write(self, watermark)
        if watermark.endswith("low") and lost:
            write(self, lost.pop())

    monkeypatch.setattr(PostgresChunkReader, "write_watermark", writing)
    live = ten_rows(make())
    live.dumped(live.dump())
    live.check()
    assert live.voided == {"discarded": 1}


def test_chunk_connection_that_dies_before_the_high_mark(live: Make) -> None:
    capture = ten_rows(live(chunk_rows=4))
    with at("chunk.after_read", capture.kill_chunk_reader, hit=2):
        capture.dumped(capture.dump())
    capture.check()


@pytest.mark.slow
def test_eight_writers_void_few_chunks(live: Make) -> None:
    """With plain fsync and eight writers many snapshots miss a transaction that is logged."""
    capture = live(chunk_rows=50)
    capture.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL)")
    capture.sql.execute("INSERT INTO t SELECT i, 1 FROM generate_series(1, 1000) i")
    capture.sql.execute("CREATE SEQUENCE versions START 2")
    capture.sql.execute("ALTER SYSTEM SET fsync = on")
    capture.sql.execute("SELECT pg_reload_conf()")
    stop = threading.Event()
    written = itertools.count()

    def write(seed: int) -> None:
        rng = random.Random(seed)
        with psycopg.connect(capture.dsn, autocommit=True, options=LOCALLY) as sql:
            while not stop.is_set():
                key = rng.randrange(1, 1100)
                if rng.random() < 0.1:
                    sql.execute("DELETE FROM t WHERE id = %s", (key,))
                else:
                    sql.execute(_UPSERT, (key,))
                next(written)

    writers = [threading.Thread(target=write, args=(seed,), daemon=True) for seed in range(8)]
    try:
        capture.start()
        for writer in writers:
            writer.start()
        began, chunks, superseded = time.monotonic(), 0, 0
        while time.monotonic() - began < 6:
            table = capture.dumped(capture.dump())["tables"][0]
            chunks += table["chunks"]
            superseded += table["rows_superseded"]
        voided = sum(capture.voided.values())
    finally:
        stop.set()
        for writer in writers:
            writer.join(10)
        capture.sql.execute("ALTER SYSTEM RESET fsync")
        capture.sql.execute("SELECT pg_reload_conf()")
    print(
        f"{voided} of {chunks + voided} chunks void, {superseded} rows superseded, "
        f"{next(written)} transactions"
    )
    assert superseded, "the writers met the chunks"
    capture.check()


# n is taken under the row's lock, so that it grows with every write of a key.
_UPSERT = """
INSERT INTO t VALUES (%s, nextval('versions'))
ON CONFLICT (id) DO UPDATE SET n = nextval('versions')
"""
