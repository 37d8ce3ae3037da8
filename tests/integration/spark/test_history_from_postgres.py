"""`tidelog run` keeps the history of a table that changes at random, over a dump and a kill: what
each row was, and when, is what its changes say.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.integration.spark.test_delta_random import check_states
from tests.support.delta_readers import by_delta_rs, by_duckdb, rows_of
from tests.support.pipeline_process import Delivering

pytestmark = [pytest.mark.spark, pytest.mark.integration]

VALUES = ("n", "v", "big")
LONG = "x" * 9000  # stored out of line: an update that leaves it alone does not log it


class Running:
    """A process that keeps the history of ``public.t`` in one lake, and its changes in another."""

    def __init__(self, url: str, directory: Path) -> None:
        self.directory, self.rng = directory, random.Random(5)
        self.sql = psycopg.connect(url, autocommit=True)
        self.file = directory / "tidelog.yaml"
        self.file.write_text(
            f"source: {{kind: postgres, url: '{url}', tables: ['public.t']}}\n"
            "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\n"
            "capture: {flush_ms: 10}\n"
            "pipeline: {trigger_ms: 50, master: 'local[2]', "
            "conf: {spark.sql.shuffle.partitions: 2, spark.ui.enabled: false}}\n"
            "outputs:\n"
            "  - {kind: delta, name: history, path: history, holds: {'*.*': history}}\n"
            "  - {kind: delta, name: changes, path: changes, holds: {'*.*': changes}}\n"
        )
        self.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n numeric(9,2), v text, big text)")
        self.sql.execute("ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
        self.sql.execute("INSERT INTO t SELECT i, i, 'first', NULL FROM generate_series(1, 40) i")
        self.process = self.start()

    def start(self) -> Delivering:
        return Delivering(self.file, self.directory / "run.log", command="run")

    def close(self) -> None:
        self.process.close()
        self.sql.close()

    def work(self, transactions: int) -> None:
        for _ in range(transactions):
            with self.sql.transaction():
                for _ in range(self.rng.randint(1, 4)):
                    self._change()

    def _change(self) -> None:
        rng = self.rng
        key, other = rng.randint(1, 60), rng.randint(1, 60)
        what: Any = rng.choice(
            [
                ("INSERT INTO t VALUES (%s, 1, 'new', %s) ON CONFLICT DO NOTHING", (key, LONG)),
                ("UPDATE t SET v = %s WHERE id = %s", (rng.choice("abc"), key)),
                ("UPDATE t SET n = n + 1, big = NULL WHERE id = %s", (key,)),
                ("UPDATE t SET v = v WHERE id = %s", (key,)),
                ("DELETE FROM t WHERE id = %s", (key,)),
                (
                    "UPDATE t SET id = %s WHERE id = %s AND NOT EXISTS "
                    "(SELECT FROM t WHERE id = %s)",
                    (other, key, other),
                ),
            ]
        )
        self.sql.execute(*what)

    def command(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "tidelog", arguments[0], str(self.file), *arguments[1:]]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def place(self, output: str) -> str:
        return str(self.directory / output / "public/t")

    def has(self, output: str, note: str) -> bool:
        """The row 0, with which each part of the test ends, has come."""
        if not (Path(self.place(output)) / "_delta_log").is_dir():
            return False
        column = "after.v" if output == "changes" else "v"
        found = by_duckdb(self.place(output), "1", "count(*) AS n", f"{column} = '{note}'")
        return bool(found.to_pylist()[0]["n"])

    def finish(self, note: str) -> None:
        self.sql.execute(
            "INSERT INTO t VALUES (0, 0, %s, NULL) ON CONFLICT (id) DO UPDATE SET v = excluded.v",
            (note,),
        )
        deadline = time.monotonic() + 240
        while not (self.has("history", note) and self.has("changes", note)):
            assert self.process.code is None, self.process.said
            assert time.monotonic() < deadline, self.process.said
            time.sleep(0.2)


@pytest.fixture
def running(database: str, tmp_path: Path) -> Iterator[Running]:
    made = Running(database, tmp_path)
    yield made
    made.close()


def replayed(changes: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The states that a table of changes gives: key, values, since and until when, and where."""
    done: list[tuple[Any, ...]] = []
    open_: dict[int, tuple[Any, ...]] = {}

    def end(key: int, version: int, at: Any) -> None:
        if key in open_:
            values, since, from_version = open_.pop(key)
            done.append((key, values, since, max(since, at), from_version, version))

    for change in changes:
        op, version, at, after = (change[name] for name in ("op", "version", "ts", "after"))
        if op == "t":
            for key in list(open_):
                end(key, version, at)
        if op in "ts":
            continue
        key, before = change["key"]["id"], change["before"]
        left = before["id"] if before and before["id"] is not None else key
        base = open_.get(left, (None,))[0]
        if op == "d" or left != key:
            end(left, version, at)
        if op == "d":
            continue
        missing = change["missing"] or ()
        assert base or not missing
        values = tuple(base[n] if name in missing else after[name]
                       for n, name in enumerate(VALUES))  # fmt: skip
        if key in open_:
            if open_[key][0] == values:
                continue
            at = max(at, open_[key][1])
            end(key, version, at)
        open_[key] = values, at, version
    return [*done, *((key, row[0], row[1], None, row[2], None) for key, row in open_.items())]


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_what_each_row_was_and_when_is_what_its_changes_say(running: Running) -> None:
    running.work(60)
    running.finish("one")
    before = len(rows_of(by_duckdb(running.place("history"), "1")))
    running.command("dump", "--table", "public.t", "--wait")
    running.finish("two")
    after = rows_of(by_duckdb(running.place("history"), "1"))
    assert len(after) == before + 1, "the dump added no row"
    running.work(40)
    running.sql.execute("TRUNCATE t")
    running.process.close()
    running.work(30)
    running.process = running.start()
    running.work(30)
    running.finish("three")

    rows = rows_of(by_duckdb(running.place("history"), "id, _valid_from_version"))
    assert rows_of(by_delta_rs(running.place("history"), "id, _valid_from_version")) == rows
    states: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        states.setdefault(row["id"], []).append(row)
    for of_key in states.values():
        check_states(of_key, "")
    source = running.sql.execute("SELECT id, n, v, big FROM t ORDER BY id").fetchall()
    current = [row for row in rows if row["_current"]]
    assert [(row["id"], *(row[name] for name in VALUES)) for row in current] == source
    columns = ("_valid_from", "_valid_to", "_valid_from_version", "_valid_to_version")
    found = [
        (row["id"], tuple(row[name] for name in VALUES), *(row[name] for name in columns))
        for row in rows
    ]
    wanted = replayed(rows_of(by_duckdb(running.place("changes"), "version, op DESC")))
    assert found == sorted(wanted, key=lambda each: (each[0], each[4]))
    told = running.command("verify", "--json")
    assert '"equal": true' in told or '"equal":true' in told
