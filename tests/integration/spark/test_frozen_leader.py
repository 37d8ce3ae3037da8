"""A pipeline's leader is frozen amid a batch, with its JVM and workers, and wakes up when another
has delivered all: its destination, of each kind, stays as the other left it.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from tests.integration.spark.frozen_destinations import FROZEN, Change, Places
from tests.integration.spark.test_failover import Pipeline
from tests.support.build_log import BuiltLog
from tests.support.pipeline_process import Delivering, signal_all

from tidelog import app
from tidelog.eventlog.consumers import Consumers

pytestmark = [
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

FIRST: list[Change] = [("c", n, "first") for n in range(1, 11)]
MEANWHILE: list[Change] = [
    ("u", 1, "newer"),
    ("c", 2, "again"),
    ("d", 3, None),
    ("u", 11, "newer"),
    ("d", 12, None),
]
"""Which what is late would undo."""
AFTER: list[Change] = [("u", 1, "after"), ("d", 4, None)]
BACK: list[Change] = [("u", 1, "last"), ("c", 30, "last")]
"""The one that was frozen leads again."""


@pytest.mark.parametrize(
    "kind",
    [
        "http",
        *(
            pytest.param(kind, marks=pytest.mark.thorough)
            for kind in [
                "delta",
                "delta_merge",
                "delta_s3",
                "files",
                "iceberg",
                "postgres",
                "mysql",
                "mariadb",
                "postgres_transaction",
                "mysql_transaction",
                "mariadb_transaction",
                "kafka",
                "kafka_handed_over",
                "kafka_transactions",
                "http_request",
                "opensearch",
                "own",
            ]
        ),
    ],
)
def test_a_leader_that_was_frozen_amid_a_batch_changes_nothing_when_it_wakes_up(
    request: pytest.FixtureRequest, built: BuiltLog, tmp_path: Path, database: str, kind: str
) -> None:
    place = Places(request, tmp_path).make(kind)
    armed = tmp_path / "armed"
    pipeline = Pipeline(built, tmp_path)
    request.addfinalizer(pipeline.close)
    pipeline.configure(place.output, conf=place.conf)
    with pipeline.file.open("a") as config:  # who is frozen with SQLite's lock holds up the others
        config.write(f"state: {{url: '{database}'}}\n")
    told: list[Change] = []

    def write(changes: list[Change]) -> None:
        for op, key, value in changes:
            if op == "c":
                built.insert(pipeline.table, str(key), value)
            elif op == "u":
                built.update(pipeline.table, str(key), value)
            else:
                built.delete(pipeline.table, str(key))
        built.flush()
        told.extend(changes)

    def delivered() -> bool:
        return place.found() == place.wanted(told)

    write(FIRST)
    for _ in range(2):
        pipeline.start(f"{place.point}:pause:{armed}" if place.point else "")
    pipeline.wait_for(delivered)
    pipeline.wait_for(lambda: pipeline.status()["standbys"])
    frozen = pipeline.leader()
    assert frozen is not None
    if place.stall is None:
        armed.touch()
        write(FROZEN)
        pipeline.wait_for(lambda: frozen.frozen)
        pids = freeze(frozen)
        armed.unlink()
    else:
        with place.stall() as waits:
            write(FROZEN)
            pipeline.wait_for(waits)
            pids = freeze(frozen)
    pipeline.wait_for(lambda: pipeline.leader() not in (None, frozen))
    other = pipeline.leader()
    pipeline.wait_for(delivered)
    write(MEANWHILE)
    pipeline.wait_for(delivered)

    epoch = pipeline.status()["epoch"]
    before = place.seen and place.seen()
    place.release()
    signal_all([pid for pid in pids if pid != frozen.pid], signal.SIGCONT)
    time.sleep(place.late_s)  # what the workers and Spark have begun they end before the driver can
    frozen.send(signal.SIGCONT)
    pipeline.wait_for(lambda: len(pipeline.status()["standbys"]) == 1)
    time.sleep(1)
    assert delivered()
    assert before == (place.seen and place.seen())
    noted = Consumers(built.log.storage).find("shop")
    assert noted is not None
    assert noted.epoch == epoch
    assert pipeline.leader() is other

    write(AFTER)
    pipeline.wait_for(delivered)
    app.hand_over(pipeline.config, None, timeout_s=60, pipeline="shop")
    pipeline.wait_for(lambda: pipeline.leader() is frozen)
    write(BACK)
    pipeline.wait_for(delivered)
    assert [each.code for each in pipeline.processes] == [None, None]


def freeze(leader: Delivering) -> list[int]:
    """All of it, from the driver to the workers."""
    pids = leader.processes
    signal_all(pids, signal.SIGSTOP)
    return pids
