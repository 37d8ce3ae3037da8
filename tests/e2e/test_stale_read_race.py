"""The stale-read race as it comes by itself: a durable server, 8 writers, many small chunks.

PostgreSQL logs a commit before others see it (docs/explanation/watermarks.md). So some chunks miss
what stands before their low watermark: none of their rows may go back in time, and few may have to
be read again.
"""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integration.windows.live import Event, Live
from tests.support.oracle.dumps import Seen
from tests.support.postgres import PostgresServer

from tidelog import app
from tidelog.eventlog.reader import EmittedTransactions, EventLog

ROWS = 800
CHUNK_ROWS = 8
VOIDED_AT_MOST = 0.01
WRITERS = 8


@pytest.fixture(scope="module")
def durable() -> Iterator[PostgresServer]:
    with PostgresServer(16, fsync=True) as server:
        yield server


@pytest.fixture
def source(durable: PostgresServer, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"race_{abs(hash(request.node.name)) % 10**8}"
    yield durable.create_database(name)
    durable.drop_database(name)


class Writers:
    """pgbench: each transaction counts one row up, and another of a table that is not dumped."""

    def __init__(self, server: PostgresServer, dsn: str, directory: Path) -> None:
        script = directory / "writes.sql"
        script.write_text(
            f"\\set id random(1, {ROWS})\n"
            "BEGIN;\nUPDATE t SET n = n + 1 WHERE id = :id;\n"
            "UPDATE other SET n = n + 1 WHERE id = :client_id;\nCOMMIT;\n"
        )
        self._process = subprocess.Popen(
            [
                str(server.binary("pgbench")),
                "--no-vacuum",
                f"--client={WRITERS}",
                "--time=600",
                "--rate=500",
                f"--file={script}",
                dsn,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def stop(self) -> None:
        assert self._process.poll() is None, "pgbench ended by itself"
        self._process.terminate()
        self._process.wait(10)


def race(live: Live, durable: PostgresServer, chunks: int) -> dict[str, Any]:
    """Dump the table again and again until ``chunks`` were read; what came of them."""
    live.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL)")
    live.sql.execute(f"INSERT INTO t SELECT i, 0 FROM generate_series(1, {ROWS}) i".encode())
    live.sql.execute("CREATE TABLE other (id int PRIMARY KEY, n int NOT NULL)")
    live.sql.execute("INSERT INTO other SELECT i, 0 FROM generate_series(0, 7) i")
    live.sql.execute("ANALYZE")
    live.start()
    writers = Writers(durable, live.dsn, live.directory)
    try:
        time.sleep(0.5)
        while True:
            live.dumped(live.dump())
            counters = app.status(live.config).document["dump_counters"]
            if counters["chunks"] + sum(counters["voided"].values()) >= chunks:
                break
    finally:
        writers.stop()
    row = live.sql.execute(
        "WITH i AS (INSERT INTO tick VALUES (1)) SELECT pg_current_xact_id()::text"
    ).fetchone()
    assert row is not None
    emitted = EmittedTransactions(EventLog.open(live.directory / "log"))
    live.wait_for(lambda: emitted.max_xid() >= int(row[0]), "all is captured")
    time.sleep(0.25)  # the status is written every 0.1 s
    found: dict[str, Any] = app.status(live.config).document["dump_counters"]
    return found


def check_counting(events: list[Event], source: dict[Any, Any]) -> None:
    """Each row counts up by one; a dump's row is the one before it in the log. Invariants 1, 2."""
    counts: dict[Any, int] = dict.fromkeys(source, 0)
    for event in events:
        if event.op == "U":
            assert event.n == counts[event.key] + 1, f"{event.key} at {event.offset}"
            counts[event.key] = event.n
        elif event.op == "r":
            assert event.n == counts[event.key], f"dump row of {event.key} at {event.offset}"
    assert counts == {key: int(row["n"]) for key, row in source.items()}


def missed(log: EventLog) -> tuple[int, int]:
    """Of how many chunks the snapshot missed what stands before the low watermark; of how many."""
    parts = [
        (np.asarray(batch.column("position")), np.asarray(batch.column("xid")))
        for ref in log.segments(log.head_offset)
        for batch in log.batches(ref)
    ]
    position = np.concatenate([part[0] for part in parts])
    xid = np.concatenate([part[1] for part in parts])
    transactions = np.unique(np.stack([position, xid])[:, xid > 0], axis=1)
    chunks = [chunk for _, chunk in log.chunks()]
    found = 0
    for chunk in chunks:
        until = int(np.searchsorted(transactions[0], int(chunk.low_watermark)))
        seen = Seen.of(chunk.snapshot)
        before = transactions[1, max(0, until - 200) : until]
        found += any(not seen.sees(int(x)) for x in before)
    return found, len(chunks)


def run(
    live: Live, durable: PostgresServer, chunks: int, capsys: pytest.CaptureFixture[str]
) -> None:
    counters = race(live, durable, chunks)
    check_counting(live.events("public.t"), live.source("t", ("id",)))
    unseen, durable_chunks = missed(EventLog.open(live.directory / "log"))
    voided = Counter(counters["voided"])
    read = counters["chunks"] + voided.total()
    with capsys.disabled():
        print(
            f"\n{live.watermarks}, parallelism {live.parallelism}: {read} chunks, "
            f"{unseen} of {durable_chunks} missed a transaction before their low mark, "
            f"{counters['superseded']} rows superseded, "
            f"{voided.total()} voided ({voided.total() / read:.2%}): {dict(voided)}"
        )
    assert voided.total() <= max(2, VOIDED_AT_MOST * read), dict(voided)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize(
    "watermarks",
    ["table", *(pytest.param(one, marks=pytest.mark.thorough) for one in ("message", "snapshot"))],
)
def test_few_chunks_are_void_and_none_goes_back(
    durable: PostgresServer,
    source: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    watermarks: str,
) -> None:
    """Invariant 2 (docs/INVARIANTS.md)."""
    live = Live(
        source,
        tmp_path,
        monkeypatch,
        chunk_rows=CHUNK_ROWS,
        watermarks=watermarks,
        parallelism=4,
    )
    try:
        run(live, durable, 100, capsys)
    finally:
        live.close()


@pytest.mark.soak
@pytest.mark.parametrize("parallelism", [1, 16])
@pytest.mark.parametrize("watermarks", ["table", "message", "snapshot"])
def test_few_chunks_of_thousands_are_void(
    durable: PostgresServer,
    source: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    watermarks: str,
    parallelism: int,
) -> None:
    live = Live(
        source,
        tmp_path,
        monkeypatch,
        chunk_rows=CHUNK_ROWS,
        watermarks=watermarks,
        parallelism=parallelism,
        patience_s=300.0,
    )
    try:
        run(live, durable, 2_000, capsys)
    finally:
        live.close()
