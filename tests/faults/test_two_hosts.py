"""Two hosts as docs/how-to/state-store.md sets them up: the same configuration on each, and nothing
shared but source, event log and state.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.campaign.paths import PathProxy
from tests.support.faulty_network import FaultyNetwork
from tests.support.oracle.log import read_event_log
from tests.support.s3 import S3Server
from tests.support.two_hosts import Host, two_hosts
from tests.support.zookeeper import ZooKeeperServer

from tidelog.eventlog.reader import EventLog

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.thorough]
LEASE_S = 4.0
WAIT_S = 90.0
CONFIG = """
source: {{kind: postgres, url: "{dsn}", tables: ["app.*"], slot: two_hosts_{store}}}
log: {{path: {log}, storage_options: {options}}}
capture: {{lease_ms: {lease_ms}}}
{state}
"""


@pytest.fixture(params=["log", "zookeeper", "postgresql"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def hosts(
    store: str,
    s3: S3Server,
    zookeeper: ZooKeeperServer,
    database: str,
    tmp_path: Path,
) -> Iterator[tuple[Host, Host]]:
    with ExitStack() as opened:
        hosts = opened.enter_context(two_hosts(tmp_path))
        before, _, name = database.rpartition("/")
        gateway = hosts[0].gateway
        bucket = opened.enter_context(FaultyNetwork(s3.port, one_at_a_time=True, address=gateway))
        source = opened.enter_context(PathProxy(int(before.rpartition(":")[2]), address=gateway))
        keeper = opened.enter_context(PathProxy(zookeeper.port, address=gateway))
        dsn = f"postgresql://postgres@{gateway}:{source.port}/{name}"
        state = {
            "log": "",
            "zookeeper": f"state: {{url: 'zookeeper://{gateway}:{keeper.port}/two-hosts', "
            "options: {session_timeout_s: 2}}",
            "postgresql": f"state: {{url: '{dsn}'}}",
        }[store]
        options = s3.options | {"endpoint": f"http://{gateway}:{bucket.port}"}
        text = CONFIG.format(
            dsn=dsn,
            store=store,
            log=place(s3, store),
            options=json.dumps(options),
            lease_ms=int(LEASE_S * 1000),
            state=state,
        )
        for host in hosts:
            (host.directory / "tidelog.yaml").write_text(text)
        yield hosts


def place(s3: S3Server, store: str) -> str:
    return s3.url(f"two-hosts-{store}")


def status(host: Host) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host.run("status", "tidelog.yaml", "--json"))
    return found


def wait_for(what: Callable[[], object], hosts: tuple[Host, Host]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline, [host.said for host in hosts]
        time.sleep(0.1)


def test_either_host_goes_on_where_the_other_ended(
    hosts: tuple[Host, Host], store: str, s3: S3Server, database: str
) -> None:
    a, b = hosts
    log: list[EventLog] = []

    def inserted() -> list[int]:
        if not log and EventLog.exists(place(s3, store)):
            log.append(EventLog.open(place(s3, store)))
        if not log:
            return []
        records = read_event_log(log[0], log[0].head_offset, log[0].latest_offset())
        return [int(r.new["id"] or 0) for r in records if r.op == "I" and r.new]

    def write(first: int, last: int) -> None:
        source.execute("INSERT INTO app.t SELECT generate_series(%s::int, %s)", (first, last))

    def captured(last: int) -> bool:
        return inserted() == list(range(1, last + 1))

    with psycopg.connect(database, autocommit=True) as source:
        source.execute("CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY)")
        a.start("capture", "tidelog.yaml")
        wait_for(lambda: str(status(b).get("leader")).startswith("host-a-"), hosts)
        b.start("capture", "tidelog.yaml")
        wait_for(lambda: status(a)["standbys"], hosts)
        assert status(a)["standbys"][0]["holder"].startswith("host-b-")
        write(1, 10)
        wait_for(lambda: captured(10), hosts)
        # On purpose, asked for on the host that stands by.
        b.run("handover", "tidelog.yaml")
        write(11, 20)
        wait_for(lambda: captured(20), hosts)
        assert str(status(a)["leader"]).startswith("host-b-")
        # Its host vanishes.
        wait_for(lambda: status(a)["standbys"], hosts)
        b.cut_off()
        begun = time.monotonic()
        write(21, 30)
        wait_for(lambda: captured(30), hosts)
        assert time.monotonic() - begun > LEASE_S / 2, "it could not know"
        # It comes back, and stands by.
        b.bring_back()
        write(31, 40)
        wait_for(lambda: captured(40), hosts)
        wait_for(lambda: [one["holder"] for one in status(a)["standbys"]], hosts)
        assert str(status(b)["leader"]).startswith("host-a-")
        # The first one is lost for ever.
        a.kill()
        write(41, 50)
        wait_for(lambda: captured(50), hosts)
