"""Checkpoints that we write, and those of other kinds that we read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.lake.delta_log.tables import Table, file, seen

from tidelog.errors import OutputRefusedError
from tidelog.outputs.lake.data_files.data_file import DeletionVector
from tidelog.outputs.lake.delta.vacuum import TableFiles
from tidelog.outputs.lake.delta_log import commits
from tidelog.outputs.lake.delta_log.actions import add, remove, transaction
from tidelog.outputs.lake.delta_log.commits import is_checkpoint_due, write_checkpoint
from tidelog.outputs.lake.delta_log.table_state import TableState, duration_ms, stats_text

NOW_MS = 1_800_000_000_000
DAY_MS = 24 * 3_600_000


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "t")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: NOW_MS * 1_000_000)


def filled(table: Table, configuration: dict[str, str] | None = None) -> TableState:
    """A table with something of everything."""
    state = table.create(configuration)
    vectors = [DeletionVector("u", "x" * 20, at, 30, 2) for at in (None, 50)]
    odd = file(
        "a%20b",
        partition_values={"p": None, "q": "", "r": "\N{EURO SIGN}"},
        tags={"k": "v"},
        clustering_provider="liquid",
        deletion_vector=vectors[1],
        modification_time_ms=7,
    )
    plain = [file(name) for name in ("b", "c", "d")]
    table.commit(state, *(add(each, data_change=True) for each in (odd, *plain)))
    table.commit(
        state,
        remove(file("b"), at_ms=NOW_MS - DAY_MS, data_change=True),
        remove(file("c"), at_ms=NOW_MS - 8 * DAY_MS, data_change=True),
        remove(file("d"), at_ms=NOW_MS, data_change=True),
        add(file("d", deletion_vector=vectors[0]), data_change=True),
        transaction("app", 77),
        {"domainMetadata": {"domain": "mine", "configuration": '{"a":1}', "removed": False}},
    )
    return state


def log(table: Table) -> Path:
    return Path(table.place) / "_delta_log"


def forget_commits(table: Table, state: TableState, *, newest: bool = False) -> None:
    for version in range(state.version + newest):
        (log(table) / f"{version:020d}.json").unlink(missing_ok=True)


def tombstones(table: Table, version: int) -> list[dict[str, Any]]:
    rows = pq.read_table(log(table) / f"{version:020d}.checkpoint.parquet")["remove"]
    found = [row for row in rows.to_pylist() if row is not None]
    return sorted(found, key=lambda row: (row["path"], str(row["deletionVector"])))


@pytest.mark.parametrize("policy", ["classic", "v2"])
def test_a_table_from_our_checkpoint_is_the_table(table: Table, policy: str) -> None:
    state = filled(table, {"delta.checkpointPolicy": policy})
    write_checkpoint(table.store, state)
    forget_commits(table, state)
    read = table.state()
    assert seen(read) == seen(state)
    assert read.checkpoint == state.checkpoint
    assert read.removed == state.removed == []
    table.fill(state, 2)
    assert seen(table.state()) == seen(state)
    kinds = pq.read_schema(log(table) / f"{2:020d}.checkpoint.parquet").names
    assert ("checkpointMetadata" in kinds) is (policy == "v2")


def test_tombstones_stay_until_they_expire(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    state = filled(table)
    write_checkpoint(table.store, state)
    kept = [(row["path"], row["deletionTimestamp"]) for row in tombstones(table, 2)]
    assert kept == [("b.parquet", NOW_MS - DAY_MS)]
    # The next one takes them from the one before.
    table.commit(state, remove(state.files["d.parquet"], at_ms=NOW_MS + 5, data_change=True))
    write_checkpoint(table.store, state)
    kept = [(row["path"], row["deletionTimestamp"]) for row in tombstones(table, 3)]
    assert kept == [("b.parquet", NOW_MS - DAY_MS), ("d.parquet", NOW_MS + 5)]
    row = tombstones(table, 3)[0]
    assert (row["extendedFileMetadata"], row["size"], row["partitionValues"]) == (True, 100, [])
    monkeypatch.setattr("time.time_ns", lambda: (NOW_MS + 7 * DAY_MS) * 1_000_000)
    table.fill(state, 1)
    write_checkpoint(table.store, state)
    assert [row["deletionTimestamp"] for row in tombstones(table, 4)] == [NOW_MS + 5]


def test_tombstones_are_in_a_group_of_their_own(table: Table) -> None:
    """So a reader that looks for other actions does not read them."""
    state = filled(table)
    write_checkpoint(table.store, state)
    with pq.ParquetFile(log(table) / f"{2:020d}.checkpoint.parquet") as file:
        groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
    assert [len(each) - each["remove"].null_count for each in groups] == [0, 1]
    assert [len(each) - each["add"].null_count for each in groups] == [2, 0]


def test_a_file_that_came_back_has_no_tombstone(table: Table) -> None:
    state = filled(table)
    write_checkpoint(table.store, state)
    table.commit(state, add(file("b"), data_change=True))  # as RESTORE does
    write_checkpoint(table.store, state)
    assert tombstones(table, 3) == []
    table.commit(state, remove(file("b"), at_ms=NOW_MS + 1, data_change=True))
    table.commit(state, add(file("b"), data_change=True))
    table.commit(state, remove(file("b"), at_ms=NOW_MS + 2, data_change=True))
    write_checkpoint(table.store, state)
    times = [row["deletionTimestamp"] for row in tombstones(table, 6) if row["path"][0] == "b"]
    assert times == [NOW_MS + 2]


def test_tombstones_stay_where_their_time_is_not_understood(table: Table) -> None:
    state = filled(table, {"delta.deletedFileRetentionDuration": "interval 1 fortnight"})
    write_checkpoint(table.store, state)
    assert [row["path"] for row in tombstones(table, 2)] == ["b.parquet", "c.parquet"]


def test_a_checkpoint_keeps_of_each_file_one_tombstone_and_vacuum_from_the_same_files(
    table: Table,
) -> None:
    """For any age, what VACUUM must leave alone is what all tombstones say."""
    state, random = table.create(), Random(5)
    whole: list[dict[str, Any]] = []
    for batch in range(40):
        actions = [add(file(f"f{batch}"), data_change=True)]
        alive = [*state.files.values()]
        for number, each in enumerate(random.sample(alive, len(alive) // 2)):
            gone = remove(each, at_ms=NOW_MS - 40 + batch, data_change=True)
            place = random.choice([("u", f"v{batch}"), ("u", f"w{batch}"), ("i", "x"), ("p", "/v")])
            vector = DeletionVector(*place, number, 30, batch)
            marked = add(replace(each, deletion_vector=vector), data_change=True)
            actions += [gone] if random.random() < 0.1 else [gone, marked]
            whole.append(gone["remove"])
        table.commit(state, *actions)
        if batch % 7 == 0:
            write_checkpoint(table.store, state)
    write_checkpoint(table.store, state)
    assert len(tombstones(table, 40)) < len(whole) / 2
    ours, theirs = TableFiles.of(state), TableFiles([*state.files.values()], whole, None)
    for age in range(45):
        assert ours.needed(table.store, NOW_MS - age) == theirs.needed(table.store, NOW_MS - age)


def test_the_hint_names_the_checkpoint(table: Table) -> None:
    state = filled(table)
    write_checkpoint(table.store, state)
    hint = json.loads((log(table) / "_last_checkpoint").read_text())
    made = log(table) / f"{2:020d}.checkpoint.parquet"
    assert hint == {
        "version": 2,
        "size": pq.read_metadata(made).num_rows,
        "sizeInBytes": made.stat().st_size,
        "numOfAddFiles": 2,
    }


def test_a_commit_that_was_replaced_later_is_noticed_before_a_checkpoint(table: Table) -> None:
    state = filled(table)
    write_checkpoint(table.store, state)
    table.fill(state, 3)
    state.refresh()
    table.foreign(4, [add(file("theirs"), data_change=True)])
    state.refresh()
    with pytest.raises(OutputRefusedError, match="version 4 was replaced"):
        write_checkpoint(table.store, state)
    assert not (log(table) / f"{5:020d}.checkpoint.parquet").exists()


def test_a_commit_that_was_replaced_is_noticed_after_its_writer_s_checkpoint(table: Table) -> None:
    state = filled(table)
    table.fill(state, 1)
    name = f"_delta_log/{3:020d}.json"
    ours = table.store.read(name)
    table.foreign(3, [add(file("theirs"), data_change=True)])
    theirs = table.state()
    replaced = table.store.read(name)
    table.store.put(name, ours)
    table.fill(state, 1)
    table.store.put(name, replaced)
    write_checkpoint(table.store, theirs)
    with pytest.raises(OutputRefusedError, match="version 3 was replaced"):
        table.state()


def test_when_a_checkpoint_is_due(table: Table) -> None:
    state = table.create({"delta.checkpointInterval": "4"})
    due = []
    for _ in range(9):
        table.fill(state, 1)
        if is_checkpoint_due(state):
            due.append(state.version)
            write_checkpoint(table.store, state)
            assert not is_checkpoint_due(state)
    assert due == [4, 8]
    theirs = table.state()
    table.fill(theirs, 8)  # without a checkpoint
    assert theirs.version == 17
    assert is_checkpoint_due(theirs)


def test_a_small_checkpoint_is_followed_by_another_soon(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers read every commit after it."""
    state = table.create({"delta.checkpointInterval": "100"})
    table.fill(state, 18)
    assert not is_checkpoint_due(state)
    table.fill(state, 1)
    assert is_checkpoint_due(state)
    write_checkpoint(table.store, state)
    table.fill(state, 19)
    assert not is_checkpoint_due(state)
    table.fill(state, 1)
    assert is_checkpoint_due(state)
    monkeypatch.setattr(commits, "_ACTIONS_A_COMMIT", 1)
    assert not is_checkpoint_due(state), "it would cost more"
    assert state.checkpoint is not None
    actions = state.checkpoint.actions
    assert actions is not None
    table.fill(state, actions - 20 - 1)
    assert not is_checkpoint_due(state)
    table.fill(state, 1)
    assert is_checkpoint_due(state)
    monkeypatch.setattr(commits, "_ACTIONS_A_COMMIT", 0.1)
    assert not is_checkpoint_due(state)
    table.fill(state, 100 - state.version)
    assert is_checkpoint_due(state), "the table says so"


