"""`tidelog watch`, `capture` and `dump --wait` on a real terminal: what its screen shows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from tests.support.pseudo_terminal import PseudoTerminal

pytestmark = pytest.mark.integration
TABLES = 20


@pytest.fixture
def directory(database: str, tmp_path: Path) -> Path:
    with psycopg.connect(database, autocommit=True) as connection:
        for at in range(TABLES):
            connection.execute(f"CREATE TABLE t{at:02} (id bigint PRIMARY KEY, note text)")
            connection.execute(f"INSERT INTO t{at:02} SELECT n, '' FROM generate_series(1, 2000) n")
        connection.execute("ANALYZE")
    (tmp_path / "tidelog.yaml").write_text(
        f"source: {{kind: postgres, url: {json.dumps(database)}, snapshot: no_data}}\n"
        "log: {path: ./log}\nstate: {url: 'sqlite:///state.db'}\n"
        "dump: {chunk_rows: 500, rows_per_second: 1000}\n"
    )
    return tmp_path


def on_terminal(directory: Path, *arguments: str) -> PseudoTerminal:
    return PseudoTerminal([sys.executable, "-m", "tidelog", *arguments], directory, 80, 24)


def beginning(text: str, with_: str) -> int:
    """How many lines begin so."""
    return sum(line.startswith(with_) for line in text.splitlines())


def test_capture_dump_and_watch_at_80x24(directory: Path) -> None:
    with on_terminal(directory, "capture", "tidelog.yaml") as capture:
        capture.wait(lambda text: "up to date" in text and "leads since" in text, 60)
        with on_terminal(directory, "watch", "tidelog.yaml") as watch:
            watch.wait(lambda text: "All is well" in text)
            with on_terminal(directory, "dump", "tidelog.yaml", "--id", "d1", "--wait") as dump:
                # Between two tables none is named.
                told = (" done", "public.t", "rows a second")
                dump.wait(lambda text: all(part in text for part in told))
                dump.interrupt()
                seen = dump.wait_ended()
                assert dump.exit_code == 130
                assert "d1 continues" in seen
                assert "tidelog cancel tidelog.yaml d1" in " ".join(seen.split())
                assert "░" not in seen
            # A frame comes in pieces.
            wanted = ("d1 is running", " done", "public.t")
            watch.wait(lambda text: all(part in text for part in wanted))
            watch.press("p")
            watch.wait(lambda text: "Pause dump d1?" in text)
            watch.press("n")
            watch.wait(lambda text: "q quits" in text)
            assert "d1 is paused" not in watch.text
            watch.press("p")
            watch.wait(lambda text: "Pause dump d1?" in text)
            watch.press("y")
            watch.wait(lambda text: "d1 is paused" in text)
            watch.press("?")
            assert "superseded" in watch.wait(lambda text: "? back" in text)
            watch.press("?")
            watch.resize(60, 20)
            seen = watch.wait(lambda text: "Dump d1 is paused." in text)
            assert len(seen.splitlines()) <= 20
            assert beginning(seen, "dump ") == 1
            watch.press("q")
            assert watch.wait_ended().startswith("watched for")
            assert watch.exit_code == 0
        capture.resize(70, 20)
        # The frame of before stands there for a moment, its lines cut in pieces.
        capture.wait(lambda text: "d1 is paused" in text and beginning(text, "source ") == 1)
        capture.interrupt()
        seen = capture.wait_ended()
        assert capture.exit_code == 0
        assert "stopped:" in seen
        assert "Ctrl-C ends" not in seen


def test_watch_on_other_terminals_and_in_a_pipe(directory: Path, database: str) -> None:
    watch = [sys.executable, "-m", "tidelog", "watch", "tidelog.yaml"]
    with on_terminal(directory, "capture", "tidelog.yaml") as capture:
        capture.wait(lambda text: "up to date" in text and "leads since" in text, 60)
        with PseudoTerminal(watch, directory, 44, 12, NO_COLOR="1") as narrow:
            seen = narrow.wait(lambda text: "more lines: tidelog status" in text)
            assert seen.startswith("✓ All is well")
            assert max(map(len, seen.splitlines())) <= 44
            assert "q quits" in seen.splitlines()[-1]
            cells = [cell for line in narrow.screen.buffer.values() for cell in line.values()]
            assert {cell.fg for cell in cells} == {"default"}
            narrow.press("+")
            narrow.wait(lambda text: "Set parallelism from" in text)
            narrow.press("q")
            assert "watched for" in narrow.wait_ended()
        with PseudoTerminal(watch, directory, 80, 24, TERM="dumb") as dumb:
            dumb.wait(lambda text: "watch: up to date" in text)
            assert b"\x1b" not in dumb.written
        with subprocess.Popen(watch, cwd=directory, stdout=subprocess.PIPE) as piped:
            assert piped.stdout is not None
            line = piped.stdout.readline()
            piped.terminate()
        assert line.startswith(b"watch: up to date")
        # Lines of the log stand above the picture, each whole, and the picture once.
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
        seen = capture.wait(lambda text: "WARNING" in text and "up to date" in text)
        assert beginning(seen, "source ") == beginning(seen, "capture ") == 1, seen
        capture.interrupt()
        seen = capture.wait_ended()
        assert "WARNING" in seen
        assert "Ctrl-C ends" not in seen
