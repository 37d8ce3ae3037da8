"""An engine that is killed: what was not done comes again, and nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.engines import Gates, committed, engine, orders_log, running, until, versions

ROWS = list(range(12))
SLOW = 7

# Batches of four; in the second, 7 never ends while the others do.
PROGRAM = """
import os, sys, threading
from pathlib import Path
from tests.support.engines import Gates, engine

path, done, order = Path(sys.argv[1]), os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND), sys.argv[3]

def consume(event):
    if event.after["id"] == 7:
        threading.Event().wait()
    os.write(done, f"{event.after['id']}\\n".encode())

task = Gates(path, batch_size=4)
engine(task, consumer=consume, consume_records_async=True, order=order).run()
"""


@pytest.mark.parametrize("order", ["none", "key"])
def test_a_record_that_was_slow_comes_again_after_a_kill(tmp_path: Path, order: str) -> None:
    path, done = tmp_path / "log", tmp_path / "done"
    built = orders_log(path, ROWS)
    done.touch()

    def finished() -> list[int]:
        return [int(line) for line in done.read_text().split()]

    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path), str(done), order],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        until(lambda: process.poll() is not None or set(finished()) == {0, 1, 2, 3, 4, 5, 6})
        assert process.poll() is None
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    # The first batch; nothing of the second.
    assert versions(path)[3] < (committed(path) or 0) <= versions(path)[4]

    again: list[int] = []
    with running(engine(Gates(path), consumer=lambda event: again.append(event.after["id"]))):
        until(lambda: committed(path) == built.writer.next_offset)
    assert again == [row for row in ROWS if row >= 4]
    assert SLOW not in finished()
    assert {*finished(), *again} == set(ROWS)
