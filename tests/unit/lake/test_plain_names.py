"""Names of columns that every reader of Delta reads, and what some readers make of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pytest
from tests.support.build_log import BuiltLog
from tests.support.delta_readers import by_delta_rs, by_duckdb, rows_of

from tidelog.model.schema import TableName
from tidelog.outputs.base.ranges import delivered_schema
from tidelog.outputs.lake.data_files.layout import SOURCE_NAME
from tidelog.outputs.lake.delta.options import DeltaOptions
from tidelog.outputs.lake.delta.table import DeltaTable
from tidelog.outputs.lake.settling.reading import file_rows
from tidelog.outputs.lake.settling.tasks import (
    RangeOfTable,
    SettleWork,
    rewrite_files,
    write_tables,
)
from tidelog.ports import TargetTable
from tidelog.spark.transforms import target_table

NAME = "public.t"
APPLICATION = "tidelog/g/delta"


class Copied:
    """A copy of public.t, and the driver's part of what brings rows there."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.built = BuiltLog(path / "log")
        self.path = str(path / "t")
        self.open(**options)

    def open(self, **options: Any) -> None:
        """As the next run does, with its options."""
        layout = DeltaOptions(**options).layout_of(TableName.parse(NAME))
        self.table = DeltaTable(
            self.path, layout, lambda works: [rewrite_files(each) for each in works]
        )

    def bring(self, columns: Mapping[str, str], *rows: Sequence[str], key: str = "id") -> None:
        """Rows of these columns, new or in place of those of their key, in one commit."""
        schema = self.built.table(NAME, columns, key=(key,))
        for row in rows:
            self.built.insert(schema, *row)
        self.built.flush()
        table, log = self.table, self.built.log
        target: TargetTable = target_table(
            None,  # type: ignore[arg-type]
            schema,
            (),
            log.source,
            keyed=True,
        )
        if not table.exists():
            table.create(target, log.generation)
        table.check_layout(target)
        delivered = table.evolve(target, "evolve")
        since, end = table.committed(APPLICATION), log.latest_offset()
        table.key = target.key
        work = SettleWork(
            table.files(),
            RangeOfTable(
                self.built.path,
                log.generation,
                delivered_schema(schema, delivered),
                tuple(log.segments(since or 0, end)),
            ),
            delivered,
        )
        (result,) = write_tables([work])
        if result.error is not None:
            raise result.error
        assert result.settled is not None
        assert result.files is not None
        changes = replace(result.files, added=(*result.files.added, *result.settled.added))
        table.commit(table.actions([changes], data_change=True), APPLICATION, since, end)

    def rows(self, key: str = "id") -> list[dict[str, Any]]:
        """Without the version; equal for each reader."""
        found = rows_of(by_duckdb(self.table.path, f'"{key}"'))
        assert rows_of(by_delta_rs(self.table.path, f'"{key}"')) == found
        return [{n: v for n, v in row.items() if n != "_version"} for row in found]


def by_pyarrow(copied: Copied) -> list[dict[str, Any]]:
    rows = rows_of(deltalake.DeltaTable(copied.path).to_pyarrow_table().sort_by("id"))
    return [{n: v for n, v in row.items() if n != "_version"} for row in rows]


COLUMNS = {"id": "int64", "a b": "text", "a_b": "text", "x,{y}": "int32", " deleted": "text"}
ROWS = (["1", "one", "1", "11", "v"], ["2", "two", "2", "22", "w"])


def test_every_reader_reads_plain_names(tmp_path: Path) -> None:
    copied = Copied(tmp_path, deletion_vectors=False, partition_by={"*.*": ["x,{y}"]})
    copied.bring(COLUMNS, *ROWS)
    copied.bring(COLUMNS, ["2", "zwei", "2", "33", "w"])
    assert copied.rows() == [
        {"id": 1, "a_b": "1", "a_b_2": "one", "x__y_": 11, "_deleted_2": "v"},
        {"id": 2, "a_b": "2", "a_b_2": "zwei", "x__y_": 33, "_deleted_2": "w"},
    ]
    assert by_pyarrow(copied) == copied.rows()
    assert copied.table.columns().names == [*COLUMNS, "_version"], "we use the source's"
    assert copied.table.metadata.partition_columns == ("x__y_",)
    assert copied.table.layout_columns() == ("x,{y}",)
    notes = {each["name"]: each["metadata"] for each in copied.table.metadata.schema["fields"]}
    assert notes["a_b_2"] == {SOURCE_NAME: "a b", "comment": "in the source: a b"}
    assert notes["a_b"] == {}