def test_by_default_every_tenth_commit_has_one(table: Table) -> None:
    state = table.create()
    assert not is_checkpoint_due(state)
    table.fill(state, 9)
    assert not is_checkpoint_due(state)
    table.fill(state, 1)
    assert is_checkpoint_due(state)


@pytest.mark.parametrize("hint", [b"", b"{}", b'{"version":1}', b'{"version":99}', None])
def test_a_hint_that_is_wrong_is_no_more_than_that(table: Table, hint: bytes | None) -> None:
    state = filled(table)
    write_checkpoint(table.store, state)
    table.fill(state, 1)
    forget_commits(table, state)
    if hint is None:
        (log(table) / "_last_checkpoint").unlink()
    else:
        (log(table) / "_last_checkpoint").write_bytes(hint)
    assert seen(table.state()) == seen(state)


def test_of_two_checkpoints_a_damaged_one_is_passed_over(table: Table) -> None:
    state = filled(table)
    write_checkpoint(table.store, state)
    table.fill(state, 1)
    write_checkpoint(table.store, state)
    newest = log(table) / f"{3:020d}.checkpoint.parquet"
    newest.write_bytes(newest.read_bytes()[:-20])
    assert seen(table.state()) == seen(state)
    forget_commits(table, state, newest=True)
    (log(table) / f"{2:020d}.checkpoint.parquet").unlink()
    with pytest.raises(OutputRefusedError, match=f"{newest.name} can't be read: it is damaged"):
        table.state()


