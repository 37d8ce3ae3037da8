"""The tables of states: what is stored keeps its texts, and nothing leads nowhere."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path

import pytest

from tidelog.capture.dumps.state import (
    CHUNKS,
    DUMPS,
    FINISHED_TABLES,
    TABLE_RUNS,
    TABLES,
    UNFINISHED_DUMPS,
    ChunkStatus,
    DumpInput,
    DumpState,
    DumpStatus,
    TableInput,
    TableProgress,
    TableStatus,
)
from tidelog.capture.windows import WINDOWS, WindowStatus
from tidelog.errors import TransitionError
from tidelog.model.state_machine import Transition, Transitions
from tidelog.state.sqlite import SqliteState

TABLES_OF_STATES = [DUMPS, TABLES, TABLE_RUNS, CHUNKS, WINDOWS]
EXPECTED = Path(__file__).with_name("dump_states.txt")


def test_texts_that_are_stored_are_those_of_former_versions() -> None:
    """A capture of before must find its dumps, and one of after those of before."""
    assert {status.value for status in DumpStatus} == {
        "queued", "running", "paused", "completed", "aborted",
    }  # fmt: skip
    assert {status.value for status in TableStatus} == {
        "pending", "running", "done", "failed", "cancelled",
    }  # fmt: skip


def test_stored_dump_is_plain_json_and_comes_back_as_it_was(tmp_path: Path) -> None:
    dump = DumpState("d", 1, [TableProgress("public.t")])
    dump.transition(DumpInput.BEGIN)
    dump.tables[0].transition(TableInput.BEGIN)
    state = SqliteState(tmp_path / "state.db")
    state.put("dump/d", dump.to_json(), None)
    stored = state.get("dump/d")
    state.close()
    assert stored is not None
    assert stored.value["status"] == "running"
    assert type(stored.value["tables"][0]["status"]) is str
    assert json.loads(json.dumps(dump.to_json())) == stored.value
    back = DumpState.from_json(stored.value)
    assert back == dump
    assert back.status is DumpStatus.RUNNING
    assert back.tables[0].status is TableStatus.RUNNING


def test_each_row_of_the_tables_is_the_expected_one() -> None:
    """Whoever means to change a table changes `EXPECTED` by hand, row by row."""
    lines = []
    for table in TABLES_OF_STATES:
        lines.append(f"{table.name}: {table.start.name}")
        lines += [
            f"    {was.name} + {news.name} = {then.name}" for was, news, then in table.moves()
        ]
    assert lines == EXPECTED.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("table", TABLES_OF_STATES, ids=lambda table: table.name)
def test_every_state_is_reached_and_every_way_ends(table: Transitions[Enum, Enum]) -> None:
    reached = {table.start}
    while fresh := {then for s, _, then in table.moves() if s in reached} - reached:
        reached |= fresh
    assert reached == set(type(table.start))
    ends = table.ends()
    leads_to_an_end = set(ends)
    while fresh := {s for s, _, then in table.moves() if then in leads_to_an_end} - leads_to_an_end:
        leads_to_an_end |= fresh
    assert leads_to_an_end == set(type(table.start))


@pytest.mark.parametrize("table", TABLES_OF_STATES, ids=lambda table: table.name)
def test_every_input_means_something(table: Transitions[Enum, Enum]) -> None:
    inputs = type(table.rows[0].input)
    assert {news for _, news, _ in table.moves()} == set(inputs)


def test_what_has_ended_stays_ended() -> None:
    assert DUMPS.ends() == set(DumpStatus) - UNFINISHED_DUMPS
    assert CHUNKS.ends() == {ChunkStatus.DURABLE, ChunkStatus.LEFT_OUT, ChunkStatus.DROPPED}
    assert WINDOWS.ends() == {WindowStatus.CLOSED, WindowStatus.VOID, WindowStatus.DISCARDED}
    # A blocking dump that is tried again reads all of its tables again.
    assert TABLES.ends() == FINISHED_TABLES - {TableStatus.DONE}


def test_what_stands_in_no_table_is_refused() -> None:
    dump = DumpState("d", 1, [], status=DumpStatus.COMPLETED)
    with pytest.raises(TransitionError, match="dump that is completed can't meet 'pause'"):
        dump.transition(DumpInput.PAUSE)
    assert dump.status is DumpStatus.COMPLETED


def test_table_that_says_two_things_is_refused() -> None:
    row = Transition(DumpStatus.QUEUED, DumpInput.BEGIN, DumpStatus.RUNNING)
    with pytest.raises(TransitionError, match="are there twice"):
        Transitions("dump", "", DumpStatus.QUEUED, (row, row._replace(then=DumpStatus.PAUSED)))
