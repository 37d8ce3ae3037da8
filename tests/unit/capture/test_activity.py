"""Operations by table and kind over a day: what is counted, what it is bounded by, and what counts
as a sudden drop – and what must not: evenings, idle tables, jobs, and times when capture was away.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.app.overview.build import overview
from tidelog.capture.activity import (
    ACTIVITY_KEY,
    BUCKET_S,
    BUCKETS,
    BUCKETS_BEFORE,
    BUSY,
    TABLES_COUNTED,
    Activity,
    ActivityDay,
    CountingAppender,
    DropSpan,
    find_drops,
)
from tidelog.cli.status_lines import lines
from tidelog.model.records import LogBatch, RecordKind, Resume
from tidelog.state.sqlite import SqliteState

SEEDS = st.integers(0, 2**32 - 1)
RESUME = Resume(0, 0, 0)


def noisy(rates: Any, seed: int) -> list[int | None]:
    """Counts as chance makes them of rates."""
    return [int(each) for each in np.random.default_rng(seed).poisson(rates)]


def found(series: list[int | None]) -> list[tuple[int, int | None]]:
    return [(fall.start, fall.end) for fall in find_drops(series)]


# ---------------------------------------------------------------- the rule


def test_a_drop_and_its_end_are_found() -> None:
    usual: list[int | None] = [300] * 20
    assert list(find_drops([*usual, 0, 12, 3, 0, 280, 300])) == [DropSpan(20, 24, 300, 12)]
    assert found([*usual, 0, 0]) == [(20, None)]
    assert found([*usual, 120, 0, 0, 0]) == [(21, None)]  # it began in the midst of a bucket
    assert found([*usual, 0, 0, *usual, 0, 0]) == [(20, 22), (42, None)]


@settings(deadline=None, max_examples=60)
@given(SEEDS, st.integers(140, 100_000), st.floats(0, 0.01), st.integers(14, 60))
def test_each_drop_of_a_busy_table_is_found(seed: int, level: int, share: float, at: int) -> None:
    rates = np.full(90, float(level))
    rates[at : at + 12] *= share
    (fall,) = find_drops(noisy(rates, seed))
    assert (fall.start, fall.end) == (at, at + 12)


@settings(deadline=None, max_examples=60)
@given(seed=SEEDS, level=st.integers(1, 200_000), night=st.floats(0, 1), sharp=st.integers(1, 4))
def test_nights_are_no_drops(seed: int, level: int, night: float, sharp: int) -> None:
    """However still it gets then: it takes hours, with one day or the next."""
    hours = np.arange(BUCKETS) / 12
    day = ((1 + np.cos((hours - 14) / 24 * 2 * math.pi)) / 2) ** sharp
    assert found(noisy(level * (night + (1 - night) * day), seed)) == []


@settings(deadline=None, max_examples=60)
@given(seed=SEEDS, rate=st.floats(0, 60))
def test_idle_tables_have_no_drops(seed: int, rate: float) -> None:
    rates = np.full(BUCKETS, rate)
    rates[150:] = 0
    assert found(noisy(rates, seed)) == []


@settings(deadline=None, max_examples=60)
@given(seed=SEEDS, level=st.integers(1, 100_000), on=st.integers(1, 9), off=st.integers(1, 40))
def test_jobs_that_come_and_go_have_no_drops(seed: int, level: int, on: int, off: int) -> None:
    rates = np.array([level if at % (on + off) < on else 0 for at in range(BUCKETS)], np.float64)
    assert found(noisy(rates, seed)) == []


@settings(deadline=None, max_examples=60)
@given(seed=SEEDS, level=st.integers(100, 100_000), rest=st.floats(0.4, 1))
def test_a_busy_table_that_does_less_has_no_drop(seed: int, level: int, rest: float) -> None:
    rates = np.full(80, float(level))
    rates[30:] *= rest
    assert found(noisy(rates, seed)) == []


@given(series=st.lists(st.none() | st.integers(0, 10**7), max_size=80))
def test_any_series_is_judged_and_only_by_what_is_known(series: list[int | None]) -> None:
    for fall in find_drops(series):
        assert fall.start >= BUCKETS_BEFORE + 1
        hour = series[fall.start - 1 - BUCKETS_BEFORE : fall.start - 1]
        assert None not in hour
        assert fall.before >= BUSY
        assert None not in series[fall.start : fall.start + 2]
        assert fall.then < fall.before / 2 <= max(hour)  # type: ignore[type-var]


def test_what_capture_did_not_see_is_no_drop() -> None:
    usual: list[int | None] = [300] * 20
    assert found([*usual, None, None, None, 300, 300]) == []
    assert found([*usual, None, 0, 0, 0]) == [(21, None)]  # its hour is known
    assert found([*usual, None, None, 0, 0]) == []  # what it did before is not
    assert found([*usual, 0, None, 300]) == []
    assert found([*[300] * 9, 0, 0, 0]) == []  # too short to tell


def test_what_is_so_every_day_is_no_drop_from_the_second_day_on() -> None:
    evening, night, office = [500] * 15, [0] * 192, [500] * 96
    series: list[int | None] = [*evening, *night, *office, *[0] * 9]
    assert found(series) == [(15, 207)]  # of the first one nobody knew
    assert found([*office, *[0] * 9]) == [(96, None)]


# ---------------------------------------------------------------- what is kept


def test_a_day_is_bounded_whatever_there_is() -> None:
    day = ActivityDay()
    for at in range(BUCKETS + 50):
        counts = {f"shop.t{(at * 7 + n) % 1000}": [n, 0, 1, 0] for n in range(200)}
        day.add(at * BUCKET_S, BUCKET_S, counts)
    assert len(day.buckets) == BUCKETS
    assert len(day.since) == TABLES_COUNTED
    for bucket in day.buckets:
        told = [*bucket.tables.values(), bucket.rest]
        assert sum(map(sum, told)) == sum(range(200)) + 200  # nothing is lost, or counted twice
        assert set(bucket.tables) <= set(day.since)
    assert len(json.dumps(day.to_json())) < 200_000


def test_a_table_that_becomes_busy_takes_the_place_of_the_least_busy_one() -> None:
    day = ActivityDay()
    day.add(0, BUCKET_S, {f"t{n:02}": [10 * n + 1, 0, 0, 0] for n in range(TABLES_COUNTED)})
    day.add(BUCKET_S, BUCKET_S, {"quiet": [1, 0, 0, 0]})  # not more than any has had
    assert "quiet" not in day.since
    day.add(2 * BUCKET_S, BUCKET_S, {"busy": [9, 9, 9, 0]})
    assert "t00" not in day.since
    assert day.buckets[0].rest == [1, 0, 0, 0]
    assert day.series("busy", "update") == [None, None, 9]  # before, it was among the others
    assert day.series("t01", "insert") == [11, 0, 0]


def test_buckets_that_nobody_saw_are_not_known() -> None:
    day = ActivityDay()
    day.add(0, BUCKET_S, {"t": [5, 0, 0, 0]})
    day.add(BUCKET_S, 100.0, {"t": [2, 0, 0, 0]})
    day.add(3 * BUCKET_S, 200.0, {})
    day.add(3 * BUCKET_S, 95.0, {"t": [1, 0, 0, 0]})  # who led next saw the rest of it
    day.add(2 * BUCKET_S, BUCKET_S, {"t": [7, 0, 0, 0]})  # a clock that was set back
    assert day.series("t", "insert") == [5, None, None, 1]


def test_what_is_stored_is_read_again_and_of_another_version_nothing() -> None:
    day = ActivityDay()
    day.add(0, BUCKET_S, {"t": [5, 1, 0, 3], "u": [0, 0, 0, 0]})
    day.add(600, 12.5, {"u": [0, 0, 2, 0]})
    stored = json.loads(json.dumps(day.to_json()))
    again = ActivityDay.from_json(stored)
    assert again.to_json() == stored
    assert again.series("u", "delete") == day.series("u", "delete")
    assert ActivityDay.from_json({"version": 7}).buckets == []


# ---------------------------------------------------------------- counting


def records(*kinds: tuple[RecordKind, int]) -> LogBatch:
    """One record of each kind and schema id."""
    batch = LogBatch.of_transaction(
        RecordKind.INSERT, [(schema_id, 0, b"") for _, schema_id in kinds],
        position=1, xid=1, commit_ts=1, resume=RESUME,
    )  # fmt: skip
    batch.kind[:] = [kind for kind, _ in kinds]
    return batch


class Log:
    """An event log's writer that notes nothing, and may fail."""

    next_offset = 7
    fails = False

    def append_log(self, batches: Any, resume: Resume) -> Any:
        if self.fails:
            raise OSError

    def append_chunk(self, rows: Any, chunk: Any, position: int) -> Any: ...
    def append_controls(self, messages: Any) -> Any: ...
    def append_position(self, resume: Resume) -> Any: ...
    def idle(self) -> None: ...


