"""Table names keep apart what dots and quotes could confuse."""

from __future__ import annotations

import itertools
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import NameRefusedError
from tidelog.model.patterns import (
    check_pattern,
    matches,
    matching_columns,
    pattern_of,
    similar_table,
)
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.outputs.base.left_out import rename_step
from tidelog.ports import SourceId
from tidelog.spark.transforms import target_table

part = st.text(st.sampled_from('ab."*é\n'), min_size=1, max_size=5)
table = st.builds(TableName, part, part)


@given(table, table)
def test_no_two_tables_are_spelled_alike(one: TableName, other: TableName) -> None:
    assert TableName.parse(str(one)) == one
    assert (str(one) == str(other)) == (one == other)


@given(table)
def test_patterns_take_a_name_as_it_is_and_as_it_is_spelled(name: TableName) -> None:
    assert matches([str(name)], name)
    assert matches([f"{name.namespace}.{name.name}"], name)


odd = st.text(st.sampled_from("aÜ.,\"'`!-%()|\\^$ {}"), min_size=1, max_size=8)


@given(st.builds(TableName, odd, odd), st.builds(TableName, odd, odd))
def test_a_pattern_that_we_print_is_accepted_and_selects_that_table(
    name: TableName, other: TableName
) -> None:
    pattern = pattern_of(name)
    assert check_pattern(pattern) == pattern
    assert matches([pattern], name)
    if "*" not in pattern and "." not in name.namespace + other.namespace:
        assert matches([pattern], other) == (name == other)
    step = yaml.safe_load(rename_step(name, "v").partition("step: ")[2])
    assert step["tables"] == [pattern]


def test_advice_about_quotes_names_the_same_table() -> None:
    name = TableName("public", 'Bestell "Übersicht"')
    assert check_pattern(str(name)) == pattern_of(name) == 'public.Bestell "Übersicht"'
    for sql in ('public."Bestell ""Übersicht"""', '"public"."Bestell ""Übersicht"""'):
        with pytest.raises(ValueError, match=r'leave out the quotes.*: public.Bestell "Über'):
            check_pattern(sql)


def test_columns_with_names_of_ours_are_refused_with_patterns_that_exclude_them() -> None:
    name = TableName("public", 'it\'s "mine"')
    columns = ("id", "_tidelog_version", "_TIDELOG_Op")
    typed = tuple(Column(each, 23, -1, "integer", "int32") for each in columns)
    schema = TableSchema(name, 1, typed, ("id",), ("id",), "d", "pgoutput")
    with pytest.raises(NameRefusedError, match="no step can rename") as raised:
        target_table(None, schema, (), SourceId("", "", ""), keyed=True)  # type: ignore[arg-type]
    patterns = yaml.safe_load(str(raised.value).partition("exclude_columns: ")[2])
    assert matching_columns(patterns, name, columns) == columns[1:]


@pytest.mark.parametrize("text", ["", "orders", ".orders", "public.", '"a.b"', '"a.b".'])
def test_what_names_no_table_is_refused(text: str) -> None:
    if text in ('"a.b"', '"a.b".'):  # an odd name, split at its first dot
        text = text.replace(".", "")
    with pytest.raises(ValueError, match=r"namespace\.name"):
        TableName.parse(text)


@given(
    st.lists(st.sampled_from("*a."), min_size=1, max_size=8).map("".join),
    st.lists(st.sampled_from("ab."), max_size=8).map("".join),
)
def test_a_star_stands_for_any_text(pattern: str, name: str) -> None:
    expression = ".*".join(re.escape(piece) for piece in pattern.split("*"))
    expected = re.fullmatch(expression, name) is not None
    assert matches([f"n.{pattern}"], TableName("n", name)) == expected


def test_many_stars_take_no_longer_than_few() -> None:
    """As a regular expression this would take longer than anyone waits."""
    assert not matches(["*a" * 30 + "*b.*"], TableName("a" * 63, "t"))


def test_a_pattern_without_a_table_leads_to_one_of_almost_its_name() -> None:
    known = [TableName("public", name) for name in ("users", "Orders", "a")]
    for pattern, meant in (
        ("public.Users", "public.users"),
        ("!public.orders", "!public.Orders"),
        ("public.usrs", "public.users"),
    ):
        assert similar_table(pattern, known) == f"did you mean {meant}?"
    for pattern in ("public.nothing", "PUBLIC.user*", "!PUBLIC.user*"):
        assert similar_table(pattern, known) == ""


def test_the_table_of_almost_the_name_is_found_among_ten_thousand() -> None:
    words = ("customer", "order", "line", "item", "invoice", "payment", "price", "account")
    names = ["_".join(parts) for parts in itertools.product(words, words, words)]
    known = [TableName("public", f"{names[i % len(names)]}_{i}") for i in range(10_000)]
    found = similar_table("public.custmer_customer_order_1", known)
    assert found == "did you mean public.customer_customer_order_1?"
