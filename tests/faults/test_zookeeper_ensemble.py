"""`tidelog capture` with its state in three ZooKeepers, of which one, then two are lost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.faults.capture_fixture import Source
from tests.support.zookeeper_ensemble import ensemble

from tidelog import app

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

LEASE_S = 3.0


def test_one_lost_is_not_noticed_and_a_lost_quorum_is_waited_for(
    database: str, tmp_path: Path
) -> None:
    pytest.importorskip("kazoo", reason="ZooKeeper's client: pip install tidelog[zookeeper]")
    with ensemble() as members:
        hosts = ",".join(f"127.0.0.1:{member.port}" for member in members)
        source = Source(database, tmp_path, state=f"zookeeper://{hosts}/tidelog/ensemble")
        text = source.config_file.read_text().replace("lease_ms: 1500", f"lease_ms: {LEASE_S}s")
        source.config_file.write_text(text)
        try:
            capture = source.start()
            source.wait_led()
            members[0].kill()
            source.write(1, 10)
            source.wait_for(lambda: capture.died or len(source.inserted()) == 10)

            members[1].kill()
            time.sleep(LEASE_S + 2)
            source.write(11, 20)
            time.sleep(2)
            assert len(source.inserted()) == 10, "it led on without a lease"
            assert not capture.died, capture.log_file.read_text()

            members[1].start()
            source.wait_for(lambda: capture.died or len(source.inserted()) == 20)
            assert not capture.died, capture.log_file.read_text()
            assert source.inserted() == list(range(1, 21))
            dumps = app.status(source.config).document["dumps"]
            assert [dump["status"] for dump in dumps] == ["completed"]
        finally:
            source.close()