@pytest.fixture
def state(tmp_path: Path) -> Any:
    found = SqliteState(f"sqlite:///{tmp_path / 's.db'}")
    yield found
    found.close()


NAMES = {1: "shop.orders", 2: "shop.items", 3: "shop.orders"}  # 3: a newer version of its schema


def run(activity: Activity, start_s: float, end_s: float, lag_s: float | None = 0.0) -> None:
    for now in np.arange(start_s, end_s, 1.0):
        activity.poll(float(now), lag_s)


def test_records_are_counted_by_table_and_kind_once_they_are_durable(state: Any) -> None:
    log: Any = Log()
    activity = Activity(state, NAMES.__getitem__)
    counted = CountingAppender(log, activity)
    run(activity, 600, 610)
    kinds = [
        (RecordKind.INSERT, 1), (RecordKind.INSERT, 3), (RecordKind.UPDATE, 2),
        (RecordKind.DELETE, 2), (RecordKind.CONTROL, 0), (RecordKind.TRUNCATE, 2),
        (RecordKind.MESSAGE, 0), (RecordKind.ABSENT, 1),
    ]  # fmt: skip
    counted.append_log([records(*kinds), records()], RESUME)
    chunk: Any = None
    counted.append_chunk(records((RecordKind.DUMP_ROW, 2), (RecordKind.DUMP_ROW, 2)), chunk, 0)
    counted.append_controls([{}])
    counted.append_position(RESUME)
    assert counted.next_offset == 7
    log.fails = True
    with pytest.raises(OSError):
        counted.append_log([records((RecordKind.INSERT, 1))], RESUME)
    assert state.get(ACTIVITY_KEY) is None  # it is stored when a bucket is over
    run(activity, 610, 902)
    stored = state.get(ACTIVITY_KEY).value
    assert stored["at_s"] == [600]
    assert {each["table"]: each["counts"] for each in stored["tables"]} == {
        "shop.orders": [[2, 0, 0, 0]],
        "shop.items": [[0, 1, 1, 2]],
    }
    assert stored["seen_s"][0] >= 0.9 * BUCKET_S


