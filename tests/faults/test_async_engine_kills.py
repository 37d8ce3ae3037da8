"""An engine that is killed: what was not done comes again, nothing is lost, no process stays."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.engines import Gates, committed, engine, orders_log, running, until, versions

ROWS = list(range(16))
SLOW = 7

# Batches of four. Of the second, 7 is never done; the third is, and may have been committed when
# the fourth is marked.
MARKING = """
import os, sys
from pathlib import Path
from tests.support.engines import Gates, engine

path, done = Path(sys.argv[1]), os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND)

def consume(events, committer):
    for event in events:
        if event.after["id"] != 7:
            committer.mark_processed(event)
            os.write(done, f"{event.after['id']}\\n".encode())
    committer.mark_batch_finished()

engine(Gates(path, batch_size=4), change_consumer=consume).run()
"""

# What was forked from the engine's process keeps its pipes to the others open.
PROCESSES = """
import os, sys, threading
from pathlib import Path
from tests.faults.test_async_engine_kills import append_when_told
from tests.support.engines import Gates, engine, until

files = Path(sys.argv[1])
core = engine(
    Gates(files / "log"),
    consumer=append_when_told,
    consume_records_async=True,
    order="key",
    record_processing_on="processes",
    record_processing_threads=2,
)
runs = threading.Thread(target=core.run)
runs.start()
until(lambda: (files / "begun").exists())
if os.fork() == 0:
    until(lambda: (files / "go").exists())
    os._exit(0)
(files / "forked").touch()
runs.join()
"""


def append_when_told(event: Any) -> None:
    """In a process: as long as that lives, it shares a lock."""
    files = Path(os.environ["TIDELOG_TEST_FILES"])
    fcntl.flock(os.open(files / "lock", os.O_RDONLY), fcntl.LOCK_SH)
    (files / "begun").touch()
    while not (files / "go").exists():
        time.sleep(0.01)
    with (files / "done").open("a") as file:
        file.write(f"{event.after['id']}\n")


@contextmanager
def killed_at_end(program: str, *arguments: Any, **environment: str) -> Iterator[Any]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )
    try:
        yield process
        assert process.poll() is None
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


def test_a_record_that_was_slow_comes_again_after_a_kill(tmp_path: Path) -> None:
    path, done = tmp_path / "log", tmp_path / "done"
    built = orders_log(path, ROWS)
    done.touch()

    def finished() -> list[int]:
        return [int(line) for line in done.read_text().split()]

    with killed_at_end(MARKING, path, done) as process:
        until(lambda: process.poll() is not None or ROWS[-1] in finished())
    # Up to the event that is not done, whatever was marked behind it.
    assert finished() == [row for row in ROWS if row != SLOW]
    assert committed(path) == versions(path)[SLOW]

    again: list[int] = []
    with running(engine(Gates(path), consumer=lambda event: again.append(event.after["id"]))):
        until(lambda: committed(path) == built.writer.next_offset)
    assert again == [row for row in ROWS if row >= SLOW]


def test_no_process_outlives_an_engine_that_is_killed(tmp_path: Path) -> None:
    orders_log(tmp_path / "log", ROWS)
    for name in ("lock", "done"):
        (tmp_path / name).touch()

    def ended() -> bool:
        with (tmp_path / "lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    try:
        with killed_at_end(PROCESSES, tmp_path, TIDELOG_TEST_FILES=str(tmp_path)) as process:
            until(lambda: process.poll() is not None or (tmp_path / "forked").exists())
        until(ended)
    finally:
        (tmp_path / "go").touch()  # one that still lives ends by this, too
    time.sleep(0.1)
    assert not (tmp_path / "done").read_text()
    assert committed(tmp_path / "log") in (None, 0)
