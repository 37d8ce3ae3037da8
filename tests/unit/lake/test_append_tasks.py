"""What a task makes of a range of changes, and the columns of the table that it goes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.build_log import BuiltLog
from tests.support.delta_readers import by_delta_rs, by_duckdb, rows_of
from tests.support.pgoutput_messages import UNCHANGED

from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.base.ranges import delivered_schema
from tidelog.outputs.lake.delta.options import DeltaOptions
from tidelog.outputs.lake.delta.table import DeltaTable
from tidelog.outputs.lake.settling.tasks import (
    AppendWork,
    RangeOfTable,
    RewriteWork,
    rewrite_files,
    write_tables,
)
from tidelog.outputs.lake.table import HOLDS_PROPERTY, application_of
from tidelog.ports import DumpCompleted, TargetTable
from tidelog.spark.transforms import target_table

NAME = "public.t"
ORDER = "version, op"


class Appended:
    """A table of the changes of public.t, and the driver's part of what brings them there."""

    def __init__(self, path: Path) -> None:
        self.built = BuiltLog(path / "log")
        layout = DeltaOptions(holds={"*.*": "changes"}).layout_of(TableName.parse(NAME))
        self.table = DeltaTable(
            str(path / "t"), layout, lambda works: [rewrite_files(each) for each in works]
        )
        self.application = application_of(self.built.log.generation, "delta")

    def schema(self, columns: Mapping[str, str], *key: str) -> TableSchema:
        return self.built.table(NAME, columns, key=key or ("id",))

    def target(self, schema: TableSchema) -> TargetTable:
        source = self.built.log.source
        return target_table(None, schema, (), source, keyed=True)  # type: ignore[arg-type]

    def bring(self, schema: TableSchema, *dumps: int, policy: str = "evolve") -> None:
        """All that is not there, in one commit."""
        self.built.flush()
        table, log, target = self.table, self.built.log, self.target(schema)
        if not table.exists():
            table.create(target, log.generation)
        columns = table.evolve(target, policy)
        since, end = table.committed(self.application), log.latest_offset()
        refs = tuple(log.segments(since or 0, end))
        delivered = delivered_schema(schema, columns)
        rows = RangeOfTable(self.built.path, log.generation, delivered, refs)
        files = replace(table.files(), files=())
        completed = tuple(DumpCompleted("d", NAME, first, True) for first in dumps)
        (result,) = write_tables([AppendWork(files, NAME, rows, completed)])
        if result.error is not None:
            raise result.error
        assert result.settled is not None
        assert result.files is not None
        added = replace(result.files, added=result.settled.added)
        actions = table.actions([added], data_change=True)
        table.commit(actions, self.application, since, end)

    def rows(self) -> list[dict[str, Any]]:
        return rows_of(by_duckdb(self.table.path, ORDER))


@pytest.fixture
def appended(tmp_path: Path) -> Appended:
    return Appended(tmp_path)


def test_each_change_is_a_row_whatever_it_is(appended: Appended) -> None:
    built, schema = appended.built, appended.schema({"id": "int64", "v": "text"})
    built.insert(schema, "1", "one")
    built.update(schema, "1", UNCHANGED)
    built.update(schema, "2", "two", key=["1"])
    built.delete(schema, "2")
    built.truncate(schema)
    appended.bring(schema, 1)
    rows = appended.rows()
    assert rows_of(by_delta_rs(appended.table.path, ORDER)) == rows
    one, none = {"id": 1, "v": "one"}, {"id": None}
    assert [
        (row["op"], row["before"], row["after"], row["key"], row["missing"]) for row in rows
    ] == [
        ("c", None, one, {"id": 1}, None),
        ("s", None, None, None, None),
        ("u", None, {"id": 1, "v": None}, {"id": 1}, ["v"]),
        ("u", {"id": 1, "v": None}, {"id": 2, "v": "two"}, {"id": 2}, None),
        ("d", {"id": 2, "v": None}, None, {"id": 2}, None),
        ("t", None, None, none, None),
    ]
    assert rows[1]["version"] == rows[0]["version"] == 1
    assert appended.table.property(HOLDS_PROPERTY) == "changes"


