"""Capture's memory follows its buffers, not a transaction's size. Invariant 9."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tidelog.demo.servers.postgres import PostgresServer

SMALL, LARGE = 5_000, 800_000  # the large one is 190 MB of payload
ROOM_MB = 125  # batches under way, and what allocators keep of them


def peak_mb(config: Path, records: int) -> float:
    """Peak resident memory of a capture that ends once so many records are durable."""
    command = [sys.executable, "-m", "benchmarks.capture_process", str(config)]
    ended = subprocess.run(
        [*command, "--records", str(records)], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout.splitlines()[-1])
    assert report["records"] >= records
    return float(report["peak_mb"])


@pytest.mark.integration
def test_memory_does_not_follow_the_size_of_a_transaction(
    postgres16: PostgresServer, tmp_path: Path
) -> None:
    """A transaction of 190 MB goes through an 8 MiB buffer."""
    dsn = postgres16.create_database("memory")
    try:
        postgres16.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b text)", "memory")
        config = tmp_path / "tidelog.yaml"
        config.write_text(
            f"source: {{kind: postgres, url: '{dsn}', slot: memory, snapshot: no_data}}\n"
            f"log: {{path: {tmp_path}/log}}\nstate: {{url: 'sqlite:///{tmp_path}/state.db'}}\n"
            "capture: {buffer_bytes: 8MiB, flush_bytes: 2MiB}\n"
        )
        fill = "INSERT INTO t SELECT i, repeat(md5(i::text), 3), repeat('x', 120) FROM {}"
        first = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.capture_process", str(config)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert first.stdout is not None
        assert "ready" in first.stdout.readline()  # the slot exists
        first.terminate()
        first.communicate(timeout=60)
        postgres16.execute(fill.format(f"generate_series(1, {SMALL}) i"), "memory")
        small = peak_mb(config, SMALL)
        postgres16.execute(
            fill.format(f"generate_series({SMALL + 1}, {SMALL + LARGE}) i"), "memory"
        )
        large = peak_mb(config, LARGE)
    finally:
        postgres16.drop_database("memory")
    assert large - small < ROOM_MB, f"{small:.0f} MB, then {large:.0f} MB"
