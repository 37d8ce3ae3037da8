"""The activity log as Spark reads it: exactly once over crashes and replays, typed."""

from __future__ import annotations

import datetime
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.behaviours.outputs.activity_files import opened, visible
from tests.behaviours.outputs.destinations import Context
from tests.support.build_log import BuiltLog
from tests.support.idle import is_idle
from tests.support.output_options import LAYOUT
from tests.support.output_options import file_format as files_of

from tidelog.app.pipeline.run import run_pipeline
from tidelog.config import load_config
from tidelog.errors import OutputRefusedError
from tidelog.outputs.files.writer import FileFormat
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.spark.transforms import Step
from tidelog.system import failpoints

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]
DATE = datetime.date(2023, 11, 14)  # of `BuiltLog`'s commits


class Crash(BaseException):
    """The driver's end."""


class Log:
    """The output over an event log, and what a plain reader sees."""

    def __init__(self, spark: Any, built: BuiltLog, path: Path) -> None:
        self.context = Context(spark, built, path)
        self.built = built
        self.root = path / "activity"

    def bring(
        self,
        *ranges: tuple[int, int],
        file_format: FileFormat | None = None,
        layout: str = LAYOUT,
        **how: Any,
    ) -> dict[str, str]:
        """The tables that it left out for their names, and why."""
        log = self.built.log
        output = opened(self.context, file_format or files_of(), layout, **how)
        try:
            output.prepare(log.generation)
            for start, end in ranges or [(log.head_offset, log.latest_offset())]:
                output.write(batch_of(log, start, end))
            return dict(output.left_out_tables())
        finally:
            output.close()

    def parquet(self, **options: Any) -> Any:
        return self.context.spark.read.options(**options).parquet(str(self.root))

    def versions(self) -> list[int]:
        return sorted(row["version"] for row in self.parquet().select("version").collect())


@pytest.fixture
def activity(spark: Any, built: BuiltLog, tmp_path: Path) -> Log:
    return Log(spark, built, tmp_path)


def fill(built: BuiltLog, segments: int, rows: int = 50) -> list[int]:
    """Inserts in segments; the offsets where these end."""
    table = built.table("public.t", {"id": "int64", "v": "text"})
    ends = []
    for segment in range(segments):
        for number in range(rows):
            built.insert(table, str(segment * rows + number), "text")
        ends.append(built.flush().next)
    return ends


def test_every_change_is_a_typed_record(activity: Log, built: BuiltLog) -> None:
    columns = {"id": "int64", "price": "decimal(9,2)", "due": "date", "at": "timestamptz"}
    table = built.table("public.t", columns, identity_kind="f", identity=tuple(columns))
    built.insert(table, "1", "9.50", "2026-01-31", "2026-01-31 12:00:00+00")
    built.update(table, "1", "8.25", None, None)
    built.delete(table, "1")
    built.truncate(table)
    built.flush()
    built.chunk(table, [("2", "1.00", None, None)])
    activity.bring()
    frame = activity.parquet()
    kinds = dict(frame.dtypes)
    row = "struct<id:bigint,price:decimal(9,2),due:date,at:timestamp>"
    assert (kinds["before"], kinds["after"], kinds["key"]) == (row, row, "struct<id:bigint>")
    assert (kinds["ts"], kinds["table"], kinds["date"]) == ("timestamp", "string", "date")
    rows = frame.orderBy("version").collect()
    assert [row["op"] for row in rows] == ["c", "u", "d", "t", "r"]
    assert {(row["table"], row["date"]) for row in rows} == {("public.t", DATE)}
    created, updated, deleted, truncated, dumped = rows
    assert str(created["after"]["price"]) == "9.50"
    assert created["after"]["due"] == datetime.date(2026, 1, 31)
    assert created["before"] is None
    assert str(updated["after"]["price"]) == "8.25"
    assert deleted["after"] is None
    assert deleted["before"]["id"] == 1
    assert deleted["key"]["id"] == 1
    assert (truncated["before"], truncated["after"], truncated["key"]) == (None, None, None)
    assert (dumped["after"]["id"], dumped["xid"], created["xid"]) == (2, 0, 1701)


