"""`tidelog schema`: the way on where it can't be known which columns a table had."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.history_run import CaptureProcess
from tests.support.mysql import MySqlFamilyServer

from tidelog import app
from tidelog.cli import main
from tidelog.config import load_config

pytestmark = pytest.mark.integration

BEFORE = {
    "columns": [
        {"name": "id", "type": "int", "nullable": False},
        {"name": "a", "type": "varchar(20)", "collation": "utf8mb4_bin"},
        {"name": "b", "type": "varchar(20)", "collation": "utf8mb4_bin"},
    ],
    "key": ["id"],
}


def test_capture_has_each_change_after_the_command(
    mysql_family: MySqlFamilyServer,
    mysql_family_database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server, database = mysql_family, mysql_family_database
    table = f"{database}.t"
    config = tmp_path / "tidelog.yaml"
    config.write_text(
        f"source: {{kind: {server.flavor}, url: '{server.dsn()}', tables: ['{database}.*'], "
        f"watermark_schema: marks_{database}}}\n"
        f"log: {{path: {tmp_path}/log}}\nstate: {{url: 'sqlite:///{tmp_path}/state.db'}}\n"
        "capture: {flush_ms: 10, lease_ms: 60s}\n"
    )

    def cli(*arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main([arguments[0], str(config), *arguments[1:]])
        out, err = capsys.readouterr()
        assert (ended.value.code or 0) == code, (arguments, out, err)
        assert "internal error" not in err
        return out if code == 0 else err

    def events() -> list[dict[str, Any]]:
        found = [json.loads(line) for line in cli("log").splitlines()]
        return [event for event in found if event.get("op") in ("r", "c", "u", "d")]

    def wait_for(what: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 60
        while not what():
            assert time.monotonic() < deadline, capture.tail
            time.sleep(0.1)

    columns = tmp_path / "columns.json"
    columns.write_text(json.dumps(BEFORE))
    fix = ("schema", "--table", table, "--at", "1:4", "--columns", str(columns))
    assert "holds no event log" in cli("schema", code=2)
    assert "holds no event log" in cli(*fix, code=2)

    server.execute("CREATE TABLE other (id int PRIMARY KEY)", database)
    capture = CaptureProcess(config, tmp_path / "capture.log")
    wait_for(lambda: app.status(load_config(config, {})).document.get("capture"))
    wait_for(lambda: "complete" in str(app.status(load_config(config, {})).document.get("dumps")))
    assert "a capture leads" in cli(*fix, code=2)
    assert capture.stop() == 0

    # While capture is down: a table, rows, and then the table's columns change.
    for statement in (
        "CREATE TABLE t (id int PRIMARY KEY, a varchar(20) COLLATE utf8mb4_bin, "
        "b varchar(20) COLLATE utf8mb4_bin)",
        "INSERT INTO t VALUES (1, 'a1', 'b1'), (2, 'a2', NULL)",
        "UPDATE t SET b = 'é' WHERE id = 1",
        "ALTER TABLE t DROP COLUMN a",
        "ALTER TABLE t ADD COLUMN c int FIRST",
        "INSERT INTO t VALUES (3, 4, 'b4')",
    ):
        server.execute(statement, database)
    # Capture goes on without what it can't read, says so, and dumps the table.
    log, state = tmp_path / "log", tmp_path / "state.db"
    shutil.copytree(log, tmp_path / "log before")
    shutil.copyfile(state, tmp_path / "state before")
    capture = CaptureProcess(config, tmp_path / "capture.log")
    wait_for(lambda: any(e["op"] == "r" and e["after"]["id"] == 4 for e in events()))
    wait_for(lambda: app.status(load_config(config, {})).document["refused"] == [])
    message = re.search(
        rf"{table} is not supported: it was altered after (\S+) of the binlog.*"
        "they are left out, .*"
        "SET GLOBAL binlog_row_metadata = 'FULL'",
        capture.tail,
    )
    assert message is not None, capture.tail
    rows = {e["after"]["id"]: e["after"] for e in events() if e["op"] in "rcu"}
    assert rows == {
        1: {"c": None, "id": 1, "b": "é"},
        2: {"c": None, "id": 2, "b": None},
        4: {"c": 3, "id": 4, "b": "b4"},
    }
    assert capture.stop() == 0

    # Told the columns before it comes there, it has each change.
    shutil.rmtree(log)
    shutil.move(tmp_path / "log before", log)
    shutil.move(tmp_path / "state before", state)
    fix = ("schema", "--table", table, "--at", message[1], "--columns", str(columns))

    # What is told wrongly is refused, by the command or, as it is like the log, by capture.
    def write_columns(change: Callable[[dict[str, Any]], Any]) -> None:
        document = json.loads(json.dumps(BEFORE))
        change(document)
        columns.write_text(json.dumps(document))

    write_columns(lambda d: d["columns"][1].pop("collation"))
    assert "collation of column a is missing" in cli(*fix, code=2)
    write_columns(lambda d: d["columns"][1].update(collation="klingon_ci"))
    assert "klingon_ci" in cli(*fix, code=2)
    write_columns(lambda d: d["columns"][1].update(type="varchr(20)", collation=46))
    assert "varchr(20)" in cli(*fix, code=2)
    write_columns(lambda d: d.update(key=["nr"]))
    assert "no column nr" in cli(*fix, code=2)
    write_columns(lambda d: d["columns"].append(d["columns"][0]))
    assert "id is listed twice" in cli(*fix, code=2)
    write_columns(lambda d: d["columns"][0].update(typ="int"))
    assert "columns.0.typ" in cli(*fix, code=2)
    columns.write_text("{")
    assert "neither JSON nor YAML" in cli(*fix, code=2)
    write_columns(lambda d: None)
    assert "is no position" in cli(*fix[:4], "yesterday", *fix[5:], code=2)
    assert "is not one of source.tables" in cli("schema", "--table", "x.y", *fix[3:], code=2)
    assert "--at and --columns go together" in cli(*fix[:5], code=2)
    write_columns(lambda d: None)
    shown = json.loads(cli(*fix, "--json"))
    assert (shown["table"], shown["from"], shown["key"]) == (table, message[1], ["id"])
    capture = CaptureProcess(config, tmp_path / "capture.log")
    wait_for(lambda: any(e["op"] == "c" and e["after"]["b"] == "b4" for e in events()))
    logged = [(e["op"], e["after"]) for e in events() if e["op"] in "cu"]
    assert logged == [
        ("c", {"id": 1, "a": "a1", "b": "b1"}),
        ("c", {"id": 2, "a": "a2", "b": None}),
        ("u", {"id": 1, "a": "a1", "b": "é"}),
        ("c", {"c": 3, "id": 4, "b": "b4"}),
    ]
    assert capture.stop() == 0

    listed = json.loads(cli("schema", "--json"))["tables"]
    assert [entry["table"] for entry in listed] == [f"{database}.other", table]
    (one,) = json.loads(cli("schema", "--table", table, "--json"))["tables"]
    assert {"from": message[1], "version": shown["version"]} in one["noted"]
    assert one["noted"][-1]["version"] == one["versions"][-1]["version"]
    version = next(v for v in one["versions"] if v["version"] == shown["version"])
    # What is listed may be told again.
    columns.write_text(json.dumps({"columns": version["columns"], "key": version["key"]}))
    assert json.loads(cli(*fix, "--json"))["version"] == shown["version"]
    assert "b varchar(20)" in cli("schema")
    assert "no version of a table" in cli("schema", "--table", "x.y", code=2)
    server.execute(f"DROP DATABASE IF EXISTS marks_{database}")
