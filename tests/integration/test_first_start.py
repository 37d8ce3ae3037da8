"""The first start compiles kernels: it says so, and where compiled code can be kept nowhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.left_out import SAID

import tidelog
from tidelog.demo.servers.postgres import PostgresServer

pytestmark = pytest.mark.integration

SOURCES = Path(tidelog.__file__).parents[1]


def configure(database: str, directory: Path) -> Path:
    file = directory / "tidelog.yaml"
    file.write_text(
        f"source: {{kind: postgres, url: '{database}'}}\n"
        f"log: {{path: {directory}/log}}\nstate: {{url: 'sqlite:///{directory}/state.db'}}\n"
        f"outputs: [{{kind: files, path: {directory}/files, format: json}}]\n"
    )
    return file


def test_the_first_start_says_once_that_it_compiles(
    database: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    name = database.rpartition("/")[2]
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", name)
    postgres.execute("INSERT INTO t VALUES (1)", name)
    file = configure(database, tmp_path)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    written: list[str] = []
    for _ in range(2):
        capture = subprocess.Popen(
            [sys.executable, "-m", "tidelog", "capture", str(file)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert capture.stdout is not None
        while "up to date" not in (line := capture.stdout.readline()):
            assert line, "it ended"
        capture.send_signal(signal.SIGTERM)
        written.append(capture.communicate(timeout=60)[1])
        assert capture.returncode == 0, written
    done = subprocess.run(
        [sys.executable, "-m", "tidelog", "pipeline", str(file), "--once"],
        env=environment | {"NUMBA_CACHE_DIR": str(tmp_path / "other")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    written.append(done.stderr)
    assert [each.count("compiles Tidelog's inner loops") for each in written] == [1, 0, 1]


def test_status_says_that_capture_starts_before_it_compiles(database: str, tmp_path: Path) -> None:
    file, cache = configure(database, tmp_path), tmp_path / "cache"
    capture = subprocess.Popen(
        [sys.executable, "-m", "tidelog", "capture", str(file)],
        env=os.environ | {"NUMBA_CACHE_DIR": str(cache)}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while not (starts := tidelog.status(file).document["starting"]):
            assert capture.poll() is None, "it ended"
        assert [each["starting"] for each in starts] == ["capture"]
        assert not list(cache.rglob("*.nbi")), "nothing is compiled yet"
    finally:
        capture.terminate()
        assert capture.wait(60) == 0


def test_a_user_who_can_keep_compiled_code_nowhere_hears_of_the_variable(
    database: str, tmp_path: Path
) -> None:
    file = configure(database, tmp_path)
    script = (
        'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" || exit 77\n'
        'HOME=/proc XDG_CACHE_HOME=/proc exec "$2" -m tidelog check "$3"'
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", str(SOURCES), sys.executable, str(file)],
        env={k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"{SAID}the right to mount, which root has")
    assert done.returncode == 2, done.stderr
    assert "set NUMBA_CACHE_DIR to a folder that it may write to" in done.stderr
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
