"""Does the history oracle see what it is there to see? Each way to break dumps must fail a run.

Takes a quarter of an hour: ``TIDELOG_ORACLE_MUTATIONS=1 make soak ARGS="-k catches"``.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.e2e.history_run import NothingShownError, run
from tests.e2e.history_spec import Spec
from tests.e2e.oracle_mutations import MUTATIONS
from tests.support.oracle.history import HistoryError
from tests.support.oracle.source import OracleSource
from tests.support.oracle.workload import Mix

TRIES = 3
BROKEN_ITSELF = re.compile(r": (Type|Attribute|Name|Import|ModuleNotFound)Error: ")
"""A mutation that no longer fits the code ends capture, and would seem to be caught."""

PLAIN = Spec(1, 4.0, writers=6, parallelism=4, commands=("dump",), blocking=False, faults=())
ONE = replace(PLAIN, parallelism=1, chunk_rows=200)
BLOCKING = replace(PLAIN, initial="blocking", chunk_rows=7)
SNAPSHOT = replace(PLAIN, watermarks="snapshot", chunk_rows=7)
KILLED = replace(
    PLAIN,
    seconds=8.0,
    faults=("failpoint",),
    fault_every_s=0.3,
    failpoints=("chunk.durable_before_progress",),
    chunk_rows=7,
)
UNWRITTEN = replace(KILLED, seconds=15.0, writers=1, chunk_rows=2, failpoints=("put.before_link",))
PAUSED = replace(
    PLAIN, seconds=8.0, commands=("dump", "pause"), chunk_rows=2, delay_ms=40, mix=Mix(bulk=False)
)
CHANGING = replace(PLAIN, chunk_rows=7, mix=Mix(("app.ints", "app.pairs"), bulk=False))
VANISHED = replace(
    PLAIN, seconds=5.0, mix=Mix(("app.parts",), ddl=False, truncate=False, vanish=True)
)
"""So long that a dump of the whole table begins before its rows vanish."""


SPECS = {
    "nothing_superseded": ONE,
    "planner_off_by_one": PLAIN,
    "planner_overlaps": PLAIN,
    "rest_skipped": replace(PLAIN, chunk_rows=7),
    "log_pause_released_early": BLOCKING,
    "log_pause_moved_short": BLOCKING,
    "due_one_early": SNAPSHOT,
    "due_amid_a_transaction": SNAPSHOT,
    "progress_never_stored": KILLED,
    "log_not_asked_at_start": KILLED,
    "retried_with_whole_range": CHANGING,
    "pause_ignored": PAUSED,
    # Longer than another process takes until it leads.
    "pause_forgotten": replace(
        PAUSED,
        seconds=20.0,
        pause_s=10.0,
        faults=("kill",),
        fault_every_s=4.0,
        mix=Mix(bulk=False, truncate=False, ddl=False),
    ),
    "finalized_too_early": PLAIN,
    "refetches_dropped": replace(ONE, mix=Mix(("app.wide", "app.coded"))),
    "absent_not_listed": replace(PLAIN, seconds=8.0),
    "acknowledged_before_durable": replace(UNWRITTEN, writers=6),
    "old_keys_ignored": ONE,
    "new_keys_ignored": ONE,
    "moved_keys_ignored": replace(ONE, mix=Mix(("app.wide", "app.coded"))),
    "absent_rows_stay": VANISHED,
}

FEW = Mix(
    ("app.big", "app.pairs", "app.times"), bulk=False, truncate=False, ddl=False, partial=False
)
LONG = replace(PLAIN, seconds=10.0, chunk_rows=50, window_ms=100, mix=FEW)
GTID = replace(LONG, watermarks="gtid")
MYSQL_SPECS = {
    "nothing_superseded": LONG,
    "old_keys_ignored": GTID,
    "new_keys_ignored": LONG,
    "planner_off_by_one": PLAIN,
    "due_one_early": replace(GTID, chunk_rows=7, window_ms=0),
    "rest_skipped": replace(PLAIN, chunk_rows=7),
    "log_not_asked_at_start": KILLED,
    "pause_ignored": PAUSED,
    "finalized_too_early": PLAIN,
    "absent_rows_stay": VANISHED,
    "bound_read_late": LONG,
    "emitted_at_prepare": replace(PLAIN, mix=Mix(prepared=True)),
    "prepared_before_start_lost": replace(
        PLAIN, seconds=8.0, mix=Mix(prepared=True, bulk=False), faults=("kill",), fault_every_s=1.0
    ),
    "ordinals_after_filters": replace(UNWRITTEN, writers=6, mix=Mix(ddl=False)),
    "unlogged_rows_ignored": replace(
        PLAIN, seconds=6.0, commands=(), mix=Mix(("app.parts",), ddl=False, truncates=0.05)
    ),
}
BROKEN = [
    *[("oracle16", mutation, spec) for mutation, spec in SPECS.items()],
    *[("oracle_mysql80", mutation, spec) for mutation, spec in MYSQL_SPECS.items()],
]


def test_every_mutation_that_is_tried_is_there() -> None:
    assert {mutation for _, mutation, _ in BROKEN} <= MUTATIONS.keys()


@pytest.mark.soak
@pytest.mark.skipif("TIDELOG_ORACLE_MUTATIONS" not in os.environ, reason="asked for by itself")
@pytest.mark.parametrize(
    ("server", "mutation", "broken"), BROKEN, ids=[f"{s}-{m}" for s, m, _ in BROKEN]
)
def test_oracle_catches(
    server: str, mutation: str, broken: Spec, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source: OracleSource = request.getfixturevalue(server)
    for seed in range(1, TRIES + 1):
        spec = replace(broken, seed=seed, mutation=mutation)
        try:
            run(spec, source, tmp_path / "history")
        except NothingShownError:
            continue  # a true history
        except HistoryError as error:
            reason = _reason(error)
            assert not BROKEN_ITSELF.search(reason), f"no rule is broken, the mutation is: {reason}"
            print(f"{mutation}, seed {seed}: {reason}")
            return
    pytest.fail(f"{TRIES} runs hold although {MUTATIONS[mutation].__doc__}")


def _reason(error: HistoryError) -> str:
    """What the oracle says, less the run's events; of a capture that ended, its last words."""
    lines = [line.strip() for line in str(error).splitlines()[1:]]
    lines = [line for line in lines if line and not line[0].isdigit()]
    said = [lines[0], lines[-1]] if "capture ended" in "".join(lines[:1]) else lines[:1]
    return ": ".join(line[:300] for line in said)
