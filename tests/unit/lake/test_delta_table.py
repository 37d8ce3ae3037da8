"""Two drivers of one Delta table, and tables that somebody removes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.build_log import BuiltLog

from tidelog.errors import ConflictError, OutputBusyError, TableLeftOutError
from tidelog.model.schema import TableSchema
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.delta.options import DeltaOptions
from tidelog.outputs.lake.delta.table import DeltaTable
from tidelog.outputs.lake.settling.settle import FileChanges
from tidelog.outputs.lake.table import MARKED_PROPERTY
from tidelog.ports import TargetTable
from tidelog.spark.transforms import target_table
from tidelog.system import failpoints

APPLICATION = "tidelog/g/delta"


class Drivers:
    """Two of them, of the table public.t."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.built = BuiltLog(path / "log")
        self.columns = {"id": "int64", "v": "text"}
        schema = self.schema()
        layout = DeltaOptions(**options).layout_of(schema.table)
        self.first, self.second = (
            DeltaTable(str(path / "t"), layout, lambda works: []) for _ in range(2)
        )

    def schema(self) -> TableSchema:
        return self.built.table("public.t", self.columns)

    def target(self) -> TargetTable:
        source = self.built.log.source
        return target_table(None, self.schema(), (), source, keyed=True)  # type: ignore[arg-type]


def test_who_altered_the_table_behind_another_driver_does_not_repeat_its_rows(
    tmp_path: Path,
) -> None:
    """The columns are followed on what the other one left, with its transaction."""
    drivers = Drivers(tmp_path)
    first, second = drivers.first, drivers.second
    assert not first.exists()
    first.create(drivers.target(), "g")
    first.commit([], APPLICATION, None, 10)
    assert first.exists()
    since = first.committed(APPLICATION)
    assert second.exists()
    second.commit([], APPLICATION, 10, 30)
    drivers.columns["more"] = "text"
    first.evolve(drivers.target(), "evolve")
    with pytest.raises(ConflictError, match="another driver"):
        first.commit([], APPLICATION, since, 20)
    assert second.exists()
    assert second.committed(APPLICATION) == 30


def test_a_table_with_soft_deletes_is_made_as_one(tmp_path: Path) -> None:
    """In one commit: who dies behind it must not leave marked rows that nobody knows of."""
    drivers = Drivers(tmp_path, soft_deletes=True)
    drivers.first.exists()
    drivers.first.create(drivers.target(), "g")
    assert drivers.second.exists()
    assert drivers.second.property(MARKED_PROPERTY) == "_deleted"
    assert drivers.second.state.version == 0


def test_a_table_is_like_before_until_somebody_alters_it(tmp_path: Path) -> None:
    drivers = Drivers(tmp_path)
    drivers.first.exists()
    drivers.first.create(drivers.target(), "g")
    before = drivers.first.definition()
    drivers.first.commit([], APPLICATION, None, 10)
    assert drivers.first.exists()
    assert drivers.first.definition() == before
    drivers.second.exists()
    drivers.second.set_property("theirs", "1")
    assert drivers.first.exists()
    assert drivers.first.definition() != before


@pytest.mark.parametrize("change", [{"more": "text"}, {"n": "int64"}, {"back": "text"}])
def test_drivers_that_alter_a_table_at_the_same_time_do_it_once(
    tmp_path: Path, change: dict[str, str]
) -> None:
    """The other one's commit comes right before ours."""
    drivers = Drivers(tmp_path)
    drivers.columns |= {"n": "int32", "back": "text"}
    first, second = drivers.first, drivers.second
    first.exists()
    first.create(drivers.target(), "g")
    first.evolve(drivers.target(), "evolve")
    del drivers.columns["back"]
    first.evolve(drivers.target(), "evolve")
    second.exists()
    drivers.columns |= change
    target = drivers.target()
    others = [second]

    def interfere() -> None:
        if others:
            others.pop().evolve(target, "evolve")

    with (
        failpoints.arm({"delta.commit.before": interfere}),
        pytest.raises(OutputBusyError, match="tried again"),
    ):
        first.evolve(target, "evolve")
    assert first.exists()
    done = first.state.version
    first.evolve(target, "evolve")
    assert first.state.version == done
    names = [field.name for field in first.columns().fields]
    assert sorted(names) == sorted({*names})
    assert all(len(field.metadata.get("delta.typeChanges", ())) < 2 for field in first.columns())


