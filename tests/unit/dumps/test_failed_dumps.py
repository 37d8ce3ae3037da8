"""When a dump that capture needs, and that failed, is due again."""

from __future__ import annotations

import pytest

from tidelog.capture.dumps.automatic import (
    REPEAT_MS,
    REST_FACTOR,
    DueDump,
    dumps_to_repeat,
)
from tidelog.capture.dumps.state import DumpState, TableProgress, TableStatus

FAILED, DONE = TableStatus.FAILED, TableStatus.DONE
ENDED = 1_000_000


def dump(
    number: int, status: TableStatus, dump_id: str = "auto-1", **progress: object
) -> DumpState:
    values = {"reason": "broken", "started_ms": ENDED, "finished_ms": ENDED, **progress}
    return DumpState(dump_id, number, [TableProgress("public.t", status, **values)])  # type: ignore[arg-type]


def again(pause: int) -> list[DueDump]:
    return [DueDump("public.t", ENDED + pause, "broken")]


def test_pauses_grow_to_an_hour() -> None:
    failed = [dump(number, FAILED) for number in range(30)]
    pauses = [dumps_to_repeat(failed[:count])[0].at_ms - ENDED for count in range(1, 31)]
    assert pauses[:3] == [REPEAT_MS.first, 2 * REPEAT_MS.first, 4 * REPEAT_MS.first]
    assert pauses == sorted(pauses)
    assert set(pauses[7:]) == {REPEAT_MS.longest}


def test_table_that_took_long_rests_for_longer() -> None:
    assert dumps_to_repeat([dump(1, FAILED, started_ms=1)]) == again(REST_FACTOR * (ENDED - 1))


@pytest.mark.parametrize("status", [s for s in TableStatus if s is not FAILED])
def test_dump_after_it_ends_the_matter(status: TableStatus) -> None:
    after = dump(2, status, "mine")
    assert dumps_to_repeat([dump(1, FAILED), after]) == []
    assert dumps_to_repeat([dump(3, FAILED), after]) == again(REPEAT_MS.first)


def test_dump_of_a_user_is_the_users_and_that_of_an_output_is_ours() -> None:
    assert dumps_to_repeat([dump(1, FAILED, "mine")]) == []
    assert dumps_to_repeat([dump(1, FAILED, "catch-up-1")]) == again(REPEAT_MS.first)
    assert dumps_to_repeat([dump(1, FAILED, "mine", due="it is new")]) == again(REPEAT_MS.first)
    assert dumps_to_repeat([dump(1, FAILED), dump(2, FAILED, "mine")]) == again(2 * REPEAT_MS.first)


@pytest.mark.parametrize("part", [{"where": "id > 1"}, {"key_set": "k"}])
def test_dump_of_some_rows_tells_nothing(part: dict[str, str]) -> None:
    assert dumps_to_repeat([dump(1, FAILED), dump(2, DONE, "mine", **part)]) == again(
        REPEAT_MS.first
    )


def test_what_the_catalogue_will_show_to_be_fixed_is_not_repeated() -> None:
    """A table without a key would fail every hour for ever."""
    assert dumps_to_repeat([dump(1, FAILED), dump(2, FAILED, may_pass=False)]) == []
