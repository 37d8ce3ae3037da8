"""What users do to a Delta copy beside the pipeline: OPTIMIZE and VACUUM at any time."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from tests.integration.spark.conftest import Lake
from tests.integration.spark.orders import orders
from tests.support.build_log import BuiltLog

from tidelog.outputs.base.ranges import batch_of
from tidelog.outputs.lake.delta import DeltaOptions

pytestmark = pytest.mark.spark


@pytest.fixture
def user(lake: Lake) -> Any:
    session = lake.spark.newSession()
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")
    return session


def keep(user: Any, lake: Lake) -> None:
    """Leave nothing but the newest version's files."""
    name = lake.name("public.orders")
    user.sql(f"OPTIMIZE {name}")
    user.sql(f"VACUUM {name} RETAIN 0 HOURS")


def test_optimize_and_vacuum_leave_the_copy_equal(lake: Lake, built: BuiltLog, user: Any) -> None:
    table = orders(built)

    def changes() -> Iterator[Any]:
        """Batches, each of which changes rows of the ones before."""
        for number in range(10, 12):
            built.insert(table, str(number), f"n{number}", "1")
            built.update(table, "1", f"by {number}", "2.00")
            built.delete(table, str(number - 1))
            meta = built.flush()
            yield batch_of(built.log, meta.first, meta.next)

    lake.run()
    keep(user, lake)  # while no pipeline runs
    output = lake.output()
    try:
        output.prepare(built.log.generation)
        for batch in changes():
            output.write(batch)
            keep(user, lake)  # between two batches
            output.write(batch)  # again, as after a crash: the files of its MERGE may be gone
    finally:
        output.close()
    assert lake.rows("public.orders") == [
        (0, "n0", Decimal("1.50")),
        (1, "by 11", Decimal("2.00")),
        (2, "n2", Decimal("1.50")),
        (3, "n3", Decimal("1.50")),
        (11, "n11", Decimal("1.00")),
    ]
    commits = lake.commits("public.orders")
    lake.run("new checkpoint")
    assert lake.commits("public.orders") == commits


def test_our_vacuum_takes_few_tasks(lake: Lake, built: BuiltLog) -> None:
    """Delta lists with 10,000 of them by default, which takes minutes."""
    orders(built)
    output = lake.output(options=DeltaOptions(optimize_every_s=0.0, vacuum_after_s=7 * 86_400.0))
    tracker = lake.spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(None))
    try:
        output.prepare(built.log.generation)
        output.write(batch_of(built.log, built.log.head_offset, built.log.latest_offset()))
    finally:
        output.close()
    jobs = [tracker.getJobInfo(job) for job in set(tracker.getJobIdsForGroup(None)) - before]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    assert stages
    assert max(stage.numTasks for stage in stages if stage) <= 32