def test_multi_part_checkpoints_count_once_they_are_whole(table: Table) -> None:
    state = filled(table)
    write_checkpoint(table.store, state)
    whole = log(table) / f"{2:020d}.checkpoint.parquet"
    rows = pq.read_table(whole)
    parts = [log(table) / f"{2:020d}.checkpoint.{part:010d}.{3:010d}.parquet" for part in (1, 2, 3)]
    for at, part in enumerate(parts):
        pq.write_table(rows.take(list(range(at, len(rows), 3))), part)
    whole.unlink()
    forget_commits(table, state)
    read = table.state()
    assert {**seen(read), "files": set(read.files)} == {**seen(state), "files": set(state.files)}
    table.fill(read, 1)
    write_checkpoint(table.store, read)  # takes tombstones of all parts
    assert [row["path"] for row in tombstones(table, 3)] == ["b.parquet"]
    (log(table) / f"{3:020d}.checkpoint.parquet").unlink()
    parts[1].unlink()
    with pytest.raises(OutputRefusedError, match="commits are missing"):
        table.state()


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_v2_checkpoints_with_sidecars(table: Table, kind: str) -> None:
    state = filled(table, {"delta.checkpointPolicy": "v2"})
    write_checkpoint(table.store, state)
    whole = log(table) / f"{2:020d}.checkpoint.parquet"
    rows = pq.read_table(whole)
    of_files = rows.select(["add", "remove"])
    has_file = [row["add"] is not None or row["remove"] is not None for row in of_files.to_pylist()]
    (log(table) / "_sidecars").mkdir()
    pq.write_table(of_files.filter(pa.array(has_file)), log(table) / "_sidecars" / "s 1.parquet")
    others = rows.drop_columns(["add", "remove"]).filter(pa.array([not has for has in has_file]))
    actions = [
        {name: body}
        for row in others.to_pylist(maps_as_pydicts="strict")
        for name, body in row.items()
        if body is not None
    ]
    actions.append({"sidecar": {"path": "s%201.parquet", "sizeInBytes": 1, "modificationTime": 1}})
    made = log(table) / f"{2:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.{kind}"
    if kind == "json":
        made.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    else:
        sidecar = pa.table({"sidecar": [action.get("sidecar") for action in actions]})
        pq.write_table(
            pa.concat_tables([others, sidecar.slice(len(actions) - 1)], promote_options="default"),
            made,
        )
    whole.unlink()
    forget_commits(table, state)
    read = table.state()
    assert seen(read) == seen(state)
    table.fill(read, 1)
    write_checkpoint(table.store, read)
    assert [row["path"] for row in tombstones(table, 3)] == ["b.parquet"]


