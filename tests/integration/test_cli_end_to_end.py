"""The command line as its users see it: processes over a real server (invariants 1, 3 and 10)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.postgres import PostgresServer

from tidelog.cli import main

ODD = """we.ird "q" é.ta.ble 'x' \\ z"""
SECRET = "hunter2-never-shown"
SQL = """
CREATE SCHEMA app; CREATE SCHEMA "we.ird ""q"" é";
CREATE TABLE app.t (id int PRIMARY KEY, v text);
INSERT INTO app.t SELECT i, 'v' || i FROM generate_series(1, 2500) i;
CREATE TABLE app.hidden (id int PRIMARY KEY); INSERT INTO app.hidden VALUES (1);
CREATE TABLE app.no_key (a int); INSERT INTO app.no_key VALUES (1);
CREATE TABLE app.nothing (id int PRIMARY KEY); ALTER TABLE app.nothing REPLICA IDENTITY NOTHING;
INSERT INTO app.nothing VALUES (1);
CREATE TABLE "we.ird ""q"" é"."ta.ble 'x' \\ z" ("i d" text PRIMARY KEY, "v.w" text);
INSERT INTO "we.ird ""q"" é"."ta.ble 'x' \\ z" VALUES ('k''1', 'a'), ('é\\"', 'b');
"""


class Cli:
    """``tidelog`` in a directory with a configuration."""

    def __init__(self, directory: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self.capsys = capsys
        self.write("tidelog.yaml", url)

    def write(self, name: str, url: str) -> None:
        (self.directory / name).write_text(
            f"source: {{kind: postgres, url: '{url}',\n"
            "  tables: ['app.*', 'we*.*', 'nowhere.*', '!app.hiden', '!*.hidden'],\n"
            "  keys: {app.no_kye: [a], app.hidden: [id]}}\n"
            "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\n"
            "capture: {flush_ms: 10, lease_ms: 1500}\n",
            encoding="utf-8",
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tidelog", *arguments],
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUTF8": "1"},
        )

    def __call__(self, *arguments: str, code: int = 0, config: str = "tidelog.yaml") -> str:
        """In this process, because a new one takes a second to import what it needs."""
        with pytest.raises(SystemExit) as ended:
            main([arguments[0], str(self.directory / config), *arguments[1:]])
        out, err = self.capsys.readouterr()
        assert (ended.value.code or 0) == code, (arguments, out, err)
        assert "internal error" not in err
        assert SECRET not in out + err
        return out if code == 0 else out + err

    def dump(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        out = self("dump", *arguments, "--wait", "--json", code=code)
        found: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
        assert [each["status"] for each in found].count(found[-1]["status"]) == 1, "told once"
        return found[-1]

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("status", "--json"))
        return found


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Cli]:
    with PostgresServer() as server:
        dsn = server.create_database("shop")
        with psycopg.connect(dsn, autocommit=True) as sql:
            sql.execute(SQL.encode())
        monkeypatch.chdir(tmp_path)
        yield Cli(tmp_path, dsn, capsys)


def wait_led(cli: Cli) -> None:
    deadline = time.monotonic() + 30
    while not any(dump["status"] == "completed" for dump in cli.status().get("dumps", ())):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_what_a_stranger_does_first(cli: Cli) -> None:
    assert "creates one" in cli("log", code=1)
    cli.write("lost.yaml", f"postgresql://x:{SECRET}@no-such-host.invalid/shop")
    assert "host name in source.url" in cli("check", code=2, config="lost.yaml")
    capture = cli.start("capture", "tidelog.yaml")
    try:
        wait_led(cli)
        checked = cli("check")
        assert "source.tables: no table matches 'nowhere.*', others do" in checked
        assert "'app.*', others" not in checked
        assert "source.tables: '!app.hiden' excludes no table, others do" in checked
        assert "'!*.hidden'" not in checked
        assert "source.keys: no captured table matches 'app.no_kye', others do" in checked
        assert "did you mean app.no_key? Correct it" in checked
        assert "source.keys: no captured table matches 'app.hidden', others do" in checked
        standby = cli.start("capture", "tidelog.yaml", "--json")
        try:
            assert standby.stdout is not None
            seen = json.loads(standby.stdout.readline())
        finally:
            standby.send_signal(signal.SIGINT)
            standby.communicate(timeout=30)
        assert (seen["role"], seen["leader"]) == ("standby", cli.status()["leader"])
        assert seen["leader"].endswith(f":{capture.pid}")
        initial = {t["table"]: t["status"] for t in cli.status()["dumps"][0]["tables"]}
        odd = next(name for name in initial if name.startswith('"we'))
        assert initial == {
            "app.t": "done",
            "app.no_key": "done",
            "app.nothing": "done",
            odd: "done",
        }

        keys = json.dumps(["k'1", 'é\\"', "absent"])
        for name in (ODD, odd):  # as people write it, and as status shows it
            found = cli.dump("--table", name, "--keys", keys)["tables"][0]
            assert (found["keys_read"], found["keys_absent"]) == (3, 1)
        events = [json.loads(line) for line in cli("log", "--table", odd).splitlines()]
        assert [e["after"] and e["after"]["v.w"] for e in events[:2]] == ["a", "b"]

        keys_file = cli.directory / "keys"
        keys_file.write_text("\n".join(str(i) for i in range(1, 2600)), encoding="utf-8")
        found = cli.dump("--table", "app.t", "--keys-file", str(keys_file))["tables"][0]
        assert (found["keys_read"], found["keys_absent"]) == (2599, 99)

        for wait in ([], ["--wait"]):
            wrong = cli("dump", "--table", "app.t", "--where", "nocol = 1", *wait, code=2)
            assert 'app.t: column "nocol" does not exist (check the dump\'s condition' in wrong
        assert "--table: expected namespace.table" in cli("dump", "-t", "t", code=2)
        wrong = cli.dump("--table", "app.t", "--keys", json.dumps([SECRET]), code=1)["tables"][0]
        assert "does not fit its column's type" in wrong["reason"]
        assert "not text" not in cli("dump", "--table", "app.t", "--keys", r'["\ud800"]', code=2)
        assert "app.t" in cli("dump", "--table", "app.nope", code=2)

        cli("set", "chunk_rows=100", "delay=500ms")
        cli("dump", "--table", "app.t", "--id", "slow")
        cli("pause", "slow")
        capture.send_signal(signal.SIGKILL)
        told = capture.communicate()[1]
        assert told.count("no table matches 'nowhere.*'; one that is created later is") == 1
        assert told.count("'!app.hiden' excludes no table; one that is created later is") == 1
        assert (
            told.count("matches 'app.no_kye'; one that is created later is read by this key") == 1
        )
        capture = cli.start("capture", "tidelog.yaml")
        cli("set", "delay=0ms", "--timeout", "20")
        assert (
            next(d for d in cli.status()["dumps"] if d["dump_id"] == "slow")["status"] == "paused"
        )
        other = cli("dump", "--table", "app.t", "--id", "slow", "--where", "false", code=2)
        assert "give this one an id of its own" in other
        cli("resume", "slow")
        assert cli.dump("--table", "app.t", "--id", "slow")["tables"][0]["rows_read"] >= 2500
    finally:
        capture.send_signal(signal.SIGINT)
        _out, err = capture.communicate(timeout=30)
    assert "Traceback" not in err
    assert capture.returncode == 0
