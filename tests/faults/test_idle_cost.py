"""What a capture costs where every request is paid for."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.faults.capture_fixture import Source
from tests.support.faulty_network import FaultyNetwork
from tests.support.s3 import S3Server

from tidelog import app
from tidelog.cli.watch import beside
from tidelog.eventlog.storage.opening import provide_options

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

WATCHED_S, WATCHED_PAIR_S = 20.0, 45.0
MOST_AN_HOUR, MOST_OF_A_PAIR = 1_000, 1_750
BEGUN = 6
"""Each kind of request may fall due once more than its share of the time."""


@contextmanager
def captures(source: Source, count: int) -> Iterator[None]:
    """As shipped: those of `Source` look more often. The first one leads."""
    running: list[subprocess.Popen[bytes]] = []
    command = [sys.executable, "-m", "tidelog", "capture", str(source.config_file)]
    try:
        with (source.directory / "captures.log").open("ab") as output:
            for _ in range(count):
                running.append(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT))
                source.wait_led()
        if count > 1:
            source.wait_for(lambda: app.status(source.config)["standbys"])
        yield
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(60)
        source.close()


@pytest.fixture
def network(s3: S3Server) -> Iterator[FaultyNetwork]:
    with FaultyNetwork(s3.port, one_at_a_time=True) as network:
        yield network


@pytest.fixture
def source(s3: S3Server, network: FaultyNetwork, database: str, tmp_path: Path) -> Source:
    place = s3.url(tmp_path.name.replace("_", "-"))
    options = s3.options | {"endpoint": f"http://127.0.0.1:{network.port}"}
    provide_options(place, options)
    source = Source(database, tmp_path, place, options, state="log:")
    text = source.config_file.read_text()
    source.config_file.write_text(text.partition("capture:")[0])  # with its defaults
    return source


def asked(network: FaultyNetwork, after_s: float, for_s: float) -> list[str]:
    time.sleep(after_s)
    before = len(network.asked)
    time.sleep(for_s)
    return network.asked[before:]


def kinds(lines: list[str]) -> Counter[str]:
    return Counter(line.partition(" HTTP")[0].replace("?delimiter=%2F", "/LIST") for line in lines)


def test_an_idle_leader_makes_few_requests(source: Source, network: FaultyNetwork) -> None:
    with captures(source, 1):
        lines = asked(network, 5, WATCHED_S)  # behind what follows the first dump
    assert len(lines) <= MOST_AN_HOUR * WATCHED_S / 3600 + BEGUN, kinds(lines)
    assert any(line.startswith("PUT") and "/state/leases/" in line for line in lines)


def test_an_idle_leader_and_one_that_stands_by_make_few_requests_together(
    source: Source, network: FaultyNetwork
) -> None:
    """One that stands by looks at the lease every five seconds, so that a leader that ends need
    not wait for longer until all have seen it.
    """
    with captures(source, 2):
        lines = asked(network, beside.BEGUN_S + 10, WATCHED_PAIR_S)  # behind the first plain lines
    assert len(lines) <= MOST_OF_A_PAIR * WATCHED_PAIR_S / 3600 + BEGUN, kinds(lines)
