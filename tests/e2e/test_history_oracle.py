"""The history oracle: random transactions, dumps, commands and faults against a real server, then
the event log is held against what was committed. Invariants 1, 2, 3, 7 and 8 of docs/INVARIANTS.md.

`make soak` runs it for TIDELOG_SOAK_SECONDS, the servers of `SOAKED` taking turns by seed;
TIDELOG_SOAK_SEED sets the first seed, TIDELOG_SOAK_SERVERS names the servers. One seed again:
``TIDELOG_SOAK_SEED=7 TIDELOG_SOAK_SECONDS=1 make soak`` (with the servers that it was found with).
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.e2e.history_engine import EngineRun
from tests.e2e.history_held import HOLD, HeldRun
from tests.e2e.history_restores import OPERATORS, RestoreRun
from tests.e2e.history_run import NothingShownError, Run, run, shrunk
from tests.e2e.history_spec import ELSEWHERE, FAILPOINTS, Spec, failpoints_in_source, random_spec
from tests.support.faulty_network import FaultyNetwork
from tests.support.oracle.history import HistoryError
from tests.support.oracle.source import OracleSource
from tests.support.oracle.workload import Mix
from tests.support.s3 import S3Server

SECONDS = 3.0
SHRINK_S = 45.0
XA = Mix(prepared=True)


def holds(
    spec: Spec, source: OracleSource, directory: Path, shrink_s: float = SHRINK_S
) -> set[str]:
    """Run; on failure shrink, and fail with the smallest run's seed, events and history.

    Returns the failpoints that captures died at.
    """

    make = EngineRun if spec.engine else Run

    def attempt(smaller: Spec) -> None:
        run(smaller, source, directory / "history", make)

    try:
        return set(run(spec, source, directory / "history", make).died_at)
    except NothingShownError:
        raise
    except HistoryError as error:
        pytest.fail(shrunk(spec, source, error, attempt, shrink_s), pytrace=False)


UNNAMED = Spec(
    6,
    SECONDS,
    mix=Mix(prepared=True, ddl=False),
    watermarks="gtid",
    parallelism=4,
    window_ms=50,
    faults=("kill", "rotate"),
    fault_every_s=1.5,
)
TAKING_TURNS = Spec(4, SECONDS, parallelism=4, chunk_rows=5000, faults=("restart", "stop"))
SHORT = {
    "oracle16": {
        "one-reader": Spec(
            1, SECONDS, mix=Mix(vanish=True), faults=("kill", "terminate"), fault_every_s=1.5
        ),
        "messages-4-readers-frozen": Spec(
            2, SECONDS, watermarks="message", parallelism=4, chunk_rows=7, faults=("freeze",)
        ),
        "snapshots-16-readers": Spec(
            3, SECONDS, watermarks="snapshot", parallelism=16, chunk_rows=7, faults=("kill", "stop")
        ),
    },
    "oracle18": {"blocking-server-restarts": replace(TAKING_TURNS, initial="blocking")},
    "oracle_mysql80": {
        "one-reader": Spec(
            1,
            SECONDS,
            mix=replace(XA, vanish=True),
            faults=("kill", "terminate", "rotate"),
            fault_every_s=1.5,
        ),
        "gtids-16-readers-frozen": Spec(
            3, SECONDS, watermarks="gtid", parallelism=16, chunk_rows=7, faults=("freeze", "stop")
        ),
        "server-crashes": replace(TAKING_TURNS, faults=("crash", "kill"), fault_every_s=1.5),
    },
    "oracle_mysql80_minimal": {"names-not-logged": UNNAMED},
    "oracle_mariadb1011_minimal": {"names-not-logged": replace(UNNAMED, watermarks="table")},
    "oracle_mariadb1011": {
        "one-reader": Spec(1, SECONDS, faults=("kill", "crash"), fault_every_s=1.5),
        "gtids-4-readers": Spec(
            2,
            SECONDS,
            mix=XA,
            watermarks="gtid",
            parallelism=4,
            chunk_rows=7,
            faults=("kill", "terminate", "rotate"),
            fault_every_s=1.5,
        ),
        "server-restarts": replace(TAKING_TURNS, mix=XA),
    },
}


# Of servers that end under a capture: other kinds do so too, and tests of the sources.
FURTHER = {
    ("oracle_mysql80", "server-crashes"),
    ("oracle_mariadb1011", "server-restarts"),
    # What others here have, of another source.
    ("oracle16", "messages-4-readers-frozen"),
    ("oracle_mysql80_minimal", "names-not-logged"),
    ("oracle_mariadb1011", "gtids-4-readers"),
}
# One of each kind of source, for `make test`.
FIRST = {(server, "one-reader") for server in ("oracle16", "oracle_mysql80", "oracle_mariadb1011")}


def marks(server: str, name: str) -> list[pytest.MarkDecorator]:
    if (server, name) in FURTHER:
        return [pytest.mark.thorough]
    return [pytest.mark.first] if (server, name) in FIRST else []


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "name"),
    [
        pytest.param(server, name, marks=marks(server, name))
        for server, specs in SHORT.items()
        for name in specs
    ],
)
def test_event_log_is_a_true_history(
    server: str, name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    holds(SHORT[server][name], request.getfixturevalue(server), tmp_path)


OPERATED = Spec(31, 0.0, writers=1, commands=(), blocking=False, mix=Mix(bulk=False, ddl=False))
"""Faults of operators; each restore is of a second or two."""


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "faults"),
    [
        ("oracle_mysql80", ("restore log", "leave tables out")),
        pytest.param("oracle16", OPERATORS[:-1], marks=pytest.mark.thorough),
        pytest.param("oracle16", ("new table", "new table"), marks=pytest.mark.thorough),
        pytest.param("oracle_mysql80", OPERATORS, marks=pytest.mark.thorough),
        pytest.param("oracle_mariadb1011", OPERATORS, marks=pytest.mark.thorough),
        pytest.param("oracle_mysql80_minimal", OPERATORS[:-1], marks=pytest.mark.thorough),
    ],
    ids=lambda value: value if isinstance(value, str) else str(len(value)),
)
def test_event_log_is_a_true_history_whatever_operators_do(
    server: str, faults: tuple[str, ...], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source: OracleSource = request.getfixturevalue(server)
    spec = replace(OPERATED, faults=faults)
    done = run(spec, source, tmp_path / "history", RestoreRun)
    assert isinstance(done, RestoreRun)
    assert done.struck == list(faults)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["killed", "frozen", "maintained"])
def test_event_log_on_an_object_store_is_a_true_history(
    name: str, oracle16: OracleSource, s3: S3Server, tmp_path: Path
) -> None:
    spec = {
        "killed": SHORT["oracle16"]["one-reader"],
        "frozen": SHORT["oracle16"]["messages-4-readers-frozen"],
        "maintained": Spec(8, 8.0, maintenance=True, faults=("kill", "freeze")),
    }[name]
    options = tuple(s3.options.items())
    holds(replace(spec, log=s3.url("history"), storage_options=options), oracle16, tmp_path)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("server", ["oracle16", "oracle_mysql80"])
def test_event_log_on_an_object_store_is_a_true_history_where_puts_are_held(
    server: str, request: pytest.FixtureRequest, s3: S3Server, tmp_path: Path
) -> None:
    with FaultyNetwork(s3.port, one_at_a_time=True) as network:
        options = {**s3.options, "endpoint": f"http://127.0.0.1:{network.port}"}
        spec = replace(
            OPERATED, seconds=12.0, faults=(HOLD,), commands=("dump",), fault_every_s=1.0
        )
        spec = replace(spec, log=s3.url("held"), storage_options=tuple(options.items()))
        make = partial(HeldRun, network=network)
        done = run(spec, request.getfixturevalue(server), tmp_path / "history", make)
    assert isinstance(done, HeldRun)
    assert done.held > 0


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("server", ["oracle16", "oracle_mysql80"])
def test_killed_wherever_a_dump_may_be(
    server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Invariant 8, at each failpoint of chunks and blocking dumps in turn."""
    source: OracleSource = request.getfixturevalue(server)
    places = ("chunk.", "window.", *(["blocking."] if source.blocking else []))
    names = tuple(n for n in FAILPOINTS if n.startswith(places))
    spec = Spec(
        5,
        120.0,
        writers=1,
        parallelism=4,
        chunk_rows=7,
        commands=(),
        faults=("failpoint",),
        fault_every_s=0.1,
        failpoints=names,
        each_failpoint=True,
    )
    assert holds(spec, source, tmp_path) == set(names)


