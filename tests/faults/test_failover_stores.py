"""Two captures that share a source, an event log and a state store that is no file."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from tests.faults.capture_fixture import Source
from tests.support.postgres import PostgresServer
from tests.support.state_stores import STORES

from tidelog import app
from tidelog.control.commands import PauseDump, StartDump
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.storage import options_of
from tidelog.state.opening import open_state

pytestmark = pytest.mark.integration
HUNG_S = 12.0
"""Longer than a request of the store may take."""
WITHIN_S = 2.5
"""So soon a record is durable, also on a busy machine: before one request that hangs ends."""


@pytest.fixture(params=["log", pytest.param("zookeeper", marks=pytest.mark.thorough), "postgresql"])
def source(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Iterator[Source]:
    url = STORES[request.param](request, tmp_path)
    if request.param == "log":
        place = url.removeprefix("log:")
        source = Source(database, tmp_path, place, options_of(place), state="log:")
    else:
        source = Source(database, tmp_path, state=url)
    yield source
    source.close()


def test_capture_continues_while_the_state_is_away_for_less_than_the_lease(
    database: str, tmp_path: Path
) -> None:
    with PostgresServer(16) as server:
        url = f"postgresql://postgres@127.0.0.1:{server.port}/postgres"
        source = Source(database, tmp_path, state=url)
        text = source.config_file.read_text().replace("lease_ms: 1500", "lease_ms: 60s")
        signals = tmp_path / "signals.jsonl"
        source.config_file.write_text(f"{text}control: {{signal_file: '{signals}'}}\n")
        try:
            first = source.start()
            source.wait_led()
            source.write(1, 10)
            source.wait_for(lambda: len(source.inserted()) == 10)
            server.stop("immediate")
            asked = {"data-collections": ["app.t"], "type": "incremental"}
            signal = {"id": "while-away", "type": "execute-snapshot", "data": asked}
            signals.write_text(json.dumps(signal) + "\n")
            time.sleep(2)  # it tells its status, looks for commands, and looks after the log
            source.write(11, 20)
            source.wait_for(lambda: len(source.inserted()) == 20)
            server.restart()
            source.wait_for(lambda: app.status(source.config).document["leader"])
            outcome = app.send_command(source.config, PauseDump(), timeout_s=30).to_dict()
            assert outcome["state"] == "done"
            source.wait_for(
                lambda: "while-away" in str(app.status(source.config).document["dumps"])
            )
            log = EventLog.open(source.config.log.path)
            assert {segment.epoch for segment in log.chain().segments} == {1}
            assert not first.died
        finally:
            source.close()


def test_a_standby_continues_where_the_killed_leader_ended_and_dumps_nothing_again(
    source: Source,
) -> None:
    source.write(1, 50)
    first = source.start()
    leader = source.wait_led()
    assert leader.endswith(f":{first.pid}")
    second = source.start()
    source.write(51, 100)
    source.wait_for(lambda: len(source.inserted()) == 50)
    first.kill()
    source.write(101, 150)
    source.wait_for(lambda: len(source.inserted()) == 100)
    assert source.inserted() == list(range(51, 151))
    dumped = [r for r in source.records() if r.op == "r"]
    assert len(dumped) == 50
    source.wait_for(
        lambda: str(app.status(source.config).document["leader"]).endswith(f":{second.pid}")
    )
    outcome = app.send_command(source.config, PauseDump(), timeout_s=30).to_dict()
    assert outcome["state"] == "done"
    with closing(open_state(source.config.state.location)) as state:
        assert state.keys("dump/") != []


def test_a_dump_waits_for_a_state_that_hangs_and_the_log_continues(
    request: pytest.FixtureRequest, database: str, tmp_path: Path
) -> None:
    """Neither its progress nor what is decided of it ends the leadership: the lease does. The
    table may be altered meanwhile.
    """
    url = STORES["postgresql"](request, tmp_path)
    source = Source(database, tmp_path, state=url)
    text = source.config_file.read_text().replace("lease_ms: 1500", "lease_ms: 60s")
    source.config_file.write_text(text + "dump: {chunk_rows: 10, delay_ms: 20}\n")
    try:
        capture = source.start()
        source.wait_led()
        source.write(1, 600)
        source.wait_for(lambda: len(source.inserted()) == 600)
        command = StartDump(dump_id="d", tables=("app.t",))
        asked = app.send_command(source.config, command, timeout_s=30).to_dict()
        assert asked["error"] is None
        source.wait_for(lambda: dumped(source) > 100)
        with psycopg.connect(url) as other:
            other.execute("LOCK TABLE tidelog.state IN ACCESS EXCLUSIVE MODE")
            begun = time.monotonic()
            first = 601
            while time.monotonic() < begun + HUNG_S:
                source.write(first, first)
                source.wait_for(lambda first=first: first in source.inserted(), WITHIN_S)
                first += 1
                with psycopg.connect(database) as altering:  # as ALTER TABLE does
                    altering.execute("SET lock_timeout = '10s'")
                    altering.execute("LOCK TABLE app.t IN ACCESS EXCLUSIVE MODE")
        source.wait_for(lambda: dumped(source) >= 600)
        source.wait_for(
            lambda: (
                {d["dump_id"]: d["status"] for d in app.status(source.config).document["dumps"]}[
                    "d"
                ]
                == "completed"
            )
        )
        log = EventLog.open(source.config.log.path)
        assert {segment.epoch for segment in log.chain().segments} == {1}
        assert not capture.died
    finally:
        source.close()


def dumped(source: Source) -> int:
    return len([record for record in source.records() if record.op == "r"])
