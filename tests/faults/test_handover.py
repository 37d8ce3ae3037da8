"""The leadership is moved on purpose: nothing is lost, repeated, or waited for."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.capture_fixture import Source
from tests.faults.stalling_proxy import StallingProxy
from tests.left_out import SAID
from tests.support.s3 import S3Server

from tidelog import app
from tidelog.errors import UsageError
from tidelog.eventlog.reader import EventLog

pytestmark = pytest.mark.integration
AT_ONCE_S = 8.0
"""Less than a session's threads are waited for, also on a busy machine."""


@pytest.fixture
def source(database: str, tmp_path: Path) -> Iterator[Source]:
    source = Source(database, tmp_path)
    # A lease that runs out is noticed as such: it lasts longer than a handover may.
    text = source.config_file.read_text().replace("lease_ms: 1500", "lease_ms: 60s, zone: a")
    source.config_file.write_text(text)
    yield source
    source.close()


def test_the_leadership_goes_to_whom_it_is_given_and_back(source: Source) -> None:
    source.write(1, 5)
    first = source.start()
    leader = source.wait_led()
    with pytest.raises(UsageError, match="no capture stands by"):
        app.hand_over(source.config, None, timeout_s=30)
    second = source.start()
    third = source.start()
    source.wait_for(lambda: len(app.status(source.config).document["standbys"]) == 2)
    status = app.status(source.config).document
    assert (status["epoch"], status["zone"], status["since_ms"] > 0) == (1, "a", True)
    holders = {one["holder"] for one in status["standbys"]}
    assert {int(holder.rpartition(":")[2]) for holder in holders} == {second.pid, third.pid}
    with pytest.raises(UsageError, match="nobody:1 does not stand by; "):
        app.hand_over(source.config, "nobody:1", timeout_s=30)
    with pytest.raises(UsageError, match=f"{leader} leads already; "):
        app.hand_over(source.config, leader, timeout_s=30)
    to = next(holder for holder in holders if holder.endswith(f":{third.pid}"))
    source.write(6, 10)
    assert app.hand_over(source.config, to, timeout_s=50).to_dict() == {"from": leader, "to": to}
    source.write(11, 15)
    source.wait_for(lambda: len(source.inserted()) == 10)
    source.wait_for(lambda: app.status(source.config).document["holder"] == to)
    # Any may lead now, but for the one that gives it away.
    found = app.hand_over(source.config, None, timeout_s=50).to_dict()
    assert found["from"] == to
    assert found["to"] in {leader, *holders} - {to}
    source.write(16, 20)
    source.wait_for(lambda: len(source.inserted()) == 15)
    assert source.inserted() == list(range(6, 21))
    assert not first.died
    assert not second.died
    assert not third.died


def test_a_session_that_failed_gives_its_lease_back_before_its_threads_have_ended(
    source: Source, database: str
) -> None:
    """One of them waits for the source, which does not answer it."""
    with StallingProxy(database) as proxy:
        text = source.config_file.read_text().replace(database, proxy.url)
        source.config_file.write_text(text)
        first = source.start()
        source.wait_led()
        second = source.start()
        source.wait_for(lambda: app.status(source.config).document["standbys"])
        proxy.arm(b"pg_current_wal_flush_lsn")  # the leader asks how far the log is
        assert proxy.stalled.wait(30)
        source.sql.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
        source.write(1, 5)
        source.wait_for(lambda: source.inserted() == list(range(1, 6)), AT_ONCE_S)
        leader = str(app.status(source.config).document["leader"])
        assert leader.endswith(f":{second.pid}")
        assert not first.died


def test_a_leader_that_ends_leads_until_the_standby_is_on_the_watch(
    s3: S3Server, database: str, tmp_path: Path
) -> None:
    """With ``log:`` a standby looks every sixth of the lease or so: here every 11 s."""
    place = s3.url("farewell")
    source = Source(database, tmp_path, place, s3.options, state="log:")
    text = source.config_file.read_text().replace("lease_ms: 1500", "lease_ms: 60s")
    source.config_file.write_text(text)
    try:
        first = source.start()
        source.wait_led()
        second = source.start()
        source.wait_for(lambda: app.status(source.config).document["standbys"])
        first.send(signal.SIGTERM)
        source.write(1, 10)
        log = EventLog.open(place)

        def epochs() -> set[int]:
            return {segment.epoch for segment in log.chain().segments if segment.rows}

        source.wait_for(lambda: source.inserted() == list(range(1, 11)))
        assert epochs() == {1}, "it was asked to end before"
        for number in range(11, 2000):
            source.write(number, number)
            if first.died and len(epochs()) == 2:
                break
            time.sleep(0.02)
        assert first.wait(60) == 0
        source.wait_for(lambda: source.inserted() == list(range(1, number + 1)))
        assert not second.died
    finally:
        source.close()


def test_containers_on_one_hosts_network_are_distinguished(source: Source) -> None:
    """They have its name, and each has a process 1."""
    alone = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip(f"{SAID}the right to make namespaces")
    command = [*alone, sys.executable, "-m", "tidelog", "capture", str(source.config_file)]
    running = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(2)]
    try:
        leader = source.wait_led()
        source.wait_for(lambda: app.status(source.config).document["standbys"])
        [standby] = [one["holder"] for one in app.status(source.config).document["standbys"]]
        assert leader.endswith(":1")
        assert standby.endswith(":1")
        assert leader != standby
        assert app.hand_over(source.config, standby, timeout_s=50).to_dict() == {
            "from": leader, "to": standby,
        }  # fmt: skip
    finally:
        for each in running:
            each.kill()
            each.wait()
