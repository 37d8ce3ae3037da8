"""Random walks through the tables of states, by what applies them."""

from __future__ import annotations

from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.capture.dumps.chunk_planner import ChunkTask
from tidelog.capture.dumps.state import (
    CHUNKS,
    DUMPS,
    TABLE_RUNS,
    TABLES,
    ChunkInput,
    DumpInput,
    DumpState,
    TableInput,
    TableProgress,
    TableRun,
    TableRunInput,
)
from tidelog.capture.windows import WINDOWS, Window, WindowInput
from tidelog.errors import TransitionError
from tidelog.model.schema import TableName
from tidelog.model.state_machine import Transitions
from tidelog.ports import ChunkRequest

T = TableName("public", "t")


def dump() -> DumpState:
    return DumpState("d", 1, [TableProgress(str(T))])


MADE = {
    DumpInput: (DUMPS, dump),
    TableInput: (TABLES, lambda: TableProgress(str(T))),
    TableRunInput: (TABLE_RUNS, lambda: TableRun(dump(), TableProgress(str(T)))),
    ChunkInput: (CHUNKS, lambda: ChunkTask(T, None, None, ChunkRequest(T))),
    WindowInput: (WINDOWS, lambda: Window("c", T, "c:low", "c:high")),
}


@pytest.mark.parametrize("inputs", MADE, ids=lambda inputs: inputs.__name__)
@given(data=st.data())
def test_whatever_happens_each_is_where_its_table_says(
    inputs: type[Enum], data: st.DataObject
) -> None:
    """Any input in any state: the next one by the table, or refused and unchanged. What has ended
    never is anything else again.
    """
    table: Transitions[Enum, Enum]
    table, make = MADE[inputs]  # type: ignore[assignment]
    thing = make()
    assert thing.status is table.start
    rows = {(state, news): then for state, news, then in table.moves()}
    for news in data.draw(st.lists(st.sampled_from(list(inputs)), max_size=30)):
        before = thing.status
        if (before, news) in rows:
            thing.transition(news)
            assert thing.status is rows[before, news]
        else:
            with pytest.raises(TransitionError):
                thing.transition(news)
            assert thing.status is before
        if before in table.ends():
            assert thing.status is before
