"""Two writers of one Delta table, checkpoints and clean-ups at any time: each sees the table."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.lake.delta_log.tables import Table, file, seen

from tidelog.errors import ConflictError
from tidelog.outputs.lake.data_files.data_file import DataFile, DeletionVector
from tidelog.outputs.lake.delta_log.actions import add, remove, transaction
from tidelog.outputs.lake.delta_log.commits import write_checkpoint
from tidelog.outputs.lake.delta_log.table_state import LogListing, TableState

FILES = st.integers(0, 3)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 1),  # the writer
        st.one_of(
            st.tuples(
                st.just("commit"), st.dictionaries(FILES, st.sampled_from("+-v"), max_size=3)
            ),
            st.tuples(st.sampled_from(["checkpoint", "clean up", "refresh", "start anew"])),
        ),
    ),
    max_size=12,
)


def wanted(files: Mapping[str, DataFile], changes: Mapping[int, str], unique: int) -> Any:
    """Actions, and the files after them: added, removed, or with another deletion vector."""
    after, actions = dict(files), []
    for number, change in changes.items():
        path = f"{number}.parquet"
        had = files.get(path)
        if change == "-" and had is not None:
            actions.append(remove(had, at_ms=1, data_change=True))
            del after[path]
        elif change == "+" and had is None:
            after[path] = file(str(number), modification_time_ms=unique)
            actions.append(add(after[path], data_change=True))
        elif change == "v" and had is not None:
            vector = DeletionVector("u", "x" * 20, unique, 30, 1)
            after[path] = replace(had, deletion_vector=vector)
            actions.append(add(after[path], data_change=True))
            actions.append(remove(had, at_ms=1, data_change=True))
    return actions, after


def forget(table: Table) -> None:
    """Remove what the newest checkpoint has, as another writer's clean-up does."""
    names = table.store.names("_delta_log")
    found = LogListing.of(names)
    if found.checkpoints:
        newest = found.checkpoints[-1].version
        gone = (f"{version:020d}.json" for version in found.commits if version < newest)
        table.store.delete(f"_delta_log/{name}" for name in gone)


@given(STEPS)
@settings(max_examples=25, deadline=None)
def test_whatever_writers_do_each_sees_the_table(steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = Table(Path(folder) / "t")
        states = [table.create(), table.state()]
        files: dict[str, DataFile] = {}
        version = 0
        for at, (who, (step, *of)) in enumerate(steps):
            state = states[who]
            if step == "commit":
                stale = state.version < version
                actions, _ = wanted(state.files, of[0], at)
                try:
                    table.commit(state, *actions, transaction("app", at))
                    assert not stale
                except ConflictError:
                    assert stale
                    state.refresh()
                    actions, _ = wanted(state.files, of[0], at)
                    table.commit(state, *actions, transaction("app", at))
                files, version = wanted(files, of[0], at)[1], version + 1
                assert state.transactions == {"app": at}
                assert (state.files, state.version) == (files, version)
            elif step == "checkpoint":
                if state.version == version:
                    write_checkpoint(table.store, state)
            elif step == "clean up":
                forget(table)
            elif step == "refresh":
                state.refresh()
            else:
                states[who] = TableState(table.store)
                states[who].refresh()
        first, second, fresh = *states, TableState(table.store)
        for state in (first, second, fresh):
            state.refresh()
            assert (state.files, state.version) == (files, version)
        assert seen(first) == seen(second) == seen(fresh)