def test_statistics_from_columns_are_those_of_commits() -> None:
    values = pa.array(
        [
            {
                "numRecords": 3,
                "minValues": {"d": 1, "t": 1_500_000_123_456, "s": None, "n": None},
                "tightBounds": False,
            }
        ],
        pa.struct(
            [
                ("numRecords", pa.int64()),
                (
                    "minValues",
                    pa.struct(
                        [
                            ("d", pa.date32()),
                            ("t", pa.timestamp("us", "UTC")),
                            ("s", pa.string()),
                            ("n", pa.decimal128(5, 2)),
                        ]
                    ),
                ),
                ("tightBounds", pa.bool_()),
            ]
        ),
    )
    assert json.loads(stats_text(values[0].as_py())) == {
        "numRecords": 3,
        "minValues": {"d": "1970-01-02", "t": "1970-01-18T08:40:00.123Z"},
        "tightBounds": False,
    }


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("interval 30 days", 30 * DAY_MS),
        ("interval 1 week", 7 * DAY_MS),
        ("2 Weeks 12 hours", 14 * DAY_MS + DAY_MS // 2),
        ("interval 0 seconds", 0),
        ("interval 90 minutes 1 second 5 milliseconds 7000 microseconds", 5_401_012),
        ("interval 1 month", None),
        ("interval", None),
        ("P3D", None),
        ("1 day x", None),
    ],
)
def test_durations(text: str, ms: int | None) -> None:
    assert duration_ms(text) == ms
