"""The command line over MySQL and MariaDB as its users see it, in both ways of placing chunks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.mysql import MySqlFamilyServer

from tidelog.cli import main

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SECRET = "hunter2-never-shown"
ROWS = 2500


class Cli:
    """``tidelog`` in a directory with a configuration."""

    def __init__(
        self, directory: Path, source: dict[str, Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.directory = directory
        self.capsys = capsys
        self.write("tidelog.yaml", source)

    def write(self, name: str, source: dict[str, Any]) -> None:
        (self.directory / name).write_text(
            f"source: {json.dumps(source)}\nlog: {{path: log}}\n"
            "state: {url: 'sqlite:///state.db'}\ncapture: {flush_ms: 10, lease_ms: 1500}\n",
            encoding="utf-8",
        )

    def __call__(self, *arguments: str, code: int = 0, config: str = "tidelog.yaml") -> str:
        with pytest.raises(SystemExit) as ended:
            main([arguments[0], str(self.directory / config), *arguments[1:]])
        out, err = self.capsys.readouterr()
        assert (ended.value.code or 0) == code, (arguments, out, err)
        assert "internal error" not in err
        assert SECRET not in out + err
        return out if code == 0 else out + err

    def dump(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        out = self("dump", *arguments, "--wait", "--json", code=code)
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    def events(self, table: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self("log", "--table", table).splitlines()]

    @contextmanager
    def capture(self) -> Iterator[subprocess.Popen[str]]:
        """The process ``tidelog capture``, once it has completed its first dump."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tidelog", "capture", "tidelog.yaml"],
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUTF8": "1"},
        )
        try:
            deadline = time.monotonic() + 60
            while not self._led():
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.2)
            yield process
        finally:
            process.terminate()
            out, err = process.communicate(timeout=30)
        assert process.returncode == 0, (out, err)
        assert SECRET not in out + err

    def _led(self) -> bool:
        status = json.loads(self("status", "--json"))
        return any(dump["status"] == "completed" for dump in status.get("dumps", ()))


@pytest.fixture(params=["table", "gtid"])
def cli(
    request: pytest.FixtureRequest,
    mysql_family: MySqlFamilyServer,
    mysql_family_database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Cli:
    server, database = mysql_family, mysql_family_database
    user = f"reader_{database}_{request.param}"
    url = server.create_user(
        user, SECRET, privileges=["REPLICATION SLAVE", "REPLICATION CLIENT", "SELECT"]
    )
    schema = f"marks_{database}"
    server.execute(f"GRANT SELECT, INSERT, UPDATE, CREATE ON `{schema}`.* TO `{user}`")
    for statement in (
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(20))",
        "INSERT INTO t SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d, 'v' FROM "
        + ", ".join(
            "(" + " UNION ALL ".join(f"SELECT {d} AS d" for d in range(10)) + f") AS {name}"
            for name in "abce"
        )
        + f" WHERE a.d + 10 * b.d + 100 * c.d + 1000 * e.d < {ROWS}",
        "CREATE TABLE `o'd.d` (`k y` varchar(10) CHARACTER SET latin1, b varbinary(5), "
        "PRIMARY KEY (`k y`, b))",
        "INSERT INTO `o'd.d` VALUES ('é''1', 0x00ff)",
    ):
        server.execute(statement, database)
    source = {
        "kind": server.flavor,
        "url": f"{url}?ssl-mode=required",
        "tables": [f"{database}.*"],
        "watermarks": request.param,
        "watermark_schema": schema,
    }
    return Cli(tmp_path, source, capsys)


def test_what_a_stranger_does_first(
    cli: Cli, mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    server, database = mysql_family, mysql_family_database
    t = f"{database}.t"
    assert "creates one" in cli("log", code=1)
    findings = json.loads(cli("check", "--json"))
    assert findings["ok"], findings
    with cli.capture():
        first = cli.events(t)
        assert (len(first), {event["op"] for event in first}) == (ROWS, {"r"})
        (odd,) = cli.events(f"{database}.o'd.d")
        assert odd["key"] == {"k y": "é'1", "b": "AP8="}

        server.execute("UPDATE t SET v = 'new' WHERE id = 7", database)
        server.execute("DELETE FROM t WHERE id = 8", database)
        server.execute("INSERT INTO t VALUES (9999, 'é😀')", database)
        deadline = time.monotonic() + 120
        while len(changes := cli.events(t)[ROWS:]) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert [(e["op"], e["key"]["id"]) for e in changes] == [("u", 7), ("d", 8), ("c", 9999)]
        assert changes[0]["before"] == {"id": 7, "v": "v"}
        assert changes[2]["after"] == {"id": 9999, "v": "é😀"}
        origin = changes[2]["source"]
        assert (origin["connector"], origin["db"], origin["table"]) == (
            server.flavor, database, "t",
        )  # fmt: skip
        assert origin["file"].startswith("binlog.0")
        assert "schema" not in origin

        found = cli.dump("--table", t, "--keys", json.dumps([1, 2, 8]))["tables"][0]
        assert (found["keys_read"], found["keys_absent"]) == (3, 1)
        keys = cli.directory / "keys"
        keys.write_text("\n".join(str(i) for i in range(1, 3000)), encoding="utf-8")
        found = cli.dump("--table", t, "--keys-file", str(keys))["tables"][0]
        assert (found["keys_read"], found["keys_absent"]) == (2999, 2999 - ROWS + 2)
        found = cli.dump("--table", t, "--where", "v = 'new'")["tables"][0]
        assert found["rows_read"] == 1
        assert "nocol" in cli("dump", "--table", t, "--where", "nocol = 1", code=2)
        smuggled = r"v = '\' AND v = ' OR 1 = 1) -- '"
        wrong = cli("dump", "--table", t, "--where", smuggled, code=2)
        assert "not one expression" in wrong or "comment" in wrong

        planned = json.loads(cli("plan", "--table", t, "--json"))
        assert abs(planned["total"]["rows"] - ROWS) < ROWS / 2

    # What happens while capture is down is there when it runs again.
    server.execute("INSERT INTO t VALUES (10000, 'while down')", database)
    before = len(cli.events(t))
    with cli.capture():
        deadline = time.monotonic() + 120
        while len(events := cli.events(t)) == before:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert [event["after"]["id"] for event in events[before:]] == [10_000]