def test_members_of_rows_come_and_widen_and_stay(appended: Appended) -> None:
    built = appended.built
    for columns in (
        {"id": "int16", "v": "text"},
        {"id": "int32", "v": "text", "a b": "int32"},
        {"id": "int32", "a b": "int64"},
        {"id": "int64", "v": "text", "a b": "int64"},
    ):
        schema = appended.schema(columns)
        built.insert(schema, *map(str, range(1, len(columns) + 1)))
        appended.bring(schema)
    rows = appended.rows()
    assert [row["after"] for row in rows] == [
        {"id": 1, "v": "2", "a_b": None},
        {"id": 1, "v": "2", "a_b": 3},
        {"id": 1, "v": None, "a_b": 2},
        {"id": 1, "v": "2", "a_b": 3},
    ]
    assert {row["schema_version"] for row in rows} == {1, 2, 3, 4}
    types = {each.name: each.dataType.simpleString() for each in appended.table.columns()}
    assert types["before"] == types["after"] == "struct<id:bigint,v:string,a b:bigint>"
    assert types["key"] == "struct<id:bigint>"
    appended.table.commit_compaction([rewrite_files(RewriteWork(appended.table.files()))])
    assert len(appended.table.state.files) == 1
    assert appended.rows() == rows


@pytest.mark.parametrize(("policy", "more"), [("lenient", {"more": "3"}), ("ignore", {})])
def test_columns_that_are_not_followed_are_null(
    appended: Appended, policy: str, more: dict[str, str]
) -> None:
    first = appended.schema({"id": "int64", "v": "text"})
    appended.built.insert(first, "1", "one")
    appended.bring(first)
    second = appended.schema({"id": "int64", "v": "int32", "more": "text"})
    appended.built.insert(second, "2", "2", "3")
    appended.bring(second, policy=policy)
    assert appended.rows()[-1]["after"] == {"id": 2, "v": None, **more}


def test_another_key_is_another_member(appended: Appended) -> None:
    columns = {"id": "int64", "V": "text"}
    for key in (["id"], ["V", "id"], ["V"]):
        schema = appended.schema(columns, *key)
        appended.built.insert(schema, "1", "one")
        appended.bring(schema)
    assert [row["key"] for row in appended.rows()] == [
        {"id": 1, "V": None},
        {"id": 1, "V": "one"},
        {"id": None, "V": "one"},
    ]


def test_a_key_is_as_wide_as_its_column_was_made(appended: Appended) -> None:
    """The source's is narrower for a while: what holds its values stays."""
    for kind, key in (("int64", "a"), ("int32", "id"), ("int64", "id"), ("int32", "id")):
        schema = appended.schema({"id": kind, "a": "text"}, key)
        appended.built.insert(schema, "7", "x")
        appended.bring(schema)
    types = {each.name: each.dataType.simpleString() for each in appended.table.columns()}
    assert types["key"] == "struct<a:string,id:bigint>"


def test_names_that_differ_by_case_alone_are_one_column(appended: Appended) -> None:
    for key, name in (("id", "v"), ("ID", "V")):
        schema = appended.schema({key: "int64", name: "text"}, key)
        appended.built.insert(schema, "1", name)
        appended.bring(schema)
    assert [row["after"] for row in appended.rows()] == [{"id": 1, "v": "v"}, {"id": 1, "v": "V"}]


def test_eight_files_become_one_in_the_order_of_versions(appended: Appended) -> None:
    schema = appended.schema({"id": "int64", "v": "text"})
    for _ in range(8):
        appended.built.insert(schema, "1", "one")
        appended.bring(schema)
    appended.table.commit_compaction([rewrite_files(work) for work in appended.table.compaction()])
    assert len(appended.table.state.files) == 1
    rows = rows_of(by_duckdb(appended.table.path, "1 IS NULL"))  # as they are in the file
    versions = [row["version"] for row in rows]
    assert len(versions) == 8
    assert versions == sorted(versions)
