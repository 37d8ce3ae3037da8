"""The history oracle: random transactions, dumps and faults against a real server, then the event
log is held against what was committed. Invariants 1, 2, 3, 7 and 8 of DESIGN.md §3.

`make soak` runs it for TIDELOG_SOAK_SECONDS; TIDELOG_SOAK_SEED sets the first seed. One seed again:
``TIDELOG_SOAK_SEED=7 TIDELOG_SOAK_SECONDS=1 make soak``.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.e2e.history_run import FAILPOINTS, Spec, run, shrunk

from tidelog.testing.history import HistoryError
from tidelog.testing.oracle_workload import TABLES, Mix
from tidelog.testing.postgres import PostgresServer

SECONDS = 3.0
SHRINK_S = 45.0


def holds(spec: Spec, server: PostgresServer, directory: Path, shrink_s: float = SHRINK_S) -> None:
    """Run; on failure shrink, and fail with the smallest run's seed, events and history."""

    def attempt(smaller: Spec) -> None:
        run(smaller, server, directory / "history")

    try:
        attempt(spec)
    except HistoryError as error:
        pytest.fail(shrunk(spec, error, attempt, shrink_s), pytrace=False)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(Spec(1, SECONDS, faults=("kill", "terminate")), id="killed-and-cut-off"),
        pytest.param(
            Spec(2, SECONDS, faults=("freeze", "kill"), fault_every_s=1.0), id="frozen-leader"
        ),
        pytest.param(
            Spec(3, SECONDS, faults=("failpoint",), fault_every_s=1.0, maintenance=True),
            id="killed-at-failpoints-with-retention",
        ),
    ],
)
def test_event_log_is_a_true_history(spec: Spec, oracle16: PostgresServer, tmp_path: Path) -> None:
    holds(spec, oracle16, tmp_path)


@pytest.mark.integration
@pytest.mark.slow
def test_event_log_is_a_true_history_of_postgresql_18(
    oracle18: PostgresServer, tmp_path: Path
) -> None:
    holds(Spec(4, SECONDS, faults=("restart", "kill")), oracle18, tmp_path)


def random_spec(seed: int) -> Spec:
    """A run of any kind."""
    rng = random.Random(f"spec {seed}")
    tables = tuple(TABLES) if rng.random() < 0.6 else tuple(rng.sample(sorted(TABLES), 2))
    spec = Spec(
        seed,
        seconds=rng.choice((5.0, 10.0, 20.0)),
        writers=rng.choice((1, 3, 6)),
        mix=Mix(
            tables,
            bulk=rng.random() < 0.7,
            truncate=rng.random() < 0.6,
            ddl=rng.random() < 0.6,
        ),
        maintenance=rng.random() < 0.5,
        fault_every_s=rng.choice((0.7, 2.0, 4.0)),
    )
    if rng.random() < 0.3:
        names = [name for name, _ in FAILPOINTS]
        spec = replace(spec, faults=("failpoint",), failpoints=tuple(rng.sample(names, 2)))
    return spec


@pytest.mark.soak
def test_soak(oracle16: PostgresServer, oracle18: PostgresServer, tmp_path: Path) -> None:
    end = time.monotonic() + float(os.environ.get("TIDELOG_SOAK_SECONDS", "600"))
    seed = int(os.environ.get("TIDELOG_SOAK_SEED", str(int(time.time()) % 1_000_000)))
    while True:
        spec = random_spec(seed)
        server = oracle18 if seed % 4 == 3 else oracle16
        started = time.monotonic()
        holds(spec, server, tmp_path, shrink_s=300.0)
        print(f"seed {seed} holds ({time.monotonic() - started:.0f} s)", flush=True)
        seed += 1
        if time.monotonic() > end:
            return
