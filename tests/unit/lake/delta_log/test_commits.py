"""One commit for each number, on a store whose answers get lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.lake.delta_log.tables import Table, file, seen

from tidelog.errors import ConflictError, OutputError, StorageError
from tidelog.outputs.lake.delta_log.actions import add
from tidelog.outputs.lake.delta_log.commits import write_checkpoint
from tidelog.outputs.lake.delta_log.table_state import commit_digest
from tidelog.system.version import __version__


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "t")


def lines(table: Table, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file_of(table, version).read_text().splitlines()]


def file_of(table: Table, version: int) -> Path:
    return Path(table.place) / "_delta_log" / f"{version:020d}.json"


def test_a_commit_begins_with_what_it_is(table: Table) -> None:
    state = table.create()
    version = table.writer.commit(
        state,
        [add(file("a"), data_change=True)],
        operation="MERGE",
        parameters={"predicate": '["a"]'},
        note="a note",
        blind_append=True,
    )
    assert version == state.version == 1
    info, *actions = lines(table, 1)
    said = info["commitInfo"]
    assert {said.pop(name) is not None for name in ("timestamp", "txnId")} == {True}
    assert said == {
        "operation": "MERGE",
        "operationParameters": {"predicate": '["a"]'},
        "readVersion": 0,
        "isolationLevel": "Serializable",
        "isBlindAppend": True,
        "engineInfo": f"Tidelog/{__version__}",
        "userMetadata": "a note",
        "tidelogPrevious": commit_digest(file_of(table, 0).read_bytes()),
    }
    assert actions == [add(file("a"), data_change=True)]
    assert "readVersion" not in lines(table, 0)[0]["commitInfo"]


def test_of_two_writers_one_has_the_number(table: Table) -> None:
    ours, theirs = table.create(), table.state()
    table.fill(theirs, 1)
    with pytest.raises(ConflictError, match="committed version 1 first"):
        table.commit(ours, add(file("ours"), data_change=True))
    assert ours.version == 0
    ours.refresh()
    assert seen(ours) == seen(theirs)
    assert table.commit(ours, add(file("ours"), data_change=True)) == 2
    assert set(table.state().files) == {"f1.parquet", "ours.parquet"}


@pytest.mark.parametrize("exists", [False, True])
def test_a_writer_that_stood_still_finds_its_number_free_and_commits_nothing(
    table: Table, exists: bool
) -> None:
    """Others have cleaned the log up beyond it."""
    late = table.state()
    theirs = table.create()
    if exists:
        late.refresh()
    table.fill(theirs, 3)
    write_checkpoint(table.store, theirs)
    table.store.delete(f"_delta_log/{version:020d}.json" for version in range(3))
    with pytest.raises(ConflictError):
        table.commit(late, add(file("late"), data_change=True))
    assert table.store.names("_delta_log", ".json") == [f"{3:020d}.json"]
    late.refresh()
    assert seen(late) == seen(theirs)


@pytest.mark.parametrize("happened", ["ours", "theirs", "nothing"])
def test_an_answer_that_gets_lost(
    table: Table, monkeypatch: pytest.MonkeyPatch, happened: str
) -> None:
    state, others = table.create(), table.state()
    whole = table.store.put_if_absent

    def lost(name: str, data: bytes) -> str | None:
        if happened == "ours":
            whole(name, data)
        if happened == "theirs":
            monkeypatch.setattr(table.store, "put_if_absent", whole)
            table.fill(others, 1)
        raise StorageError("no answer")

    monkeypatch.setattr(table.store, "put_if_absent", lost)
    expected = {"theirs": ConflictError, "nothing": StorageError}.get(happened)
    if expected is None:
        assert table.commit(state, add(file("ours"), data_change=True)) == 1
        state.refresh()  # and it is known as ours
        table.foreign(1, [add(file("theirs"), data_change=True)])
        with pytest.raises(OutputError, match="version 1 was replaced"):
            state.refresh()
    else:
        with pytest.raises(expected):
            table.commit(state, add(file("ours"), data_change=True))
        assert state.version == 0
        assert set(table.state().files) == ({"f1.parquet"} if happened == "theirs" else set())


def test_in_commit_timestamps_grow_whatever_the_clock_says(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = table.create({"delta.enableInCommitTimestamps": "true"})
    for clock in (5_000_000_000_000_000_000, 4_000_000_000_000_000_000):
        monkeypatch.setattr("time.time_ns", lambda now=clock: now)
        table.fill(state, 2)
    times = [lines(table, version)[0]["commitInfo"]["inCommitTimestamp"] for version in range(5)]
    assert times[1:] == [5_000_000_000_000 + n for n in range(4)]
    assert times[0] < times[1]
    assert table.state().timestamp_ms == state.timestamp_ms == times[-1]


def test_a_table_without_them_has_none(table: Table) -> None:
    state = table.create()
    assert "inCommitTimestamp" not in lines(table, 0)[0]["commitInfo"]
    assert state.timestamp_ms == lines(table, 0)[0]["commitInfo"]["timestamp"]
