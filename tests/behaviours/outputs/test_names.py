"""Names at every kind of output: held exactly, each table by itself, or that table is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.behaviours.outputs.destinations import Destination
from tests.support.build_log import BuiltLog

from tidelog.model.schema import TableName, TableSchema
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.spark.transforms import Step

pytestmark = pytest.mark.spark

COLUMNS = {"id": "int64", "v": "text"}
PLAIN = [("public", "t"), ("a.b", "c"), ("a", "b.c")]
TWINS = [("public", "T"), ("public", "t")]
ODD = [
    ("public", ".."), ("public", "a/b"), ("public", "a%2Fb"), ("public", "order"),
    ("public", "100%s"),
    ("public", "with space"), ("public", "with_space"), ("public", "ünï"), ("public", "it's"),
    ("public", "_hidden"), ("public", "a*b{c}?"), ("public", "x" * 63), ("public", "ш" * 31),
]  # fmt: skip


def tables_of(built: BuiltLog, names: list[tuple[str, str]]) -> dict[str, TableSchema]:
    """A row in each, whose value is the table's name."""
    found = {}
    for number, (namespace, name) in enumerate(names):
        table = built.table(TableName(namespace, name), COLUMNS, relation_id=number + 1)
        found[str(table.table)] = table
        built.insert(table, "1", str(table.table))
    built.flush()
    return found


def bring(destination: Destination, built: BuiltLog, **how: Any) -> tuple[dict[str, str], set[str]]:
    """Bring over what is new: the tables that are refused, and those that dumps are asked for."""
    output: Any = destination.open(**how)
    asked: set[str] = set()
    try:
        output.prepare(built.log.generation)
        output.take_again(asked.update)
        output.write(batch_of(built.log, built.log.head_offset, built.log.latest_offset()))
        return dict(output.left_out_tables()), asked
    finally:
        output.close()


def check_rows(destination: Destination, tables: set[str]) -> None:
    for table in sorted(tables):
        assert destination.rows(table) == [{"id": 1, "v": table}], table


def check_each_is_whole_or_refused(
    destination: Destination, built: BuiltLog, names: list[tuple[str, str]]
) -> None:
    tables = tables_of(built, names)
    refused, _ = bring(destination, built)
    assert refused.keys() < tables.keys()
    for table, why in refused.items():
        named = "tables: ['" + table.replace("'", "''") + "']}"
        assert re.search(r"\{(route|rename): ", why), why
        assert named in why, why
    check_rows(destination, tables.keys() - refused.keys())
    # The configuration gives those names of their own, and they are dumped.
    steps = tuple(Step("route", f"other.t{n}", (table,)) for n, table in enumerate(sorted(refused)))
    if refused:
        _, asked = bring(destination, built, steps=steps)
        assert asked == refused.keys()
        for table in sorted(refused):
            first = built.dump_started(table).first
            built.chunk(tables[table], [["1", table]])
            built.dump_completed(table, first)
        assert bring(destination, built, steps=steps) == ({}, set())
        for n, table in enumerate(sorted(refused)):
            assert destination.rows(f"other.t{n}") == [{"id": 1, "v": table}]
        check_rows(destination, tables.keys() - refused.keys())


def test_each_table_is_whole_or_refused(destination: Destination, built: BuiltLog) -> None:
    dear = "no-delivery" in destination.traits  # a lake
    check_each_is_whole_or_refused(destination, built, PLAIN[1:] if dear else PLAIN + TWINS[:1])


@pytest.mark.thorough
def test_tables_that_differ_in_case_are_held_or_refused(
    destination: Destination, built: BuiltLog
) -> None:
    check_each_is_whole_or_refused(destination, built, TWINS)


@pytest.mark.thorough
def test_odd_names_are_held_or_refused(destination: Destination, built: BuiltLog) -> None:
    only = "ascii" in destination.traits
    check_each_is_whole_or_refused(
        destination, built, [each for each in ODD if each[1].isascii() or not only]
    )
