"""The campaign: two captures on two hosts while a nemesis takes parts of them away. The history
oracle judges the event log, and capture has to go on without a hand once all is back.

`make campaign` runs it for TIDELOG_CAMPAIGN_SECONDS, sources and state stores taking turns by seed,
from TIDELOG_CAMPAIGN_SEED on, and writes what it showed to TIDELOG_CAMPAIGN_JSON;
TIDELOG_CAMPAIGN_KINDS names faults, with commas between, that are to strike alone. That it sees a
broken rule: ``TIDELOG_CAMPAIGN_MUTATIONS=1 make soak ARGS=tests/campaign``.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.campaign import copies, leaders, nemesis
from tests.campaign.campaign_run import (
    LAG_S,
    LEASE_S,
    LIVELY_S,
    CampaignRun,
    OpenPlace,
)
from tests.campaign.copies import Copies
from tests.campaign.nemesis import KINDS, PROMOTE
from tests.campaign.operator_nemesis import OPERATOR_KINDS
from tests.campaign.outcome import Outcome
from tests.campaign.pipeline_nemesis import PIPELINE_KINDS
from tests.campaign.places import OnS3, Place, StateInPostgres, StateInZooKeeper
from tests.campaign.store_nemesis import HELD_PUT_WON, STORE_KINDS
from tests.e2e.history_restores import NOT_DUMPED, NOT_REFUSED
from tests.e2e.history_run import NothingShownError, run
from tests.e2e.history_spec import Spec
from tests.left_out import SAID
from tests.support.namespaces import Bridge, NotPermittedError
from tests.support.oracle import promotable
from tests.support.oracle.history import HistoryError
from tests.support.oracle.source import OracleSource
from tests.support.postgres import PostgresServer
from tests.support.zookeeper_ensemble import ensemble

SOURCES = {
    "oracle16": "PostgreSQL 16",
    "oracle_mysql80": "MySQL 8.0",
    "oracle18": "PostgreSQL 18",
    "oracle_mariadb1011": "MariaDB 10.11",
}
PAIRS: dict[str, Callable[[], AbstractContextManager[OracleSource]]] = {
    "oracle_mysql80": promotable.mysql80,
    "oracle18": promotable.postgres18,
    "oracle_mariadb1011": promotable.mariadb1011,
}
"""Those that come with a server which can be promoted."""
STATES = ("log", "postgresql", "zookeeper")
SECONDS = 40.0
ALL_KINDS = tuple(kind for kind in (*KINDS, *STORE_KINDS) if kind != PROMOTE)
PROMOTIONS = (PROMOTE,) * 6
"""Until it has struck: a run has time for a dozen faults of two dozen kinds."""
NO_DATA = "no_data"
TABLE = "create a table"
MUTATION_SEEDS = (9, 10, 11)  # of the short form


def spec_of(seed: int, source: OracleSource, seconds: float = SECONDS) -> Spec:
    rng = random.Random(f"campaign {seed}")
    return Spec(
        seed,
        seconds,
        writers=rng.choice((1, 2)),
        watermarks=rng.choice(source.strategies),
        parallelism=rng.choice((1, 4)),
        chunk_rows=rng.choice((7, 23, 200)),
        commands=(),
        blocking=False,
        fault_every_s=rng.choice((1.5, 3.0, 6.0)),
    )


def operators_of(seed: int, source: str) -> tuple[str, ...]:
    """In half of the runs tables are made, with `no_data`: there a gap of PostgreSQL's is an error,
    and a log that was put back is one.
    """
    if seed // (4 * len(SOURCES)) % 2 == 0:
        return tuple(kind for kind in OPERATOR_KINDS if kind != TABLE)
    gaps = ("restore the log", "restore both") if source in ("oracle16", "oracle18") else ()
    return tuple(kind for kind in OPERATOR_KINDS if kind not in gaps)


def place_of(state: str, request: pytest.FixtureRequest) -> OpenPlace:
    def open_place(directory: Path, opened: ExitStack) -> Place:
        if state == "log":
            return OnS3(request.getfixturevalue("s3"), opened)
        if state == "zookeeper":
            return StateInZooKeeper(request.getfixturevalue("zookeepers"), directory)
        return StateInPostgres(request.getfixturevalue("state_server"), directory)

    return open_place


@pytest.fixture(scope="module")
def state_server() -> Any:
    """Of its own: it is restarted."""
    with PostgresServer(16) as server:
        yield server


@pytest.fixture(scope="module")
def zookeepers() -> Any:
    """Of their own: they are killed."""
    with ensemble() as members:
        yield members


def one(
    seed: int,
    source: str,
    state: str,
    request: pytest.FixtureRequest,
    directory: Path,
    seconds: float = SECONDS,
    kinds: tuple[str, ...] = ALL_KINDS,
    mutation: str = "",
    pipelines: bool = False,
) -> Outcome:
    """Run and judge. Raises HistoryError. Where a server may be promoted, the run has its own.
    Operators' faults: not where pipelines are, whose outputs would be ahead of a log that was put
    back; and what a restore asks for is dumped by itself, or with tables that are made nothing is.
    """
    with ExitStack() as opened:
        server: OracleSource
        if PROMOTE in kinds:
            server = opened.enter_context(PAIRS[source]())
        else:
            server = request.getfixturevalue(source)
        make = partial(
            CampaignRun, open_place=place_of(state, request), name=SOURCES[source], kinds=kinds
        )
        spec = replace(spec_of(seed, server, seconds), mutation=mutation)
        if operated := set(kinds) & OPERATOR_KINDS.keys():
            assert not pipelines
            make = partial(make, snapshot=NO_DATA if TABLE in operated else "when_needed")
            if spec.watermarks == "snapshot":  # its tables are published by their owner
                spec = replace(spec, watermarks="table")
        if pipelines:
            spec = replace(spec, mix=copies.MIX)
            destination = request.getfixturevalue("state_server")
            make = partial(make, open_copies=partial(Copies, destination))
        done = run(spec, server, directory / "campaign", make)
        assert isinstance(done, CampaignRun)
        print(*done.events, sep="\n")
        return done.outcome


def until_each_struck(
    kinds: tuple[str, ...],
    state: str,
    request: pytest.FixtureRequest,
    directory: Path,
    source: str = "oracle16",
) -> None:
    """Runs that hold, until one has met each kind of fault."""
    for seed in MUTATION_SEEDS:
        try:
            outcome = one(seed, source, state, request, directory / str(seed), kinds=kinds)
        except NothingShownError:
            continue
        if set(outcome.faults) == set(kinds):
            return
    pytest.fail("one of the faults was never met")


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.thorough
def test_a_short_campaign(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    outcome = one(1, "oracle16", "log", request, tmp_path)
    assert sum(outcome.faults.values()) > 3
    assert outcome.leaderless_s, "nobody took over: nothing was tested"


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.thorough
def test_a_short_campaign_on_disks_that_fail(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    until_each_struck(("fill the disk", "fail on fsync"), "postgresql", request, tmp_path)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("state", "kinds"),
    [
        ("zookeeper", ("lose a member", "lose the quorum")),
        ("zookeeper", ("expire the sessions",)),
        ("log", ("answer 503", "lose answers")),
        ("log", ("hold a put",)),
        ("postgresql", ("slow the disk",)),
    ],
)
def test_a_short_campaign_on_stores_that_fail(
    state: str, kinds: tuple[str, ...], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    until_each_struck(kinds, state, request, tmp_path)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("source", "state", "kinds"),
    [
        ("oracle16", "postgresql", ("restore the log", "restore the state")),
        ("oracle_mysql80", "log", ("restore both", "leave tables out")),
        ("oracle16", "zookeeper", (TABLE, "unmount the log")),
    ],
)
def test_a_short_campaign_of_operators(
    source: str,
    state: str,
    kinds: tuple[str, ...],
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    until_each_struck(kinds, state, request, tmp_path, source)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.thorough
def test_a_short_campaign_of_hosts_that_vanish(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    try:
        with Bridge():
            pass
    except NotPermittedError as lacks:
        pytest.skip(f"{SAID}{lacks}")
    until_each_struck(("drop", "vanish"), "zookeeper", request, tmp_path)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.thorough
def test_a_short_campaign_of_clocks_that_step(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket takes no request of a clock that is an hour off."""
    monkeypatch.setattr(nemesis, "CLOCK_STEPS_S", (3600.0,))
    until_each_struck(("step the clock", "kill"), "log", request, tmp_path)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.spark
