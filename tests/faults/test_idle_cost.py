"""What a capture costs where every request is paid for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.faults.capture_fixture import Source
from tests.support.faulty_network import FaultyNetwork
from tests.support.s3 import S3Server

from tidelog.eventlog.storage.opening import provide_options

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

WATCHED_S = 20.0
MOST_AN_HOUR = 1_000
BEGUN = 6
"""Each kind of request may fall due once more than its share of the time."""


def test_an_idle_leader_makes_few_requests(s3: S3Server, database: str, tmp_path: Path) -> None:
    place = s3.url("idle-cost")
    with FaultyNetwork(s3.port, one_at_a_time=True) as network:
        options = s3.options | {"endpoint": f"http://127.0.0.1:{network.port}"}
        provide_options(place, options)
        source = Source(database, tmp_path, place, options, state="log:")
        text = source.config_file.read_text()
        source.config_file.write_text(text.partition("capture:")[0])  # with its defaults
        try:
            source.start()
            source.wait_led()
            time.sleep(5)  # what follows the first dump
            before = len(network.asked)
            time.sleep(WATCHED_S)
            asked = network.asked[before:]
        finally:
            source.close()
    assert len(asked) <= MOST_AN_HOUR * WATCHED_S / 3600 + BEGUN, asked
    assert any(line.startswith("PUT") and "/state/leases/" in line for line in asked)
