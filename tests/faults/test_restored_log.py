"""`tidelog capture` where event log, state, or both are put back from an older copy."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.e2e.history_run import CaptureProcess
from tests.faults.capture_fixture import Source

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


@pytest.mark.parametrize("what", ["log", "state", "both", "segments"])
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
        log.check_place(ahead)
    else:
        assert end < ahead
        with pytest.raises(OffsetAheadError, match=rf"at offset {ahead}, .* at {end}: "):
            log.check_place(ahead)
        fresh = {change.offset for change in source.records() if change.offset >= end}
        assert not fresh & issued, "an offset was issued twice"
    assert source.captures[-1].stop() == 0
    source.close()


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["postgres", "mysql"])
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
        return app.status(config)

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
    os.kill(leader.pid, signal.SIGSTOP)
    path.rename(moved)
    refused(standby)
    leader.kill()
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
