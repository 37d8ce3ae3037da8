"""A destination loses copies or rows: they are dumped again, whether or not rows come."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.behaviours.outputs.database_tables import database_destination, server
from tests.behaviours.outputs.destinations import Context, Destination, kinds, make
from tests.support.build_log import BuiltLog

from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.outputs.database.postgres import Postgres
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.spark.pipeline import LoopOptions, run_output_loops

pytestmark = pytest.mark.spark

DROPPABLE = ("delta", "iceberg", "mysql", "opensearch", "postgres")
COLUMNS = {"id": "int64", "v": "text"}


@pytest.fixture(
    params=[
        pytest.param(kind, marks=pytest.mark.thorough) if kind == "mysql" else kind
        for kind in DROPPABLE
        if kind in kinds()
    ]
)
def destination(
    request: pytest.FixtureRequest, spark: Any, built: BuiltLog, tmp_path: Path
) -> Destination:
    return make(request.param, Context(spark, built, tmp_path))


def run(destination: Destination, spark: Any, built: BuiltLog, **how: Any) -> list[str]:
    """Deliver what is new; the tables of which dumps are requested."""
    output, asked = destination.open(), list[str]()

    def ask(_output: str, tables: Sequence[str]) -> None:
        asked.extend(tables)

    try:
        run_output_loops(spark, built.path, [output], LoopOptions(once=True, ask=ask, **how))
    finally:
        output.close()
    return asked


def test_a_dropped_copy_is_dumped_again(
    destination: Destination, spark: Any, built: BuiltLog
) -> None:
    dropped, other = (
        built.table(f"public.{name}", COLUMNS, relation_id=number)
        for number, name in enumerate(("dropped", "other"), 1)
    )
    for key in ("1", "2"):
        built.insert(dropped, key, "first")
        built.insert(other, key, "first")
    built.flush()
    assert run(destination, spark, built) == []
    assert destination.drop is not None
    destination.drop("public.dropped")
    built.insert(dropped, "3", "new")
    built.flush()
    assert run(destination, spark, built) == ["public.dropped"]
    assert run(destination, spark, built) == []
    first = built.dump_started("public.dropped").first
    built.chunk(dropped, [("1", "first"), ("2", "first"), ("3", "new")])
    built.dump_completed("public.dropped", first)
    assert run(destination, spark, built) == []
    for table, keys in (("dropped", [1, 2, 3]), ("other", [1, 2])):
        assert [row["id"] for row in destination.rows(f"public.{table}")] == keys


def test_a_copy_is_dumped_again_whose_rows_the_log_has_no_more(
    destination: Destination, spark: Any, built: BuiltLog
) -> None:
    tables = [
        built.table(f"public.{name}", COLUMNS, relation_id=number)
        for number, name in enumerate(("dropped", "gone", "other"), 1)
    ]
    for table in tables:
        built.insert(table, "1", "first")
    built.flush()
    run(destination, spark, built)
    built.insert(tables[-1], "2", "second")
    built.flush()
    built.control({"type": "nothing"})
    run(destination, spark, built)
    EventLogMaintenance(built.path).retain(0, now_ms=4_000_000_000_000)
    assert not any("public.dropped" in each.rows_by_table for each in built.log.chain().segments)
    assert Consumers(built.log.storage).all()
    assert destination.drop is not None
    for name in ("dropped", "gone"):
        destination.drop(f"public.{name}")
    captured = ["public.dropped", "public.other"]
    found = run(destination, spark, built, captured=lambda: captured)
    assert found == ["public.dropped"], "the source has no table gone any more"
    assert run(destination, spark, built, captured=lambda: captured) == []


@pytest.mark.parametrize("more", [0, 1])
def test_all_copies_are_dumped_again_in_a_database_that_is_restored_from_a_backup(
    more: int, spark: Any, built: BuiltLog, tmp_path: Path
) -> None:
    def sql(statement: str) -> None:
        server("postgres").execute(statement)

    name, backup = f"restored_{more}", f"backup_{more}"
    place = Postgres(server("postgres").create_database(name))
    context = Context(spark, built, tmp_path)
    destination = database_destination(context, "postgres", place=place)
    table = built.table("public.t", COLUMNS)
    built.insert(table, "1", "before")
    built.flush()
    assert run(destination, spark, built) == []
    sql(f"CREATE DATABASE {backup} TEMPLATE {name}")
    built.insert(table, "2", "lost")
    built.flush()
    assert run(destination, spark, built) == []
    sql(f"DROP DATABASE {name} WITH (FORCE)")
    sql(f"ALTER DATABASE {backup} RENAME TO {name}")
    for number in range(more):
        built.insert(table, str(number + 3), "after")
        built.flush()
    assert run(destination, spark, built) == ["public.t"]
    assert run(destination, spark, built) == []
    first = built.dump_started("public.t").first
    built.chunk(table, [("1", "before"), ("2", "lost"), *[("3", "after")] * more])
    built.dump_completed("public.t", first)
    assert run(destination, spark, built) == []
    assert [row["id"] for row in destination.rows("public.t")] == [1, 2, 3][: 2 + more]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_copy_that_is_dropped_while_the_output_runs_is_dumped_again(
    kind: str, spark: Any, built: BuiltLog, tmp_path: Path
) -> None:
    """A database refuses its rows then, and the table is left out until it is dumped again."""
    destination = make(kind, Context(spark, built, tmp_path))
    output: Any = destination.open()
    assert destination.drop is not None
    table, asked, start = built.table("public.t", COLUMNS), list[str](), built.log.head_offset
    output.prepare(built.log.generation)
    output.take_again(asked.extend)
    for number in ("1", "2", "3"):
        built.insert(table, number, "x")
        end = built.flush().next
        output.write(batch_of(built.log, start, end))
        start = end
        if number == "1":
            destination.drop("public.t")
    output.close()
    assert asked == ["public.t"]
    assert [row["id"] for row in destination.rows("public.t")] == [2, 3]
