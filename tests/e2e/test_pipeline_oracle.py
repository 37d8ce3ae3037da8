"""The history oracle over outputs: invariants 1, 2, 3 of docs/INVARIANTS.md, where the event log is
brought into Delta (a copy, and a table of changes) and PostgreSQL by one pipeline.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from tests.e2e.history_pipeline import KILL, PipelineRun
from tests.e2e.history_run import run
from tests.e2e.history_spec import Spec
from tests.support.oracle.source import OracleSource
from tests.support.oracle.workload import Mix

from tidelog.demo.servers.postgres import PostgresServer

SHORT = Spec(
    41,
    2.0,
    mix=Mix(truncates=0.02, vanish=True),
    transactions=150,
    parallelism=4,
    chunk_rows=200,
    commands=("dump", "pause", "options"),
    faults=("kill",),
    fault_every_s=2.0,
    kills_amid=1,
)
LONG = replace(
    SHORT,
    transactions=400,
    seconds=10.0,
    rounds=3,
    kills_amid=2,
    faults=("kill", "terminate", KILL),
)


@pytest.mark.integration
@pytest.mark.spark
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("server", "spec", "seed"),
    [
        pytest.param("oracle16", SHORT, 41, id="short"),
        *(
            pytest.param(server, LONG, seed, id=f"{server}-{seed}", marks=pytest.mark.thorough)
            for server, seed in product(("oracle16", "oracle_mysql80"), (42, 43, 44))
        ),
    ],
)
def test_outputs_are_a_true_history(
    server: str,
    spec: Spec,
    seed: int,
    request: pytest.FixtureRequest,
    postgres: PostgresServer,
    tmp_path: Path,
) -> None:
    source: OracleSource = request.getfixturevalue(server)
    copy = f"copy_{seed}"
    make = partial(PipelineRun, copy_url=postgres.create_database(copy))
    try:
        done = run(replace(spec, seed=seed), source, tmp_path / "history", make)
    finally:
        postgres.drop_database(copy)
    assert isinstance(done, PipelineRun)
    assert done.killed >= spec.kills_amid * spec.rounds
    assert done.batches > 1, "only one batch came: no row that was there has been changed"
