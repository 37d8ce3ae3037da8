"""Captures as processes: two on one log, a frozen leader, lost slots, bad set-ups, a full disk."""

from __future__ import annotations

import json
import signal
import socket
import sqlite3
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.faults.capture_fixture import Source
from tests.small_disk import grow
from tests.support.postgres import PostgresServer, drop_slot
from tests.support.s3 import S3Server

from tidelog import app
from tidelog.control.commands import PauseDump
from tidelog.control.mailbox import Mailbox
from tidelog.eventlog.log_files import to_checksummed_json
from tidelog.eventlog.reader import EventLog
from tidelog.state.sqlite import SqliteState
from tidelog.system.version import FORMAT

LEASE_S = 1.5


@pytest.fixture
def source(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Iterator[Source]:
    if getattr(request, "param", "disk") == "s3":
        server: S3Server = request.getfixturevalue("s3")
        made = Source(database, tmp_path, server.url(tmp_path.name), server.options)
    else:
        made = Source(database, tmp_path)
    made.write(1, 10)
    yield made
    made.close()


def test_standby_takes_over_within_the_lease_when_the_leader_is_killed(source: Source) -> None:
    """Invariants 1, 7 and 8 (docs/INVARIANTS.md)."""
    leader = source.start()
    assert source.wait_led().endswith(f":{leader.pid}")
    standby = source.start()
    source.write(11, 20)
    source.wait_for(lambda: source.inserted() == list(range(11, 21)))
    time.sleep(2.0)
    assert not standby.died
    assert str(app.status(source.config).document["leader"]).endswith(f":{leader.pid}")
    leader.kill()
    killed = time.monotonic()
    source.write(21, 30)
    source.wait_for(lambda: source.inserted() == list(range(11, 31)))
    # the lease, the standby's interval, and opening a session on a busy machine
    assert time.monotonic() - killed < LEASE_S + 10
    assert str(app.status(source.config).document["leader"]).endswith(f":{standby.pid}")


@pytest.mark.parametrize("source", ["disk", "s3"], indirect=True)
def test_frozen_leader_adds_no_record_when_it_wakes_up(source: Source) -> None:
    """Invariant 7 (docs/INVARIANTS.md)."""
    leader = source.start()
    source.wait_led()
    source.start()
    time.sleep(2.5)
    source.freeze(leader)
    source.write(11, 20)
    source.wait_for(lambda: source.inserted() == list(range(11, 21)))
    leader.send(signal.SIGCONT)
    source.write(21, 30)
    source.wait_for(lambda: source.inserted() == list(range(11, 31)))
    time.sleep(1.0)
    assert source.inserted() == list(range(11, 31))
    assert not leader.died, "it stands by again"
    epochs = [meta.epoch for meta in EventLog.open(source.config.log.path).chain().segments]
    assert epochs == sorted(epochs)
    assert len(set(epochs)) == 2


def test_frozen_leader_acts_on_no_command_when_it_wakes_up(source: Source) -> None:
    """Its answer would be all that came of it: the capture that leads would never see it."""
    first = source.start()
    source.wait_led()
    second = source.start()
    time.sleep(2.5)
    source.freeze(first)
    source.write(11, 20)
    source.wait_for(lambda: source.inserted() == list(range(11, 21)))
    source.freeze(second)  # its lease lasts for another 1.1 s
    state = SqliteState(source.config.state.url)
    mailbox = Mailbox(state)
    command = mailbox.send(PauseDump())
    first.send(signal.SIGCONT)
    early = mailbox.wait(command, 0.8)
    second.send(signal.SIGCONT)
    late = mailbox.wait(command, 20)
    state.close()
    assert early is None
    assert late is not None


@pytest.mark.thorough
def test_frozen_leader_that_keeps_the_http_port_is_succeeded(source: Source) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with source.config_file.open("a") as file:
        file.write(f"control: {{rest: {{port: {port}, token: for-tests-only}}}}\n")
    leader = source.start()
    source.wait_led()
    standby = source.start()
    # It knows the leader then, and that the port is the leader's.
    source.wait_for(lambda: "by the leading capture" in standby.log_file.read_text())
    source.freeze(leader)
    source.write(11, 20)
    source.wait_for(lambda: source.inserted() == list(range(11, 21)))
    # After longer than it waits for a port that another program has.
    source.wait_for(lambda: "by a capture that hangs" in standby.log_file.read_text())
    assert not standby.died
    leader.kill()
    source.wait_for(lambda: _answers(port))


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return b"leader" in answer.read()
    except OSError:
        return False


def test_dropped_slot_ends_capture_with_what_to_do(source: Source) -> None:
    source.start()
    source.wait_led()
    assert source.captures[0].stop() == 0
    slot = source.config.source.slot
    drop_slot(source.sql, slot)
    again = source.start()
    assert again.wait(60) == 1
    message = again.log_file.read_text()
    assert slot in message
    assert "Traceback" not in message


def test_slot_dropped_under_a_running_capture_is_a_gap(source: Source) -> None:
    running = source.start()
    source.wait_led()
    slot = source.config.source.slot
    drop_slot(source.sql, slot)
    source.write(11, 20)
    assert running.wait(60) == 1
    assert slot in running.log_file.read_text()
    assert source.inserted() == []


def test_a_damaged_file_of_a_consumer_stops_retention_alone(source: Source) -> None:
    first = source.start()
    source.wait_led()
    first.stop()
    damaged = source.directory / "log" / "consumers" / "lake.json"
    damaged.parent.mkdir(exist_ok=True)
    damaged.write_text("{")
    with source.config_file.open("a") as config:
        config.write("outputs: [{kind: files, path: files}]\n")  # retention waits for a pipeline
    capture = source.start()
    source.wait_for(lambda: capture.died or "maintenance: " in capture.log_file.read_text())
    source.write(11, 13)
    source.wait_for(lambda: source.inserted() == [11, 12, 13])
    assert not capture.died
    kinds = {each.kind for each in app.status(source.config).overview.problems}
    assert "consumer-damaged" in kinds
    damaged.unlink()
    kinds = {each.kind for each in app.status(source.config).overview.problems}
    assert "consumer-damaged" not in kinds


def test_wal_level_replica_is_a_set_up_error(tmp_path: Path) -> None:
    with PostgresServer(16, {"wal_level": "replica"}) as server:
        source = Source(server.create_database("plain"), tmp_path)
        try:
            capture = source.start()
            assert capture.wait(60) == 2
            assert "wal_level" in capture.log_file.read_text()
        finally:
            source.close()


def test_wrong_password_is_a_set_up_error_and_not_shown(tmp_path: Path) -> None:
    """Invariant 10 (docs/INVARIANTS.md)."""
    hba = ["host all guest 127.0.0.1/32 scram-sha-256"]
    with PostgresServer(16, hba=hba) as server:
        server.execute("CREATE USER guest REPLICATION PASSWORD 'right'")
        dsn = server.create_database("shop")
        source = Source(dsn, tmp_path)
        try:
            wrong = server.dsn("shop", user="guest", password="s3cret-wrong")
            source.write_config(wrong, tmp_path / "log")
            capture = source.start()
            assert capture.wait(60) == 2
            message = capture.log_file.read_text()
            assert "password" in message
            assert "s3cret-wrong" not in message
        finally:
            source.close()


def test_what_a_newer_version_wrote_is_refused_and_left_as_it_is(
    database: str, tmp_path: Path
) -> None:
    source = Source(database, tmp_path)
    log = tmp_path / "log" / "log.json"
    try:
        capture = source.start()
        source.wait_led()
        assert capture.stop() == 0
        files = {path: path.read_bytes() for path in log.parent.rglob("*") if path.is_file()}
        log.write_bytes(to_checksummed_json({**json.loads(files[log]), "format": FORMAT + 1}))
        capture = source.start()
        assert capture.wait(60) == 2
        assert "log.json has format 2, which a newer version of Tidelog wrote" in capture.tail
        log.write_bytes(files[log])
        with closing(sqlite3.connect(tmp_path / "state.db")) as state:
            state.execute(f"PRAGMA user_version = {FORMAT + 1}")
        capture = source.start()
        assert capture.wait(60) == 2
        assert "state.db has format 2, which a newer version of Tidelog wrote" in capture.tail
        left = {path: path.read_bytes() for path in log.parent.rglob("*") if path.is_file()}
        assert left == files
    finally:
        source.close()


def test_full_disk_stops_nothing_for_good_and_loses_nothing(
    database: str, tmp_path: Path, small_disk: Path
) -> None:
    """Invariants 1 and 6 (docs/INVARIANTS.md)."""
    source = Source(database, tmp_path, log=small_disk / "log")
    try:
        capture = source.start()
        source.wait_led()
        for first in range(1, 801, 100):  # 8 MB of texts that do not compress well
            source.write(first, first + 99, 10_000)
        source.wait_for(lambda: "space" in capture.log_file.read_text())
        before = source.inserted()
        assert before == list(range(1, len(before) + 1))
        assert len(before) < 800
        grow(small_disk)
        source.wait_for(lambda: len(source.inserted()) >= 800, 90)
        assert source.inserted() == list(range(1, 801))
        assert not capture.died
    finally:
        source.close()
