"""`tidelog capture` where event log, state, or both are put back from an older copy."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.e2e.history_run import CaptureProcess
from tests.faults.capture_fixture import Source
from tests.support.mysql import MySqlServer
from tests.support.oracle.log import read_event_log

from tidelog import app
from tidelog.config import load_config
from tidelog.errors import OffsetAheadError
from tidelog.eventlog.reader import EventLog


def put_back(directory: Path, what: str, saved: Path) -> None:
    if what in ("log", "both"):
        shutil.rmtree(directory / "log")
        shutil.copytree(saved / "log", directory / "log")
    if what in ("state", "both"):
        for each in directory.glob("state.db*"):
            each.unlink()
        for each in saved.glob("state.db*"):
            shutil.copy2(each, directory / each.name)
    if what == "segments":
        for each in sorted((directory / "log").glob("0*.arrow"))[-3:]:
            each.unlink()


@pytest.mark.parametrize(
    "what",
    [
        "both",
        *(pytest.param(one, marks=pytest.mark.thorough) for one in ("log", "state", "segments")),
    ],
)
def test_no_offset_is_issued_twice_and_no_row_is_missing(
    what: str, database: str, tmp_path: Path
) -> None:
    source = Source(database, tmp_path)
    config = source.config_file.read_text()
    source.config_file.write_text(config.replace("slot:", "snapshot: when_needed, slot:"))
    source.write(1, 500)
    source.start()
    source.wait_led()
    source.write(501, 510)
    source.wait_for(lambda: len(source.inserted()) == 10)
    assert source.captures[-1].stop() == 0
    saved = tmp_path / "saved"
    shutil.copytree(tmp_path / "log", saved / "log")
    for each in tmp_path.glob("state.db*"):
        shutil.copy2(each, saved / each.name)
    source.start()
    source.write(511, 520)
    source.sql.execute("DELETE FROM app.t WHERE id <= 100")
    source.wait_for(lambda: sum(change.op == "D" for change in source.records()) == 100)
    assert source.captures[-1].stop() == 0
    log = EventLog.open(tmp_path / "log")
    ahead = log.latest_offset()
    issued = {change.offset for change in source.records()}
    put_back(tmp_path, what, saved)
    end = EventLog.open(tmp_path / "log").latest_offset()
    source.start()
    source.write(521, 540)

    def there() -> set[int]:
        changes = (change for change in source.records() if change.offset >= end)
        return {int(change.new["id"] or 0) for change in changes if change.new}

    # Where the log went back, the slot is ahead of it: all is dumped again.
    expected = set(range(521 if what == "state" else 101, 541))
    source.wait_for(lambda: there() >= expected, 40)
    if what == "state":
        log.check_offsets(ahead)
    else:
        assert end < ahead
        with pytest.raises(OffsetAheadError, match=rf"at offset {ahead}, .* at {end}: "):
            log.check_offsets(ahead)
        fresh = {change.offset for change in source.records() if change.offset >= end}
        assert not fresh & issued, "an offset was issued twice"
    assert source.captures[-1].stop() == 0
    source.close()


@pytest.mark.integration
@pytest.mark.parametrize("kind", [pytest.param("postgres", marks=pytest.mark.thorough), "mysql"])
def test_a_log_that_is_not_mounted_is_refused_and_nothing_is_deleted(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """By a standby that takes over, and by a capture that starts; a reset begins another log."""
    if kind == "postgres":
        url = request.getfixturevalue("database")
        with psycopg.connect(url, autocommit=True) as sql:
            sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
        source = {"url": url, "slot": "slot_" + url.rpartition("/")[2], "tables": ["public.t"]}
    else:
        server, name = (request.getfixturevalue(f"mysql_{each}") for each in ("server", "database"))
        server.execute("CREATE TABLE t (id int PRIMARY KEY)", name)
        source = {
            "url": server.dsn(name),
            "tables": [f"{name}.t"],
            "watermark_schema": f"marks_{name}",
        }
    path, moved = tmp_path / "log", tmp_path / "moved"
    file = tmp_path / "tidelog.yaml"
    file.write_text(
        json.dumps(
            {
                "source": {"kind": kind, **source},
                "log": {"path": str(path)},
                "state": {"url": f"sqlite:///{tmp_path}/state.db"},
                "capture": {"flush_ms": 10, "lease_ms": 1500},
            }
        )
    )
    config, started = load_config(file, {}), []

    def start() -> CaptureProcess:
        started.append(CaptureProcess(file, tmp_path / f"capture-{len(started)}.log"))
        return started[-1]

    def status() -> dict[str, Any]:
        return app.status(config).document

    def until(what: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not what():
            assert time.monotonic() < deadline, started[-1].log_file.read_text()
            time.sleep(0.05)

    def is_done() -> bool:
        return [dump["status"] for dump in status().get("dumps", ())] == ["completed"]

    def refused(capture: CaptureProcess) -> None:
        assert capture.wait(60) == 2, capture.log_file.read_text()
        said = capture.log_file.read_text()
        assert f"{path} holds no event log, but the state store knows one" in said
        assert "mount that on this host" in said

    leader = start()
    until(is_done)
    standby = start()
    until(lambda: status()["standbys"])
    leader.kill()  # not frozen: it might keep the state's lock
    path.rename(moved)
    refused(standby)
    refused(start())
    assert not path.exists()
    moved.rename(path)
    back = start()
    until(lambda: str(status().get("leader")).endswith(f":{back.pid}"))
    assert is_done(), "what the state knew is there"
    assert back.stop() == 0
    known = EventLog.open(path)
    shutil.rmtree(path)
    app.reset(config)
    if kind == "postgres":  # one slot serves one event log
        with psycopg.connect(source["url"], autocommit=True) as sql:
            sql.execute("SELECT pg_drop_replication_slot(%s)", (source["slot"],))
    fresh = start()
    until(lambda: EventLog.exists(path) and is_done())
    assert fresh.stop() == 0
    again = EventLog.open(path)
    assert again.generation != known.generation
    assert again.head_offset > known.info.start_offset


@pytest.mark.integration
def test_progress_that_the_log_does_not_hold_is_taken_back(
    mysql_server: MySqlServer, mysql_database: str, tmp_path: Path
) -> None:
    """An older log beside a newer state: in the midst of a dump, the state knows it as done."""
    rows = 3000
    mysql_server.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", mysql_database)
    digits = " UNION ALL ".join(f"SELECT {digit} AS d" for digit in range(10))
    tens = ", ".join(f"({digits}) AS {name}" for name in "abce")
    number = "a.d + 10 * b.d + 100 * c.d + 1000 * e.d"
    mysql_server.execute(
        f"INSERT INTO t SELECT {number}, 0 FROM {tens} WHERE {number} < {rows}", mysql_database
    )
    path, saved, file = tmp_path / "log", tmp_path / "saved", tmp_path / "tidelog.yaml"
    source = {"kind": "mysql", "url": mysql_server.dsn(mysql_database)}
    source |= {"tables": [f"{mysql_database}.t"], "watermark_schema": f"marks_{mysql_database}"}
    written = {"source": source, "log": {"path": str(path)}, "dump": {"chunk_rows": 100}}
    written |= {"state": {"url": f"sqlite:///{tmp_path}/state.db"}, "capture": {"flush_ms": 10}}
    file.write_text(json.dumps(written))
    config = load_config(file, {})

    def dumped() -> set[int]:
        if not EventLog.exists(path):
            return set()
        log = EventLog.open(path)
        found = read_event_log(log, log.head_offset, log.latest_offset())
        return {int(change.new["id"] or 0) for change in found if change.new}

    def done() -> bool:
        dumps = app.status(config).document.get("dumps", ())
        return bool(dumps) and all(dump["status"] == "completed" for dump in dumps)

    def until(what: Callable[[], object], capture: CaptureProcess) -> None:
        deadline = time.monotonic() + 60
        while not what():
            assert time.monotonic() < deadline, capture.log_file.read_text()
            time.sleep(0.02)

    first = CaptureProcess(file, tmp_path / "first.log")
    until(done, first)
    assert first.stop() == 0
    assert len(dumped()) == rows
    chunks = [meta.name for meta in EventLog.open(path).chain().segments if meta.kind == "chunk"]
    path.rename(saved)
    path.mkdir()
    for each in saved.iterdir():  # as of amid the dump
        if each.name < chunks[len(chunks) // 2] or not each.name[0].isdigit():
            shutil.copytree(each, path / each.name) if each.is_dir() else shutil.copy2(each, path)
    assert 0 < len(dumped()) < rows
    again = CaptureProcess(file, tmp_path / "again.log")
    until(lambda: len(dumped()) == rows and done(), again)
    assert "all tables are dumped again" in again.log_file.read_text()
    assert again.stop() == 0


@pytest.mark.integration
def test_a_state_older_than_the_log_has_all_tables_dumped_again(
    mysql_server: MySqlServer, mysql_database: str, tmp_path: Path
) -> None:
    """It does not know that a table was left out since, and the log was read past its changes."""
    for name in ("t", "u"):
        mysql_server.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)", mysql_database)
    path, file = tmp_path / "log", tmp_path / "tidelog.yaml"
    source = {"kind": "mysql", "url": mysql_server.dsn(mysql_database)}
    source |= {"watermark_schema": f"marks_{mysql_database}"}
    written = {"source": source, "log": {"path": str(path)}, "capture": {"flush_ms": 10}}
    written |= {"state": {"url": f"sqlite:///{tmp_path}/state.db"}}

    def rows(table: str) -> set[int]:
        if not EventLog.exists(path):
            return set()
        log = EventLog.open(path)
        found = read_event_log(log, log.head_offset, log.latest_offset())
        name = f"{mysql_database}.{table}"
        return {
            int(change.new["id"] or 0) for change in found if change.new and change.table == name
        }

    def led(tables: list[str], number: int) -> str:
        """What a capture of these tables says, which has read the row of this number."""
        file.write_text(json.dumps({**written, "source": {**source, "tables": tables}}))
        capture = CaptureProcess(file, tmp_path / f"capture-{number}.log")
        deadline = time.monotonic() + 60
        while not str(app.status(load_config(file, {})).document.get("leader")).endswith(
            f":{capture.pid}"
        ):
            assert time.monotonic() < deadline, capture.log_file.read_text()
            time.sleep(0.05)
        for name in ("u", "t"):
            mysql_server.execute(f"INSERT INTO {name} VALUES ({number})", mysql_database)
        while number not in rows("t"):
            assert time.monotonic() < deadline, capture.log_file.read_text()
            time.sleep(0.05)
        while number == 1 and any(
            dump["status"] != "completed"
            for dump in app.status(load_config(file, {})).document["dumps"]
        ):
            time.sleep(0.05)
        while number == 3 and not {1, 2, 3} <= rows("u"):
            assert time.monotonic() < deadline, (rows("u"), capture.log_file.read_text())
            time.sleep(0.05)
        assert capture.stop() == 0
        return capture.log_file.read_text()

    both, only = [f"{mysql_database}.*"], [f"{mysql_database}.t"]
    assert "the state store is older" not in led(both, 1)
    for each in tmp_path.glob("state.db*"):
        shutil.copy2(each, tmp_path / f"saved-{each.name}")
    assert "the state store is older" not in led(only, 2)
    for each in tmp_path.glob("state.db*"):
        shutil.copy2(tmp_path / f"saved-{each.name}", each)
    assert "the state store is older than the event log" in led(both, 3)