@pytest.mark.parametrize("point", ["before", "after", "move", "moved"])
def test_a_driver_that_dies_at_the_commit_loses_and_doubles_nothing(
    activity: Log, built: BuiltLog, point: str
) -> None:
    """Invariant 8, crash anywhere. The batch comes again, cut longer."""
    head, ends = built.log.head_offset, fill(built, 3)

    def crash() -> None:
        raise Crash

    with failpoints.arm({f"files.commit.{point}": crash}), pytest.raises(Crash):
        activity.bring((head, ends[1]), part_bytes=1)
    if activity.root.exists() and visible(activity.root):
        assert len(set(activity.versions())) == len(activity.versions())
    activity.bring((head, ends[2]), part_bytes=1)
    found = activity.versions()
    assert len(found) == len(set(found)) == 150


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_driver_killed_again_and_again_loses_and_doubles_nothing(
    activity: Log, built: BuiltLog, tmp_path: Path
) -> None:
    """Invariant 8, crash anywhere. Each start cuts batches differently."""
    fill(built, 24)
    points = ["after:kill", "move:kill:3"]
    for attempt, point in enumerate([*points, None]):
        environment = dict(os.environ)
        if point is not None:
            environment[failpoints.ENVIRONMENT_VARIABLE] = f"files.commit.{point}"
        command = [
            sys.executable, str(Path(__file__).with_name("files_process.py")), built.path,
            str(tmp_path / "state.db"), str(activity.root),
            str([9_000, 4_000, 6_000][attempt % 3]),
        ]  # fmt: skip
        done = subprocess.run(command, env=environment, timeout=200, check=False)
        assert done.returncode == (0 if point is None else -signal.SIGKILL), point
        if activity.root.exists() and visible(activity.root):
            assert len(set(activity.versions())) == len(activity.versions())
    assert len(activity.versions()) == 24 * 50


def test_a_rewind_without_the_state_store_doubles_nothing(activity: Log, built: BuiltLog) -> None:
    head, ends = built.log.head_offset, fill(built, 4)
    activity.bring((head, ends[0]), (ends[0], ends[2]))
    for file in activity.context.path.glob("state.db*"):
        file.unlink()
    activity.bring((head, ends[1]), (ends[1], ends[3]))
    found = activity.versions()
    assert len(found) == len(set(found)) == 200


def test_spark_reads_old_and_new_columns_together(activity: Log, built: BuiltLog) -> None:
    narrow = built.table("public.t", {"id": "int64", "n": "int32"})
    built.insert(narrow, "1", "1")
    built.flush()
    activity.bring()
    wide = built.table("public.t", {"id": "int64", "n": "int32", "v": "text"})
    built.insert(wide, "2", "2", "new")
    built.flush()
    activity.bring()
    rows = activity.parquet(mergeSchema=True).orderBy("version").collect()
    assert [row["after"].asDict() for row in rows] == [
        {"id": 1, "n": 1, "v": None},
        {"id": 2, "n": 2, "v": "new"},
    ]
    # A widened type: the reader names the newest, as the page says.
    wider = built.table("public.t", {"id": "int64", "n": "int64", "v": "text"})
    built.insert(wider, "3", str(2**40), "big")
    built.flush()
    activity.bring()
    newest = max(visible(activity.root), key=lambda file: file.name)
    spark = activity.context.spark
    schema = spark.read.parquet(str(newest)).schema
    frame = spark.read.schema(schema).parquet(str(activity.root))
    assert sorted(row[0] for row in frame.select("after.n").collect()) == [1, 2, 2**40]


