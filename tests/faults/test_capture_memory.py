"""Capture's memory follows its buffers, not a transaction's size. Invariant 9."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.support.mysql import MySqlFamilyServer
from tests.support.postgres import PostgresServer

from tidelog.codecs.decode import decode
from tidelog.eventlog.reader import EventLog
from tidelog.system.processes import unix_ms

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


# ---------------------------------------------------------------- MySQL, MariaDB

FEW, MANY = 1_000, 200_000  # the many are 50 MB of binlog
ROWS = """
INSERT INTO t WITH RECURSIVE x AS (SELECT 0 AS i UNION ALL SELECT i + 1 FROM x WHERE i < 999)
SELECT {first} + 1000 * a.i + b.i, CONCAT('row ', {first} + 1000 * a.i + b.i), REPEAT('é', 100)
FROM x AS a, x AS b WHERE 1000 * a.i < {rows}
"""


def captured(server: MySqlFamilyServer, database: str, config: Path, sql: str) -> tuple[float, int]:
    """Peak resident memory in MB of a capture, started behind the one transaction ``sql``, and its
    rows, which are looked at one by one.
    """
    end = -unix_ms()
    server.execute(sql, database)
    server.execute(f"INSERT INTO t VALUES ({end}, '', '')", database)
    log = EventLog.open(config.parent / "log")
    place = log.latest_offset()
    command = [sys.executable, "-m", "benchmarks.capture_process", str(config)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    rows = []
    try:
        deadline = time.monotonic() + 240
        while not rows or not pc.any(pc.equal(rows[-1].field("id"), end)).as_py():
            assert time.monotonic() < deadline
            time.sleep(0.2)
            for ref in log.segments(place):
                for batch in log.batches(ref, tables=[f"{database}.t"]):
                    if len(batch):
                        schema = log.schemas.get(batch.column("schema_id")[0].as_py())
                        after = decode(batch, schema, before=False).after
                        assert after is not None
                        rows.append(after)
                place = ref.end
    finally:
        process.terminate()
        out, _ = process.communicate(timeout=60)
    peak: float = json.loads(out.splitlines()[-1])["peak_mb"]
    found = pa.Table.from_struct_array(pa.chunked_array(rows))
    found = found.filter(pc.not_equal(found["id"], end)).sort_by("id")
    told = pc.binary_join_element_wise("row", found["id"].cast(pa.string()), " ")
    assert pc.all(pc.equal(found["v"], told)).as_py()
    assert pc.all(pc.equal(found["w"], "é" * 100)).as_py()
    steps = pc.subtract(found["id"][1:], found["id"][:-1])
    assert pc.all(pc.equal(steps, 1)).as_py()
    return peak, len(found)


def peaks(
    server: MySqlFamilyServer, database: str, directory: Path, many: int
) -> tuple[float, float]:
    """Of a transaction of few rows, and of one of ``many``."""
    server.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, v varchar(40), w varchar(200))", database
    )
    config = directory / "tidelog.yaml"
    config.write_text(
        f"source: {{kind: {server.flavor}, url: '{server.dsn(database)}', snapshot: no_data, "
        f"tables: [{database}.t]}}\n"
        f"log: {{path: {directory}/log}}\nstate: {{url: 'sqlite:///{directory}/state.db'}}\n"
        "capture: {buffer_bytes: 8MiB, flush_bytes: 2MiB}\n"
    )
    first = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.capture_process", str(config)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout is not None
    assert "ready" in first.stdout.readline()  # it begins here
    first.terminate()
    first.communicate(timeout=60)
    small, count = captured(server, database, config, ROWS.format(first=1, rows=FEW))
    assert count == FEW
    large, count = captured(server, database, config, ROWS.format(first=FEW + 1, rows=many))
    assert count == many
    return small, large


@pytest.mark.integration
@pytest.mark.thorough
def test_memory_does_not_follow_the_size_of_a_binlog_transaction(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, tmp_path: Path
) -> None:
    small, large = peaks(mysql_family, mysql_family_database, tmp_path, MANY)
    assert large - small < ROOM_MB, f"{small:.0f} MB, then {large:.0f} MB"
