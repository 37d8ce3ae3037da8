"""A copy's change data feed, as Spark and delta-rs read it: each version's changes lead from the
rows before to those after, and are of the right types.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.integration.spark.conftest import Lake
from tests.integration.spark.random_table import SEED, RandomTable, Shape, comparable
from tests.support.build_log import BuiltLog

from tidelog.outputs.lake import output as lake_module
from tidelog.outputs.lake.delta.table import path_of

pytestmark = pytest.mark.spark

SHAPE = Shape({"a": "text", "b": "decimal(9,2)"}, widens=False)
"""Spark reads no feed across a widened column."""

Row = tuple[tuple[str, Any], ...]
Changes = Counter[tuple[str, Row]]
"""Types and rows."""


def change(source: RandomTable) -> None:
    """Partial rows are among these."""
    source.change()


def forget(source: RandomTable) -> None:
    """Rows go without a record in the log: only the end of a dump removes them."""
    for key in source.rng.sample(list(source.rows), len(source.rows) // 3):
        del source.rows[key]
    source.dump()


def truncate(source: RandomTable) -> None:
    source.built.truncate(source.schema)
    source.rows.clear()
    source.change()


def change_columns(source: RandomTable) -> None:
    """The third time one comes back that was dropped: its values become null."""
    source.change_columns()


STEPS: Sequence[Callable[[RandomTable], None]] = (
    change, forget, change_columns, truncate, change_columns, forget, change_columns, truncate,
)  # fmt: skip


def bring(
    lake: Lake, source: RandomTable, monkeypatch: pytest.MonkeyPatch, *options: dict[str, Any]
) -> None:
    """Turn the feed on, then bring batches over, each by one task or by several: half of them with
    each of the options.
    """
    monkeypatch.setattr("tidelog.outputs.lake.table.FILES_OF_A_TIER", 2)
    source.change()
    lake.run(output=lake.output(options=lake.options(**options[0])))
    name = lake.name(str(SHAPE.table))
    lake.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    for number, step in enumerate(STEPS):
        limit = 300 if number % 2 else 1 << 20
        monkeypatch.setattr(lake_module, "_PART_BYTES", limit)
        monkeypatch.setattr(lake_module, "_HISTORY_BYTES", limit)
        step(source)
        source.change()
        chosen = options[number * len(options) // len(STEPS)]
        lake.run(output=lake.output(options=lake.options(**chosen)))


def row_of(values: Mapping[str, Any]) -> Row:
    """Without nulls: an older version of the table may not have the column."""
    return tuple(
        (name, comparable(value))
        for name, value in sorted(values.items())
        if value is not None and not name.startswith(("_change_", "_commit_"))
    )


def rows_at(place: str, version: int, key: Sequence[str]) -> dict[tuple[Any, ...], Row]:
    table = QueryBuilder().register("t", DeltaTable(place, version=version))
    rows = pa.table(table.execute("SELECT * FROM t").read_all()).to_pylist()
    found = {tuple(row[name] for name in key): row_of(row) for row in rows}
    assert len(found) == len(rows)
    return found


def wanted(before: Mapping[Any, Row], after: Mapping[Any, Row]) -> Changes:
    found: Changes = Counter()
    for key in before.keys() | after.keys():
        if key not in before:
            found["insert", after[key]] += 1
        elif key not in after:
            found["delete", before[key]] += 1
        elif before[key] != after[key]:
            found["update_preimage", before[key]] += 1
            found["update_postimage", after[key]] += 1
    return found


def feed_of(rows: pa.Table) -> dict[int, Changes]:
    """By version."""
    found: dict[int, Changes] = defaultdict(Counter)
    for row in rows.to_pylist():
        found[row["_commit_version"]][row["_change_type"], row_of(row)] += 1
    return found


@pytest.mark.parametrize("holds", ["copy", "history"])
def test_the_feed_of_each_version_leads_to_its_rows(
    lake: Lake, built: BuiltLog, monkeypatch: pytest.MonkeyPatch, holds: str
) -> None:
    """Of a copy with soft deletes, and with hard ones later."""
    source = RandomTable(built, SHAPE, random.Random(SEED))
    if holds == "copy":
        bring(lake, source, monkeypatch, {"soft_deletes": True}, {"soft_deletes": False})
    else:
        bring(lake, source, monkeypatch, {"holds": {"*.*": holds}})
    place = path_of(lake.path, SHAPE.table, str(SHAPE.table))
    first = 2  # the ALTER TABLE
    reader = lake.spark.read.format("delta").option("readChangeFeed", "true")
    by_spark = feed_of(reader.option("startingVersion", first).load(place).toArrow())
    by_delta_rs = feed_of(pa.table(DeltaTable(place).load_cdf(first).read_all()))
    key = [*SHAPE.key, *(["_valid_from_version"] if holds == "history" else [])]
    operations = {each["version"]: each["operation"] for each in DeltaTable(place).history()}
    rows, kinds = rows_at(place, first - 1, key), set[str]()
    for version in range(first, len(operations)):
        before, rows = rows, rows_at(place, version, key)
        told = f"version {version}, {operations[version]}, seed {SEED}"
        assert by_spark[version] == wanted(before, rows), told
        assert by_delta_rs[version] == by_spark[version], told
        kinds |= {kind for kind, _ in by_spark[version]}
    of_copy = {"delete"} if holds == "copy" else set[str]()
    wrote = {"MERGE", "OPTIMIZE", "UPDATE"} | {kind.upper() for kind in of_copy}
    assert wrote <= set(operations.values())
    assert kinds == {"insert", "update_preimage", "update_postimage"} | of_copy
