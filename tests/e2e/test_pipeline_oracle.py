"""The history oracle over outputs: invariants 1, 2, 3 of docs/INVARIANTS.md, where the event log is
written to Delta and Iceberg (copies, tables of changes and of history) and PostgreSQL by one
pipeline, while users of the lakes commit to their tables.

`make oracle-lakes` runs it for TIDELOG_SOAK_SECONDS, with Spark's SQL as one of the users; as `make
soak`, it takes TIDELOG_SOAK_SEED and TIDELOG_SOAK_SERVERS.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from tests.e2e.history_pipeline import KILL, PipelineRun
from tests.e2e.history_run import run
from tests.e2e.history_spec import Spec
from tests.support.iceberg_sql import SPARK_OF_ICEBERG
from tests.support.oracle.source import OracleSource
from tests.support.oracle.workload import Mix
from tests.support.postgres import PostgresServer

from tidelog.spark.sessions.versions import SPARK_VERSION

# What PyIceberg says when a user rewrites a table.
pytestmark = pytest.mark.filterwarnings("ignore:Merge on read is not yet supported")

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


SOAKED = ("oracle16", "oracle_mysql80", "oracle18")


def random_run(seed: int, source: OracleSource) -> Spec:
    """A run of any kind that outputs can meet."""
    rng = random.Random(f"outputs {seed}")
    mix = Mix(
        bulk=rng.random() < 0.6,
        truncates=rng.choice((0.0, 0.005, 0.03)),
        ddl=rng.random() < 0.8 and source.alters,
        prepared=source.prepares and rng.random() < 0.5,
        vanish=seed % 2 == 0,
    )
    return replace(
        LONG,
        seed=seed,
        mix=mix,
        rounds=2,
        transactions=rng.choice((150, 300, 600)),
        seconds=rng.choice((4.0, 10.0)),
        parallelism=rng.choice((1, 4)),
        chunk_rows=rng.choice((7, 23, 200)),
        watermarks=source.strategies[seed % len(source.strategies)],
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
    done = check(server, replace(spec, seed=seed), request, postgres, tmp_path)
    assert done.batches > 1, "only one batch came: no row that was there has been changed"


def check(
    server: str, spec: Spec, request: pytest.FixtureRequest, postgres: PostgresServer, path: Path
) -> PipelineRun:
    source: OracleSource = request.getfixturevalue(server)
    copy = f"copy_{spec.seed}"
    make = partial(PipelineRun, copy_url=postgres.create_database(copy))
    try:
        done = run(spec, source, path / "history", make)
    finally:
        postgres.drop_database(copy)
    assert isinstance(done, PipelineRun)
    print(*done.events, sep="\n")
    assert done.killed >= spec.kills_amid * spec.rounds
    return done


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.skipif(SPARK_VERSION != SPARK_OF_ICEBERG, reason="Iceberg has no SQL for this Spark")
def test_soak(request: pytest.FixtureRequest, postgres: PostgresServer, tmp_path: Path) -> None:
    end = time.monotonic() + float(os.environ.get("TIDELOG_SOAK_SECONDS", "600"))
    seed = int(os.environ.get("TIDELOG_SOAK_SEED", str(int(time.time()) % 1_000_000)))
    servers = os.environ.get("TIDELOG_SOAK_SERVERS", " ".join(SOAKED)).split()
    while True:
        server = servers[seed % len(servers)]
        started = time.monotonic()
        spec = random_run(seed, request.getfixturevalue(server))
        check(server, spec, request, postgres, tmp_path)
        print(f"seed {seed} holds on {server} ({time.monotonic() - started:.0f} s)", flush=True)
        seed += 1
        if time.monotonic() > end:
            return