def test_a_drop_is_stored_and_reported_also_by_the_next_leader(state: Any) -> None:
    activity = Activity(state, NAMES.__getitem__)
    for bucket in range(20):
        at = bucket * BUCKET_S
        run(activity, at, at + 1)
        count = 100 if bucket < 16 else 0
        activity.count([records(*[(RecordKind.UPDATE, 1)] * count)])
        run(activity, at + 1, at + BUCKET_S)
    run(activity, 20 * BUCKET_S, 20 * BUCKET_S + 5)
    told = activity.drops()
    assert told == [
        {
            "table": "shop.orders", "kind": "update", "at_ms": 16 * BUCKET_S * 1000,
            "until_ms": None, "before_per_min": 20.0, "then_per_min": 0.0,
        }
    ]  # fmt: skip
    assert state.get(ACTIVITY_KEY).value["drops"] == told
    assert Activity(state, NAMES.__getitem__).drops() == told
    shown = overview({"leader": "h:1", "updated_ms": 0, "drops": told}, 0)
    (line,) = [each for each in lines(shown) if "activity" in each]
    assert "shop.orders: updates fell from 20 to 0 a minute at" in line


@pytest.mark.parametrize("lag_s", [None, 90.0])
def test_while_capture_is_late_or_the_source_is_away_nothing_is_known(
    state: Any, lag_s: float | None
) -> None:
    activity = Activity(state, NAMES.__getitem__)
    for bucket in range(20):
        at = bucket * BUCKET_S
        run(activity, at, at + 1)
        activity.count([records(*[(RecordKind.UPDATE, 1)] * (100 if bucket < 16 else 0))])
        run(activity, at + 1, at + BUCKET_S, 0.0 if bucket < 16 else lag_s)
    run(activity, 20 * BUCKET_S, 20 * BUCKET_S + 5)
    assert activity.drops() == []


def test_a_process_that_stood_still_knows_nothing_of_that_time(state: Any) -> None:
    activity = Activity(state, NAMES.__getitem__)
    run(activity, 0, 20)
    run(activity, 280, 310)  # it was frozen
    assert state.get(ACTIVITY_KEY).value["seen_s"][0] < 50


def test_a_damaged_document_is_replaced(state: Any) -> None:
    for value in ([], {"version": 1}, {"version": 1, "at_s": 7}, "x"):
        state.put(ACTIVITY_KEY, value, None)
        activity = Activity(state, NAMES.__getitem__)
        assert activity.drops() == []
