"""A table's state: from commits and checkpoints, beside writers who add, remove and clean up."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.lake.delta_log.tables import METADATA, PROTOCOL, Table, file, seen

from tidelog.errors import OutputRefusedError
from tidelog.outputs.lake.data_files.data_file import DeletionVector
from tidelog.outputs.lake.delta_log.actions import add, cdc, remove, transaction
from tidelog.outputs.lake.delta_log.commits import write_checkpoint


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "t")


def test_there_is_no_table(table: Table) -> None:
    state = table.state()
    assert (state.version, state.protocol, state.metadata, state.files) == (-1, None, None, {})
    state.refresh()
    assert state.version == -1


def test_our_own_commits_and_those_that_are_read_say_the_same(table: Table) -> None:
    state = table.create({"delta.enableDeletionVectors": "true"})
    table.commit(
        state,
        add(file("a"), data_change=True),
        add(file("b"), data_change=True),
        transaction("p", 7),
    )
    vector = DeletionVector("u", "x" * 20, 1, 30, 2)
    table.commit(
        state,
        # Actions of a commit have no order.
        add(file("a", deletion_vector=vector), data_change=True),
        remove(file("a"), at_ms=1, data_change=True),
        remove(file("b"), at_ms=1, data_change=True),
        cdc("_change_data/c.parquet", partition_values={}, size=3),
        transaction("p", 9),
        {"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}},
    )
    assert list(state.files) == ["a.parquet"]
    assert state.files["a.parquet"].deletion_vector == vector
    assert (state.version, state.transactions, state.domains) == (2, {"p": 9}, {"d": "{}"})
    assert (state.protocol, state.metadata.configuration if state.metadata else None) == (
        PROTOCOL,
        {"delta.enableDeletionVectors": "true"},
    )
    read = table.state()
    assert seen(read) == seen(state)
    assert read.commit_info(2) == state.commit_info(2)
    assert len(read.removed) == len(state.removed) == 2


def test_a_removed_domain_is_gone(table: Table) -> None:
    state = table.create()
    for removed in (False, True):
        action = {"domain": "d", "configuration": "{}", "removed": removed}
        table.commit(state, {"domainMetadata": action})
    assert state.domains == table.state().domains == {}


def test_a_file_with_another_vector_outlives_the_removal_of_the_former(table: Table) -> None:
    state = table.create()
    vectors = [DeletionVector("u", "x" * 20, at, 30, 2) for at in (1, 50)]
    now = file("a", deletion_vector=vectors[1])
    table.commit(state, add(now, data_change=True))
    former = file("a", deletion_vector=vectors[0])
    table.commit(state, remove(former, at_ms=1, data_change=False))
    assert state.files == table.state().files == {"a.parquet": now}


def test_only_what_is_new_is_read(table: Table) -> None:
    theirs, ours = table.create(), table.state()
    table.fill(theirs, 3)
    (Path(table.place) / "_delta_log" / f"{0:020d}.json").write_bytes(b"unread")
    ours.refresh()
    assert seen(ours) == seen(theirs)


def test_a_log_that_others_cleaned_up_restarts_at_a_checkpoint(table: Table) -> None:
    ours = table.create()
    table.fill(ours, 2)
    theirs = table.state()
    table.fill(theirs, 5)
    write_checkpoint(table.store, theirs)
    table.fill(theirs, 2)
    table.store.delete(f"_delta_log/{version:020d}.json" for version in range(7))
    ours.refresh()
    assert seen(ours) == seen(theirs)
    table.fill(ours, 1)
    assert seen(table.state()) == seen(ours)


def test_what_lies_below_a_clean_up_is_not_read_on(table: Table) -> None:
    theirs, ours = table.create(), table.state()
    table.fill(theirs, 3)
    write_checkpoint(table.store, theirs)
    table.store.delete(f"_delta_log/{version:020d}.json" for version in range(3))
    # By a driver that stood still, and ended before it could take it back.
    table.foreign(1, [add(file("late"), data_change=True)])
    ours.refresh()
    assert seen(ours) == seen(theirs)


def test_a_table_that_was_deleted_and_made_again_is_read_again(table: Table) -> None:
    ours = table.create()
    table.fill(ours, 3)
    for name in (Path(table.place) / "_delta_log").iterdir():
        name.unlink()
    ours.refresh()
    assert (ours.version, ours.files) == (-1, {})
    theirs = table.create()
    table.fill(theirs, 1)
    ours.refresh()
    assert seen(ours) == seen(theirs)


def test_a_commit_of_ours_that_was_replaced_is_noticed(table: Table) -> None:
    state = table.create()
    table.fill(state, 2)
    table.foreign(2, [{"commitInfo": {}}, add(file("theirs"), data_change=True)])
    with pytest.raises(OutputRefusedError, match=r"version 2 was replaced.*move the table away"):
        state.refresh()


def test_a_replaced_commit_is_noticed_though_others_committed_after_it(table: Table) -> None:
    state = table.create()
    table.fill(state, 2)
    table.foreign(2, [add(file("theirs"), data_change=True)])
    table.foreign(3, [add(file("more"), data_change=True)])
    with pytest.raises(OutputRefusedError, match="version 2 was replaced"):
        state.refresh()


def test_what_commits_say_of_themselves(table: Table) -> None:
    state = table.create()
    table.commit(state, note="note \N{EURO SIGN} \u2028")
    table.foreign(2, [add(file("theirs"), data_change=True)])
    state.refresh()
    for read in (state, table.state()):
        info = read.commit_info(1)
        assert info is not None
        assert info["userMetadata"] == "note \N{EURO SIGN} \u2028"
        assert read.commit_info(2) == {}
        assert read.commit_info(3) is None


@pytest.mark.parametrize("data", [b"{\n", b"\xff", b'{"metaData": {}'])
def test_a_torn_commit_is_refused_by_its_name(table: Table, data: bytes) -> None:
    state = table.create()
    table.fill(state, 1)
    table.store.put(f"_delta_log/{2:020d}.json", data)
    for read in (state.refresh, table.state):
        with pytest.raises(OutputRefusedError, match=f"{2:020d}.json can't be read"):
            read()


def test_a_log_without_metadata_is_refused(table: Table) -> None:
    table.foreign(0, [{"protocol": PROTOCOL.to_json()}])
    with pytest.raises(OutputRefusedError, match="no metadata"):
        table.state()


def test_a_gap_in_the_log_is_refused(table: Table) -> None:
    table.fill(table.create(), 4)
    (Path(table.place) / "_delta_log" / f"{2:020d}.json").unlink()
    with pytest.raises(OutputRefusedError, match="commits are missing"):
        table.state()


def test_fields_that_nobody_knows_are_passed_over(table: Table) -> None:
    table.foreign(
        0,
        [
            {"commitInfo": {"timestamp": 5, "new": 1}},
            {"protocol": {**PROTOCOL.to_json(), "new": 1}},
            {"metaData": {**METADATA.to_json(), "new": 1}},
            {"newAction": {}},
            {"add": {**add(file("a"), data_change=True)["add"], "baseRowId": 1, "new": {}}},
        ],
    )
    state = table.state()
    assert state.files == {"a.parquet": file("a")}
    assert state.timestamp_ms == 5
