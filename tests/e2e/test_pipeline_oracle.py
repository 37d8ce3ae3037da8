"""The history oracle over outputs: invariants 1, 2, 3 of docs/INVARIANTS.md, where the event log is
brought into Delta and PostgreSQL by one pipeline.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.e2e.history_pipeline import KILL, PipelineRun
from tests.e2e.history_run import run
from tests.e2e.history_spec import Spec
from tests.support.oracle.workload import Mix

from tidelog.demo.servers.postgres import PostgresServer

SPEC = Spec(
    41,
    10.0,
    mix=Mix(vanish=True),
    parallelism=4,
    chunk_rows=200,
    commands=("dump", "pause", "options"),
    faults=("kill", "terminate", KILL),
    fault_every_s=6.0,
    kills_amid=1,
)


@pytest.mark.integration
@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("server", "seed"), [("oracle16", 41), ("oracle16", 42), ("oracle_mysql80", 43)]
)
def test_copies_in_delta_and_postgres_are_a_true_history(
    server: str,
    seed: int,
    request: pytest.FixtureRequest,
    postgres: PostgresServer,
    tmp_path: Path,
) -> None:
    copy = f"copy_{seed}"
    make = partial(PipelineRun, copy_url=postgres.create_database(copy))
    try:
        done = run(
            replace(SPEC, seed=seed),
            request.getfixturevalue(server),
            tmp_path / "history",
            make,
        )
    finally:
        postgres.drop_database(copy)
    assert isinstance(done, PipelineRun)
    assert done.killed >= SPEC.kills_amid
