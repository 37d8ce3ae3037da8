"""The history oracle: random transactions, dumps, commands and faults against a real server, then
the event log is held against what was committed. Invariants 1, 2, 3, 7 and 8 of DESIGN.md §3.

`make soak` runs it for TIDELOG_SOAK_SECONDS; TIDELOG_SOAK_SEED sets the first seed. One seed again:
``TIDELOG_SOAK_SEED=7 TIDELOG_SOAK_SECONDS=1 make soak``.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.e2e.history_run import run, shrunk
from tests.e2e.history_spec import FAILPOINTS, Spec, failpoints_in_source, random_spec

from tidelog.testing.history import HistoryError
from tidelog.testing.oracle_postgres import PostgresOracle
from tidelog.testing.oracle_source import OracleSource

SECONDS = 3.0
SHRINK_S = 45.0


def holds(
    spec: Spec, source: OracleSource, directory: Path, shrink_s: float = SHRINK_S
) -> set[str]:
    """Run; on failure shrink, and fail with the smallest run's seed, events and history.

    Returns the failpoints that captures died at.
    """

    def attempt(smaller: Spec) -> None:
        run(smaller, source, directory / "history")

    try:
        return set(run(spec, source, directory / "history").died_at)
    except HistoryError as error:
        pytest.fail(shrunk(spec, source, error, attempt, shrink_s), pytrace=False)


SHORT = {
    "one-reader": Spec(1, SECONDS, faults=("kill", "terminate"), fault_every_s=1.5),
    "messages-4-readers-frozen": Spec(
        2, SECONDS, watermarks="message", parallelism=4, chunk_rows=7, faults=("freeze",)
    ),
    "snapshots-16-readers": Spec(
        3, SECONDS, watermarks="snapshot", parallelism=16, chunk_rows=7, faults=("kill", "stop")
    ),
}


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("spec", SHORT.values(), ids=SHORT.keys())
def test_event_log_is_a_true_history(spec: Spec, oracle16: PostgresOracle, tmp_path: Path) -> None:
    holds(spec, oracle16, tmp_path)


@pytest.mark.integration
@pytest.mark.slow
def test_event_log_is_a_true_history_of_postgresql_18(
    oracle18: PostgresOracle, tmp_path: Path
) -> None:
    """Blocking dumps and large chunks; the server itself goes down."""
    spec = Spec(
        4, SECONDS, initial="blocking", parallelism=4, chunk_rows=5000, faults=("restart", "stop")
    )
    holds(spec, oracle18, tmp_path)


@pytest.mark.integration
@pytest.mark.slow
def test_killed_wherever_a_dump_may_be(oracle16: PostgresOracle, tmp_path: Path) -> None:
    """Invariant 8, at each failpoint of chunks and blocking dumps in turn."""
    names = tuple(n for n in FAILPOINTS if n.startswith(("chunk.", "window.", "blocking.")))
    spec = Spec(
        5,
        9.0,
        parallelism=4,
        chunk_rows=7,
        commands=("dump",),
        faults=("failpoint",),
        fault_every_s=0.1,
        failpoints=names,
    )
    holds(spec, oracle16, tmp_path)


def test_every_failpoint_is_a_place_to_be_killed_at() -> None:
    assert set(FAILPOINTS) == failpoints_in_source()


@pytest.mark.soak
def test_soak(oracle16: PostgresOracle, oracle18: PostgresOracle, tmp_path: Path) -> None:
    end = time.monotonic() + float(os.environ.get("TIDELOG_SOAK_SECONDS", "600"))
    seed = int(os.environ.get("TIDELOG_SOAK_SEED", str(int(time.time()) % 1_000_000)))
    died_at: set[str] = set()
    while True:
        source = oracle18 if seed % 4 == 3 else oracle16
        spec = random_spec(seed, source)
        started = time.monotonic()
        died_at |= holds(spec, source, tmp_path, shrink_s=300.0)
        print(
            f"seed {seed} holds ({time.monotonic() - started:.0f} s): {spec.watermarks}, "
            f"parallelism {spec.parallelism}, chunks of {spec.chunk_rows} rows",
            flush=True,
        )
        seed += 1
        if time.monotonic() > end:
            print(f"killed at {len(died_at)} of {len(FAILPOINTS)} failpoints", flush=True)
            return