@pytest.mark.parametrize("holds", ["copy", "history"])
@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.struct([("a", pa.int64())])])
def test_a_key_by_which_no_row_can_be_found_is_refused_before_a_table_is_made(
    tmp_path: Path, kind: pa.DataType, holds: str
) -> None:
    """As a step `python` may make it."""
    drivers = Drivers(tmp_path, holds={"*.*": holds})
    found = drivers.target()
    drivers.first.check_layout(found)
    columns = pa.schema([("id", kind), ("v", pa.string())])
    with pytest.raises(TableLeftOutError, match=r"column id of the key of public\.t is of type"):
        drivers.first.check_layout(replace(found, columns=columns))


def test_a_column_of_the_layout_may_be_one_that_the_source_dropped(tmp_path: Path) -> None:
    drivers = Drivers(tmp_path, cluster_by={"public.t": ["day"]})
    with pytest.raises(TableLeftOutError, match="can't be laid out by day"):
        drivers.first.check_layout(drivers.target())
    drivers.first.check_layout(drivers.target(), ["id", "v", "day"])


@pytest.mark.parametrize("option", ["partition_by", "cluster_by"])
def test_a_table_is_not_laid_out_by_an_array(tmp_path: Path, option: str) -> None:
    drivers = Drivers(tmp_path, **{option: {"public.t": ["v"]}})
    found = drivers.target()
    columns = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.string()))])
    with pytest.raises(TableLeftOutError, match="laid out by v, whose type is array<string>"):
        drivers.first.check_layout(replace(found, columns=columns))
    drivers.first.check_layout(found, ["id", "v"])


@pytest.mark.parametrize(("holds", "offset"), [("copy", 10), ("history", 18)])
def test_a_restored_table_of_history_continues_after_the_newest_end_that_it_has(
    tmp_path: Path, holds: str, offset: int
) -> None:
    """A copy's rows may come again, since they are folded; a state must not."""
    drivers = Drivers(tmp_path, holds={"*.*": holds})
    table = drivers.first
    table.exists()
    table.create(drivers.target(), "g")
    table.commit([], APPLICATION, None, 10)
    highest = {"_version": 12, "_valid_to_version": 17}
    stats = {"numRecords": 1, "minValues": highest, "maxValues": highest}
    file = DataFile(
        "a.parquet", stats=json.dumps({**stats, "nullCount": dict.fromkeys(highest, 0)})
    )
    added = table.actions([FileChanges((file,), (), ())], data_change=True)
    table.commit(added, APPLICATION, 10, 30)
    restore(tmp_path / "t", version=1)
    assert table.exists()
    found = table.find_restore(APPLICATION, 30)
    assert found is not None
    assert found.offset == offset


def restore(place: Path, version: int) -> None:
    """As Spark's RESTORE, without its files: the next commit says so."""
    log = place / "_delta_log"
    said = {"operation": "RESTORE", "operationParameters": {"version": str(version)}}
    number = len(list(log.glob("*.json")))
    (log / f"{number:020}.json").write_text(json.dumps({"commitInfo": said}) + "\n")


def test_a_restored_table_is_repaired_until_its_last_commit(tmp_path: Path) -> None:
    """Who dies in between leaves the rest to the next run."""
    drivers = Drivers(tmp_path, holds={"*.*": "history"})
    first, second = drivers.first, drivers.second
    first.exists()
    first.create(drivers.target(), "g")
    for since, end in ((None, 10), (10, 30)):
        assert first.find_restore(APPLICATION, since or 0) is None
        first.commit([], APPLICATION, since, end)
    restore(tmp_path / "t", version=1)
    for end in (20, 30):
        for each in (first, second):
            assert each.exists()
            found = each.find_restore(APPLICATION, 30)
            assert found is not None
            assert found.offset == 10
        first.commit([], APPLICATION, 30, end)
        assert first.committed(APPLICATION) == 30
    assert second.exists()
    assert second.find_restore(APPLICATION, 30) is None
