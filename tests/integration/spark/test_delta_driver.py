"""Others alter a Delta copy, remove it or make another while its pipeline runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.integration.spark.conftest import Lake
from tests.integration.spark.orders import COLUMNS, orders
from tests.support.build_log import BuiltLog
from tests.support.delta_readers import by_duckdb

from tidelog.errors import OutputBusyError, TableLeftOutError
from tidelog.model.schema import TableName
from tidelog.outputs.lake import output as output_module
from tidelog.outputs.lake.delta.options import DeltaLayout
from tidelog.outputs.lake.delta.output import DeltaOutput
from tidelog.outputs.lake.delta.table import DeltaTable, path_of
from tidelog.outputs.lake.delta_log.commits import CommitWriter
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.system import failpoints

pytestmark = pytest.mark.spark

NAME = "public.orders"


def place_of(lake: Lake) -> str:
    return path_of(lake.path, TableName.parse(NAME), NAME)


def bring(output: DeltaOutput, built: BuiltLog) -> None:
    """All of the log; what is there is skipped."""
    output.write(batch_of(built.log, 0, built.log.latest_offset()))


def drop_column(lake: Lake, name: str) -> None:
    """As other writers do: the column's values stay in the files."""
    table = DeltaTable(place_of(lake), DeltaLayout(), lambda works: [])
    assert table.exists()
    fields = [each for each in table.metadata.schema["fields"] if each["name"] != name]
    metadata = replace(table.metadata, schema={**table.metadata.schema, "fields": fields})
    CommitWriter(table.store).commit(
        table.state,
        [{"metaData": metadata.to_json()}],
        operation="DROP COLUMNS",
        parameters={},
        note=None,
    )


def test_a_copy_that_somebody_removed_amid_a_batch_is_recreated(
    lake: Lake, built: BuiltLog
) -> None:
    orders(built)
    output = lake.output()
    with (
        failpoints.arm({"lake.table.write": lambda: shutil.rmtree(place_of(lake))}),
        pytest.raises(OutputBusyError, match="was removed while a batch was written"),
    ):
        bring(output, built)
    bring(output, built)
    output.close()
    assert by_duckdb(place_of(lake)).column("id").to_pylist() == [0, 1, 2, 3]


def test_a_table_of_somebody_else_in_a_copys_place_is_refused_amid_a_run(
    lake: Lake, built: BuiltLog
) -> None:
    table = orders(built)
    output = lake.output()
    bring(output, built)
    shutil.rmtree(place_of(lake))
    write_deltalake(place_of(lake), pa.table({"id": [1]}))
    built.insert(table, "9", "n9", None)
    built.flush()
    with pytest.raises(TableLeftOutError, match="Tidelog did not create"):
        bring(output, built)
    output.close()


def test_a_table_of_somebody_else_in_a_copys_place_stops_that_copy_alone(
    lake: Lake, built: BuiltLog
) -> None:
    """And once it is moved away, the copy is made, and a dump of it requested."""
    orders(built)
    other = built.table("public.other", {"id": "int64"}, relation_id=2)
    built.insert(other, "1")
    built.flush()
    write_deltalake(place_of(lake), pa.table({"id": [1]}))
    beside = path_of(lake.path, other.table, "public.other")
    output = lake.output(state=lake.kept())
    output.prepare(built.log.generation)
    bring(output, built)
    assert "did not create" in output.left_out_tables()["public.orders"]
    assert by_duckdb(beside).num_rows == 1
    shutil.rmtree(place_of(lake))
    asked: list[str] = []
    output.take_again(asked.extend)
    assert asked == ["public.orders"]
    output.close()


@pytest.mark.parametrize("amid", [False, True])
def test_a_column_that_somebody_dropped_is_added_again(
    lake: Lake, built: BuiltLog, amid: bool
) -> None:
    table = orders(built)
    output = lake.output()
    bring(output, built)
    built.insert(table, "9", "n9", "2")
    built.flush()
    hits = [lambda: drop_column(lake, "name")]
    if amid:
        with failpoints.arm({"lake.table.write": lambda: hits.pop()() if hits else None}):
            bring(output, built)
    else:
        hits.pop()()
        bring(output, built)
    output.close()
    rows = by_duckdb(place_of(lake)).to_pylist()
    assert {*COLUMNS} < {*rows[0]}
    assert [row["name"] for row in rows if row["id"] == 9] == ["n9"]


def test_the_last_of_several_tries_counts(
    lake: Lake, built: BuiltLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = orders(built)
    output = lake.output()
    bring(output, built)
    built.insert(table, "9", "n9", "2")
    built.flush()
    monkeypatch.setattr(output_module, "COMMIT_TRIES", 2)
    hits = [lambda: drop_column(lake, "name")]
    with failpoints.arm({"lake.table.write": lambda: hits.pop()() if hits else None}):
        bring(output, built)
    output.close()
    assert by_duckdb(place_of(lake)).num_rows == 5


@pytest.fixture
def cores_come(spark: Any) -> Iterator[Callable[[int], None]]:
    """As executors do; as Spark asks for them."""
    conf = spark.sparkContext._jsc.sc().conf()
    before = conf.get("spark.default.parallelism")
    yield lambda cores: conf.set("spark.default.parallelism", str(cores))
    conf.set("spark.default.parallelism", before)


def test_cores_that_come_later_get_tasks(
    lake: Lake, built: BuiltLog, spark: Any, cores_come: Callable[[int], None]
) -> None:
    for number in range(5):
        table = built.table(f"public.t{number}", {"id": "int64"}, relation_id=number + 1)
        built.insert(table, "1")
    built.flush()
    output = lake.output()
    cores_come(5)
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    try:
        bring(output, built)
    finally:
        output.close()
    jobs = [tracker.getJobInfo(job) for job in set(tracker.getJobIdsForGroup()) - before]
    stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
    assert max(stage.numTasks for stage in stages) == 5
