"""Steps on columns of the key: refused, or the table goes in one task. No Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from tests.support.build_log import BuiltLog

from tidelog.errors import ConfigError
from tidelog.eventlog.reader import EventLog
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.outputs.base import scheduling
from tidelog.outputs.base.scheduling import JobScheduler, TablePart
from tidelog.outputs.base.targets import TargetTables
from tidelog.outputs.base.tasks import BatchWork
from tidelog.outputs.base.writer import Delivery, StopAtRejection
from tidelog.ports import SourceId, TargetTable, WriteTask
from tidelog.spark.transforms import Step, merges_keys, target_table

ORIGIN = SourceId("postgres", "1", "shop")
COLUMNS = {"id": "int64", "region": "text", "v": "text"}


@pytest.fixture
def built(tmp_path: Path) -> BuiltLog:
    return BuiltLog(tmp_path / "log")


@pytest.mark.parametrize(
    ("key", "unchanged", "order", "tasks"),
    [
        (("id", "region"), ("id", "region", "v"), "key", 2),
        (("id",), ("id", "v"), "key", 1),  # dropped: a part of the key is left
        (("id", "region"), ("id", "v"), "key", 1),  # masked or computed
        (("id",), ("id", "v"), "none", 2),
    ],
)
def test_a_table_whose_keys_may_merge_goes_in_one_task(
    built: BuiltLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    key: tuple[str, ...], unchanged: tuple[str, ...], order: str, tasks: int,
) -> None:  # fmt: skip
    """Else changes of one delivered key are written by several, in any order."""
    schema = built.table("public.t", COLUMNS, key=("id", "region"))
    of = {column.name: column for column in schema.columns}
    target = TargetTable(
        schema.table, "public.t", schema, pa.schema([]), key, ORIGIN, {n: of[n] for n in unchanged}
    )
    seen: list[int] = []

    def frame(*arguments: Any, **_options: Any) -> list[Any]:
        seen.append(len(arguments[4]))
        return []

    monkeypatch.setattr(scheduling, "run_frame", frame)
    monkeypatch.setattr(scheduling.ranges, "truncated", lambda *_: ())
    delivery = Delivery("out", keyed=False, order=order, steps=(Step("filter", "v IS NULL"),))
    nothing = cast("Any", None)
    jobs = JobScheduler(nothing, EventLog.open(built.path), delivery, cores=lambda: 2)
    batch = cast("Any", SimpleNamespace(start=0, end=0))
    work = BatchWork("", "events", WriteTask("out", "", 0, 0, 0), nothing, None, StopAtRejection())
    try:
        jobs.run(work, nothing, [TablePart(target, ((), ()))], batch)
    finally:
        jobs.close()
    assert seen == [tasks]


@pytest.mark.parametrize("order", ["key", "total"])
@pytest.mark.parametrize("truncates", [(), ("public.t",)])
def test_a_batch_with_a_truncate_is_a_job_however_small(
    built: BuiltLog, monkeypatch: pytest.MonkeyPatch, order: str, truncates: tuple[str, ...]
) -> None:
    """A task may read all of a topic for it."""
    schema = built.table("public.t", COLUMNS, key=("id", "region"))
    target = TargetTable(schema.table, "public.t", schema, pa.schema([]), ("id",), ORIGIN)
    seen: list[bool] = []

    def run(*_: Any, small: bool) -> list[Any]:
        seen.append(small)
        return []

    monkeypatch.setattr(scheduling, "run_direct", run)
    monkeypatch.setattr(scheduling, "run_in_order", run)
    monkeypatch.setattr(scheduling, "is_small", lambda *_: True)
    monkeypatch.setattr(scheduling.ranges, "truncated", lambda *_: truncates)
    delivery = Delivery("out", keyed=False, order=order)
    nothing = cast("Any", None)
    jobs = JobScheduler(nothing, EventLog.open(built.path), delivery, cores=lambda: 2)
    batch = cast("Any", SimpleNamespace(start=0, end=0))
    work = BatchWork("", "events", WriteTask("out", "", 0, 0, 0), nothing, None, StopAtRejection())
    try:
        jobs.run(work, nothing, [TablePart(target, ((), ()))], batch)
    finally:
        jobs.close()
    assert seen == [not truncates]


@pytest.mark.parametrize("action", ["mask", "compute"])
def test_a_step_that_would_merge_rows_is_refused(built: BuiltLog, action: str) -> None:
    schema = built.table("public.t", COLUMNS, key=("id", "region"))
    steps = [Step("rename", {"region": "area"}), Step(action, {"area": "'x'"})]
    with pytest.raises(ConfigError, match=f"step {action}: column 'area' is of the key"):
        target_table(cast("Any", None), schema, steps, ORIGIN, keyed=True)
    assert merges_keys(schema, steps)
    assert merges_keys(schema, [Step(action, {"v": "'x'"})]) is None


def test_a_key_may_be_hashed_and_other_columns_masked(built: BuiltLog) -> None:
    schema = built.table("public.t", COLUMNS, key=("id", "region"))
    assert merges_keys(schema, [Step("hash", ["region"]), Step("mask", {"v": "x"})]) is None


def test_a_column_that_earlier_versions_lack_or_had_null_may_be_null() -> None:
    """As records from before the change are written under the newest schema."""
    name = TableName("shop", "t")

    def version(**nullable: bool) -> TableSchema:
        columns = tuple(Column(n, 20, -1, "bigint", "int64", null) for n, null in nullable.items())
        return TableSchema(name, 1, columns, tuple(nullable), tuple(nullable), "d", "pgoutput")

    versions = [version(a=False, b=True), version(a=False, b=False, c=False)]
    output = SimpleNamespace(
        _log=SimpleNamespace(schemas=SimpleNamespace(versions=lambda table: versions))
    )
    newest = versions[-1]
    columns = pa.schema([(column.name, pa.int64()) for column in newest.columns])
    unchanged = {column.name: column for column in newest.columns}
    origin = SourceId("postgres", "1", "shop", 1)
    table = TargetTable(name, "t", newest, columns, newest.key, origin, unchanged)
    found = TargetTables._with_nullable(cast("TargetTables", output), table)
    assert {n: column.nullable for n, column in found.unchanged.items()} == {
        "a": False,
        "b": True,
        "c": True,
    }
