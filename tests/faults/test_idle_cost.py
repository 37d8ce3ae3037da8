"""What a capture and a pipeline cost where every request is paid for."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
import yaml
from tests.faults.capture_fixture import Source
from tests.support.faulty_network import FaultyNetwork
from tests.support.pipeline_process import Delivering
from tests.support.s3 import S3Server

from tidelog import app
from tidelog.cli import watch
from tidelog.control.commands import StartDump
from tidelog.control.mailbox import Mailbox
from tidelog.errors import TidelogError
from tidelog.eventlog import log_poller
from tidelog.eventlog.storage import provide_options
from tidelog.state.opening import open_state

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

WATCHED_S, WATCHED_PAIR_S, WATCHED_PIPELINE_S = 20.0, 45.0, 60.0
MOST_AN_HOUR, MOST_OF_A_PAIR, MOST_OF_A_PIPELINE, MOST_OF_BOTH = 1_000, 1_750, 2_000, 2_000
SEEN_S, SEEN_HERE_S = 3.0, 1.0
"""After a commit, until a pipeline reads its segment: elsewhere, and on capture's host."""
OF_A_POSITION = 2 * 4
"""Requests, of two outputs."""
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
            source.wait_for(lambda: app.status(source.config).document["standbys"])
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


def with_output(source: Source, options: dict[str, str]) -> Path:
    """The configuration with an output, and a way of its own to the store."""
    config = yaml.safe_load(source.config_file.read_text())
    config["log"]["storage_options"] = options
    config["pipeline"] = {"checkpoint": str(source.directory / "checkpoint")}
    files = {"kind": "files", "path": str(source.directory / "files")}
    config["outputs"] = [
        {**files, "name": "a"},
        {**files, "path": f"{files['path']}-b", "name": "b"},
    ]
    file = source.directory / "pipeline.yaml"
    file.write_text(json.dumps(config))
    return file


def delivered(source: Source, rows: int) -> bool:
    names = [str(path) for path in source.directory.glob("files*/table=*/**/*.parquet")]
    found = [
        ds.dataset([n for n in names if part in n]) for part in ("files/", "files-b/") if names
    ]
    return bool(names) and all(each.count_rows() >= rows for each in found)


def seen_after(source: Source, network: FaultyNetwork, row: int) -> float:
    """Seconds from a commit until something reads its segment by this way."""
    before = len(network.asked)
    source.write(row, row)
    committed = time.time()

    def reads() -> list[float]:
        told = zip(network.asked[before:], network.asked_at[before:], strict=False)
        return [at for line, at in told if line.startswith("GET") and ".arrow" in line]

    source.wait_for(reads)
    return reads()[0] - committed


def commits_seen_after(source: Source, network: FaultyNetwork) -> list[float]:
    """Seconds until each of four commits is seen, after a pause before each."""
    seconds = []
    for row in range(10, 14):
        seconds.append(seen_after(source, network, row))
        time.sleep(3.1)
    source.wait_for(lambda: delivered(source, 7))
    return seconds


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
        lines = asked(
            network, watch.FIRST_LINE_S + 10, WATCHED_PAIR_S
        )  # behind the first plain lines
    assert len(lines) <= MOST_OF_A_PAIR * WATCHED_PAIR_S / 3600 + BEGUN, kinds(lines)


def test_waits_for_a_dump_make_few_requests(source: Source, network: FaultyNetwork) -> None:
    with captures(source, 1):
        pass
    source.config_file.write_text(
        source.config_file.read_text() + "outputs: [{kind: files, path: x}]"
    )
    with closing(open_state(source.config.state.location)) as state:
        Mailbox(state).send(StartDump(dump_id="d1"))
    for wait in (app.dump_wait, app.wait_delivered):
        before = len(network.asked)
        with pytest.raises(TidelogError):
            wait(source.config, "d1", timeout_s=WATCHED_S)
        assert len(network.asked) - before <= 2 * WATCHED_S, kinds(network.asked[before:])


@pytest.mark.spark
def test_an_idle_pipeline_on_another_host_makes_few_requests(
    source: Source, network: FaultyNetwork, s3: S3Server, tmp_path: Path, monkeypatch: Any
) -> None:
    """Of two outputs: they share the polls. It sees no notes of capture's host."""
    proxied = {**s3.options, "endpoint": f"http://127.0.0.1:{network.port}"}
    text = source.config_file.read_text().replace(proxied["endpoint"], s3.options["endpoint"])
    source.config_file.write_text(text)
    source.write(1, 3)
    with captures(source, 1):
        (tmp_path / "other-host").mkdir()
        monkeypatch.setenv("TMPDIR", str(tmp_path / "other-host"))
        file = with_output(source, proxied)
        process = Delivering(file, tmp_path / "pipeline.log")
        try:
            source.wait_for(lambda: delivered(source, 3))
            lines = asked(network, log_poller.BUSY_S + 5, WATCHED_PIPELINE_S)
            seconds = commits_seen_after(source, network)
        finally:
            process.close()
    # A server that was just started writes WAL of its own: positions come, which each output reads.
    appended = {line for line in lines if line.startswith("GET") and ".arrow" in line}
    most = MOST_OF_A_PIPELINE * WATCHED_PIPELINE_S / 3600 + BEGUN + len(appended) * OF_A_POSITION
    assert len(lines) <= most, kinds(lines)
    assert max(seconds) <= SEEN_S, seconds


@pytest.mark.spark
def test_an_idle_capture_and_pipeline_of_one_process_make_few_requests(
    source: Source, network: FaultyNetwork, tmp_path: Path
) -> None:
    """Commits are seen by what the log's writer notes: no request asks for them."""
    source.write(1, 3)
    file = with_output(source, {**source.storage_options})
    process = Delivering(file, tmp_path / "run.log", command="run")
    try:
        source.wait_for(lambda: delivered(source, 3))
        lines = asked(network, log_poller.BUSY_S + 5, WATCHED_PIPELINE_S)
        seconds = commits_seen_after(source, network)
    finally:
        process.close()
    assert len(lines) <= MOST_OF_BOTH * WATCHED_PIPELINE_S / 3600 + BEGUN, kinds(lines)
    assert statistics.median(seconds) <= SEEN_HERE_S, seconds