def test_a_short_campaign_with_pipelines(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    kinds = (*PIPELINE_KINDS, "kill", "freeze", "silence")
    outcome = one(1, "oracle16", "postgresql", request, tmp_path, 60.0, kinds, pipelines=True)
    assert any(outcome.faults.get(kind) for kind in PIPELINE_KINDS), "no pipeline was disturbed"
    assert outcome.piped["events"] > 100
    assert not outcome.piped.get("ended")


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("source", PAIRS, ids=SOURCES.get)
def test_a_short_campaign_with_a_promotion(
    source: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Also of what was dumped: a run that shows nothing does not count."""
    kinds = (PROMOTE, "kill", "silence")
    for seed in MUTATION_SEEDS:
        try:
            outcome = one(seed, source, "postgresql", request, tmp_path / str(seed), kinds=kinds)
        except NothingShownError:
            continue
        if outcome.faults.get(PROMOTE):
            return
    pytest.fail("no server was promoted, or nothing was dumped")


@pytest.mark.soak
@pytest.mark.skipif("TIDELOG_CAMPAIGN_SECONDS" not in os.environ, reason="asked for by itself")
def test_campaign(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    begun = time.monotonic()
    end = begun + float(os.environ["TIDELOG_CAMPAIGN_SECONDS"])
    seed = int(os.environ.get("TIDELOG_CAMPAIGN_SEED", "1"))
    report = Path(os.environ.get("TIDELOG_CAMPAIGN_JSON", "campaign.json"))
    found: dict[str, Any] = {"campaign": secrets.token_hex(4), "hours": 0.0}
    found |= {"runs": [], "violations": [], "empty": 0}
    found |= {
        "kinds": {**KINDS, **STORE_KINDS, **PIPELINE_KINDS, **OPERATOR_KINDS},
        "lease_s": LEASE_S,
        "lag_s": LAG_S,
        "lively_s": LIVELY_S,
    }
    while time.monotonic() < end:
        source, state = list(SOURCES)[seed % len(SOURCES)], STATES[seed % len(STATES)]
        try:
            # Where the copies are compared by the source's own texts; Java takes its time.
            piped = source in ("oracle16", "oracle18") and seed // len(SOURCES) % 2 == 1
            kinds = (*ALL_KINDS, *PIPELINE_KINDS) if piped else ALL_KINDS
            if source in PAIRS and seed // (2 * len(SOURCES)) % 2 == 1:
                kinds = (*kinds, *PROMOTIONS)
            operated = seed // len(SOURCES) % 4 == 0
            if operated:
                kinds = (*kinds, *3 * operators_of(seed, source))
            if asked := os.environ.get("TIDELOG_CAMPAIGN_KINDS"):
                kinds = tuple(asked.split(","))
            seconds = 2 * SECONDS if piped or operated else SECONDS
            place = tmp_path / f"seed-{seed}"  # stays where a run fails
            outcome = one(seed, source, state, request, place, seconds, kinds, pipelines=piped)
            shutil.rmtree(place)
            found["runs"].append(outcome.to_json())
            shown = json.dumps(outcome.to_json())
        except NothingShownError:
            found["empty"] += 1
            shown = "no dump was completed"
        except HistoryError as error:
            what = str(error).rstrip().rpartition("\n")[2][:300]
            told = {"source": SOURCES[source], "what": what, "error": str(error)[:20_000]}
            found["violations"].append({"seed": seed, **told})
            shown = f"VIOLATION\n{error}"
        print(f"seed {seed}, {source}, {state}: {shown}", flush=True)
        found["hours"] = round((time.monotonic() - begun) / 3600, 3)
        report.write_text(json.dumps(found, indent=1))
        seed += 1
    assert not found["violations"]
    assert found["runs"], "no run showed anything"


RULES = {
    "no_lease_check_before_an_append": (leaders.LATE_APPEND, "silence to both", "postgresql"),
    "no_fence": (leaders.NOT_FENCED, "freeze amid an append", "log"),
    "epoch_not_raised": (leaders.EPOCH_NOT_RAISED, "kill", "postgresql"),
    "progress_written_without_epoch": (
        leaders.STATE_NOT_FENCED, "freeze amid a state write", "postgresql",
    ),
    "appends_to_a_bucket_overwrite": (HELD_PUT_WON, "hold a put", "log"),
    "offsets_issued_again": (NOT_REFUSED, "restore the log", "postgresql"),
    "tables_left_out_are_forgotten": (NOT_DUMPED, "leave tables out", "postgresql"),
    "state_written_after_the_deadline": (leaders.LATE_STATE_WRITE, "freeze", "postgresql"),
}  # fmt: skip
"""Ways to break one rule each, what is told then, the fault that shows it, and the state. In a
directory a new leader also sweeps away what a former one was about to link: there a fence that is
missing shows in nothing.
"""
asked_for = pytest.mark.skipif(
    "TIDELOG_CAMPAIGN_MUTATIONS" not in os.environ, reason="asked for by itself"
)


@pytest.mark.soak
@asked_for
@pytest.mark.parametrize("mutation", RULES)
def test_the_campaign_catches(
    mutation: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A run that fails for another reason, or shows nothing, has caught nothing."""
    rule, fault, state = RULES[mutation]
    for seed in MUTATION_SEEDS:
        try:
            one(seed, "oracle16", state, request, tmp_path, 30.0, (fault,), mutation)
            print(f"seed {seed} holds")
        except HistoryError as error:
            told = str(error).splitlines()[-1][:300]
            print(f"seed {seed}: {told}")
            if rule in told:
                return
    pytest.fail(f"no run tells that a leader {rule}")


@pytest.mark.soak
@asked_for
@pytest.mark.parametrize(("fault", "state"), sorted({told[1:] for told in RULES.values()}))
def test_the_same_faults_without_a_mutation(
    fault: str, state: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """On the same seeds, until the fault that shows a broken rule has struck."""
    for seed in MUTATION_SEEDS:
        try:
            found = one(seed, "oracle16", state, request, tmp_path, 30.0, (fault,))
        except NothingShownError:
            print(f"seed {seed}: no dump was completed")
            continue
        if found.faults.get(fault):
            return
    pytest.fail("the fault never struck: nothing was shown")


@pytest.mark.soak
@asked_for
def test_the_campaign_catches_what_no_rule_is_left_for(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """By the event log alone."""
    mutation = "late_appends_overwrite"
    for seed in MUTATION_SEEDS:
        try:
            one(seed, "oracle16", "postgresql", request, tmp_path, 30.0, ("freeze",), mutation)
        except NothingShownError:
            continue  # a true history
        except HistoryError as error:
            print(f"seed {seed}: {str(error).splitlines()[-1][:300]}")
            return
    pytest.fail("three runs hold")
