"""What is removed of a table's log, and what stays whatever its age."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from tests.unit.lake.delta_log.tables import PROTOCOL, Table, seen

from tidelog.outputs.lake.delta_log.commits import write_checkpoint
from tidelog.outputs.lake.delta_log.table_state import TableState, clean_up_log
from tidelog.system import failpoints

DAY_MS = 24 * 3_600_000
FIRST_DAY = 20_000


class Days:
    """The clock: noon of a day."""

    def __init__(self) -> None:
        self.day = FIRST_DAY

    def ns(self) -> int:
        return (self.day * DAY_MS + DAY_MS // 2) * 1_000_000


@pytest.fixture
def days(monkeypatch: pytest.MonkeyPatch) -> Days:
    found = Days()
    monkeypatch.setattr("time.time_ns", found.ns)
    return found


def table_of(place: Path, days: Days, **configuration: str) -> tuple[Table, TableState]:
    """Ten days with a commit on each, and a checkpoint of every third."""
    table = Table(place)
    state = table.create({f"delta.{name}": value for name, value in configuration.items()})
    for _ in range(9):
        days.day += 1
        table.fill(state, 1)
        if state.version % 3 == 0:
            write_checkpoint(table.store, state)
    return table, state


def versions(table: Table, suffix: str = ".json") -> list[int]:
    return [int(name.split(".")[0]) for name in table.store.names("_delta_log", suffix)]


@pytest.mark.parametrize(
    ("kept", "first"),
    # Day 9 at noon: until midnight of day 9 - n; the newest checkpoint up to then stays.
    [
        ("0 days", 6),
        ("1 day", 6),
        ("2 days", 6),
        ("3 days", 3),
        ("5 days", 3),
        ("6 days", 0),
        ("8 days", 0),
    ],
)
def test_commits_stay_from_a_checkpoint_on(
    tmp_path: Path, days: Days, kept: str, first: int
) -> None:
    table, state = table_of(tmp_path, days, logRetentionDuration=f"interval {kept}")
    for version in range(10):
        table.store.put(f"_delta_log/{version:020d}.crc", b"{}")
    table.store.put(f"_delta_log/{0:020d}.{2:020d}.compacted.json", b"")
    clean_up_log(table.store, state)
    assert sorted(set(versions(table))) == list(range(first, 10))
    assert versions(table, ".crc") == list(range(first, 10))
    assert min(versions(table, ".parquet")) == max(first, 3)
    assert seen(table.state()) == seen(state)
    state.refresh()


class KilledError(Exception):
    """In place of a SIGKILL."""


@pytest.mark.parametrize("hit", range(10))
def test_sidecars_go_with_the_last_checkpoint_that_has_them(
    tmp_path: Path, days: Days, hit: int
) -> None:
    """Others write checkpoints with sidecars. ``hit``: of the files to delete, where a first
    clean-up ends.
    """
    table, state = table_of(tmp_path, days, logRetentionDuration="interval 2 days")
    for version, names in ((3, ["a", "b"]), (6, ["b", "c"])):
        actions = [{"sidecar": {"path": f"{name}%20.parquet"}} for name in names]
        made = f"_delta_log/{version:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
        table.store.put(made, "".join(f"{json.dumps(each)}\n" for each in actions).encode())
    for name in "abcd":
        table.store.put(f"_delta_log/_sidecars/{name} .parquet", b"")
    hits = count()

    def armed() -> None:
        if next(hits) == hit:
            raise KilledError

    with failpoints.arm({"output.delete": armed}), suppress(KilledError):
        clean_up_log(table.store, state)
    assert seen(table.state()) == seen(state)
    stay = sorted(set(versions(table)))
    assert stay == list(range(stay[0], 10))
    clean_up_log(table.store, table.state())
    assert set(versions(table)) == set(range(6, 10))
    left = ["b .parquet", "c .parquet", "d .parquet"]  # nobody knows what has the last one
    assert sorted(table.store.names("_delta_log/_sidecars")) == left


def test_by_default_thirty_days_stay(tmp_path: Path, days: Days) -> None:
    table, state = table_of(tmp_path, days)
    clean_up_log(table.store, state)
    assert versions(table) == list(range(10))
    days.day += 31
    clean_up_log(table.store, state)
    assert versions(table) == [9]


@pytest.mark.parametrize(
    ("name", "value"),
    [("enableExpiredLogCleanup", "false"), ("logRetentionDuration", "interval 1 month")],
)
def test_nothing_goes_where_the_table_says_so(
    tmp_path: Path, days: Days, name: str, value: str
) -> None:
    table, state = table_of(tmp_path, days, **{name: value})
    days.day += 400
    clean_up_log(table.store, state)
    assert versions(table) == list(range(10))


def test_nothing_goes_where_checkpoints_are_protected(tmp_path: Path, days: Days) -> None:
    table, state = table_of(tmp_path, days, logRetentionDuration="interval 0 days")
    protected = PROTOCOL.to_json()
    protected["writerFeatures"].append("checkpointProtection")
    table.commit(state, {"protocol": protected})
    clean_up_log(table.store, state)
    assert versions(table) == list(range(11))


def test_a_state_cleans_up_once_a_day(
    tmp_path: Path, days: Days, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, state = table_of(tmp_path, days)
    listed = []
    whole = table.store.names
    monkeypatch.setattr(table.store, "names", lambda *a: listed.append(a) or whole(*a))
    clean_up_log(table.store, state)
    clean_up_log(table.store, state)
    assert len(listed) == 1
    days.day += 1
    clean_up_log(table.store, state)
    assert len(listed) == 2


def test_without_a_checkpoint_nothing_goes(tmp_path: Path, days: Days) -> None:
    table = Table(tmp_path)
    state = table.create({"delta.logRetentionDuration": "interval 0 days"})
    table.fill(state, 3)
    days.day += 100
    clean_up_log(table.store, state)
    assert versions(table) == list(range(4))


def test_commits_that_tell_no_time_stay(tmp_path: Path, days: Days) -> None:
    table, state = table_of(tmp_path, days, logRetentionDuration="interval 0 days")
    for version in (3, 6, 9):
        table.foreign(version, [])
    state = table.state()
    clean_up_log(table.store, state)
    assert versions(table) == list(range(10))
