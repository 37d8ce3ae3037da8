"""Instants at which the threads of a dump might cut, read or emit a chunk twice."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.windows.live import Live, at

from tidelog import runtime
from tidelog.capture.chunk_readers import ChunkReaders
from tidelog.capture.dump_tasks import Task
from tidelog.control.commands import SetDumpOptions
from tidelog.errors import ChunkError

pytestmark = pytest.mark.integration


@pytest.fixture
def live(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    made = Live(database, tmp_path, monkeypatch, chunk_rows=2)
    made.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL)")
    made.sql.execute("INSERT INTO t SELECT i, 1 FROM generate_series(1, 10) i")
    try:
        made.start()
        yield made
    finally:
        made.close()


def times_dumped(live: Live) -> set[int]:
    return set(Counter(e.key for e in live.events("public.t") if e.op == "r").values())


def test_chunk_that_no_reader_has_begun_is_not_cut_again(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More readers are wanted right between a chunk's giving away and its begin."""
    give = ChunkReaders.give

    def giving(readers: ChunkReaders, task: Task) -> None:
        monkeypatch.setattr(ChunkReaders, "give", give)
        runtime.send_command(live.config, SetDumpOptions(parallelism=4), timeout_s=5)
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
