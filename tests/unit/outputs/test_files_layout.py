"""Directories of an activity log."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import unquote

import pyarrow as pa
import pytest

from tidelog.errors import ConfigError
from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.files.writer import FilesLayout
from tidelog.ports import SourceId, TargetTable

DAY_US = 86_400_000_000
SCHEMA = TableSchema(TableName("public", "a=b"), 1, (), (), (), "d", "pgoutput")
TABLE = TargetTable(
    SCHEMA.table, "public.a=b", SCHEMA, pa.schema([]), (), SourceId("postgres", "7", "shop", 1)
)


def rows(*days: float) -> tuple[pa.RecordBatch, pa.Array]:
    at = pa.array([int(day * DAY_US) for day in days], pa.int64())
    return pa.RecordBatch.from_pydict({"n": list(range(len(days)))}), at


def split(pattern: str, *days: float) -> dict[str, list[int]]:
    batch, at = rows(*days)
    found = FilesLayout(pattern).split(TABLE, batch, at)
    return {directory: part.column("n").to_pylist() for directory, part in found}


def test_a_batch_over_midnight_is_split_in_order() -> None:
    assert split("table={table}/date={date}", 20_000.9, 20_001.0, 20_000.95) == {
        "table=public.a%3Db/date=2024-10-04": [0, 2],
        "table=public.a%3Db/date=2024-10-05": [1],
    }


def test_hours_months_and_names() -> None:
    pattern = "{namespace}/{name}/y={year}/m={month}/d={day}/h={hour}"
    assert split(pattern, 0, 1 / 24, -1 / 24) == {
        "public/a%3Db/y=1969/m=12/d=31/h=23": [2],
        "public/a%3Db/y=1970/m=01/d=01/h=00": [0],
        "public/a%3Db/y=1970/m=01/d=01/h=01": [1],
    }


@pytest.mark.parametrize(
    ("name", "directory"),
    [
        ("_jobs", "%5Fjobs"),
        ("__jobs", "%5F_jobs"),
        (".jobs", "%2Ejobs"),
        ("..", "%2E."),
        ("%5Fjobs", "%255Fjobs"),
        ("a._COPYING_", "a%2E_COPYING_"),
        ("jobs_", "jobs_"),
    ],
)
def test_no_name_is_hidden_from_readers_and_each_comes_back(name: str, directory: str) -> None:
    of = replace(TABLE, source=TableName("_app", name), name=name)
    assert FilesLayout("{namespace}/{name}").of_table(of) == f"%5Fapp/{directory}"
    assert unquote(directory) == name


def test_without_time_all_is_in_one_directory() -> None:
    assert split("{table}", 0, 1, 2) == {"public.a%3Db": [0, 1, 2]}


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("{table}/{week}", "is not one of"),
        ("{table", "expected '}'"),
        ("_hidden/{table}", "can't be empty, nor begin with _"),
        ("/{table}", "can't be empty"),
        ("{table}/../{date}", "nor begin with _ or ."),
        ("{table}/{hour}", "needs {date}"),
    ],
)
def test_a_pattern_that_readers_could_not_use_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why.replace("{", r"\{")):
        FilesLayout(pattern)
