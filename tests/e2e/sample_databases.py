"""Sample databases of MySQL and MariaDB into Delta, and `tidelog verify` of every table.

    python -m tests.e2e.sample_databases [--server mysql] [--server mariadb] FILE …

Each ``FILE`` is a script that makes databases of its own, such as that of Sakila (its schema and
its data put together), of Chinook (``Chinook_MySql.sql``) or of the employees. No part of them
comes with Tidelog. The script runs twice: before capture begins, so that all tables are
dumped, and again while it runs, so that all is dropped, made anew and logged.

It prints each table's rows and whether its copy is equal; the exit code tells whether all are.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import tidelog
from tidelog import app
from tidelog.config import Config, load_config
from tidelog.demo.servers.mysql import MariaDbServer, MySqlFamilyServer, MySqlServer

SERVERS: dict[str, type[MySqlFamilyServer]] = {"mysql": MySqlServer, "mariadb": MariaDbServer}
OWN = {"mysql", "sys", "information_schema", "performance_schema", "tidelog"}
SETTLED_S = 600.0


def run(server: MySqlFamilyServer, file: Path) -> None:
    command = [str(server.program("mariadb", "mysql")), f"--socket={server.socket}", "--force"]
    done = subprocess.run(
        [*command, "--user=root", "--default-character-set=utf8mb4"],
        stdin=file.open("rb"),
        capture_output=True,
    )
    for line in done.stderr.decode(errors="replace").splitlines()[:5]:
        print(f"  {file.name}: {line}", flush=True)


def settle(config: Config) -> None:
    """Wait until capture is calm: no dump runs, and the log grows no more."""
    deadline, calm, before = time.monotonic() + SETTLED_S, 0, ""
    while calm < 12 and time.monotonic() < deadline:
        time.sleep(1)
        status = app.status(config)
        dumps = status.get("dumps", ())
        now = str([(d["dump_id"], d["status"]) for d in dumps]) + str(status.get("capture"))
        running = any(d["status"] not in ("completed", "aborted") for d in dumps)
        calm = 0 if running or now != before else calm + 1
        before = now
    for refused in app.status(config).get("refused", ()):
        print(f"  refused: {refused['table']}: {refused['reason']}")


def compare(kind: str, files: list[Path], directory: Path) -> bool:
    """Are all copies equal?"""
    with SERVERS[kind]() as server:
        for file in files:
            run(server, file)
        names = {row[0] for row in server.execute("SHOW DATABASES")} - OWN
        listed = ", ".join(f'"{name}.*"' for name in sorted(names))
        file = directory / "tidelog.yaml"
        file.write_text(
            f'source: {{kind: {kind}, url: "{server.dsn()}", tables: [{listed}]}}\n'
            f"log: {{path: {directory}/log}}\nstate: {{url: 'sqlite:///{directory}/state.db'}}\n"
            f"outputs: [{{kind: delta, path: {directory}/lake}}]\n"
            f"pipeline: {{checkpoint: {directory}/checkpoint}}\n"
        )
        config = load_config(file)
        with tidelog.Engine([config], pipelines=False):
            settle(config)
            for script in files:
                run(server, script)
            settle(config)
            app.pipeline(config, stop_event=threading.Event(), once=True)
            report = app.verify(config)
    for table in report["tables"]:
        said = "equal" if table["equal"] else f"DIFFERS: {table['note'] or table['because']}"
        counts = [table[name] for name in ("missing", "surplus", "different", "unsettled")]
        print(
            f"{kind} {table['table']}: {table['rows']} rows, {said} {counts if any(counts) else ''}"
        )
    return bool(report["equal"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--server", action="append", choices=list(SERVERS))
    arguments = parser.parse_args()
    equal = True
    for kind in arguments.server or list(SERVERS):
        with tempfile.TemporaryDirectory() as directory:
            equal &= compare(kind, arguments.files, Path(directory))
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
