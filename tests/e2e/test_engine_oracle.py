"""The history oracle with an engine as consumer: a program that is killed while it applies events.

Nothing is lost, no key goes back in time, and with the offset stored beside the data nothing comes
twice. `make soak` runs programs of every form among its captures, `make soak-engine` kills one of
each form 20 times.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.e2e.engine_program import FORMS, MODES
from tests.e2e.history_engine import EngineRun, Given, check_journal, check_repeats
from tests.e2e.history_run import run
from tests.e2e.history_spec import NO_PARTS, Spec
from tests.support.oracle.history import HistoryError
from tests.support.oracle.source import OracleSource

KILLED = Spec(
    17,
    1.0,
    writers=1,
    mix=replace(NO_PARTS, bulk=False),
    parallelism=4,
    chunk_rows=200,
    commands=(),
    blocking=False,
    faults=("kill",),
    fault_every_s=0.5,
)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize(
    "form",
    ["once", *(pytest.param(form, marks=pytest.mark.thorough) for form in MODES)],
)
def test_a_program_that_is_killed_has_every_event(
    form: str, oracle16: OracleSource, tmp_path: Path
) -> None:
    done = run(replace(KILLED, engine=form), oracle16, tmp_path / "history", EngineRun)
    assert isinstance(done, EngineRun)
    print("\n".join(done.events))
    assert done.amid >= KILLED.kills_amid


@pytest.mark.soak
@pytest.mark.parametrize("form", FORMS)
def test_a_program_that_is_killed_twenty_times_has_every_event(
    form: str, oracle16: OracleSource, tmp_path: Path
) -> None:
    spec = replace(KILLED, engine=form, kills_amid=20)
    done = run(spec, oracle16, tmp_path / "history", EngineRun)
    assert isinstance(done, EngineRun)
    print(*done.events[-1:], form, flush=True)
    assert done.amid >= spec.kills_amid


# ---------------------------------------------------------------- it catches what it is for

LOG = [(10, "c", 1), (11, "d", None), (11, "c", 2), (12, "u", 3), (13, "t", None)]
"""Key a, which becomes b and is changed; then the table is truncated."""


def lives(*lived: str) -> list[Given]:
    """A journal. Of each life the places in `LOG`, as digits."""
    keys = ["a", "a", "b", "b", None]
    return [
        Given(str(number), LOG[at][0], LOG[at][1], "t", keys[at], LOG[at][2])
        for number, life in enumerate(lived)
        for at in map(int, life)
    ]


@pytest.mark.parametrize(
    ("form", "lived", "again"),
    [
        ("once", ["01", "234"], 0),
        ("batches", ["012", "1234", "4"], 3),
        ("single", ["01", "01", "01234"], 4),
        ("key", ["0", "201", "01234"], 4),
        ("any", ["4321", "0"], 0),
    ],
)
def test_a_journal_that_is_right_holds(form: str, lived: list[str], again: int) -> None:
    assert check_journal(lives(*lived), LOG, form) == again


@pytest.mark.parametrize(
    ("form", "lived", "told"),
    [
        ("any", ["0123"], "1 of 5 events were lost"),
        ("once", ["012", "234"], "1 events were applied twice"),
        ("single", ["013", "1234"], "follows"),
        ("batches", ["0", "234", "1234"], "behind what was not done"),
        ("once", ["02134"], "follows"),
        ("key", ["10", "01234"], "behind a later event"),
        ("key", ["01243"], "behind a later event"),
    ],
)
def test_a_journal_that_is_wrong_is_caught(form: str, lived: list[str], told: str) -> None:
    with pytest.raises(HistoryError, match=told):
        check_journal(lives(*lived), LOG, form)


def test_more_than_a_batch_that_comes_again_is_caught() -> None:
    def each_of(*lived: str) -> list[Given]:
        return [replace(given, life=f"{given.life} 2") for given in lives(*lived)]

    assert check_repeats(each_of("0123", "1234")) == 2  # 1 and 2 are one record's
    with pytest.raises(HistoryError, match="more than a batch behind"):
        check_repeats(each_of("01234", "234"))


def test_a_row_that_is_not_the_logs_is_caught() -> None:
    wrong = [replace(each, seq=None if each.seq is None else 7) for each in lives("01234")]
    with pytest.raises(HistoryError, match="another row than the log"):
        check_journal(wrong, LOG, "once")
    with pytest.raises(HistoryError, match="not among the log's events"):
        check_journal([replace(wrong[0], version=9)], LOG, "once")
