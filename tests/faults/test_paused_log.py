"""A log that somebody paused: nothing is read of it, nothing is lost, and the server can live with
it.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.faults.capture_fixture import Source
from tests.integration.test_control_rest import free_port
from tests.support.postgres import PostgresServer
from typer.testing import CliRunner

from tidelog import app
from tidelog.cli import app as cli
from tidelog.cli.dump import sentence
from tidelog.control.commands import PauseLog, ResumeLog, StartDump
from tidelog.errors import TidelogError
from tidelog.sources.postgres.stream import replication

pytestmark = pytest.mark.integration


@pytest.fixture
def source(database: str, tmp_path: Path) -> Iterator[Source]:
    made = Source(database, tmp_path)
    yield made
    made.close()


def send(source: Source, command: Any) -> None:
    answer = app.send_command(source.config, command, timeout_s=30).to_dict()
    assert answer["error"] is None, answer


def paused(source: Source) -> dict[str, Any]:
    """The problem that tells it."""
    (found,) = (
        each
        for each in app.status(source.config).document["overview"]["problems"]
        if each["kind"] == "log-reading-paused"
    )
    return dict(found)


def test_a_paused_log_stays_paused_until_somebody_resumes_it(source: Source) -> None:
    """Over a kill, and in a process that takes over."""
    first = source.start()
    source.wait_led()
    source.write(1, 10)
    source.wait_for(lambda: source.inserted() == list(range(1, 11)))
    runner = CliRunner()
    told = runner.invoke(cli, ["pause", str(source.config_file), "--log"])
    assert (told.exit_code, "paused" in told.output) == (0, True), told.output
    source.write(11, 20)
    before = app.status(source.config).document
    since = before["log_paused"]["since_ms"]
    first.send(signal.SIGKILL)
    first.wait(30)
    assert "The log is paused by" in paused(source)["sentence"]  # also while nobody leads
    source.start()
    source.wait_for(lambda: app.status(source.config).document["epoch"] > before["epoch"])
    source.write(21, 30)
    send(source, StartDump(dump_id="d1", tables=("app.t",)))
    send(source, PauseLog(by="another"))
    time.sleep(1.5)
    status = app.status(source.config).document
    assert source.inserted() == list(range(1, 11))
    assert status["log_paused"]["since_ms"] == since
    assert status["log_paused"]["by"] != "another"
    (dump,) = status["overview"]["dumps"]
    assert (dump["status"], dump["paused_by"], dump["rows"]) == ("paused", "capture", 0)
    assert {each["kind"] for each in status["overview"]["problems"]} == {
        "log-reading-paused", "dumps-held",
    }  # fmt: skip
    told = runner.invoke(cli, ["resume", str(source.config_file), "--log"])
    assert told.exit_code == 0, told.output
    source.wait_for(lambda: source.inserted() == list(range(1, 31)))
    assert app.dump_wait(source.config, "d1", timeout_s=60).to_dict()["status"] == "completed"
    status = app.status(source.config).document
    assert (status["log_paused"], list(status["overview"]["problems"])) == (None, [])


def test_who_waits_for_a_dump_is_shown_why_it_stands_still(source: Source) -> None:
    source.start()
    source.wait_led()
    source.sql.execute("INSERT INTO app.t SELECT i, 'x' FROM generate_series(1, 50) i")
    runner = CliRunner()
    send(source, PauseLog(by="anna@db-host"))
    why = "The log is paused by anna@db-host."
    lines, ask = list[str](), [str(source.config_file), "--id", "d1", "-t", "app.t", "--wait"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tidelog", "dump", *ask, "--json"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            lines.append(line)
            told = json.loads(line)
            if told.get("held"):
                break
        (held,) = told["held"]
        assert (held["why"], held["reason"]) == ("log_paused", why)
        said = sentence(told)
        assert said.startswith("d1 is blocked by capture: 0 of 1 tables, 0 rows")
        assert said.endswith(why)
        with pytest.raises(TidelogError, match=re.escape(why)):
            app.dump_wait(source.config, "d1", timeout_s=1.5)
        assert runner.invoke(cli, ["resume", str(source.config_file), "--log"]).exit_code == 0
        lines += process.stdout.readlines()
        assert process.wait(60) == 0
    finally:
        process.kill()
    last = json.loads(lines[-1])
    assert last["status"] == "completed"
    assert not last.get("held")


def walsender(source: Source) -> int | None:
    row = source.sql.execute(
        "SELECT active_pid FROM pg_replication_slots WHERE database = current_database()"
    ).fetchone()
    return None if row is None else row[0]


def test_the_server_hears_of_a_reader_that_reads_nothing(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither side gives the other up, though the log has more than the connection can hold."""
    monkeypatch.setattr(replication, "SILENCE_LIMIT_S", 5.0)
    # On a busy machine capture must not lose its lease, and begin anew.
    text = source.config_file.read_text()
    source.config_file.write_text(text.replace("lease_ms: 1500", "lease_ms: 60s"))
    stop, states = threading.Event(), list[str]()
    thread = threading.Thread(
        target=lambda: app.run_capture(
            source.config, on_status=lambda s: states.append(s.get("role", "")), stop_event=stop
        )
    )
    source.sql.execute("ALTER ROLE CURRENT_USER SET wal_sender_timeout = '3s'")
    try:
        thread.start()
        source.wait_led()
        pid = walsender(source)
        assert pid is not None
        send(source, PauseLog(by="a test"))
        source.write(1, 10_000, bytes_each=2000)
        time.sleep(7)
        assert walsender(source) == pid
        send(source, ResumeLog())
        source.wait_for(lambda: source.has(10_000) and len(source.inserted()) == 10_000)
        assert source.inserted() == list(range(1, 10_001))
        assert walsender(source) == pid
        assert "retrying" not in states
    finally:
        source.sql.execute("ALTER ROLE CURRENT_USER RESET wal_sender_timeout")
        stop.set()
        thread.join(60)


def test_no_more_is_read_a_second_than_is_allowed(source: Source) -> None:
    """12 MB of a transaction, which the server sends from its commit on."""
    text = source.config_file.read_text()
    limited = text.replace("capture: {", "capture: {read_bytes_per_second: 3MB, ")
    source.config_file.write_text(limited)
    source.start()
    source.wait_led()
    source.write(1, 6_000, bytes_each=2000)
    begun = time.monotonic()
    source.wait_for(lambda: source.has(6_000) and len(source.inserted()) == 6_000)
    assert time.monotonic() - begun > 3.0
    assert source.inserted() == list(range(1, 6_001))


def test_a_server_can_be_shut_down_while_its_log_is_paused(tmp_path: Path) -> None:
    """It waits for all who read its log, until they have read it to its end."""
    with PostgresServer(port=free_port()) as server:
        source = Source(server.create_database("paused"), tmp_path)
        try:
            source.start()
            source.wait_led()
            send(source, PauseLog(by="a test"))
            source.write(1, 10_000, bytes_each=2000)
            begun = time.monotonic()
            server.stop("fast")
            assert time.monotonic() - begun < 25
            server.start()
            source.sql = psycopg.connect(source.dsn, autocommit=True)
            source.write(10_001, 10_010)
            send(source, ResumeLog())
            source.wait_for(lambda: source.has(10_010) and len(source.inserted()) == 10_010)
            assert source.inserted() == list(range(1, 10_011))
        finally:
            source.close()
