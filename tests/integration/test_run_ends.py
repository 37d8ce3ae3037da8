"""`tidelog run` ends at once when capture can't begin, whatever Spark does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.postgres import PostgresServer

from tidelog.app.overview.reader import StatusReader
from tidelog.config import load_config

pytestmark = pytest.mark.integration

JAVA = """#!/bin/sh
case "$1" in -version) echo 'openjdk version "17.0.9"' >&2; exit 0;; esac
exec sleep 300
"""
CONFIG = """
source: {{kind: postgres, url: '{url}', tables: ['public.*']}}
log: {{path: log}}
outputs: [{{kind: files, path: files}}]
"""


def test_an_error_of_capture_does_not_wait_for_spark(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    """The Java of this test never starts Spark."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(JAVA)
    java.chmod(0o755)
    url = postgres.dsn("postgres", user="nobody_here")
    (tmp_path / "tidelog.yaml").write_text(CONFIG.format(url=url))
    told = tmp_path / "told"
    with told.open("w") as stderr:
        run = subprocess.Popen(
            [sys.executable, "-m", "tidelog", "run", "tidelog.yaml"],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=os.environ | {"JAVA_HOME": str(tmp_path / "java")},
            start_new_session=True,
        )
    try:
        assert run.wait(timeout=240) == 2
        ended_ms = time.time() * 1000
        assert "nobody_here" in told.read_text()
        config = load_config(tmp_path / "tidelog.yaml")
        with StatusReader(config) as reader:
            error = reader.read()["ended"]["capture"]
        assert ended_ms - error["at_ms"] < 40_000, "a batch is waited for 60 s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
