"""A table without a key, where rows are kept by key: it alone is left out, until it has one."""

from __future__ import annotations

from typing import Any

import pytest
from tests.behaviours.outputs.destinations import Destination
from tests.support.build_log import BuiltLog

from tidelog.spark.datasource.segment_rows import batch_of

pytestmark = pytest.mark.spark

AUDIT = "public.audit"


def bring(destination: Destination, built: BuiltLog, start: int) -> Any:
    """Bring over what is new since ``start``: tables without a key, and those that lack rows."""
    output: Any = destination.open()
    try:
        output.prepare(built.log.generation)
        output.take_again(lambda _tables: None)
        output.write(batch_of(built.log, start, built.log.latest_offset()))
        return dict(output.keyless_tables()), dict(output.left_out_tables())
    finally:
        output.close()


THOROUGH = ("iceberg", "mysql", "opensearch", "sqlite")


@pytest.mark.parametrize(
    "destination",
    ["delta", "postgres", *(pytest.param(kind, marks=pytest.mark.thorough) for kind in THOROUGH)],
    indirect=True,
)
def test_a_table_without_a_key_is_left_out_until_it_has_one(
    destination: Destination, built: BuiltLog
) -> None:
    orders = built.table("public.orders", {"id": "int64", "v": "text"})
    before = built.table(AUDIT, {"v": "text"}, (), relation_id=2)
    built.insert(orders, "1", "a")
    built.insert(before, "one")
    built.flush()
    start = built.log.head_offset
    keyless, lacking = bring(destination, built, start)
    assert destination.rows("public.orders") == [{"id": 1, "v": "a"}]
    assert not lacking, "nobody has to do anything"
    assert 'ALTER TABLE "public"."audit" ADD PRIMARY KEY (COLUMN, …), or' in keyless[AUDIT]
    assert "source.keys: {'public.audit': [COLUMN, …]}" in keyless[AUDIT]
    # It gets a key, in one batch with a record that has none yet, and is dumped.
    middle = built.log.latest_offset()
    built.insert(before, "two")
    built.flush()
    after = built.table(AUDIT, {"v": "text", "id": "int64"}, relation_id=2)
    first = built.dump_started(AUDIT).first
    built.insert(orders, "2", "b")
    built.flush()
    built.chunk(after, [["one", "1"], ["two", "2"]])
    built.dump_completed(AUDIT, first)
    built.insert(after, "three", "3")
    built.flush()
    assert bring(destination, built, middle) == ({}, {})
    assert destination.rows(AUDIT) == [
        {"v": "one", "id": 1}, {"v": "two", "id": 2}, {"v": "three", "id": 3}
    ]  # fmt: skip
    assert destination.rows("public.orders") == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]