def test_every_failpoint_is_a_place_to_be_killed_at() -> None:
    assert {*FAILPOINTS, *ELSEWHERE} == failpoints_in_source()
    for name, test in ELSEWHERE.items():
        assert f'"{name}' in Path(test).read_text(encoding="utf-8")


SOAKED = (
    "oracle16",
    "oracle_mysql80",
    "oracle18",
    "oracle_mariadb1011",
    "oracle_mariadb114",
    "oracle_mysql80_minimal",
    "oracle_mariadb1011_minimal",
)


@pytest.mark.soak
def test_soak(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    end = time.monotonic() + float(os.environ.get("TIDELOG_SOAK_SECONDS", "600"))
    seed = int(os.environ.get("TIDELOG_SOAK_SEED", str(int(time.time()) % 1_000_000)))
    servers = os.environ.get("TIDELOG_SOAK_SERVERS", " ".join(SOAKED)).split()
    died_at: set[str] = set()
    while True:
        server = servers[seed % len(servers)]
        source: OracleSource = request.getfixturevalue(server)
        spec = random_spec(seed, source)
        started = time.monotonic()
        shown = "holds"
        try:
            died_at |= holds(spec, source, tmp_path, shrink_s=300.0)
        except NothingShownError:  # every dump was cancelled; the log itself is right
            shown = "holds, without a dump,"
        print(
            f"seed {seed} {shown} on {server} ({time.monotonic() - started:.0f} s): "
            f"{spec.engine or 'capture'}, {spec.watermarks}, parallelism {spec.parallelism}, "
            f"chunks of {spec.chunk_rows} rows",
            flush=True,
        )
        seed += 1
        if time.monotonic() > end:
            print(f"killed at {len(died_at)} of {len(FAILPOINTS)} failpoints", flush=True)
            return
