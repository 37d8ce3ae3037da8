"""Sample databases into Delta by the command line, and `tidelog verify` of every table.

    python -m tests.e2e.sample_databases --server mysql --server mariadb FILE …
    python -m tests.e2e.sample_databases --server postgres FILE …

The files are the scripts of one sample database, such as Sakila (its schema, then its data),
Chinook or the employees, in that server's SQL; for MySQL and MariaDB they may make several
databases. No part of them comes with Tidelog. Each server has three rounds, and four comparisons:

1. ``loaded before``: the scripts run, then ``tidelog run`` dumps what they made;
2. ``recreated``: all is dropped and loaded again while it runs;
3. ``killed``: the same, and the processes are killed amid the scripts, and again amid the dumps;
4. ``from nothing``: ``tidelog run`` starts beside an empty server, then the scripts run.

It prints each table that is not equal, and tables and rows of each comparison, with the seconds
until no dump ran, those of ``verify``, which waits for the copy, and Delta's commits so far; the
exit code is 1 if any differs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Protocol

from tests.support.mysql import MariaDbServer, MySqlFamilyServer, MySqlServer
from tests.support.postgres import PostgresServer

from tidelog import app
from tidelog.config import load_config
from tidelog.errors import TidelogError

SETTLED_S, BEGUN_S = 1800.0, 300.0
CALM_S, LOOK_EVERY_S = 15.0, 1.0
"""A look at the catalogue, which finds new tables, is at most 5 s away."""
KILLED_AFTER_S = 8.0
ENDED = frozenset({"completed", "aborted"})
GRANTS = (
    "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO tidelog",
    "GRANT SELECT ON *.* TO tidelog",
    "GRANT SELECT, INSERT, UPDATE, CREATE ON tidelog.* TO tidelog",
)
OTHER_DATABASE = re.compile(rb"^(?:(?:DROP|CREATE) DATABASE\b.*;|\\c .*)$", re.MULTILINE)


class Server(Protocol):
    """What differs between servers."""

    kind: str
    url: str
    source: str
    """The rest of its section."""

    def load(self, file: Path) -> str: ...
    def drop(self) -> None: ...
    def close(self) -> None: ...


class MySqlFamily:
    """All databases of a server, by an account as the page of the source has it."""

    source = 'tables: ["*.*"], cascades: dump'
    servers: ClassVar[dict[str, type[MySqlFamilyServer]]] = {
        "mysql": MySqlServer,
        "mariadb": MariaDbServer,
    }

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.server = self.servers[kind]()
        self.server.start()
        self.url = self.server.create_user("tidelog", "a password")
        for grant in GRANTS:
            self.server.execute(grant)

    def load(self, file: Path) -> str:
        command = [str(self.server.program("mariadb", "mysql")), f"--socket={self.server.socket}"]
        options = ["--force", "--local-infile=1", "--user=root", "--default-character-set=utf8mb4"]
        with file.open("rb") as script:
            done = subprocess.run([*command, *options], stdin=script, capture_output=True)
        return done.stderr.decode(errors="replace")

    def drop(self) -> None:
        """The scripts do it themselves."""

    def close(self) -> None:
        self.server.close()


class Postgres:
    """One database: statements that make or choose another are left out of the scripts."""

    kind = "postgres"
    source = 'tables: ["public.*"]'

    def __init__(self, _kind: str) -> None:
        self.server = PostgresServer()
        self.server.start()
        self.url = self.server.create_database("sample")

    def load(self, file: Path) -> str:
        psql = [str(self.server.binary("psql")), "-X", "-q", "-d", self.url]
        script = OTHER_DATABASE.sub(b"", file.read_bytes())
        return subprocess.run(psql, input=script, capture_output=True).stderr.decode()

    def drop(self) -> None:
        self.server.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public", "sample")

    def close(self) -> None:
        self.server.close()


SERVERS: dict[str, Callable[[str], Server]] = {
    "mysql": MySqlFamily,
    "mariadb": MySqlFamily,
    "postgres": Postgres,
}


class Round:
    """A server, and ``tidelog run`` beside it."""

    def __init__(self, kind: str, files: Sequence[Path], directory: Path) -> None:
        self.kind, self.files, self.directory = kind, files, directory
        self.server = SERVERS[kind](kind)
        self.config = directory / "tidelog.yaml"
        self.config.write_text(
            f'source: {{kind: {kind}, url: "{self.server.url}", {self.server.source}}}\n'
            "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\n"
            "outputs: [{kind: delta, path: lake}]\n"
        )
        self.said = (directory / "run.log").open("ab")
        self.process: subprocess.Popen[bytes] | None = None

    def tidelog(self, command: str) -> dict[str, Any]:
        """The last document that a command writes; what else it says is shown."""
        call = [sys.executable, "-m", "tidelog", command, str(self.config), "--json"]
        done = subprocess.run(call, cwd=self.directory, capture_output=True, text=True)
        lines = done.stdout.splitlines()
        if not lines:
            raise RuntimeError(f"tidelog {command}: {done.stderr}")
        found: dict[str, Any] = json.loads(lines[-1])
        return found

    def load(self) -> None:
        self.server.drop()
        for file in self.files:
            for line in self.server.load(file).splitlines()[:5]:
                print(f"    {file.name}: {line[:200]}", flush=True)

    def start(self) -> None:
        call = [sys.executable, "-m", "tidelog", "run", str(self.config)]
        self.process = subprocess.Popen(
            call, cwd=self.directory, stdout=self.said, stderr=self.said, start_new_session=True
        )

    def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        os.killpg(self.process.pid, number)
        return self.process.wait(120)

    def kill(self) -> None:
        """All its processes, at what they are just doing."""
        running = sum(status not in ENDED for status in self.dumps())
        self.end(signal.SIGKILL)
        print(f"    killed, {running} dumps under way", flush=True)

    def dumps(self) -> list[str]:
        """What has become of each dump; nothing before capture has begun."""
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(f"tidelog run has ended: {self.last_words()}")
        with suppress(TidelogError):
            return [
                dump["status"]
                for dump in app.status(load_config(self.config)).document.get("dumps", ())
            ]
        return []

    def begin(self) -> None:
        """Wait until there is a dump."""
        deadline = time.monotonic() + BEGUN_S
        while not self.dumps():
            if time.monotonic() > deadline:
                raise RuntimeError(f"no dump in {BEGUN_S:.0f} s: {self.last_words()}")
            time.sleep(LOOK_EVERY_S)

    def settle(self) -> None:
        """Wait until no dump has run for a while."""
        deadline = time.monotonic() + SETTLED_S
        calm = time.monotonic()
        while time.monotonic() < calm + CALM_S:
            if time.monotonic() > deadline:
                raise RuntimeError(f"not settled in {SETTLED_S:.0f} s: {self.tidelog('status')}")
            time.sleep(LOOK_EVERY_S)
            dumps = self.dumps()
            if not dumps or not ENDED.issuperset(dumps):
                calm = time.monotonic()

    def last_words(self) -> str:
        return (self.directory / "run.log").read_text(errors="replace")[-3000:]

    def compare(self, title: str) -> bool:
        """Print what differs, what is refused and what was compared."""
        began = time.monotonic()
        self.settle()
        settled = time.monotonic()
        report = self.tidelog("verify")
        verified = time.monotonic()
        status = self.tidelog("status")
        for table in report["tables"]:
            if not table["equal"] or table["unsettled"] or table["note"]:
                names = ("missing", "surplus", "different", "unsettled", "note", "because")
                print(f"    {table['table']}: { {name: table[name] for name in names} }")
        for refused in status.get("refused", ()):
            print(f"    refused: {refused['table']}: {refused['reason']}")
        rows = sum(table["rows"] for table in report["tables"])
        commits = len(list(self.directory.glob("lake/*/*/_delta_log/*.json")))
        verdict = "equal" if report["equal"] else "DIFFERS"
        print(
            f"  {self.kind}, {title}: {verdict}, {len(report['tables'])} tables, {rows} rows "
            f"({settled - began:.0f} + {verified - settled:.0f} s, {commits} commits)",
            flush=True,
        )
        return bool(report["equal"] and report["tables"])

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            code = self.end(signal.SIGTERM)
            if code:
                print(f"    tidelog run ended with {code}: {self.last_words()}")
        self.said.close()
        self.server.close()


def loaded_before(it: Round) -> bool:
    it.load()
    it.start()
    equal = it.compare("loaded before")
    it.load()
    return it.compare("recreated") and equal


def killed(it: Round) -> bool:
    began = time.monotonic()
    it.load()
    took = time.monotonic() - began
    it.start()
    it.begin()
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(it.load)
        time.sleep(took / 2)
        it.kill()
        it.start()
        loading.result()
    time.sleep(KILLED_AFTER_S)
    it.kill()
    it.start()
    return it.compare("killed")


def from_nothing(it: Round) -> bool:
    it.start()
    time.sleep(20)
    it.load()
    return it.compare("from nothing")


ROUNDS = {"loaded-before": loaded_before, "killed": killed, "from-nothing": from_nothing}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--server", action="append", choices=list(SERVERS), required=True)
    parser.add_argument("--round", action="append", choices=list(ROUNDS))
    arguments = parser.parse_args()
    equal = True
    for kind in arguments.server:
        for name in arguments.round or ROUNDS:
            with tempfile.TemporaryDirectory() as directory:
                it = Round(kind, [file.resolve() for file in arguments.files], Path(directory))
                try:
                    equal &= ROUNDS[name](it)
                finally:
                    it.close()
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
