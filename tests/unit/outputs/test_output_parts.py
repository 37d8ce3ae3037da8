"""Progress, schema policies and sections of outputs; no Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tidelog.config import load_config
from tidelog.errors import ConfigError, OutputError, OutputRefusedError, Policy, TableLeftOutError
from tidelog.outputs.base.progress import OutputProgress
from tidelog.outputs.base.scheduling import hash_partition_counts
from tidelog.outputs.base.schema_evolution import plan_change, stored_columns
from tidelog.state.sqlite import SqliteState

OLD = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("gone", pa.string())])
NEW = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("added", pa.string())])
BASE = "source: {kind: postgres, url: 'postgresql://u@h/d'}\nlog: {path: ./log}\noutputs:\n"


def test_progress_is_kept_and_a_second_pipeline_stops(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    one = OutputProgress(SqliteState(url), "g", "o")
    assert one.done is None
    one.begin(10)
    two = OutputProgress(SqliteState(url), "g", "o")
    assert (two.done, two.begun) == (None, 10)
    one.finish(10)
    with pytest.raises(OutputRefusedError, match="another pipeline"):
        two.finish(10)
    assert OutputProgress(SqliteState(url), "g", "o").done == 10
    assert OutputProgress(SqliteState(url), "other", "o").done is None


def test_progress_that_an_earlier_leader_created_late_is_read_again(tmp_path: Path) -> None:
    """It was sent before the lease ended, and came after the new leader had seen none."""
    state = SqliteState(f"sqlite:///{tmp_path / 'state.db'}")
    earlier, ours = OutputProgress(state, "g", "o"), OutputProgress(state, "g", "o")
    earlier.begin(10)
    with pytest.raises(OutputError, match="stored its progress late") as told:
        ours.begin(7)
    assert told.value.policy is Policy.RETRY
    assert ours.begun == 10, "nothing shorter than what was begun is brought over"
    ours.begin(10)
    ours.finish(10)
    with pytest.raises(OutputRefusedError, match="another pipeline"):
        earlier.finish(10)
    assert OutputProgress(state, "g", "o").done == 10


def test_progress_that_could_not_be_stored_is_stored_by_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = SqliteState(f"sqlite:///{tmp_path / 'state.db'}")
    one = OutputProgress(state, "g", "o")

    def fail(*_: object) -> int:
        raise OSError

    for call in (
        lambda: one.begin(10),
        lambda: one.finish(7),
        lambda: one.store_columns("t", [["a", "b"]]),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(state, "put", fail)
            with pytest.raises(OSError):
                call()
        call()
    two = OutputProgress(state, "g", "o")
    assert (two.begun, two.done, two.columns) == (10, 7, {"t": [["a", "b"]]})


def test_evolving_adds_and_widens() -> None:
    found = plan_change("evolve", "t", stored_columns(OLD), NEW, ["id"])
    assert [field.name for field in found.added] == ["added"]
    assert [field.name for field in found.widened] == ["n"]
    assert found.dropped == ("gone",)
    assert dict(found.columns_after(stored_columns(OLD))) == {
        "id": "int64", "n": "int64", "gone": "string", "added": "string",
    }  # fmt: skip


def test_policies_differ_in_what_can_t_be_followed() -> None:
    other = pa.schema([("id", pa.int64()), ("n", pa.string())])
    with pytest.raises(TableLeftOutError, match="columns n changed their type"):
        plan_change("evolve", "t", stored_columns(OLD), other, ["id"])
    assert plan_change("lenient", "t", stored_columns(OLD), other, ["id"]).delivered.names == ["id"]
    assert plan_change("ignore", "t", stored_columns(OLD), NEW, ["id"]).delivered.names == ["id"]
    with pytest.raises(OutputRefusedError) as stopped:
        plan_change("fail", "t", stored_columns(OLD), NEW, ["id"])
    assert not isinstance(stopped.value, TableLeftOutError)
    assert not plan_change("fail", "t", stored_columns(OLD), OLD, ["id"]).alters


def test_fail_refuses_no_column_that_was_dropped_or_became_narrower_before(tmp_path: Path) -> None:
    state = SqliteState(f"sqlite:///{tmp_path / 'state.db'}")
    progress = OutputProgress(state, "g", "o")
    progress.store_columns("t", stored_columns(OLD))
    now = pa.schema([("id", pa.int64()), ("n", pa.int16())])
    found = plan_change("evolve", "t", progress.columns["t"], now, ["id"])
    progress.store_columns("t", found.columns_after(progress.columns["t"]), found.dropped)
    later = OutputProgress(state, "g", "o")
    known, dropped = later.columns["t"], later.dropped["t"]
    assert not plan_change("fail", "t", known, now, ["id"], known_dropped=dropped).alters
    with pytest.raises(OutputRefusedError, match="columns n changed"):
        plan_change("fail", "t", known, now.remove(1), ["id"], known_dropped=dropped)
    later.store_columns("t", known)  # the column is there again
    assert OutputProgress(state, "g", "o").dropped == {}


def test_a_key_that_changed_its_type_stops_every_policy() -> None:
    key = pa.schema([("id", pa.string())])
    for policy in ("evolve", "lenient", "ignore", "fail"):
        with pytest.raises(OutputRefusedError):
            plan_change(policy, "t", stored_columns(OLD), key, ["id"])


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("{kind: python}", "4: outputs[0].class: is missing"),
        ("{kind: python, class: nonsense}", "outputs[0].class"),
        ("{kind: python, class: 'a:B', path: x}", "'path' is an option of kind 'delta'"),
        ("{kind: python, class: 'a:B', steps: [{}]}", "a step has one action of select"),
        ("{kind: python, class: 'a:B', steps: [{selct: [a]}]}", "did you mean 'select'"),
    ],
)
def test_a_mistake_in_an_output_is_named(tmp_path: Path, output: str, expected: str) -> None:
    (tmp_path / "tidelog.yaml").write_text(f"{BASE}  - {output}\n")
    with pytest.raises(ConfigError) as raised:
        load_config(tmp_path / "tidelog.yaml", {})
    assert expected in str(raised.value)


@pytest.mark.parametrize(
    ("sizes", "limits", "expected"),
    [
        ([], [], []),
        ([100], [8], [4]),
        ([100], [3], [3]),  # it has no more parts
        ([100] * 4, [8] * 4, [1] * 4),  # equal without: nothing is decoded twice
        ([100] * 3 + [1], [8] * 4, [2, 1, 1, 1]),
        ([1000, 1, 1, 1], [8, 1, 1, 1], [4, 1, 1, 1]),
    ],
)
def test_a_table_is_shared_only_where_tasks_are_unequal_without(
    sizes: list[int], limits: list[int], expected: list[int]
) -> None:
    assert hash_partition_counts(sizes, limits, 4) == expected