def test_json_is_read_by_spark_with_iso_times(activity: Log, built: BuiltLog) -> None:
    columns = {"id": "int64", "due": "date", "at": "timestamp", "v": "text"}
    table = built.table("public.t", columns)
    built.insert(table, "1", "2026-01-31", "2026-01-31 12:00:00.5", 'a "quoted"\nlin\u00e9')
    built.update(table, "2", None, None, None, key=["1"])
    built.truncate(table)
    built.flush()
    gzip = files_of(kind="json", values="json", compression="gzip")
    activity.bring(file_format=gzip)
    assert [file.suffixes[-2:] for file in visible(activity.root)] == [[".json", ".gz"]]
    frame = activity.context.spark.read.json(str(activity.root))
    created, old, new, truncated = frame.orderBy("version", frame.op.desc()).collect()
    assert created["after"].asDict() == {
        "id": 1,
        "due": "2026-01-31",
        "at": "2026-01-31T12:00:00.500000",
        "v": 'a "quoted"\nlin\u00e9',
    }
    assert (old["op"], old["before"]["id"], new["op"], new["key"]["id"]) == ("d", 1, "c", 2)
    assert old["version"] == new["version"]
    assert (truncated["op"], truncated["after"]) == ("t", None)
    assert created["ts"].startswith("2023-11-14T22:13:20.")


def test_steps_apply_and_a_route_names_the_directory(activity: Log, built: BuiltLog) -> None:
    table = built.table("public.t", {"id": "int64", "card": "text"})
    for key in range(40):
        built.insert(table, str(key), "4711")
    built.delete(table, "7")
    built.flush()
    steps = (Step("mask", {"card": "***"}), Step("route", "shop:{name}"))
    activity.bring(steps=steps, part_bytes=1)
    (directory,) = activity.root.glob("table=*")
    assert directory.name == "table=shop%3At"
    rows = activity.parquet().collect()
    assert {row["table"] for row in rows} == {"shop:t"}
    assert {row["after"]["card"] for row in rows if row["op"] == "c"} == {"***"}
    assert [row["before"]["id"] for row in rows if row["op"] == "d"] == [7]


def test_spark_sees_tables_and_outputs_whose_names_it_would_hide(
    activity: Log, built: BuiltLog
) -> None:
    for number, name in enumerate(("_app._jobs", "app..jobs", "app.jobs._COPYING_"), start=1):
        built.insert(built.table(name, {"id": "int64"}, relation_id=number), "1")
    built.flush()
    activity.bring(layout="{namespace}/{name}/date={date}", name="_log")
    assert activity.parquet(recursiveFileLookup=True).count() == 3


def test_two_tables_in_one_directory_are_refused_unless_their_columns_are_alike(
    activity: Log, built: BuiltLog, spark: Any, tmp_path: Path
) -> None:
    for number, name in enumerate(("a.t", "b.t"), start=1):
        table = built.table(name, {"id": "int64"}, relation_id=number)
        built.insert(table, "1")
    built.flush()
    refused = activity.bring(layout="{name}/date={date}")
    assert list(refused) == ["b.t"]
    assert "both go to" in refused["b.t"]
    assert {row["table"] for row in activity.parquet().collect()} == {"a.t"}
    alike = Log(spark, built, tmp_path / "alike")
    assert not alike.bring(layout="{name}/date={date}", file_format=files_of(values="json"))
    assert {row["table"] for row in alike.parquet().collect()} == {"a.t", "b.t"}


def test_a_directory_of_another_log_is_refused(
    activity: Log, built: BuiltLog, spark: Any, tmp_path: Path
) -> None:
    fill(built, 1)
    activity.bring()
    other = Log(spark, BuiltLog(tmp_path / "other" / "log"), tmp_path / "other")
    fill(other.built, 1)
    shutil.copytree(activity.root, other.root)
    with pytest.raises(OutputRefusedError, match="was filled from generation"):
        other.bring()


def test_the_page_s_configuration_runs(spark: Any, built: BuiltLog, tmp_path: Path) -> None:
    fill(built, 1)
    page = (ROOT / "docs/outputs/files.md").read_text()
    outputs = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0]
    (tmp_path / "tidelog.yaml").write_text(
        "source: {kind: postgres, url: 'postgresql://u@h/d'}\nlog: {path: ./log}\n"
        f"state: {{url: 'sqlite:///state.db'}}\n{outputs}"
    )
    config = load_config(tmp_path / "tidelog.yaml", {})
    run_pipeline(config, once=True, stop_event=threading.Event())
    assert is_idle(config)
    query = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)[0]
    spark.read.parquet(str(tmp_path / "data/activity")).createOrReplaceTempView("activity")
    assert [tuple(row) for row in spark.sql(query).collect()] == [("public.t", DATE, "c", 50)]
