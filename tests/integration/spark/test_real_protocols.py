"""Tables that Spark gave what we do not write: each is left out by the feature's name, and is
written again once the user does what the message says.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import pytest
from tests.integration.spark.conftest import Lake
from tests.integration.spark.test_lake_refusals import COLUMNS, bring, opened, place_of
from tests.support.build_log import BuiltLog
from tests.support.delta_readers import by_duckdb

from tidelog.outputs.lake.table import GENERATION_PROPERTY

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class Asking:
    """``sql`` makes the table ask for more, ``undo`` is the way on; empty: ``sql`` creates the
    table anew, and the way on is to move it away.
    """

    why: str
    sql: tuple[str, ...]
    undo: tuple[str, ...] = ()


REPLACED = (
    "CREATE TABLE {} (id BIGINT, v STRING, n INT, _version BIGINT, g BIGINT GENERATED "
    "%s) USING delta TBLPROPERTIES ('" + GENERATION_PROPERTY + "' = '{generation}')"
)
TABLES = {
    "public.checked": Asking(
        "the CHECK constraint positive",
        ("ALTER TABLE {} ADD CONSTRAINT positive CHECK (id > 0)",),
        ("ALTER TABLE {} DROP CONSTRAINT positive",),
    ),
    "public.tracked": Asking(
        "the feature rowTracking",
        ("ALTER TABLE {} SET TBLPROPERTIES (delta.enableRowTracking = true)",),
        ("ALTER TABLE {} DROP FEATURE rowTracking",),
    ),
    "public.defaulted": Asking(
        "a default (ALTER COLUMN … DROP DEFAULT) of column v",
        (
            "ALTER TABLE {} SET TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')",
            "ALTER TABLE {} ALTER COLUMN v SET DEFAULT 'none'",
        ),
        ("ALTER TABLE {} ALTER COLUMN v DROP DEFAULT",),
    ),
    "public.generated": Asking(
        "a generation expression of column g", (REPLACED % "ALWAYS AS (id * 2)",)
    ),
    "public.numbered": Asking("IDENTITY of column g", (REPLACED % "ALWAYS AS IDENTITY",)),
}


def test_a_table_that_spark_gave_what_is_not_written_is_left_out_alone(
    lake: Lake, built: BuiltLog
) -> None:
    names = [*TABLES, "public.well"]
    tables = {n: built.table(n, COLUMNS, relation_id=at) for at, n in enumerate(names, 1)}
    for table in tables.values():
        built.insert(table, "1", "a", "1")
    built.flush()
    with opened(lake, {}) as (output, _):
        bring(output, built)
    for name, each in TABLES.items():
        if not each.undo:
            shutil.rmtree(place_of(lake, name))
    run(lake, {name: each.sql for name, each in TABLES.items()})
    for table in tables.values():
        built.insert(table, "2", "b", "2")
    built.flush()
    with opened(lake, {}) as (output, _):
        bring(output, built)
        told = output.left_out_tables()
    assert told.keys() == TABLES.keys()
    for name, each in TABLES.items():
        assert f"uses {each.why}, which Tidelog does not support. " in told[name]
        assert "Remove it" in told[name]
        assert "or move the table away and dump it again" in told[name]
    assert by_duckdb(str(place_of(lake, "public.well"))).num_rows == 2
    run(lake, {name: each.undo for name, each in TABLES.items()})
    for name, each in TABLES.items():
        if not each.undo:
            shutil.rmtree(place_of(lake, name))
    with opened(lake, {}) as (output, asked):
        assert sorted(asked) == sorted(TABLES)
        for name in TABLES:
            first = built.dump_started(name).first
            built.chunk(tables[name], [["1", "a", "1"], ["2", "b", "2"]])
            built.dump_completed(name, first)
        bring(output, built)
        assert output.left_out_tables() == {}
    for name in TABLES:
        rows = by_duckdb(str(place_of(lake, name)))
        assert rows.select(["id", "v"]).to_pylist() == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]


def run(lake: Lake, statements: dict[str, tuple[str, ...]]) -> None:
    generation = lake.built.log.generation
    for name, each in statements.items():
        for statement in each:
            lake.spark.sql(statement.format(lake.name(name), generation=generation))
