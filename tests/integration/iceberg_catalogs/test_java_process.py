"""Where a pipeline starts Spark only when it needs it, Iceberg's library runs in a Java process of
its own.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.spark.orders import orders
from tests.support.build_log import BuiltLog
from tests.support.iceberg_readers import by_duckdb
from tests.support.pipeline_process import Delivering

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(300)]

CONFIG = """
source: {kind: postgres, url: 'postgresql://u@h/d'}
log: {path: log}
state: {url: 'sqlite:///state.db'}
outputs: [{kind: iceberg, path: lake}]
"""


def rows(directory: Path) -> list[tuple[int, str]]:
    folder = directory / "lake" / "public" / "orders" / "metadata"
    try:
        hint = (folder / "version-hint.text").read_text().strip()
        found = by_duckdb(str(folder / f"v{hint}.metadata.json"))
    except OSError:  # not made yet, or just replaced
        return []
    return [(row["id"], row["name"]) for row in found]


def library_of(process: Delivering) -> list[int]:
    """The Java processes of a pipeline that run Iceberg's library, and not Spark."""
    return [pid for pid in process.processes if b"\0py4j.GatewayServer\0" in _command(pid)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def wait_for(held: Callable[[], bool], process: Delivering) -> None:
    deadline = time.monotonic() + 120
    while not held():
        assert process.code is None, process.said[-3000:]
        assert time.monotonic() < deadline, process.said[-3000:]
        time.sleep(0.2)


def test_a_java_process_that_was_killed_is_started_again(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path / "log")
    table = orders(built)
    (tmp_path / "tidelog.yaml").write_text(CONFIG)
    process = Delivering(tmp_path / "tidelog.yaml", tmp_path / "said.txt")
    try:
        wait_for(lambda: len(rows(tmp_path)) == 4, process)
        (library,) = library_of(process)
        os.kill(library, signal.SIGKILL)
        built.update(table, "1", "changed", "2.5")
        built.delete(table, "2")
        built.flush()
        expected = [(0, "n0"), (1, "changed"), (3, "n3")]
        wait_for(lambda: rows(tmp_path) == expected, process)
        assert library_of(process) != [library]
        assert "Traceback" not in process.said
    finally:
        process.close()