def test_rows_are_found_by_a_key_of_such_a_name(tmp_path: Path) -> None:
    """Also in a file's statistics, and for clusters."""
    copied = Copied(tmp_path, cluster_by={"*.*": ["a b", "v;"]})
    columns = {"a b": "int64", "v;": "text"}
    copied.bring(columns, ["1", "one"], ["2", "two"], key="a b")
    copied.bring(columns, ["2", "zwei"], key="a b")
    assert copied.rows("a_b") == [{"a_b": 1, "v_": "one"}, {"a_b": 2, "v_": "zwei"}]
    statistics = "delta.dataSkippingStatsColumns"
    assert copied.table.metadata.configuration[statistics] == "`a_b`,`v_`,`_version`"
    assert copied.table.files().layout.statistics == ("a b", "v;", "_version")
    assert '"clusteringColumns":[["a_b"],["v_"]]' in copied.table.state.domains["delta.clustering"]
    parts = file_rows(copied.table.files(), ["v;", "a b"], ("2", "2"))  # as verify reads them
    rows = [row for part in parts for batch in part.batches() for row in batch.to_pylist()]
    assert {"v;": "zwei", "a b": 2} in rows


def test_a_name_stays_whatever_columns_come_and_go(tmp_path: Path) -> None:
    """A column that is not the same one never shows values of the other."""
    copied = Copied(tmp_path, deletion_vectors=False)
    copied.bring({"id": "int64", "a b": "int32"}, ["1", "1"])
    copied.bring({"id": "int64", "a b": "int32", "a_b": "text"}, ["2", "2", "two"])
    assert copied.rows() == [
        {"id": 1, "a_b": 1, "a_b_2": None},
        {"id": 2, "a_b": 2, "a_b_2": "two"},
    ]
    copied.bring({"id": "int64", "a_b": "text"}, ["3", "three"])
    copied.bring({"id": "int64", "a b": "int32", "a_b": "text", "A;B": "text"}, ["4"] * 4)
    assert copied.rows() == [
        {"id": 1, "a_b": None, "a_b_2": None, "A_B_3": None},
        {"id": 2, "a_b": None, "a_b_2": "two", "A_B_3": None},
        {"id": 3, "a_b": None, "a_b_2": "three", "A_B_3": None},
        {"id": 4, "a_b": 4, "a_b_2": "4", "A_B_3": "4"},
    ]
    assert by_pyarrow(copied) == copied.rows()


def test_a_renamed_column_is_another_one(tmp_path: Path) -> None:
    """Though its plain name is the same: its dump may not come."""
    copied = Copied(tmp_path)
    copied.bring({"id": "int64", "a b": "text"}, ["1", "one"])
    copied.bring({"id": "int64", "a_b": "text"}, ["2", "two"])
    assert copied.rows() == [
        {"id": 1, "a_b": "one", "a_b_2": None},
        {"id": 2, "a_b": None, "a_b_2": "two"},
    ]


def test_a_table_keeps_the_names_that_it_has(tmp_path: Path) -> None:
    """Whatever the option says later: only new columns follow it."""
    columns = {"id": "int64", "a b": "text"}
    exact, plain = Copied(tmp_path / "e", plain_names=False), Copied(tmp_path / "p")
    for each, name in (exact, "a b"), (plain, "a_b"):
        each.bring(columns, ["1", "one"])
        each.open(plain_names=each is exact)
        each.bring({**columns, "c d": "text"}, ["2", "two", "d"])
        assert each.table.columns().names == ["id", "a b", "_version", "c d"]
        assert each.rows() == [
            {"id": 1, name: "one", "c d": None},
            {"id": 2, name: "two", "c d": "d"},
        ]


def test_what_readers_do_not_read(tmp_path: Path) -> None:
    """As docs/outputs/delta.md says. A reader that has become better fails here: mend the page."""
    copied = Copied(tmp_path / "mapped", plain_names=False, deletion_vectors=False)
    copied.bring({"id": "int64", "a b": "text"}, ["1", "one"])
    assert by_pyarrow(copied) == [{"id": None, "a b": None}]
    assert copied.rows() == [{"id": 1, "a b": "one"}]
    copied = Copied(tmp_path / "parts", plain_names=False, partition_by={"*.*": ["p"]})
    copied.bring({"id": "int64", "p": "text", "a b": "text"}, ["1", "part", "one"])
    for read, part in (by_delta_rs, "part"), (by_duckdb, None):
        assert [row["p"] for row in rows_of(read(copied.path))] == [part]
    copied = Copied(tmp_path / "vectors")
    copied.bring({"id": "int64"}, ["1"])
    with pytest.raises(deltalake.exceptions.DeltaProtocolError, match="deletionVectors"):
        by_pyarrow(copied)
    assert copied.rows() == [{"id": 1}]
    copied = Copied(tmp_path / "widened", deletion_vectors=False)
    copied.bring({"id": "int32"}, ["1"])
    assert by_pyarrow(copied) == [{"id": 1}]
    copied.bring({"id": "int64"}, ["2"])
    with pytest.raises(deltalake.exceptions.DeltaProtocolError, match="typeWidening"):
        by_pyarrow(copied)
    with pytest.raises(deltalake.exceptions.DeltaError, match="TypeWidening"):
        by_delta_rs(copied.path)
    assert [row["id"] for row in by_duckdb(copied.path).to_pylist()] == [1, 2]
