"""The table of `benchmarks.bench_capture` on MySQL and MariaDB: servers, backlogs, floors."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.mysql import MariaDbServer, MySqlFamilyServer, MySqlServer

from benchmarks.bench_capture import Bench, result

SERVERS: dict[str, type[MySqlFamilyServer]] = {"mysql": MySqlServer, "mariadb": MariaDbServer}
DATABASE = "bench"
TABLE = """
CREATE TABLE orders (
  id bigint PRIMARY KEY, customer int, status varchar(20), amount decimal(12, 2), quantity int,
  placed timestamp(6) NULL, updated datetime(6), note varchar(200), reference varchar(64),
  active boolean)
"""
NUMBERS = (
    "CREATE TABLE numbers (n int PRIMARY KEY)",
    "INSERT INTO numbers SELECT a.n + 10 * b.n + 100 * c.n FROM ({d}) a, ({d}) b, ({d}) c".format(
        d=" UNION ALL SELECT ".join(["SELECT 0 AS n", *map(str, range(1, 10))])
    ),
)
INSERT = """
INSERT INTO orders SELECT g, g % 10000, 'shipped', g % 1000 + 0.25, g % 10, NOW(6), NOW(6),
  'a note of some thirty characters', LEFT(SHA2(g, 256), 32), g % 2 = 0
FROM (SELECT {first} + n AS g FROM numbers WHERE n < {count}) AS series
"""
UPDATE = """
UPDATE orders SET amount = amount + 1, status = 'returned', updated = NOW(6)
WHERE id BETWEEN {first} AND {last}
"""
NUMBERS_ROWS = 1_000
SETTINGS = {
    "innodb_buffer_pool_size": "512M",
    "innodb_log_file_size": "512M",
    "innodb_log_buffer_size": "16M",
    "binlog_cache_size": "1M",
}


class MySqlBench(Bench):
    """A server with the table, an event log, and the shipped configuration."""

    server: MySqlFamilyServer  # type: ignore[assignment]

    def __init__(self, server: MySqlFamilyServer, directory: Path) -> None:
        self.server = server
        self.directory = directory
        self.dsn = server.create_database(DATABASE)
        self.config_file = directory / "tidelog.yaml"
        self.config_file.write_text(
            # Without TLS, as the floors' programs and the bench of PostgreSQL.
            f"source: {{kind: {server.flavor}, url: '{server.url}?ssl-mode=disabled', "
            f"tables: ['{DATABASE}.orders'], snapshot: no_data}}\n"
            f"log: {{path: {directory / 'log'}}}\n"
            f"state: {{url: 'sqlite:///{directory}/state.db'}}\n"
        )
        for statement in (TABLE, *NUMBERS):
            server.execute(statement, DATABASE)

    def fill(self, rows: int, transaction_rows: int) -> None:
        with self.server.connect(DATABASE, autocommit=False) as connection:
            cursor = connection.cursor()
            for first in range(1, rows + 1, NUMBERS_ROWS):
                count = min(NUMBERS_ROWS, rows + 1 - first)
                cursor.execute(INSERT.format(first=first, count=count))
                if (first - 1 + count) % transaction_rows == 0:
                    connection.commit()
            connection.commit()

    def update(self, rows: int) -> None:
        """Change each of the first ``rows`` rows, a thousand in a transaction."""
        with self.server.connect(DATABASE) as connection:
            cursor = connection.cursor()
            for first in range(1, rows + 1, NUMBERS_ROWS):
                cursor.execute(UPDATE.format(first=first, last=first + NUMBERS_ROWS - 1))

    def place(self) -> None:
        """Begin the event log at the binlog's end of now."""
        with self.capture() as process:
            process.terminate()
            result(process)
        shutil.copytree(self.directory / "log", self.directory / "log.placed")
        shutil.copy(self.directory / "state.db", self.directory / "state.placed")

    def replace(self) -> None:
        """Take the event log back to where `place` began it."""
        for path in self.directory.glob("state.db*"):
            path.unlink()
        shutil.rmtree(self.directory / "log")
        shutil.copytree(self.directory / "log.placed", self.directory / "log")
        shutil.copy(self.directory / "state.placed", self.directory / "state.db")

    def new_binlog(self) -> str:
        """Begin a new binlog file; its name."""
        self.server.execute("FLUSH BINARY LOGS")
        return self.server.binlog_end()[0]

    def raw_copy(self, file: str) -> tuple[float, float]:
        """Seconds and CPU seconds of mysqlbinlog, copying from ``file`` to the log's end."""
        with tempfile.TemporaryDirectory(dir=self.directory) as directory:
            found = ran(
                [
                    str(self.server.binlog_program()), "--no-defaults",
                    "--read-from-remote-server", "--raw",
                    "--host", "127.0.0.1", "--port", str(self.server.port), "--user", "root",
                    "--to-last-log", f"--result-file={directory}/", file,
                ]
            )  # fmt: skip
            copied = Path(directory, file).stat().st_size
        if copied != dict(row[:2] for row in self.server.execute("SHOW BINARY LOGS"))[file]:
            raise RuntimeError("mysqlbinlog copied a part of the binlog only")
        return found

    def select_all(self) -> float:
        """Seconds of a streamed ``SELECT *`` by the client program."""
        took, _ = ran(
            [
                str(self.server.program("mariadb", "mysql")), "--no-defaults", "--quick", "--batch",
                "--host", "127.0.0.1", "--port", str(self.server.port), "--user", "root",
                "--execute", "SELECT * FROM orders", DATABASE,
            ]
        )  # fmt: skip
        return took


def ran(command: list[str]) -> tuple[float, float]:
    """Seconds and CPU seconds of a program whose output nobody wants."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@contextmanager
def mysql_bench(kind: str, settings: Mapping[str, Any] | None = None) -> Iterator[MySqlBench]:
    with (
        tempfile.TemporaryDirectory() as directory,
        SERVERS[kind](settings=SETTINGS | dict(settings or {}), fsync=True) as server,
    ):
        yield MySqlBench(server, Path(directory))


@contextmanager
def single_row_load(
    here: MySqlBench, per_second: int, rows: int
) -> Iterator[Callable[[], dict[str, float]]]:
    """`benchmarks.mysql_load` at a fixed rate. What it yields ends it: the commits' latencies."""
    process = subprocess.Popen(
        [
            sys.executable, "-m", "benchmarks.mysql_load", str(here.server.port),
            "--rate", str(per_second), "--rows", str(rows),
        ],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip

    def ended() -> dict[str, float]:
        process.terminate()
        out, _ = process.communicate(timeout=30)
        found: dict[str, float] = json.loads(out)
        return found

    try:
        yield ended
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)
