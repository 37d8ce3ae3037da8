"""What starts while event log or state store is away says so, and continues once it is back; a
process to which they deny access ends at once.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from subprocess import STDOUT, run

import pytest
from tests.campaign.paths import PathProxy
from tests.faults.capture_fixture import Source
from tests.support.faulty_network import FaultyNetwork
from tests.support.pipeline_process import Delivering
from tests.support.s3 import S3Server
from tests.support.state_stores import STORES

from tidelog.errors import AccessRefusedError
from tidelog.eventlog.object_storage import ObjectStorage

pytestmark = pytest.mark.integration
ALWAYS = 1_000_000
_numbers = count(1)


@pytest.fixture
def network(s3: S3Server) -> Iterator[FaultyNetwork]:
    with FaultyNetwork(s3.port, one_at_a_time=True) as network:
        yield network


@pytest.fixture
def on_s3(
    database: str, tmp_path: Path, s3: S3Server, network: FaultyNetwork
) -> Iterator[Callable[..., Source]]:
    """A source whose log, and state if it is not elsewhere, are in the bucket, and an output;
    ``options``: of the store.
    """
    made: list[Source] = []

    def make(place: str = "", state: str = "log:", **options: str) -> Source:
        place = place or s3.url(f"start-{next(_numbers)}")
        endpoint = f"http://127.0.0.1:{network.port}"
        given = {**s3.options, "endpoint": endpoint, **options}
        source = Source(database, tmp_path, place, given, state=state)
        made.append(source)
        outputs = [{"kind": "files", "path": "out", "format": "json"}]
        pipeline = {
            "master": "local[1]",
            "trigger_ms": 50,
            "conf": {"spark.sql.shuffle.partitions": 1, "spark.ui.enabled": False},
        }
        with source.config_file.open("a") as file:
            file.write(f"outputs: {json.dumps(outputs)}\npipeline: {json.dumps(pipeline)}\n")
        return source

    yield make
    for source in made:
        source.close()


@pytest.mark.parametrize(
    "store", [pytest.param("zookeeper", marks=pytest.mark.thorough), "postgresql"]
)
def test_a_capture_waits_for_a_state_store_that_is_away(
    request: pytest.FixtureRequest, store: str, database: str, tmp_path: Path
) -> None:
    url = STORES[store](request, tmp_path)
    port = re.search(r":(\d+)/", url)
    assert port is not None
    with PathProxy(int(port[1])) as way:
        way.refuse()
        source = Source(database, tmp_path, state=url.replace(port[1], str(way.port)))
        try:
            capture = source.start()
            source.wait_for(lambda: "retrying: no connection" in capture.log_file.read_text())
            assert not capture.died
            way.heal()
            source.write(1, 10)
            source.wait_led()
            capture.stop()
            assert capture.wait(30) == 0
        finally:
            source.close()


def test_a_capture_waits_for_a_bucket_that_is_busy(
    on_s3: Callable[..., Source], network: FaultyNetwork
) -> None:
    source = on_s3()
    network.arm("busy", "", ALWAYS)
    capture = source.start()
    source.wait_for(lambda: "503" in capture.log_file.read_text())
    network.disarm()
    source.wait_led()
    assert not capture.died


@pytest.mark.parametrize("state", ["log:", ""], ids=["state in the bucket", "state elsewhere"])
def test_a_capture_whose_clock_differs_from_the_buckets_waits_until_it_is_right(
    on_s3: Callable[..., Source], network: FaultyNetwork, state: str
) -> None:
    """A host that has just started may not have asked for the time yet. Exit code 2 would be its
    end: a service manager does not start that again.
    """
    source = on_s3(state=state)
    network.arm("skew", "", ALWAYS)
    capture = source.start()
    source.wait_for(lambda: "the clock of this host differs" in capture.log_file.read_text())
    time.sleep(1)
    assert not capture.died
    assert "credentials" not in capture.tail
    network.disarm()
    source.wait_led()
    assert not capture.died


@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.parametrize("command", ["pipeline", "run"])
def test_a_pipeline_waits_for_a_bucket_that_is_busy(
    on_s3: Callable[..., Source], network: FaultyNetwork, tmp_path: Path, command: str
) -> None:
    source = on_s3()
    source.write(1, 5)
    network.arm("busy", "", ALWAYS)
    started = Delivering(source.config_file, tmp_path / "started.log", command=command)
    try:
        told = r'"pipeline": {"role": "retrying"' if command == "run" else '"role": "retrying"'
        source.wait_for(lambda: told in started.said)
        assert "503 Service Unavailable" in started.said or "503 Slow Down" in started.said
        time.sleep(1)
        assert started.code is None, started.said
        network.disarm()
        if command == "pipeline":
            source.wait_for(lambda: "holds no event log yet" in started.said)
            source.start()
        source.wait_for(lambda: delivered(tmp_path) == list(range(1, 6)), 240)
        started.send(signal.SIGTERM)
        assert started.wait() == 0, started.said
    finally:
        started.close()


def delivered(directory: Path) -> list[int]:
    files = (directory / "out").rglob("[!_.]*.json")
    visible = [file for file in files if "/_tidelog/" not in str(file)]
    return sorted(int(json.loads(line)["key"]["id"]) for file in visible for line in file.open())


@pytest.mark.parametrize(
    "command",
    [
        "capture",
        "pipeline",
        *(pytest.param(one, marks=pytest.mark.thorough) for one in ("run", "status")),
    ],
)
@pytest.mark.parametrize("mistake", ["secret", "bucket"])
def test_whom_the_bucket_does_not_let_in_ends_at_once(
    on_s3: Callable[..., Source], s3: S3Server, tmp_path: Path, command: str, mistake: str
) -> None:
    """Invariant 10 (docs/INVARIANTS.md)."""
    if mistake == "secret":
        source = on_s3(secret_access_key="hush-wrong")
    else:
        source = on_s3(s3.url("log").replace(s3.bucket, "there-is-no-such-bucket"))
    done = run(
        (sys.executable, "-m", "tidelog", command, str(source.config_file)),
        stdout=-1,
        stderr=STDOUT,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    said = done.stdout.decode()
    assert done.returncode == 2, said
    assert "Check the bucket's name, the endpoint, and that the credentials" in said
    assert "try again" not in said
    assert "hush" not in said


def test_a_capture_that_leads_outlasts_credentials_that_are_refused_for_a_while(
    on_s3: Callable[..., Source], network: FaultyNetwork
) -> None:
    source = on_s3()
    capture = source.start()
    source.wait_led()
    network.arm("forbid", "", ALWAYS)
    source.write(1, 5)
    source.wait_for(lambda: "403" in capture.log_file.read_text())
    time.sleep(2)  # longer than the lease
    assert not capture.died
    network.disarm()
    source.wait_for(lambda: source.inserted() == list(range(1, 6)))


def test_a_put_into_a_bucket_that_is_not_there_is_no_lost_race(s3: S3Server) -> None:
    storage = ObjectStorage(s3.url("x").replace(s3.bucket, "there-is-no-such-bucket"), s3.options)
    with pytest.raises(AccessRefusedError, match="NoSuchBucket"):
        storage.replace_if("a", b"1", None)
